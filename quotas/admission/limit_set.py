"""The limits of one request: check all, then charge. A request that one limit holds is charged to none.

A limit is out of debt if it is so with what is reserved of it (`Limit.reserved`).
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Final

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.passage import Passage
from quotas.algorithms.algorithm import NS_PER_SECOND, UNLIMITED, Algorithm
from quotas.algorithms.ewma import Ewma
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.algorithms.token_bucket import AMPLE, TokenBucket

Charge = tuple[Limit, int]
"""A limit, and which of the sums of some requests it is charged with."""


class LimitSet:
    """All limits that apply to one kind of request of one client. Make one with `limit_set`.

    Amounts are in the limits' unit (bytes); `now_ns` is a monotonic time in nanoseconds.
    """

    __slots__ = ("limits",)

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits: Final = limits

    def admit(self, amount: int, now_ns: int, ticket: Ticket | None = None) -> Decision:
        """Charge every limit with `amount` if none is in debt, else nothing: `admit_all`."""
        if ticket is not None:
            return admit_all(dict.fromkeys(self.limits, amount), now_ns, ticket)
        return refusal_by(self.limits, now_ns, None) or self.charge(amount, now_ns)

    def check(self, now_ns: int) -> Decision:
        """As `admit`, without charging."""
        return refusal_by(self.limits, now_ns, None) or ADMITTED

    def charge(self, amount: int, now_ns: int) -> Decision:
        """Charge every limit in any state; admitted, with the debt that is left."""
        return _decision_of(
            [
                (limit, _charged(limit, amount, now_ns) if limit.reserved else limit.algorithm.record(amount, now_ns))
                for limit in self.limits
            ]
        )

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge every limit if none has waiters and this leaves none in debt: as `admit` for each of several requests
        with this sum. Returns the whole units left; -1 if nothing was charged.
        """
        return spend_all([(limit, 0) for limit in self.limits], (amount,), now_ns)

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
                debt_ns = _charged(limit, amount, now_ns)
            debts.append((limit, debt_ns))
        return _decision_of(debts)

    def headroom(self, now_ns: int) -> int:
        """Whole units that fit before a limit is in debt; `UNLIMITED` without limits, 0 with waiters."""
        return min((limit.headroom(now_ns) for limit in self.limits), default=UNLIMITED)

    def earned(self, span_ns: int) -> int:
        """Whole units that the slowest limit earns in `span_ns`; `UNLIMITED` without limits."""
        return min((limit.algorithm.rate * span_ns // NS_PER_SECOND for limit in self.limits), default=UNLIMITED)


def admit_all(amounts: Mapping[Limit, int], now_ns: int, ticket: Ticket | None = None) -> Decision:
    """Charge each limit with its amount if none is in debt and none has waiters, else nothing.

    `ticket`: of a frame that has its turn at `ticket.at_limit` and was removed from the queue of that limit. Limits of
    which it reserves are not asked. If another limit refuses it, it reserves of the one where it has its turn; if it
    passes, it reserves no more.
    """
    return _refused(amounts, now_ns, ticket) or charge_all(amounts, now_ns)


def admit_part(
    amounts: Mapping[Limit, int], size: int, arrived: int, now_ns: int, ticket: Ticket | None = None
) -> tuple[Decision, Passage | None]:
    """As `admit_all`, for a frame of `size` bytes of which `arrived` are forwarded now: these are charged, and the rest
    is reserved by the passage. New producer ids are charged whole. The decision contains the debts as if all of it was
    charged. No passage if refused.
    """
    refused = _refused(amounts, now_ns, ticket)
    if refused is not None:
        return refused, None
    if arrived >= size:
        return charge_all(amounts, now_ns), Passage({}, 0)
    passage = Passage(charge_producer_ids(amounts, now_ns), size)
    passage.passed(arrived, now_ns)
    return _decision_of([(limit, _debt_of_client(limit, now_ns)) for limit in amounts]), passage


def charge_all(amounts: Mapping[Limit, int], now_ns: int) -> Decision:
    """As `LimitSet.charge`, with an amount for each limit."""
    return _decision_of([(limit, _charged(limit, amount, now_ns)) for limit, amount in amounts.items()])


def charge_producer_ids(amounts: Mapping[Limit, int], now_ns: int) -> Mapping[Limit, int]:
    """Charge new producer ids at once: they are known from now on, even if the rest of their frame never arrives.
    Returns the other amounts, which are charged as bytes pass.
    """
    ids = {limit: amount for limit, amount in amounts.items() if type(limit.algorithm) is ProducerIdQuota}
    if not ids:
        return amounts
    charge_all(ids, now_ns)
    return {limit: amount for limit, amount in amounts.items() if limit not in ids}


def debt_of(limits: Iterable[Limit], now_ns: int) -> Decision:
    """The debts of these limits, as after a charge: admitted."""
    return _decision_of([(limit, _debt_of_client(limit, now_ns)) for limit in limits])


def spend_all(charges: list[Charge], sums: tuple[int, ...], now_ns: int) -> int:
    """Charge each limit with its sum if that leaves none in debt and none has waiters: what `admit_all` would do for
    some requests one by one, for the sums of their amounts at once. Each limit once. The first sum is that of bytes.

    Returns how many bytes of requests with these proportions fit before the first limit is in debt, without limits that
    have `AMPLE` left, at most `AMPLE`; or, nothing charged, -1.
    """
    fitting, size = AMPLE, sums[0]
    asked: list[tuple[Algorithm, int]] = []
    for limit, unit in charges:
        amount, algorithm = sums[unit], limit.algorithm
        if limit.waiters.waiting:
            left = -1
        elif type(algorithm) is TokenBucket:
            left = algorithm.spend(amount, limit.reserved, now_ns)
        else:  # a charge of these cannot be undone
            left = algorithm.headroom(now_ns) - amount - limit.reserved
            if not left and algorithm.debt_ns(now_ns):
                left = -1
            asked.append((algorithm, amount))
        if left < 0:
            _unspend(charges, sums, limit)
            return -1
        if left < AMPLE:
            fitting = min(fitting, left if amount == size else left * size // amount if amount else AMPLE)
    for algorithm, amount in asked:
        algorithm.record(amount, now_ns)
    return fitting


def _unspend(charges: list[Charge], sums: tuple[int, ...], refusing: Limit) -> None:
    """Undo the charges of the limits before the one that refuses."""
    for limit, unit in charges:
        if limit is refusing:
            return
        algorithm = limit.algorithm
        if type(algorithm) is TokenBucket:
            algorithm.unspend(sums[unit])


def _refused(amounts: Mapping[Limit, int], now_ns: int, ticket: Ticket | None) -> Decision | None:
    """The refusal by limits in debt or with waiters; None if the request passes. See `admit_all`."""
    if ticket is None:
        return refusal_by(amounts, now_ns, None)
    at_limit = ticket.at_limit
    ticket.review(amounts)
    refused = refusal_by([limit for limit in amounts if limit not in ticket.reserved], now_ns, at_limit)
    if refused is None:
        ticket.release()
    elif at_limit is not None and at_limit in amounts and at_limit not in refused.exceeded:
        ticket.reserve(amounts[at_limit])
    return refused


def refusal_by(limits: Iterable[Limit], now_ns: int, at_limit: Limit | None) -> Decision | None:
    """The refusal by those in debt or with waiters; `at_limit` may have waiters."""
    exceeded: list[Limit] = []  # a request may name any number of topics
    longest_ns = -1
    worst: Limit | None = None
    for limit in limits:
        wait_ns = limit.algorithm.debt_ns(now_ns, limit.reserved)
        if wait_ns or (limit.waiters.waiting and limit is not at_limit):
            exceeded.append(limit)
            if wait_ns > longest_ns:
                longest_ns, worst = wait_ns, limit
    return None if worst is None else Decision(False, longest_ns, worst, tuple(exceeded))


def _charged(limit: Limit, amount: int, now_ns: int) -> int:
    """Charge; returns the debt for which the client is to wait, with what is reserved."""
    debt_ns = limit.algorithm.record(amount, now_ns)
    return _debt_of_client(limit, now_ns) if limit.reserved else debt_ns


def _debt_of_client(limit: Limit, now_ns: int) -> int:
    """The debt with what is reserved. New producer ids are known from now on: their client needs not wait."""
    return 0 if type(limit.algorithm) is ProducerIdQuota else limit.debt_ns(now_ns)


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

    def charge(self, amount: int, now_ns: int) -> Decision:
        debt_ns = self._bucket.record(amount, now_ns)
        if self._limit.reserved:
            debt_ns = self._limit.debt_ns(now_ns)
        return Decision(True, debt_ns, self._limit, self.limits) if debt_ns else ADMITTED

    def spend(self, amount: int, now_ns: int) -> int:
        limit = self._limit
        return -1 if limit.waiters.waiting else self._bucket.spend(amount, limit.reserved, now_ns)

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
