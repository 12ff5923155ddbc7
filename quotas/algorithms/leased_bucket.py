"""A token bucket whose rate is lent until some time: from then on it earns its floor.

The rate may change several times a second, set by a rule outside of the configuration. When nobody renews it (the
process was stopped, what sets it is away), the bucket itself ends it, at the nanosecond, whenever it is asked next.
"""

from fractions import Fraction
from typing import Final

from quotas.algorithms.token_bucket import NS_PER_SECOND, Terms, TokenBucket

_FOR_EVER: Final = 1 << 62


class LeasedBucket(TokenBucket):
    """A `TokenBucket` with `lend`. Bytes in any time are at most the integral of its rate, the burst and one charge."""

    __slots__ = ("_floor", "_until_ns")

    def __init__(self, rate: int | Fraction, burst_ns: int = NS_PER_SECOND) -> None:
        super().__init__(rate, burst_ns)
        self._until_ns = _FOR_EVER
        self._floor = self._terms

    def lend(self, rate: int | Fraction, burst_ns: int, until_ns: int, floor: int | Fraction, now_ns: int) -> None:
        """Earn at `rate` from `now_ns` to `until_ns`, then at `floor`. Debt stays, credit is cut to the burst.

        Raises ValueError, without a change, if a rate is not above zero or the burst is negative.
        """
        # Not from the cache of terms: a lent rate is another one each time, and would push out those that many share.
        lent, floor_terms = Terms(rate, burst_ns), Terms(floor, burst_ns)
        self._end_lease(now_ns)
        self.change_terms(lent, now_ns)
        self._until_ns, self._floor = until_ns, floor_terms

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """As of a `TokenBucket`: for good."""
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
        """As of a `TokenBucket`, if nobody renews the lease: a timer for this time is not too late."""
        self._end_lease(now_ns)
        wait_ns = super().debt_ns(now_ns, more)
        left_ns = self._until_ns - now_ns
        if wait_ns <= left_ns:
            return wait_ns
        lent, floor = self._terms, self._floor
        level = self._level_at(now_ns) - more * lent.unit + left_ns * lent.earn
        return left_ns - level * floor.unit // lent.unit // floor.earn

    def owed(self, now_ns: int) -> int:
        """Units of debt, rounded up: whatever rate will pay them."""
        self._end_lease(now_ns)
        return max(0, -(self._level_at(now_ns) // self._terms.unit))

    def headroom(self, now_ns: int) -> int:
        self._end_lease(now_ns)
        return super().headroom(now_ns)

    def _end_lease(self, now_ns: int) -> None:
        """Go over to the floor, as of the end of the lease, if that is past."""
        if now_ns > self._until_ns:
            until_ns, self._until_ns = self._until_ns, _FOR_EVER
            self.change_terms(self._floor, until_ns)
