"""What an action costs, the same on any machine."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


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
