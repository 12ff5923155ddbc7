"""The last minute: counters that only grow, as they were every ten seconds."""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

SNAPSHOT_NS: Final = 10_000_000_000
_KEPT: Final = 7
"""Snapshots: the last minute, and one before it."""
_LINE: Final = 60
"""Figures of a line: ten minutes."""


class Span(NamedTuple):
    """What was counted in a span that ends now. `seconds` is its length, above 0."""

    seconds: float
    counts: tuple[float, ...]


class Past:
    """The snapshots of some counters, always as many. `line`: between two snapshots, the first one per second, or per
    `per`, the place of another one; the latest last. Where there was nothing to divide by, it has no figure (NaN).
    """

    __slots__ = ("_per", "_snapshots", "line")

    def __init__(self, now_ns: int, counts: Sequence[float], per: int | None = None) -> None:
        self._per = per
        self._snapshots: deque[tuple[int, tuple[float, ...]]] = deque([(now_ns, tuple(counts))], maxlen=_KEPT)
        self.line = array("f")

    def add(self, now_ns: int, counts: Sequence[float]) -> None:
        """Take a snapshot."""
        before_ns, before = self._snapshots[-1]
        if now_ns > before_ns:
            per = self._per
            divisor = (now_ns - before_ns) / 1e9 if per is None else counts[per] - before[per]
            self.line.append((counts[0] - before[0]) / divisor if divisor else float("nan"))
            del self.line[:-_LINE]
            self._snapshots.append((now_ns, tuple(counts)))

    def last(self, seconds: float, now_ns: int, counts: Sequence[float]) -> Span:
        """What was counted in at least the last `seconds`, if there is a snapshot, and in at most ten seconds more."""
        since_ns, before = self._snapshots[0]
        for at_ns, snapshot in self._snapshots:
            if at_ns <= now_ns - seconds * 1e9:
                since_ns, before = at_ns, snapshot
        span = max(now_ns - since_ns, 1) / 1e9
        return Span(span, tuple(now - then for now, then in zip(counts, before, strict=True)))
