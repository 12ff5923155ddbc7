"""The algorithm of a limit for its exempt clients: they are charged, and never held."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from quotas.algorithms.algorithm import NS_PER_SECOND, UNLIMITED, Algorithm
from quotas.algorithms.claims import CountedClaims
from quotas.algorithms.ewma import Ewma, Meter
from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import TokenBucket

LONGEST_DEBT_NS: Final = NS_PER_SECOND
"""A token bucket or sampled window that owes this much is not charged for exempt clients: others wait until it is paid,
so it must not grow for as long as exempt clients send more than the rate.
"""


class NeverInDebt(CountedClaims):
    """Charges `counted`, which holds the other clients, and has room for any amount itself.

    An amount is charged in full, or not at all where others would wait too long for it: see `LONGEST_DEBT_NS`. The mean
    of an EWMA is the sum of the means of its clients, so it is charged while that of the exempt ones is below the
    bound. A threshold measures every amount.
    """

    __slots__ = ("_charged", "_counted", "_skipped_ns")

    def __init__(self, counted: Algorithm) -> None:
        self._counted = counted
        #: What exempt clients add to the mean of an EWMA.
        self._charged = Meter() if isinstance(counted, Ewma) else None
        #: When an amount was last not charged.
        self._skipped_ns = -1

    @property
    def rate(self) -> int | Fraction:
        """`UNLIMITED`."""
        return UNLIMITED

    @property
    def burst_ns(self) -> int:
        """0."""
        return 0

    @property
    def last_ns(self) -> int:
        """Of what it charges."""
        return self._counted.last_ns

    def admit(self, amount: int, now_ns: int) -> int:
        """As `record`."""
        return self.record(amount, now_ns)

    def record(self, amount: int, now_ns: int) -> int:
        """Charge `amount` in full, or not at all: see the class. Returns 0."""
        counted, charged = self._counted, self._charged
        if charged is not None:
            is_enough = not charged.room(counted.rate, now_ns)
        else:
            is_enough = isinstance(counted, (TokenBucket, SampledWindow)) and counted.debt_ns(now_ns) >= LONGEST_DEBT_NS
        if is_enough:
            self._skipped_ns = now_ns
            return 0
        counted.record(amount, now_ns)
        if charged is not None:
            charged.record(amount, now_ns)
        return 0

    def record_capped(self, amount: int, now_ns: int) -> int:
        """As `record`."""
        return self.record(amount, now_ns)

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Refund what was charged since the latest amount that was not: never more than was charged."""
        if charged_ns > self._skipped_ns:
            self._counted.refund(amount, charged_ns, now_ns)
            if self._charged is not None:
                self._charged.refund(amount, charged_ns, now_ns)

    def spend(self, amount: int, now_ns: int) -> int:
        """As `record`. Returns `UNLIMITED`."""
        self.record(amount, now_ns)
        return UNLIMITED

    def debt_ns(self, now_ns: int) -> int:
        """0."""
        return 0

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """0."""
        return 0

    def headroom(self, now_ns: int) -> int:
        """`UNLIMITED`."""
        return UNLIMITED

    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int) -> None:
        """No effect: the rate is that of the limit that holds the other clients."""
