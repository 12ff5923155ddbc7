"""The limits of one kind of request of one client.

Frames pass their limits by `quotas.admission.frame`. Here is what needs no frame: requests that pass together, control
requests, which are never held, and requests that are decided as a whole.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.frame import Charge
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import NS_PER_SECOND, UNLIMITED, Algorithm
from quotas.algorithms.ewma import Ewma
from quotas.algorithms.token_bucket import AMPLE, TokenBucket


class LimitSet:
    """Make one with `limit_set`. Amounts are in the limits' unit; `now_ns` is a monotonic time in nanoseconds."""

    __slots__ = ("limits",)

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits: Final = limits

    def admit(self, amount: int, now_ns: int) -> Decision:
        """Charge every limit with `amount` if none is in debt and none has waiters, else nothing."""
        exceeded: list[Limit] = []
        longest_ns = -1
        worst: Limit | None = None
        for limit in self.limits:
            wait_ns = limit.algorithm.debt_ns(now_ns)
            if wait_ns or limit.waiters.waiting:
                exceeded.append(limit)
                if wait_ns > longest_ns:
                    longest_ns, worst = wait_ns, limit
        return self.charge(amount, now_ns) if worst is None else Decision(False, longest_ns, worst, tuple(exceeded))

    def charge(self, amount: int, now_ns: int) -> Decision:
        """Charge every limit in any state; admitted, with the debt that is left."""
        return _decision_of([(limit, limit.algorithm.record(amount, now_ns)) for limit in self.limits])

    def charge_control(self, amount: int, now_ns: int) -> Decision:
        """Charge a request that is never held to each limit that is out of debt and without waiters, so that a flood of
        such requests keeps no other one waiting. The others do not count it, nor an EWMA that the next tick would find
        in debt. Returns the debts of all, as `charge`.
        """
        debts: list[tuple[Limit, int]] = []
        for limit in self.limits:
            debt_ns = limit.debt_ns(now_ns)
            is_full = isinstance(limit.algorithm, Ewma) and not limit.algorithm.headroom(now_ns)
            if not debt_ns and not limit.waiters.waiting and not is_full:
                debt_ns = limit.algorithm.record(amount, now_ns)
                limit.overdrawn_by = 0
            debts.append((limit, debt_ns))
        return _decision_of(debts)

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge every limit if none has waiters and this leaves none in debt: as each of several requests with this
        sum would. Returns the whole units left; -1 if nothing was charged.
        """
        return spend_all([(limit, amount) for limit in self.limits], amount, now_ns)

    def headroom(self, now_ns: int) -> int:
        """Whole units that fit before a limit is in debt; `UNLIMITED` without limits, 0 with waiters."""
        return min((limit.headroom(now_ns) for limit in self.limits), default=UNLIMITED)

    def earned(self, span_ns: int) -> int:
        """Whole units that the slowest limit earns in `span_ns`; `UNLIMITED` without limits."""
        return min((limit.algorithm.rate * span_ns // NS_PER_SECOND for limit in self.limits), default=UNLIMITED)


def spend_all(charges: Sequence[Charge], size: int, now_ns: int) -> int:
    """Charge each limit if that leaves none in debt and none has waiters: so some requests of `size` bytes together
    could pass one by one. Each limit once.

    Returns how many bytes more of such requests fit: `AMPLE` for that or more. -1: nothing was charged.
    """
    fitting = AMPLE
    asked: list[tuple[Algorithm, int]] = []
    for limit, amount in charges:
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
            _unspend(charges, limit)
            return -1
        # In bytes of such requests: a limit on messages has room for so many times their bytes.
        if left < AMPLE:
            fitting = min(fitting, left if amount == size else left * size // amount if amount else AMPLE)
    for algorithm, amount in asked:
        algorithm.record(amount, now_ns)
    return fitting


def _unspend(charges: Sequence[Charge], refusing: Limit) -> None:
    """Undo the charges of the limits before the one that refuses: within this call nothing has passed."""
    for limit, amount in charges:
        if limit is refusing:
            return
        algorithm = limit.algorithm
        if isinstance(algorithm, TokenBucket):
            algorithm.unspend(amount)


def _decision_of(debts: list[tuple[Limit, int]]) -> Decision:
    """The decision on a charged request, with the debts in ns that it leaves."""
    exceeded = tuple([limit for limit, debt_ns in debts if debt_ns])
    if not exceeded:
        return ADMITTED
    worst, longest_ns = max(debts, key=itemgetter(1))
    return Decision(True, longest_ns, worst, exceeded)


class _NoLimit(LimitSet):
    """No limits: the fast path of clients without a quota."""

    __slots__ = ()

    def charge(self, amount: int, now_ns: int) -> Decision:
        return ADMITTED

    def charge_control(self, amount: int, now_ns: int) -> Decision:
        return ADMITTED

    def spend(self, amount: int, now_ns: int) -> int:
        return UNLIMITED


class _OneBucket(LimitSet):
    """Exactly one limit, with a token bucket."""

    __slots__ = ("_bucket", "_limit")

    def __init__(self, limit: Limit, bucket: TokenBucket) -> None:
        super().__init__((limit,))
        self._limit: Final = limit
        self._bucket: Final = bucket

    def spend(self, amount: int, now_ns: int) -> int:
        return -1 if self._limit.waiters.waiting else self._bucket.spend(amount, now_ns)

    def headroom(self, now_ns: int) -> int:
        return self._limit.headroom(now_ns)

    def earned(self, span_ns: int) -> int:
        return self._bucket.rate * span_ns // NS_PER_SECOND


NO_LIMITS: Final[LimitSet] = _NoLimit(())


def limit_set(limits: tuple[Limit, ...]) -> LimitSet:
    """The set of these limits, in the fastest form for their number."""
    if not limits:
        return NO_LIMITS
    if len(limits) == 1 and isinstance(bucket := limits[0].algorithm, TokenBucket):
        return _OneBucket(limits[0], bucket)
    return LimitSet(limits)
