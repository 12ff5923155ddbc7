"""The token bucket: smooth, may go into debt, exact on integers.

The level is in *grains*. With a rate of `n / d` units per second (in lowest terms), one unit is `d * 1_000_000_000`
grains, so every nanosecond earns exactly `n` grains, without rounding. Python's integers are unbounded, so 1 byte/s,
2**53 bytes/s and ten idle years need no special case.

Rules and their sources:

- Starts full; `burst_ns` is nanoseconds of the rate (Kafka's TokenBucket: samples * window; here 1 s by default).
- Out of debt means `level >= 0`; a charge above the level is not refused, it leaves debt (KIP-599).
- A change of rate keeps the level *in units*, like Kafka's TokenBucket: debt is paid at the new rate, so a higher quota
  releases a client sooner. Credit is cut to the new burst. Unlike Kafka, the time before the change earns at the old
  rate.
- In any interval T, at most rate * T + burst + one charge passes, if each charge finds the bucket out of debt.
- A clock that goes back earns and costs nothing until it has caught up.
"""

from fractions import Fraction
from functools import lru_cache
from typing import Final

from quotas.time_units import NS_PER_SECOND

AMPLE: Final = 1 << 22
"""`TokenBucket.spend` counts what is left up to this: dividing large integers is slow. It is 8 times the largest read,
since a byte of compressed records is up to 8 messages.
"""
_WHOLE: Final = [NS_PER_SECOND, AMPLE * NS_PER_SECOND]
_BEFORE_ALL_TIME: Final = -(1 << 63)


class Terms:
    """Rate and burst in grains; immutable, shared by all buckets with the same rate and burst.

    rate    units per second, an int if whole
    earn    grains per nanosecond
    unit    grains per unit; `ample`: of `AMPLE` units
    full    the largest credit
    """

    __slots__ = ("ample", "earn", "full", "rate", "unit")

    def __init__(self, rate: int | Fraction, burst_ns: int) -> None:
        if rate <= 0:
            raise ValueError(f"rate must be above zero, not {rate}")
        if burst_ns < 0:
            raise ValueError(f"burst_ns must not be below zero, not {burst_ns}")
        self.rate = rate.numerator if rate.denominator == 1 else rate
        self.earn = rate.numerator
        # Whole rates, nearly all, share these integer objects.
        self.unit, self.ample = _WHOLE if rate.denominator == 1 else [rate.denominator * grains for grains in _WHOLE]
        self.full = rate.numerator * burst_ns


# A default quota has up to a million buckets on the same terms.
_terms = lru_cache(maxsize=1024)(Terms)


class TokenBucket:
    """One bucket. Amounts are whole units (bytes); times are nanoseconds of any monotonic clock.

    `spend`, `record` and `debt_ns` are called for every frame: they duplicate lines and use no properties.

    Raises ValueError if the rate is not above zero or the burst is negative.
    """

    __slots__ = ("_level", "_terms", "last_ns", "passed")

    last_ns: int
    """Time of the latest change; `debt_ns` and `headroom` do not change it."""
    passed: int
    """Units charged so far."""

    def __init__(self, rate: int | Fraction, burst_ns: int = NS_PER_SECOND) -> None:
        self._terms = _terms(rate, burst_ns)
        self._level = self._terms.full
        self.last_ns = _BEFORE_ALL_TIME
        self.passed = 0

    @property
    def rate(self) -> int | Fraction:
        """Units per second."""
        return self._terms.rate

    @property
    def burst_ns(self) -> int:
        """The largest credit, as nanoseconds of the rate."""
        return self._terms.full // self._terms.earn

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` in any state. Returns the debt in ns."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level > terms.full:
                level = terms.full
        self._level = level = level - amount * terms.unit
        self.passed += amount
        return 0 if level >= 0 else -(level // terms.earn)  # floor of a negative number: the debt is rounded up

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge `amount` if that leaves no debt. Returns the whole units left, at most `AMPLE`; if not charged, -1."""
        terms = self._terms
        level = self._level
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns > 0:
            self.last_ns = now_ns
            level += elapsed_ns * terms.earn
            if level > terms.full:
                level = terms.full
        left = level - amount * terms.unit
        if left < 0:
            self._level = level
            return -1
        self._level = left
        self.passed += amount
        return AMPLE if left >= terms.ample else left // terms.unit

    def unspend(self, amount: int) -> None:
        """Undo a `spend` of `amount`, with no other call in between."""
        self._level += amount * self._terms.unit
        self.passed -= amount

    def debt_ns(self, now_ns: int, more: int = 0) -> int:
        """Nanoseconds until out of debt if `more` units were charged now, rounded up."""
        level = self._level
        if more:
            level = self._level_at(now_ns) - more * self._terms.unit
        elif level >= 0:
            return 0
        else:
            elapsed_ns = now_ns - self.last_ns
            if elapsed_ns > 0:
                level += elapsed_ns * self._terms.earn
        return 0 if level >= 0 else -(level // self._terms.earn)

    def headroom(self, now_ns: int) -> int:
        """Whole units that can be charged before the bucket is in debt."""
        level = self._level_at(now_ns)
        return 0 if level <= 0 else level // self._terms.unit

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Earn at the new rate as of `now_ns`. The level stays in units, rounded down to the new grain."""
        self.change_terms(_terms(rate, burst_ns), now_ns)

    def change_terms(self, new: Terms, now_ns: int) -> None:
        """Like `set_rate`."""
        level = self._level_at(now_ns)
        self.last_ns = max(now_ns, self.last_ns)
        old, self._terms = self._terms, new
        self._level = min(new.full, level * new.unit // old.unit)

    def _level_at(self, now_ns: int) -> int:
        elapsed_ns = now_ns - self.last_ns
        if elapsed_ns <= 0:
            return self._level
        return min(self._terms.full, self._level + elapsed_ns * self._terms.earn)
