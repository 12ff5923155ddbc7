"""The one-minute rate of seed 004: an exponentially weighted mean, ticked every five seconds as Yammer's Meter does it.

At each tick the mean moves by ALPHA = 1 - exp(-5/60) towards the rate of the five seconds that end there; the first
tick takes that rate as it is. Between two ticks the mean stands still. There are no timers: ticks that nobody saw pass
are made up for when somebody asks. The first of them takes in what was recorded, and n more without a record multiply
the mean by exp(-n/12), so that ten idle years cost as much as one second.

A `Meter` ticks from its first record on, not from its making: an entity is new when it is first heard of.

What `Ewma` guarantees, and what it does not. It does not conserve as the token bucket does: the mean of the last tick
decides, so whatever comes before the next tick passes, however much it is. With C the most that can arrive per second
and P = bound + ALPHA * (C - bound):

- before the first tick the mean is 0, as in Yammer's Meter: a burst in the first five seconds passes whole, up to
  5 s * C. The first tick then takes it in undiluted, and for 60 s * ln(C / bound), rounded up to ticks, nothing passes
- from the first tick on, whenever anything passes the mean is at most the bound, and no later tick finds it above the
  larger of P and what the first tick found
- in any n tick intervals after the first tick no more than P * (n * 5 s + 5 s / ALPHA) passes: a burst of 62.6 s of P
- a hold ends at a tick, at most 60 s * ln(mean / bound) + 5 s after the last record that a tick has taken in
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fractions import Fraction

TICK_NS: Final = 5_000_000_000
ALPHA: Final = -math.expm1(-5 / 60)
"""The share of the newest five seconds in the one-minute mean."""

MEAN_NS: Final = 60_000_000_000
"""The time in which an idle meter's mean falls to 1/e."""

_BEFORE_ALL_TIME: Final = -(1 << 63)
_TICKS_TO_ZERO: Final = 9_000
"""After so many idle ticks exp(-n/12) is zero in floating point, whatever the mean was."""


class Meter:
    """Counts, and knows the one-minute rate. Amounts are whole units; times are nanoseconds of any monotonic clock.

    A clock that goes back is taken to stand still until it has caught up.
    """

    __slots__ = ("_mean", "_tick_ns", "_uncounted", "count", "last_ns")

    count: int
    """All that was ever recorded, less what was taken back."""
    last_ns: int
    """Time of the latest `record`; asking leaves it alone."""

    def __init__(self) -> None:
        self.count = 0
        self.last_ns = _BEFORE_ALL_TIME
        self._mean: float | None = None  # as of _tick_ns; None before the first tick
        self._tick_ns = _BEFORE_ALL_TIME
        self._uncounted = 0  # recorded since _tick_ns

    def record(self, amount: int, now_ns: int) -> None:
        """Count `amount` units. A negative amount takes back; the mean does not fall below zero for it."""
        if now_ns > self.last_ns:
            first = self.last_ns == _BEFORE_ALL_TIME
            self.last_ns = now_ns
            if first:
                self._tick_ns = now_ns
            elif amount and now_ns - self._tick_ns >= TICK_NS:
                ticks = (now_ns - self._tick_ns) // TICK_NS
                self._mean = self._mean_after(ticks)
                self._tick_ns += ticks * TICK_NS
                self._uncounted = 0
        self._uncounted += amount
        self.count += amount

    def one_minute_rate(self, now_ns: int) -> float:
        """Units per second as of the latest tick; 0.0 before the first."""
        return self._mean_after((max(now_ns, self.last_ns) - self._tick_ns) // TICK_NS)

    def ns_until_at_most(self, bound: float | Fraction, now_ns: int) -> int:
        """0 if the one-minute rate is at most `bound` units per second; else nanoseconds until the first tick at which
        it will be, if nothing more is recorded. What was recorded since the latest tick is taken in by the next.

        A bound of 0 is met once the mean is too small for a floating-point number, after half a day.
        ValueError for a bound below zero.
        """
        if bound < 0:
            raise ValueError(f"bound must not be below zero, not {bound}")
        limit = float(bound)
        now_ns = max(now_ns, self.last_ns)
        ticks = (now_ns - self._tick_ns) // TICK_NS
        if self._mean_after(ticks) <= limit:
            return 0
        later = range(ticks + 1, ticks + _TICKS_TO_ZERO)
        ticks = later[bisect_left(later, True, key=lambda tick: self._mean_after(tick) <= limit)]
        return self._tick_ns + ticks * TICK_NS - now_ns

    def _mean_after(self, ticks: int) -> float:
        """The mean that many ticks after _tick_ns."""
        mean = self._mean
        if ticks <= 0:
            return 0.0 if mean is None else mean
        instant = self._uncounted / 5
        mean = instant if mean is None else mean + ALPHA * (instant - mean)
        return max(0.0, mean) * math.exp((1 - ticks) / 12)
