"""The one-minute rate of seed 004: an exponentially weighted mean, ticked every five seconds as Yammer's Meter does it.

At each tick the mean moves by ALPHA = 1 - exp(-5/60) towards the rate of the five seconds that end there; the first
tick takes that rate as it is. Between two ticks the mean stands still. There are no timers: ticks that have passed
are computed at the next call. The first of them takes in what was recorded, and n more without a record multiply
the mean by exp(-n/12), so that ten idle years cost as much as one second.

A `Meter` ticks from its first record on, not from its making: an entity is new when it is first heard of.

What `Ewma` guarantees, and what it does not. It does not conserve as the token bucket does: the mean of the last tick
decides, so whatever comes before the next tick passes, however much it is. With C the most that can arrive per second,
at least the bound, and P = bound + ALPHA * (C - bound):

- before the first tick the mean is 0, as in Yammer's Meter: a burst in the first five seconds passes whole, up to
  5 s * C. The first tick then takes it in undiluted, and for 60 s * ln(C / bound), rounded up to ticks, nothing passes
- from the first tick on, whenever anything passes the mean is at most the bound, and no later tick finds it above the
  larger of P and what the first tick found
- in any n tick intervals after the first tick no more than P * (n * 5 s + 5 s / ALPHA) passes: a burst of 62.6 s of P
- a hold begins and ends at a tick. One that begins with the mean m lasts for 60 s * ln(m / bound), rounded up to ticks,
  if nothing is recorded meanwhile

A refund takes back what is left of the amount. Before the tick that takes the amount in, that is all of it. That tick
makes it a share of the mean, which decays with each later tick as the mean does: the refund takes back as much of the
mean. So the mean is what it would be without the charge, but for the rounding of floating point, and but for the first
charge of all, whose time all ticks are counted from.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from typing import Final

from quotas.algorithms.claims import CountedClaims

TICK_NS: Final = 5_000_000_000
ALPHA: Final = -math.expm1(-5 / 60)
"""The share of the newest five seconds in the one-minute mean."""

MEAN_NS: Final = 60_000_000_000
"""The time in which an idle meter's mean falls to 1/e."""

_BEFORE_ALL_TIME: Final = -(1 << 63)
_BELOW_ONE: Final = 1 - 2**-40  # more than all rounding
_TICKS_TO_ZERO: Final = 9_000
"""After so many idle ticks exp(-n/12) is zero in floating point, whatever the mean was."""


