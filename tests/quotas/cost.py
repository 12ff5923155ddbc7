"""What an action costs, the same on any machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def calls_during(action: Callable[[], object]) -> int:
    """How many calls of Python functions it makes."""
    calls = 0

    def on_event(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(on_event)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls
