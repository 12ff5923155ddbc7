"""The token bucket: smooth, may go into debt, exact on integers.

The level is kept in *grains*. With a rate of `n / d` units per second (a fraction in lowest terms), one unit is
`d * 1_000_000_000` grains, so that every nanosecond brings exactly `n` grains: no rounding ever, whatever the rate, the
schedule or the number of events. Python's integers have no upper end, so 1 byte/s, 2**53 bytes/s and ten idle years are
all the same code.

Rules, and where they are from:

- starts full; `burst_ns` is nanoseconds of the rate (Kafka's TokenBucket: samples * window; here one second by default)
- out of debt means `level >= 0`; a charge is never refused for being larger than the level, it leaves debt (KIP-599)
- a change of rate keeps the level *in units*, as Kafka's TokenBucket does (it stores tokens and reads the bound anew at
  each record): what was overdrawn stays overdrawn and is paid back at the new rate, so raising a quota frees a client
  sooner. Credit is cut to the new burst. Unlike Kafka, the time before the change earns at the old rate, not the new.
- in any time T at most rate * T + burst + one frame passes (see `claim` for frames that several limits hold)
- a clock that goes back earns nothing and costs nothing: the bucket waits until the clock has caught up
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
_BEFORE_ALL_TIME: Final = -(1 << 63)


class _Terms:
    """What follows from rate and burst, in grains; shared by all buckets that have both in common, never changed.

    earn    grains per nanosecond
    unit    grains per unit
    full    the largest credit
    """

    __slots__ = ("earn", "full", "unit")

    def __init__(self, rate: int | Fraction, burst_ns: int) -> None:
        if rate <= 0:
            raise ValueError(f"rate must be above zero, not {rate}")
        if burst_ns < 0:
            raise ValueError(f"burst_ns must not be below zero, not {burst_ns}")
        self.earn = rate.numerator
        # Whole rates, nearly all there are, share this one integer object.
        self.unit = NS_PER_SECOND if rate.denominator == 1 else rate.denominator * NS_PER_SECOND
        self.full = rate.numerator * burst_ns


# A default quota gives a million clients a bucket each on the same terms: these integers once, not a million times.
_terms = lru_cache(maxsize=1024)(_Terms)


class TokenBucket:
    """One bucket. Amounts are whole units (bytes); times are nanoseconds of any monotonic clock.

    `admit` and `record` are called for every data frame: plain integers, no properties, and the same few lines twice.

    Raises ValueError when the rate is not above zero or the burst is below zero.
    """

    __slots__ = ("_claimed", "_full", "_level", "_terms", "last_ns")

    last_ns: int
    """Time of the latest `admit`, `record` or `set_rate`; asking (`debt_ns`, `headroom`) leaves it alone."""

    def __init__(self, rate: int | Fraction, burst_ns: int = NS_PER_SECOND) -> None:
        self._terms = _terms(rate, burst_ns)
        self._claimed = 0
        # The largest credit now: that of the terms, less what is claimed.
        self._level = self._full = self._terms.full
        self.last_ns = _BEFORE_ALL_TIME

    @property
    def rate(self) -> int | Fraction:
        """Units per second."""
        terms = self._terms
        return terms.earn if terms.unit == NS_PER_SECOND else Fraction(terms.earn * NS_PER_SECOND, terms.unit)

    @property
    def burst_ns(self) -> int:
        """The largest credit, as nanoseconds of the rate."""
        return self._terms.full // self._terms.earn

    def admit(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if out of debt. Returns the debt left in ns, or, not charged, *minus* the wait in ns."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level > self._full:
                level = self._full
        if level < 0:
            self._level = level
            return level // terms.earn  # floor of a negative number: the wait is rounded up
        self._level = level = level - amount * terms.unit
        return 0 if level >= 0 else -(level // terms.earn)

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` whatever the state; a negative amount gives back, up to the burst. Returns the debt in ns."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level > self._full:
                level = self._full
        level -= amount * terms.unit
        if level > self._full:
            level = self._full
        self._level = level
        return 0 if level >= 0 else -(level // terms.earn)

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if that leaves no debt. Returns the whole units left, or, not charged, -1."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level > self._full:
                level = self._full
            self._level = level
        level -= amount * terms.unit
        if level < 0:
            return -1
        self._level = level
        return level // terms.unit

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt, rounded up; 0 when it is."""
        level = self._level
        if level >= 0:
            return 0
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            level += elapsed_ns * self._terms.earn
        return 0 if level >= 0 else -(level // self._terms.earn)

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the bucket is in debt; 0 when it is."""
        level = self._level_at(now_ns)
        return 0 if level <= 0 else level // self._terms.unit

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Nanoseconds until `amount` could be charged without debt, rounded up; more than the burst: until full."""
        terms = self._terms
        missing = min(amount * terms.unit, self._full) - self._level_at(now_ns)
        return 0 if missing <= 0 else -(-missing // terms.earn)

    def claim(self, amount: int, now_ns: int) -> bool:
        """Charge `amount` for a frame that passes later, when another limit lets it; False: not now.

        Until it has passed (`settle`) the credit may only grow to the burst less the claims, else the bucket would fill
        up while the frame waits, and both would pass at once. For the same reason claims together stay within the
        burst, except that one frame that is larger than the burst may claim alone.

        So in any interval of length T at most rate * T + burst + one frame passes. Where a frame is larger than the
        burst, and another limit may hold it too, its size counts in place of the burst: rate * T + two such frames.
        """
        grains = amount * self._terms.unit
        if self._claimed and self._claimed + grains > self._terms.full:
            return False
        self.record(amount, now_ns)
        self._set_claimed(self._claimed + grains)
        return True

    def settle(self, amount: int, now_ns: int) -> None:
        """A claimed frame passes now."""
        self._catch_up(now_ns)
        self._set_claimed(self._claimed - amount * self._terms.unit)

    def unclaim(self, amount: int, now_ns: int) -> None:
        """A claimed frame will never pass: give back what it was charged."""
        self.settle(amount, now_ns)
        self.record(-amount, now_ns)

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Earn at the old rate until `now_ns` and at the new one from then on.

        The level stays in units (see the module), rounded down to the new grain: by less than a billionth of a unit.
        """
        self._catch_up(now_ns)
        old, new = self._terms, _terms(rate, burst_ns)
        self._terms = new
        self._set_claimed(self._claimed * new.unit // old.unit)
        self._level = min(self._full, self._level * new.unit // old.unit)

    def _set_claimed(self, grains: int) -> None:
        self._claimed = max(0, grains)
        self._full = max(0, self._terms.full - self._claimed)

    def _catch_up(self, now_ns: int) -> None:
        self._level = self._level_at(now_ns)
        self.last_ns = max(self.last_ns, now_ns)

    def _level_at(self, now_ns: int) -> int:
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns <= 0:
            return self._level
        return min(self._full, self._level + elapsed_ns * self._terms.earn)
