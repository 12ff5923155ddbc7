"""How even a rate was: the project's contract for "the limit holds in every second", as arithmetic.

Bytes of complete data frames are counted in bins of one second from the first data frame. The first bin holds the
burst and is left out, and so is the last, which is seldom whole. Each other bin holds when it is within 2 % of the
limit, or within one request per open data connection where that is more (the largest one after the first second); their
mean must be within 0.5 %.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BIN_NS = 1_000_000_000
BIN_TOLERANCE = 0.02
MEAN_TOLERANCE = 0.005
SHARE_THAT_MUST_HOLD = 0.99


@dataclass(frozen=True, slots=True)
class Evenness:
    """One run under one limit.

    limit: bytes per second; bins: bytes in each second, the first and the last one too; tolerance_bytes: how far a bin
    may be from the limit.
    """

    limit: float
    bins: tuple[int, ...]
    tolerance_bytes: float

    @property
    def judged(self) -> tuple[int, ...]:
        """The bins that count: all but the first and the last."""
        return self.bins[1:-1]

    @property
    def holding(self) -> tuple[bool, ...]:
        """For each judged bin whether it is close enough to the limit."""
        return tuple(abs(size - self.limit) <= self.tolerance_bytes for size in self.judged)

    @property
    def mean(self) -> float:
        """Bytes per second over the judged bins."""
        return sum(self.judged) / len(self.judged)

    @property
    def mean_error(self) -> float:
        """How far the mean is from the limit, as a share of it: -0.004 is 0.4 % below."""
        return self.mean / self.limit - 1

    @property
    def peak(self) -> int:
        """Bytes in the fullest of all seconds, the burst's too."""
        return max(self.bins)

    @property
    def mean_holds(self) -> bool:
        """Whether the mean is within 0.5 % of the limit."""
        return abs(self.mean_error) <= MEAN_TOLERANCE


def bins_per_second(frames: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Bytes in each second from the first frame on, empty seconds too. frames: (monotonic ns, bytes), in any order."""
    ordered = sorted(frames)
    if not ordered:
        return ()
    start = ordered[0][0]
    bins = [0] * ((ordered[-1][0] - start) // BIN_NS + 1)
    for time_ns, size in ordered:
        bins[(time_ns - start) // BIN_NS] += size
    return tuple(bins)


def measure(frames: Iterable[tuple[int, int]], limit: float, *, connections: int = 1) -> Evenness:
    """Measures one run. frames: (monotonic ns, bytes); limit: bytes per second; connections: open data connections.

    Raises ValueError when it lasted less than three seconds, which leaves nothing to judge.
    """
    seen = list(frames)
    bins = bins_per_second(seen)
    if len(bins) < 3:
        raise ValueError(f"a run of {len(bins)} seconds has no second between its first and its last")
    judged_from_ns = min(seen)[0] + BIN_NS
    largest_request = max((size for time_ns, size in seen if time_ns >= judged_from_ns), default=0)
    return Evenness(limit, bins, max(BIN_TOLERANCE * limit, largest_request * connections))


def share_holding(runs: Sequence[Evenness]) -> float:
    """The share of judged bins that hold, over all runs together."""
    holding = [holds for run in runs for holds in run.holding]
    return sum(holding) / len(holding)


def holds(runs: Sequence[Evenness]) -> bool:
    """The contract over several runs (three, where an issue asks for it): 99 % of bins hold, and every mean does."""
    return share_holding(runs) >= SHARE_THAT_MUST_HOLD and all(run.mean_holds for run in runs)