class Meter:
    """Counts, and knows the one-minute rate. Amounts are whole units; times are nanoseconds of any monotonic clock.

    A clock that goes back is taken to stand still until it has caught up.
    """

    __slots__ = ("_mean", "_start_ns", "_tick_ns", "_uncounted", "count", "last_ns")

    count: int
    """All that was ever recorded, less what was taken back."""
    last_ns: int
    """Time of the latest `record`; asking leaves it alone."""

    def __init__(self) -> None:
        self.count = 0
        self.last_ns = _BEFORE_ALL_TIME
        self._start_ns = _BEFORE_ALL_TIME  # the first record; ticks are whole multiples of TICK_NS later
        self._mean: float | None = None  # as of _tick_ns; None before the first tick
        self._tick_ns = _BEFORE_ALL_TIME
        self._uncounted = 0  # recorded since _tick_ns

    def record(self, amount: int, now_ns: int) -> None:
        """Count `amount` units."""
        if now_ns > self.last_ns:
            self.last_ns = now_ns
        if self._start_ns == _BEFORE_ALL_TIME:
            self._start_ns = self._tick_ns = self.last_ns
        if amount:  # a record of 0 does not change the mean: a wait that was reported stays the same
            self._catch_up(self.last_ns)
        self._uncounted += amount
        self.count += amount

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Take back `amount` units that were recorded at `charged_ns`, as far as they are still in the mean. The mean
        does not fall below zero, and does not change for a time before the first record (of a clock that stood back).
        """
        if self._start_ns == _BEFORE_ALL_TIME:
            return
        is_all = amount == self.count
        self.count = max(0, self.count - amount)
        if is_all:  # as new: the next record starts the ticks
            self._start_ns = self._tick_ns = _BEFORE_ALL_TIME
            self._mean = None
            self._uncounted = 0
        if charged_ns < self._start_ns or is_all:
            return
        self._catch_up(max(now_ns, self.last_ns))
        since_ns = self._tick_ns - charged_ns
        if since_ns <= 0:
            self._uncounted = max(0, self._uncounted - amount)
        elif self._mean is not None:
            weight = 1.0 if charged_ns < self._start_ns + TICK_NS else ALPHA  # the first tick is undiluted
            ticks_since = (since_ns - 1) // TICK_NS
            self._mean = max(0.0, self._mean - weight * amount / 5 * _decay(ticks_since))

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
        """0 if the one-minute rate is at most `bound` units per second; else nanoseconds until the first tick at which
        it will be, if nothing more is recorded. What was recorded since the latest tick is taken in by the next.

        A bound of 0 is met once the mean is too small for a floating-point number, after half a day.
        ValueError for a bound below zero.
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
        """Whole units that can be recorded before the next tick so that it finds the one-minute rate at most `bound`
        units per second; 0 if it is above that now.
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
        if mean + weight * ((uncounted + room) / 5 - mean) > limit:  # by the rounding
            room -= 1 + int(limit * 2**-40)
        return max(0, room)

    def capped_room(self, bound: float | Fraction, now_ns: int) -> int:
        """Whole units that can be recorded before the next tick so that the rate is above `bound` for one tick at most;
        0 if it is above that now.
        """
        if self.one_minute_rate(now_ns) > float(bound):
            return 0
        return self.room(float(bound) / _decay(1) * _BELOW_ONE, now_ns)

    def _ticks_until(self, now_ns: int) -> int:
        if self._start_ns == _BEFORE_ALL_TIME:
            return 0
        return (max(now_ns, self.last_ns) - self._tick_ns) // TICK_NS

    def _mean_after(self, ticks: int) -> float:
        """The mean that many ticks after _tick_ns."""
        mean = self._mean
        if ticks <= 0:
            return 0.0 if mean is None else mean
        instant = self._uncounted / 5
        mean = instant if mean is None else mean + ALPHA * (instant - mean)
        return max(0.0, mean) * _decay(ticks - 1)


def _decay(ticks: int) -> float:
    """The share of a mean that is left after so many ticks without a record."""
    return math.exp(-ticks / 12)


class Ewma(CountedClaims):
    """A bound on the one-minute rate, as seed 004 has it: in debt while the rate is above the bound.

    Amounts are whole units; times are nanoseconds of any monotonic clock. A charge never leaves debt at once: the next
    tick brings it. Raises ValueError when the rate is not above zero.
    """

    __slots__ = ("_meter", "rate")

    rate: int | Fraction
    """The bound, in units per second."""

    def __init__(self, rate: int | Fraction) -> None:
        self.rate = _above_zero(rate)
        self._meter = Meter()

    @property
    def burst_ns(self) -> int:
        """One minute, the time that the mean is taken over. What may pass at once has no bound (see the module)."""
        return MEAN_NS

    @property
    def last_ns(self) -> int:
        """Time of the latest charge; asking and refusing leave it alone."""
        return self._meter.last_ns

    def admit(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if out of debt. Returns 0, or, not charged, *minus* the wait in ns."""
        debt_ns = self.debt_ns(now_ns)
        return -debt_ns if debt_ns else self.record(amount, now_ns)

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` whatever the state. Returns the debt in ns."""
        self._meter.record(amount, now_ns)
        return self.debt_ns(now_ns)

    def record_capped(self, amount: int, now_ns: int) -> int:
        """Charge what leaves, after the next tick, a debt of at most one tick, and no more. Returns the debt in ns."""
        return self.record(min(amount, self._meter.capped_room(self.rate, now_ns)), now_ns)

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Give back `amount` units that were charged at `charged_ns`; see the module for how much that is."""
        self._meter.refund(amount, charged_ns, now_ns)

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if the next tick will find no debt for it. Returns the units left, or, not charged, -1."""
        left = self.headroom(now_ns) - amount
        if left < 0 or self.debt_ns(now_ns):
            return -1
        self._meter.record(amount, now_ns)
        return left

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until the tick that finds the rate at most the bound; 0 when it is."""
        return self._meter.ns_until_at_most(self.rate, now_ns)

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Nanoseconds until `amount` passes: the debt, whatever the amount."""
        return self.debt_ns(now_ns)

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the next tick without debt after it; 0 when in debt."""
        return self._meter.room(self.rate, now_ns)

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Hold to another bound from now on; the mean stays, and is that of a minute: `burst_ns` has no use."""
        self.rate = _above_zero(rate)


def _above_zero(rate: int | Fraction) -> int | Fraction:
    if rate <= 0:
        raise ValueError(f"rate must be above zero, not {rate}")
    return rate
