"""A token bucket whose rate is granted for a limited time, after which it earns its floor.

The rate may change several times a second, set by a rule outside of the configuration. If it is not renewed, for
instance because the process was stopped, the bucket ends it at exactly that nanosecond, whenever it is used next.
"""

from fractions import Fraction
from typing import Final

from quotas.algorithms.token_bucket import Terms, TokenBucket
from quotas.time_units import NS_PER_SECOND

_FOR_EVER: Final = 1 << 62


class LeasedBucket(TokenBucket):
    """A `TokenBucket` with `grant`. In any interval, it lets through at most the integral of its rate, plus the burst
    and one charge.
    """

    __slots__ = ("_floor", "_until_ns")

    def __init__(self, rate: int | Fraction, burst_ns: int = NS_PER_SECOND) -> None:
        super().__init__(rate, burst_ns)
        self._until_ns = _FOR_EVER
        self._floor = self._terms

    def grant(self, rate: int | Fraction, burst_ns: int, until_ns: int, floor: int | Fraction, now_ns: int) -> None:
        """Earn at `rate` from `now_ns` to `until_ns`, then at `floor`. Debt stays, credit is cut to the burst.

        Raises ValueError, without a change, if a rate is not above zero or the burst is negative.
        """
        # Not from the cache of terms: each grant has another rate, which would push out the terms that many share.
        granted, floor_terms = Terms(rate, burst_ns), Terms(floor, burst_ns)
        self._end_lease(now_ns)
        self.change_terms(granted, now_ns)
        self._until_ns, self._floor = until_ns, floor_terms

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """Like that of a `TokenBucket`: without a time limit."""
        self._end_lease(now_ns)
        super().set_rate(rate, burst_ns, now_ns)
        self._until_ns, self._floor = _FOR_EVER, self._terms

    def record(self, amount: int, now_ns: int) -> int:
        self._end_lease(now_ns)
        return self.debt_ns(now_ns) if super().record(amount, now_ns) else 0

    def spend(self, amount: int, now_ns: int) -> int:
        self._end_lease(now_ns)
        return super().spend(amount, now_ns)

    def debt_ns(self, now_ns: int, more: int = 0) -> int:
        """Like that of a `TokenBucket`, assuming that the lease is not renewed, so a timer for this time is never too
        late.
        """
        self._end_lease(now_ns)
        wait_ns = super().debt_ns(now_ns, more)
        left_ns = self._until_ns - now_ns
        if wait_ns <= left_ns:
            return wait_ns
        granted, floor = self._terms, self._floor
        level = self._level_at(now_ns) - more * granted.unit + left_ns * granted.earn
        return left_ns - level * floor.unit // granted.unit // floor.earn

    def owed(self, now_ns: int) -> int:
        """Units of debt, rounded up: whatever rate will pay them."""
        self._end_lease(now_ns)
        return max(0, -(self._level_at(now_ns) // self._terms.unit))

    def headroom(self, now_ns: int) -> int:
        self._end_lease(now_ns)
        return super().headroom(now_ns)

    def _end_lease(self, now_ns: int) -> None:
        """If the lease has ended, earn the floor since then."""
        if now_ns > self._until_ns:
            until_ns, self._until_ns = self._until_ns, _FOR_EVER
            self.change_terms(self._floor, until_ns)
