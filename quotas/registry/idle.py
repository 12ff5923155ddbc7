"""Finds items that were idle for an hour, in O(items due): each item is checked about once an hour.

Kafka's quota sensors expire after an hour too (`INACTIVE_SENSOR_EXPIRATION_TIME_SECONDS`).
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

IDLE_NS: Final = 3600 * 1_000_000_000
_SLOT_NS: Final = 60 * 1_000_000_000
_NEW: Final = -(1 << 63)

T = TypeVar("T")


class Idle(Generic[T]):
    """Items, hashable, by the minute of their next check."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[int, dict[T, None]] = {}  # at most 62 slots

    def watch(self, item: T) -> None:
        """Add a new item; its first check is an hour after the next call of `due`."""
        self._put(item, _NEW)

    def check_at(self, item: T, due_ns: int) -> None:
        """Check the item again at `due_ns`."""
        self._put(item, due_ns // _SLOT_NS + 1)

    def discard(self, item: T) -> None:
        """Stop keeping this item, if it is kept. O(slots), because remembering the slot of each item would take more
        memory than its limit's level.
        """
        for items in self._due.values():
            if item in items:
                del items[item]
                return

    def due(self, now_ns: int) -> Iterator[T]:
        """The items to check now. They are removed here: to keep one, the caller calls `check_at`."""
        for item in self._due.pop(_NEW, ()):
            self.check_at(item, now_ns + IDLE_NS)
        now_slot = now_ns // _SLOT_NS
        for slot in [slot for slot in self._due if slot <= now_slot]:
            yield from self._due.pop(slot)

    def _put(self, item: T, slot: int) -> None:
        self._due.setdefault(slot, {})[item] = None
