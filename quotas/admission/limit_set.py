"""The limits of one kind of request of one client.

Frames pass their limits by `quotas.admission.frame`. Here is what needs no frame: requests that pass together, and
control requests, which are never held.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from quotas.admission.frame import Charge
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import UNLIMITED, Algorithm
from quotas.algorithms.ewma import Ewma
from quotas.algorithms.token_bucket import AMPLE, TokenBucket
from quotas.time_units import NS_PER_SECOND

Sum = tuple[Sequence[Limit], int]
"""Some limits, and the units that some requests together are charged by each of them."""
Debt = tuple[int, Limit | None]
"""Nanoseconds until the limit is out of debt."""
NO_DEBT: Final[Debt] = (0, None)


class LimitSet:
    """Make one with `limit_set`. Amounts are in the limits' unit; `now_ns` is a monotonic time in nanoseconds."""

    __slots__ = ("limits",)

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits: Final = limits

    def charge(self, amount: int, now_ns: int) -> Debt:
        """Charge every limit in any state. Returns the longest debt that is left."""
        return _longest([(limit.algorithm.record(amount, now_ns), limit) for limit in self.limits])

    def charge_control(self, amount: int, now_ns: int) -> Debt:
        """Charge a request that is never held to each limit that is out of debt and without waiters, so that a flood of
        such requests keeps no other one waiting. The others do not count it, nor an EWMA that the next tick would find
        in debt. Returns the longest debt of all of them.
        """
        debts: list[tuple[int, Limit]] = []
        for limit in self.limits:
            debt_ns = limit.debt_ns(now_ns)
            is_full = isinstance(limit.algorithm, Ewma) and not limit.algorithm.headroom(now_ns)
            if not debt_ns and not limit.waiters.waiting and not is_full:
                debt_ns = limit.algorithm.record(amount, now_ns)
                limit.last_charged_by = 0
            debts.append((debt_ns, limit))
        return _longest(debts)

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge every limit if none has waiters and this leaves none in debt: as each of several requests with this
        sum would. Returns the whole units left; -1 if nothing was charged.
        """
        return spend_all(((self.limits, amount),), amount, now_ns)

    def headroom(self, now_ns: int) -> int:
        """Whole units that fit before a limit is in debt; `UNLIMITED` without limits, 0 with waiters."""
        return min((limit.headroom(now_ns) for limit in self.limits), default=UNLIMITED)

    def earned(self, span_ns: int) -> int:
        """Whole units that the slowest limit earns in `span_ns`; `UNLIMITED` without limits."""
        return min((limit.algorithm.rate * span_ns // NS_PER_SECOND for limit in self.limits), default=UNLIMITED)


def spend_all(sums: Sequence[Sum], size: int, now_ns: int) -> int:
    """Charge each limit the sum in its unit if that leaves none in debt and none has waiters: so some requests of
    `size` bytes together could pass one by one. Each limit once.

    Returns how many bytes more of such requests fit: `AMPLE` for that or more. -1: nothing was charged.
    """
    fitting = AMPLE
    asked: list[tuple[Algorithm, int]] = []
    for limits, amount in sums:
        for limit in limits:
            algorithm = limit.algorithm
            # Those that wait come first, though there may be room for this one.
            if limit.waiters.waiting:
                left = -1
            elif isinstance(algorithm, TokenBucket):
                left = algorithm.spend(amount, now_ns)
            else:  # a charge of these cannot be undone
                left = algorithm.headroom(now_ns) - amount
                if not left and algorithm.debt_ns(now_ns):
                    left = -1
                asked.append((algorithm, amount))
            if left < 0:
                _unspend(sums, limit)
                return -1
            # In bytes of such requests: a limit on messages has room for that multiple of their bytes.
            if left < AMPLE:
                fitting = min(fitting, left if amount == size else left * size // amount if amount else AMPLE)
    for algorithm, amount in asked:
        algorithm.record(amount, now_ns)
    return fitting


def spend_charges(charges: Iterable[Charge], size: int, now_ns: int) -> int:
    """As `spend_all`, of limits with what each is charged."""
    return spend_all([((limit,), units) for limit, units in charges], size, now_ns)


def _unspend(sums: Sequence[Sum], refusing: Limit) -> None:
    """Undo the charges of the limits before the one that refuses: within this call nothing has passed."""
    for limits, amount in sums:
        for limit in limits:
            if limit is refusing:
                return
            if isinstance(limit.algorithm, TokenBucket):
                limit.algorithm.unspend(amount)


def _longest(debts: list[tuple[int, Limit]]) -> Debt:
    return max([debt for debt in debts if debt[0]], key=itemgetter(0), default=NO_DEBT)


class _NoLimit(LimitSet):
    """No limits: the fast path of clients without a quota."""

    __slots__ = ()

    def charge_control(self, amount: int, now_ns: int) -> Debt:
        return NO_DEBT

    def spend(self, amount: int, now_ns: int) -> int:
        return UNLIMITED


class _OneBucket(LimitSet):
    """Exactly one limit, with a token bucket."""

    __slots__ = ("_bucket", "_limit")

    def __init__(self, limits: tuple[Limit, ...], bucket: TokenBucket) -> None:
        super().__init__(limits)
        self._limit: Final = limits[0]
        self._bucket: Final = bucket

    def spend(self, amount: int, now_ns: int) -> int:
        return -1 if self._limit.waiters.waiting else self._bucket.spend(amount, now_ns)


NO_LIMITS: Final[LimitSet] = _NoLimit(())


def limit_set(limits: tuple[Limit, ...]) -> LimitSet:
    """The set of these limits, in the fastest form for their number."""
    if not limits:
        return NO_LIMITS
    if len(limits) == 1 and isinstance(bucket := limits[0].algorithm, TokenBucket):
        return _OneBucket(limits, bucket)
    return LimitSet(limits)
