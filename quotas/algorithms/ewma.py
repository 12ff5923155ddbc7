"""The one-minute rate of seed 004: an exponentially weighted mean, ticked every five seconds as in Yammer's Meter.

At each tick the mean moves by ALPHA = 1 - exp(-5/60) towards the rate of the last five seconds; the first tick sets it
to that rate. Between two ticks the mean is constant. There are no timers: passed ticks are computed at the next call.
The first of them includes the recorded amounts, and n more without a record multiply the mean by exp(-n/12), so any
idle time costs O(1).

A `Meter` starts to tick at its first record.

`Ewma` does not conserve as the token bucket does: the mean of the last tick decides, so any amount passes before the
next tick. With C the most that can arrive per second, at least the bound, and P = bound + ALPHA * (C - bound):

- Before the first tick the mean is 0, as in Yammer's Meter: a burst in the first five seconds passes whole, up to
  5 s * C. The first tick includes it undiluted, and then nothing passes for 60 s * ln(C / bound), rounded up to ticks.
- From the first tick on, the mean is at most the bound whenever anything passes, and no later tick finds it above the
  larger of P and the mean of the first tick.
- In any n tick intervals after the first tick at most P * (n * 5 s + 5 s / ALPHA) passes: a burst of 62.6 s of P.
- A hold begins and ends at a tick. With the mean m it lasts for 60 s * ln(m / bound), rounded up to ticks, if nothing
  is recorded meanwhile.

"""

import math
from bisect import bisect_left
from fractions import Fraction
from typing import Final

TICK_NS: Final = 5_000_000_000
ALPHA: Final = -math.expm1(-5 / 60)
"""The share of the newest five seconds in the one-minute mean."""

MEAN_NS: Final = 60_000_000_000
"""The time in which an idle meter's mean falls to 1/e."""

_BEFORE_ALL_TIME: Final = -(1 << 63)
_TICKS_TO_ZERO: Final = 9_000
"""After this many idle ticks exp(-n/12) is zero in floating point."""


class Meter:
    """A counter with a one-minute rate. Amounts are whole units; times are nanoseconds of any monotonic clock.

    A clock that goes back counts as unchanged until it has caught up.
    """

    __slots__ = ("_mean", "_start_ns", "_tick_ns", "_uncounted", "count", "last_ns")

    count: int
    """All recorded amounts."""
    last_ns: int
    """Time of the latest `record`."""

    def __init__(self) -> None:
        self.count = 0
        self.last_ns = _BEFORE_ALL_TIME
        self._start_ns = _BEFORE_ALL_TIME  # the first record; ticks are whole multiples of TICK_NS later
        self._mean: float | None = None  # as of _tick_ns; None before the first tick
        self._tick_ns = _BEFORE_ALL_TIME
        self._uncounted = 0  # recorded since _tick_ns

    def record(self, amount: int, now_ns: int) -> None:
        """Record `amount` units."""
        if now_ns > self.last_ns:
            self.last_ns = now_ns
        if self._start_ns == _BEFORE_ALL_TIME:
            self._start_ns = self._tick_ns = self.last_ns
        if amount:  # a record of 0 must not change a reported wait
            self._catch_up(self.last_ns)
        self._uncounted += amount
        self.count += amount

    def _catch_up(self, now_ns: int) -> None:
        ticks = (now_ns - self._tick_ns) // TICK_NS
        if ticks > 0:
            self._mean = self._mean_after(ticks)
            self._tick_ns += ticks * TICK_NS
            self._uncounted = 0

    def one_minute_rate(self, now_ns: int) -> float:
        """Units per second as of the latest tick; 0.0 before the first."""
        return self._mean_after(self._ticks_until(now_ns))

    def ns_until_at_most(self, bound: float | Fraction, now_ns: int) -> int:
        """Nanoseconds until the first tick with a one-minute rate of at most `bound` units per second, if nothing more
        is recorded; 0 if it is now. The next tick includes the records since the latest one.

        A bound of 0 is met when the mean underflows, after half a day. ValueError for a negative bound.
        """
        if bound < 0:
            raise ValueError(f"bound must not be below zero, not {bound}")
        limit = float(bound)
        now_ns = max(now_ns, self.last_ns)
        ticks = self._ticks_until(now_ns)
        if self._mean_after(ticks) <= limit:
            return 0
        later = range(ticks + 1, ticks + _TICKS_TO_ZERO)
        ticks = later[bisect_left(later, True, key=lambda tick: self._mean_after(tick) <= limit)]
        return self._tick_ns + ticks * TICK_NS - now_ns

    def room(self, bound: float | Fraction, now_ns: int) -> int:
        """Whole units that can be recorded before the next tick with a one-minute rate of at most `bound` units per
        second at that tick; 0 if the rate is above that now.
        """
        limit = float(bound)
        ticks = self._ticks_until(now_ns)
        mean = self._mean_after(ticks)
        if mean > limit:
            return 0
        unticked = self._mean is None and ticks <= 0
        weight = 1.0 if unticked else ALPHA
        uncounted = self._uncounted if ticks <= 0 else 0
        room = int(5 * (mean + (limit - mean) / weight)) - uncounted
        if mean + weight * ((uncounted + room) / 5 - mean) > limit:  # rounding
            room -= 1 + int(limit * 2**-40)
        return max(0, room)

    def _ticks_until(self, now_ns: int) -> int:
        if self._start_ns == _BEFORE_ALL_TIME:
            return 0
        return (max(now_ns, self.last_ns) - self._tick_ns) // TICK_NS

    def _mean_after(self, ticks: int) -> float:
        """The mean this number of ticks after _tick_ns."""
        mean = self._mean
        if ticks <= 0:
            return 0.0 if mean is None else mean
        instant = self._uncounted / 5
        mean = instant if mean is None else mean + ALPHA * (instant - mean)
        return max(0.0, mean) * _decay(ticks - 1)


def _decay(ticks: int) -> float:
    """What is left of a mean after this number of ticks without a record."""
    return math.exp(-ticks / 12)


class Ewma:
    """A bound on the one-minute rate (seed 004): in debt while the rate is above the bound.

    Amounts are whole units; times are nanoseconds of any monotonic clock. The debt of a charge begins at the next tick.
    Raises ValueError if the rate is not above zero.
    """

    __slots__ = ("_meter", "passed", "rate")

    rate: int | Fraction
    """The bound, in units per second."""
    passed: int
    """Units charged so far."""

    def __init__(self, rate: int | Fraction) -> None:
        self.rate = _above_zero(rate)
        self._meter = Meter()
        self.passed = 0

    @property
    def burst_ns(self) -> int:
        """One minute, the time of the mean. What may pass at once is unbounded (see the module)."""
        return MEAN_NS

    @property
    def last_ns(self) -> int:
        """Time of the latest charge."""
        return self._meter.last_ns

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` in any state. Returns the debt in ns."""
        self._meter.record(amount, now_ns)
        self.passed += amount
        return self.debt_ns(now_ns)

    def debt_ns(self, now_ns: int, more: int = 0) -> int:
        """Nanoseconds until the tick with a rate of at most the bound. What is charged now changes it at that tick."""
        return self._meter.ns_until_at_most(self.rate, now_ns)

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the next tick without debt after it."""
        return self._meter.room(self.rate, now_ns)

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Change the bound; the mean stays. `burst_ns` is not used."""
        self.rate = _above_zero(rate)


def _above_zero(rate: int | Fraction) -> int | Fraction:
    if rate <= 0:
        raise ValueError(f"rate must be above zero, not {rate}")
    return rate
