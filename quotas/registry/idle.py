"""Finds what has been idle for an hour at O(what is due for a look): each thing is looked at about once an hour.

Kafka's sensors of quotas expire after an hour too (`INACTIVE_SENSOR_EXPIRATION_TIME_SECONDS`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

IDLE_NS: Final = 3600 * 1_000_000_000
_SLOT_NS: Final = 60 * 1_000_000_000

T = TypeVar("T")


class Idle(Generic[T]):
    """Things to look at when they may have been idle for an hour, by the minute."""

    __slots__ = ("_due", "_new")

    def __init__(self) -> None:
        self._new: list[T] = []
        self._due: dict[int, list[T]] = {}

    def watch(self, thing: T) -> None:
        """Something new; it is looked at an hour after the next call of `due`."""
        self._new.append(thing)

    def check_at(self, thing: T, due_ns: int) -> None:
        """It was not idle, or may not go yet: look again then."""
        self._due.setdefault(due_ns // _SLOT_NS + 1, []).append(thing)

    def due(self, now_ns: int) -> Iterator[T]:
        """What is to be looked at now; the caller forgets it or says when to `check_at`."""
        for thing in self._new:
            self.check_at(thing, now_ns + IDLE_NS)
        self._new.clear()
        now_slot = now_ns // _SLOT_NS
        for slot in [slot for slot in self._due if slot <= now_slot]:  # at most 62 slots exist
            yield from self._due.pop(slot)
