"""What an admitted frame may still bring: reserved at its limits, and charged as its bytes pass."""

from collections.abc import Mapping
from typing import Final, final

from quotas.admission.limit import Limit
from quotas.limit_kinds import PRODUCER_IDS_RATE, REQUEST_RATE

#: Limits whose amounts do not grow with the bytes of a frame.
_COUNTS_REQUESTS: Final = frozenset({REQUEST_RATE, PRODUCER_IDS_RATE})
_NS_PER_SECOND: Final = 1_000_000_000


@final
class Passage:
    """A frame under way, or an open fetch. Nothing that was charged is ever returned: what does not come was reserved.

    A limit is out of debt if it is so with all reservations. So in any time T at most rate * T + burst + one frame
    passes a token bucket, whatever stalls, resumes or ends.

    left         units of each limit that have not passed: reserved until `end`
    left_bytes   bytes of the frame that are still to pass
    is_reserved  whether `end` has not been called
    """

    __slots__ = ("is_reserved", "left", "left_bytes")

    def __init__(self, amounts: Mapping[Limit, int], size: int) -> None:
        """Reserve `amounts` for the next `size` bytes."""
        self.left_bytes = size
        self.left = dict(amounts)
        self.is_reserved = True
        for limit, amount in amounts.items():
            limit.reserved += amount

    def add(self, amounts: Mapping[Limit, int]) -> None:
        """Reserve more, for the bytes that are left: topics late in the frame."""
        left = self.left
        for limit, amount in amounts.items():
            left[limit] = left.get(limit, 0) + amount
            limit.reserved += amount

    def charge(self, limit: Limit, most: int, now_ns: int) -> None:
        """Charge at most these units of what is left, without bytes: those that they belong to have passed."""
        left = self.left.pop(limit, 0)
        part = min(most, left)
        if part:
            limit.reserved -= part
            limit.algorithm.record(part, now_ns)
        if left > part:
            self.left[limit] = left - part

    def passed(self, size: int, now_ns: int) -> None:
        """Charge each limit for `size` bytes that were forwarded, at most those left: their part of what is left,
        rounded down; all of it with the last byte.
        """
        left, left_bytes = self.left, self.left_bytes
        size = min(size, left_bytes)
        for limit, amount in left.items():
            part = amount * size // left_bytes if size < left_bytes else amount
            if part:
                left[limit] = amount - part
                limit.reserved -= part
                limit.algorithm.record(part, now_ns)
        self.left_bytes = left_bytes - size

    def end(self) -> None:
        """Release what is left; nothing passes with it from now on. What did not pass was not charged."""
        if self.is_reserved:
            self.is_reserved = False
            for limit, amount in self.left.items():
                limit.reserved -= amount


def earned(amounts: Mapping[Limit, int], size: int, span_ns: int) -> list[int]:
    """Of `size` bytes that are charged these amounts: how many each limit on bytes or records earns in this time."""
    return [
        int(limit.algorithm.rate * span_ns * size // (units * _NS_PER_SECOND))
        for limit, units in amounts.items()
        if units and limit.name not in _COUNTS_REQUESTS
    ]
