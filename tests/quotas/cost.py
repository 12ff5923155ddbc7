"""What an action costs, the same on any machine."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_during(action: Callable[[], object]) -> int:
    """How many calls of Python functions it makes; not those that a garbage collection in between would add."""
    calls = 0

    def on_event(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    gc.collect()
    gc.disable()
    sys.setprofile(on_event)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


class CountedName(str):
    """A name that `calls_during` counts: once for each time that it is hashed or cut."""

    __slots__ = ()

    def __hash__(self) -> int:
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def __getitem__(self, key: Any) -> str:
        return super().__getitem__(key)
