"""A sampled window that passes at most one window's worth at once: for new connections.

After an idle time a sampled window passes all its windows' worth at once: with Kafka's 11 windows, 500 connections pass
a limit of 100/s together if the first one of all came five seconds before. So a token bucket with the rate of the
window and a burst of one window (at least one unit) is charged as well, and the longer of the two waits applies.

In any time T at most rate * T + one window's worth + one charge passes, and a charge that finds no debt in either and
leaves none has no wait; otherwise see `sampled_window`. The examples of seed 000 are the same with and without the
bucket: within a new client's first windows the windows hold more, and 40/s for a second is within its burst.
"""

from fractions import Fraction

from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import TokenBucket
from quotas.time_units import NS_PER_SECOND


class PacedWindow(SampledWindow):
    """A `SampledWindow` with a token bucket before it. Only the methods that limits on connections call count in the
    bucket.
    """

    __slots__ = ("_bucket", "_window_ns")

    def __init__(self, rate: int | Fraction, *, samples: int, window_ns: int, first_window: bool) -> None:
        super().__init__(rate, samples=samples, window_ns=window_ns, first_window=first_window)
        self._window_ns = window_ns
        self._bucket = TokenBucket(rate, self._pace_ns(rate))

    def record(self, amount: int, now_ns: int) -> int:
        return max(super().record(amount, now_ns), self._bucket.record(amount, now_ns))

    def debt_ns(self, now_ns: int, more: int = 0) -> int:
        return max(super().debt_ns(now_ns, more), self._bucket.debt_ns(now_ns, more))

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        super().set_rate(rate, burst_ns, now_ns)
        self._bucket.set_rate(rate, self._pace_ns(rate), now_ns)

    def _pace_ns(self, rate: int | Fraction) -> int:
        """The burst of the bucket: one window, or the time of one unit if that is longer."""
        return max(self._window_ns, -(-NS_PER_SECOND * rate.denominator // rate.numerator))
