"""The limits of one request: check all, then charge. A request that one limit holds is charged to none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Final

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.algorithms.algorithm import NS_PER_SECOND, UNLIMITED, Algorithm
from quotas.algorithms.ewma import Ewma
from quotas.algorithms.token_bucket import TokenBucket


class LimitSet:
    """All limits that apply to one kind of request of one client. Make one with `limit_set`.

    Amounts are in the limits' unit (bytes); `now_ns` is a monotonic time in nanoseconds.
    """

    __slots__ = ("limits",)

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits: Final = limits

    def admit(self, amount: int, now_ns: int, ticket: Ticket | None = None) -> Decision:
        """Charge every limit with `amount` if none is in debt, else nothing.

        `ticket`: of a frame that has its turn at `ticket.turn` and was removed from the queue of that limit.
        """
        if ticket is not None:
            return admit_all(dict.fromkeys(self.limits, amount), now_ns, ticket)
        return _refused(self.limits, now_ns) or self.charge(amount, now_ns)

    def check(self, now_ns: int) -> Decision:
        """As `admit`, without charging."""
        return _refused(self.limits, now_ns) or ADMITTED

    def charge(self, amount: int, now_ns: int) -> Decision:
        """Charge every limit in any state; admitted, with the debt that is left."""
        return _decision_of([(limit, limit.algorithm.record(amount, now_ns)) for limit in self.limits])

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge every limit if none has waiters and this leaves none in debt: as `admit` for each of several requests
        with this sum. Returns the whole units left before a limit is in debt; -1 if nothing was charged.
        """
        return spend_all([(limit, amount) for limit in self.limits], amount, now_ns)

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
            debts.append((limit, debt_ns))
        return _decision_of(debts)

    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None:
        """Refund `amount` that was charged at `charged_ns`: see `Algorithm.refund`."""
        for limit in self.limits:
            limit.algorithm.refund(amount, charged_ns, now_ns)

    def settle(self, size: int, reserved: int, now_ns: int) -> Decision:
        """Charge a response of `size` bytes, of which `reserved` have been charged, in any state."""
        return self.charge(size - reserved, now_ns)

    def headroom(self, now_ns: int) -> int:
        """Whole units that fit before a limit is in debt; `UNLIMITED` without limits, 0 with waiters."""
        return min(
            (0 if limit.waiters.waiting else limit.algorithm.headroom(now_ns) for limit in self.limits),
            default=UNLIMITED,
        )

    def earned(self, span_ns: int) -> int:
        """Whole units that the slowest limit earns in `span_ns`; `UNLIMITED` without limits."""
        return min((limit.algorithm.rate * span_ns // NS_PER_SECOND for limit in self.limits), default=UNLIMITED)


def admit_all(amounts: Mapping[Limit, int], now_ns: int, ticket: Ticket | None = None) -> Decision:
    """As `LimitSet.admit`, with an amount for each limit."""
    if ticket is None:
        return _refused(amounts, now_ns) or charge_all(amounts, now_ns)
    ticket.release(now_ns, but=amounts)
    claims, turn = ticket.claims, ticket.turn
    refused = _refused([limit for limit in amounts if limit not in claims], now_ns, turn)
    if refused is not None:
        if turn is not None and turn in amounts and turn not in refused.exceeded:
            ticket.claim(amounts[turn], now_ns)
        return refused
    return charge_all(ticket.settle(now_ns, amounts), now_ns)


def charge_all(amounts: Mapping[Limit, int], now_ns: int) -> Decision:
    """As `LimitSet.charge`, with an amount for each limit."""
    return _decision_of([(limit, limit.algorithm.record(amount, now_ns)) for limit, amount in amounts.items()])


def spend_all(amounts: Collection[tuple[Limit, int]], size: int, now_ns: int) -> int:
    """Charge each limit with its amount if that leaves none in debt and none has waiters: what `admit_all` would do for
    some requests one by one, for the sums of their amounts at once. Each limit once. `size`: their bytes together.

    Returns how many bytes of requests with these proportions fit before the first limit is in debt, or, nothing
    charged, -1.
    """
    fitting = UNLIMITED
    asked: list[tuple[Algorithm, int]] = []
    for limit, amount in amounts:
        algorithm = limit.algorithm
        if limit.waiters.waiting:
            left = -1
        elif type(algorithm) is TokenBucket:
            left = algorithm.spend(amount, now_ns)
        else:  # a charge of these cannot be undone
            left = _left_after(algorithm, amount, now_ns)
            asked.append((algorithm, amount))
        if left < 0:
            _unspend(amounts, limit)
            return -1
        if amount != size:
            left = left * size // amount if amount else UNLIMITED
        if left < fitting:
            fitting = left
    for algorithm, amount in asked:
        algorithm.record(amount, now_ns)
    return fitting


def _left_after(algorithm: Algorithm, amount: int, now_ns: int) -> int:
    """What `Algorithm.spend` would return, without a charge."""
    left = algorithm.headroom(now_ns) - amount
    return -1 if not left and not amount and algorithm.debt_ns(now_ns) else left


def _unspend(amounts: Collection[tuple[Limit, int]], refusing: Limit) -> None:
    """Undo the charges of the limits before the one that refuses."""
    for limit, amount in amounts:
        if limit is refusing:
            return
        algorithm = limit.algorithm
        if type(algorithm) is TokenBucket:
            algorithm.unspend(amount)


def _refused(limits: Iterable[Limit], now_ns: int, turn: Limit | None = None) -> Decision | None:
    """The refusal by limits in debt or with waiters; `turn` may have waiters."""
    exceeded: list[Limit] = []  # a request may name any number of topics
    longest_ns = -1
    worst: Limit | None = None
    for limit in limits:
        wait_ns = limit.algorithm.debt_ns(now_ns)
        if wait_ns or (limit.waiters.waiting and limit is not turn):
            exceeded.append(limit)
            if wait_ns > longest_ns:
                longest_ns, worst = wait_ns, limit
    return None if worst is None else Decision(False, longest_ns, worst, tuple(exceeded))


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

    def admit(self, amount: int, now_ns: int, ticket: Ticket | None = None) -> Decision:
        if ticket is not None:
            ticket.release(now_ns)
        return ADMITTED

    def check(self, now_ns: int) -> Decision:
        return ADMITTED

    def charge(self, amount: int, now_ns: int) -> Decision:
        return ADMITTED

    def charge_control(self, amount: int, now_ns: int) -> Decision:
        return ADMITTED

    def settle(self, size: int, reserved: int, now_ns: int) -> Decision:
        return ADMITTED

    def spend(self, amount: int, now_ns: int) -> int:
        return UNLIMITED

    def headroom(self, now_ns: int) -> int:
        return UNLIMITED


class _OneLimit(LimitSet):
    """Exactly one limit: check and charge are one call."""

    __slots__ = ("_bucket", "_limit")

    def __init__(self, limits: tuple[Limit]) -> None:
        super().__init__(limits)
        self._limit: Final = limits[0]
        self._bucket: Final = limits[0].algorithm

    def admit(self, amount: int, now_ns: int, ticket: Ticket | None = None) -> Decision:
        if ticket is not None and ticket.claims:  # of removed limits
            return super().admit(amount, now_ns, ticket)
        if self._limit.waiters.waiting and (ticket is None or ticket.turn is not self._limit):
            return Decision(False, self._bucket.debt_ns(now_ns), self._limit, self.limits)
        debt_ns = self._bucket.admit(amount, now_ns)
        if debt_ns == 0:
            return ADMITTED
        if debt_ns > 0:
            return Decision(True, debt_ns, self._limit, self.limits)
        return Decision(False, -debt_ns, self._limit, self.limits)

    def charge(self, amount: int, now_ns: int) -> Decision:
        debt_ns = self._bucket.record(amount, now_ns)
        return Decision(True, debt_ns, self._limit, self.limits) if debt_ns else ADMITTED

    def settle(self, size: int, reserved: int, now_ns: int) -> Decision:
        debt_ns = self._bucket.record(size - reserved, now_ns)
        return Decision(True, debt_ns, self._limit, self.limits) if debt_ns else ADMITTED

    def spend(self, amount: int, now_ns: int) -> int:
        return -1 if self._limit.waiters.waiting else self._bucket.spend(amount, now_ns)

    def headroom(self, now_ns: int) -> int:
        return 0 if self._limit.waiters.waiting else self._bucket.headroom(now_ns)

    def earned(self, span_ns: int) -> int:
        return self._bucket.rate * span_ns // NS_PER_SECOND


NO_LIMITS: Final[LimitSet] = _NoLimit(())


def limit_set(limits: tuple[Limit, ...]) -> LimitSet:
    """The set of these limits, in the fastest form for their number."""
    if not limits:
        return NO_LIMITS
    if len(limits) == 1:
        return _OneLimit((limits[0],))
    return LimitSet(limits)
