"""One limit of one entity, and the set of limits that one request has to meet.

`check` all, then charge: a request that one limit holds costs the others nothing. A limit for which somebody waits
counts as in debt for everybody else, so that newcomers queue up behind.

How a caller holds and wakes (single-threaded, with one timer per limit that has waiters):

    decision = limits.admit(size, now_ns)
    not decision.admitted:  ticket = Ticket(); decision.limit.wait(session, size); a timer for the limit after wait_ns
    timer fires:            while the limit is out of debt and has waiters: session = limit.waiters.pop(),
                            ticket.turn = limit, limits.admit(size, now_ns, ticket); if another limit holds it now, it
                            queues there
    session dies:           limit.waiters.discard(session); ticket.give_up(now_ns)
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.fair_queue import FairQueue
from quotas.algorithms.algorithm import NS_PER_SECOND
from quotas.algorithms.producer_ids import ProducerIdQuota

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from quotas.algorithms.algorithm import Algorithm
    from quotas.entity import AnyEntity

SPARE_NS: Final = 20_000_000
"""What a limit earns in this time may be there though everybody wants more: whoever wakes the waiters is late at times.
"""
UNLIMITED: Final = (1 << 63) - 1
"""The headroom where no limit applies."""


class Waiters(FairQueue[Any]):
    """Who waits for a limit, and `claimants`, the tickets that have a claim on it."""

    __slots__ = ("claimants",)

    def __init__(self) -> None:
        super().__init__()
        self.claimants: set[Ticket] = set()


class _Nobody(Waiters):
    """That of every limit for which nobody has waited yet: nearly all, and there may be a million."""

    __slots__ = ()

    def push(self, waiter: object, size: int) -> NoReturn:
        raise TypeError("this queue is that of all limits without waiters: join one with Limit.wait")


_NOBODY: Final = _Nobody()
_numbers: Final = count()


class Limit:
    """One limit of one entity: "producer_byte_rate" of client-id:etl. Compared and hashed by identity.

    name        Kafka's key
    entity      whose bucket this is, with real names only
    origin      the configured entity that gave the rate: the same, or one with `DEFAULT` in it
    mode        the entry's own throttle mode, None where it has none
    algorithm   the bucket; the same one as long as the limit lives
    waiters     who waits for it, served byte-fair; join it with `wait`
    version     for `quotas.registry.limit_store`: what it has been told of
    """

    __slots__ = ("algorithm", "entity", "mode", "name", "origin", "version", "waiters")

    def __init__(
        self,
        name: str,
        entity: AnyEntity,
        algorithm: Algorithm,
        *,
        origin: AnyEntity | None = None,
        mode: str | None = None,
    ) -> None:
        self.name = name
        self.entity = entity
        self.algorithm: Final = algorithm
        self.origin = entity if origin is None else origin
        self.mode = mode
        self.waiters: Waiters = _NOBODY
        self.version = 0

    def __repr__(self) -> str:
        return f"<Limit {self.name} of {self.entity}: {self.rate}/s>"

    @property
    def rate(self) -> float:
        """What holds: units per second, producer ids per window; an int where it is whole, else the nearest float."""
        if isinstance(self.algorithm, ProducerIdQuota):
            return self.algorithm.ids_per_window
        rate = self.algorithm.rate
        return rate.numerator if rate.denominator == 1 else float(rate)

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt; 0 when it is."""
        return self.algorithm.debt_ns(now_ns)

    def queued_ns(self) -> int:
        """How long the frames that wait here will take at this rate, in nanoseconds, rounded up."""
        rate = self.algorithm.rate
        if not rate:  # a topic whose share of the total is nothing
            return 0
        return -(-self.waiters.queued * rate.denominator * NS_PER_SECOND // rate.numerator)

    def has_room_for_all(self, now_ns: int) -> bool:
        """Whether all frames that wait fit, and so much besides that it is not the limit that they wait for."""
        algorithm = self.algorithm
        spare = algorithm.rate * min(SPARE_NS, algorithm.burst_ns // 2) // NS_PER_SECOND
        return algorithm.headroom(now_ns) > self.waiters.queued + spare

    def wait(self, waiter: object, size: int) -> None:
        """A frame of `size` units waits for this limit; see `FairQueue.push`."""
        self._own_waiters().push(waiter, size)

    def _own_waiters(self) -> Waiters:
        if self.waiters is _NOBODY:
            self.waiters = Waiters()
        return self.waiters


class Ticket:
    """A frame that waits: for which limit it is its turn, and what it has been charged ahead of its passing.

    Where two limits hold frames, one that leaves the first queue for the second might find the first in debt again
    each time, for ever. So at its turn a frame is charged to that limit (a *claim*), and waits only for the others.

    A bucket does not take any number of claims (see `TokenBucket.claim`), so frames might hold what others need, each
    of another limit. Where there is no room, frames that were held later give their claims back (wound-wait,
    Rosenkrantz, Stearns and Lewis 1978). The one that was held first of all never loses a claim and is never refused
    one: it passes when it has had one turn at each of its limits, then the next one is the first. So nobody waits for
    ever.
    """

    __slots__ = ("claims", "number", "turn")

    def __init__(self) -> None:
        self.turn: Limit | None = None
        self.claims: dict[Limit, int] = {}
        self.number: Final = next(_numbers)

    def claim(self, amount: int, now_ns: int) -> None:
        """It is this frame's turn for a limit that is out of debt, and another one holds it."""
        limit = self.turn
        if limit is None or limit in self.claims:
            return
        if limit.algorithm.claim(amount, now_ns) or self._claim_before_later_ones(limit, amount, now_ns):
            self.claims[limit] = amount
            limit._own_waiters().claimants.add(self)

    def _claim_before_later_ones(self, limit: Limit, amount: int, now_ns: int) -> bool:
        algorithm = limit.algorithm
        claimants = limit.waiters.claimants
        later = sorted((each for each in claimants if each.number > self.number), key=lambda each: each.number)
        if not later:
            return False
        for each in later:
            algorithm.unclaim(each.claims[limit], now_ns)
        is_claimed = algorithm.claim(amount, now_ns)
        for each in later:
            if not algorithm.claim(each.claims[limit], now_ns):
                each._forget(limit)
        return is_claimed

    def settle(self, now_ns: int) -> None:
        """The frame passes."""
        for limit, amount in list(self.claims.items()):
            limit.algorithm.settle(amount, now_ns)
            self._forget(limit)

    def give_up(self, now_ns: int, but: Container[Limit] = ()) -> None:
        """The frame does not pass under these limits (all `but` some): give back what it was charged to them."""
        for limit, amount in list(self.claims.items()):
            if limit not in but:
                limit.algorithm.unclaim(amount, now_ns)
                self._forget(limit)

    def _forget(self, limit: Limit) -> None:
        del self.claims[limit]
        limit.waiters.claimants.remove(self)


class LimitSet:
    """All limits that apply to one kind of request of one client. Make one with `limit_set`.

    Amounts are in the limits' unit (bytes); `now_ns` is a monotonic time in nanoseconds.
    """

    __slots__ = ("limits",)

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits: Final = limits

    def admit(self, amount: int, now_ns: int, ticket: Ticket | None = None) -> Decision:
        """Charge every limit with `amount` if none is in debt; else charge nothing and say who holds.

        `ticket`: that of a frame whose turn it is, which `ticket.turn` does not hold for the sake of others any more.
        """
        if ticket is not None:
            return admit_all(dict.fromkeys(self.limits, amount), now_ns, ticket)
        held = self.check(now_ns)
        return self.charge(amount, now_ns) if held.admitted else held

    def check(self, now_ns: int) -> Decision:
        """As `admit`, without charging."""
        exceeded: tuple[Limit, ...] = ()
        longest_ns = -1
        worst: Limit | None = None
        for limit in self.limits:
            wait_ns = limit.algorithm.debt_ns(now_ns)
            if wait_ns or limit.waiters.waiting:
                exceeded += (limit,)
                if wait_ns > longest_ns:
                    longest_ns, worst = wait_ns, limit
        if worst is None:
            return ADMITTED
        return Decision(False, longest_ns, worst, exceeded)

    def charge(self, amount: int, now_ns: int) -> Decision:
        """Charge every limit whatever its state (what has passed has passed); admitted, with the debt that is left."""
        exceeded: tuple[Limit, ...] = ()
        longest_ns = 0
        worst: Limit | None = None
        for limit in self.limits:
            debt_ns = limit.algorithm.record(amount, now_ns)
            if debt_ns:
                exceeded += (limit,)
                if debt_ns > longest_ns:
                    longest_ns, worst = debt_ns, limit
        if worst is None:
            return ADMITTED
        return Decision(True, longest_ns, worst, exceeded)

    def spend(self, amount: int, now_ns: int) -> int:
        """Charge every limit if that leaves none in debt and nobody waits: what `admit` would do, one by one, for
        requests of this amount together. Returns the whole units left before the first limit is in debt, or, nothing
        charged, -1.
        """
        left = self.headroom(now_ns) - amount
        if left < 0 or not self.check(now_ns).admitted:  # in debt there is no headroom, but nothing fits into that
            return -1
        for limit in self.limits:
            limit.algorithm.record(amount, now_ns)
        return left

    def refund(self, amount: int, now_ns: int) -> None:
        """Give back what was charged for a request that went nowhere."""
        for limit in self.limits:
            limit.algorithm.record(-amount, now_ns)

    def headroom(self, now_ns: int) -> int:
        """Whole units that fit before a limit is in debt; `UNLIMITED` without limits, 0 while somebody waits."""
        return min(
            (0 if limit.waiters.waiting else limit.algorithm.headroom(now_ns) for limit in self.limits),
            default=UNLIMITED,
        )

    def earned(self, span_ns: int) -> int:
        """Whole units that the slowest of the limits earns in `span_ns`; `UNLIMITED` without limits."""
        return min((limit.algorithm.rate * span_ns // NS_PER_SECOND for limit in self.limits), default=UNLIMITED)


def admit_all(amounts: Mapping[Limit, int], now_ns: int, ticket: Ticket | None = None) -> Decision:
    """As `LimitSet.admit`, for limits of different units: each is charged with an amount of its own."""
    claims: Mapping[Limit, int] = {}
    turn: Limit | None = None
    if ticket is not None:
        ticket.give_up(now_ns, but=amounts)
        claims, turn = ticket.claims, ticket.turn
    exceeded: list[Limit] = []  # a request may name any number of topics
    longest_ns = -1
    worst: Limit | None = None
    for limit in amounts:
        if limit in claims:
            continue
        wait_ns = limit.algorithm.debt_ns(now_ns)
        if wait_ns or (limit.waiters.waiting and limit is not turn):
            exceeded.append(limit)
            if wait_ns > longest_ns:
                longest_ns, worst = wait_ns, limit
    if worst is not None:
        if ticket is not None and turn is not None and turn in amounts and turn not in exceeded:
            ticket.claim(amounts[turn], now_ns)
        return Decision(False, longest_ns, worst, tuple(exceeded))
    if ticket is None or not claims:
        return charge_all(amounts, now_ns)
    left = {limit: amount - claims.get(limit, 0) for limit, amount in amounts.items()}
    ticket.settle(now_ns)
    return charge_all(left, now_ns)


def charge_all(amounts: Mapping[Limit, int], now_ns: int) -> Decision:
    """As `LimitSet.charge`, for limits of different units."""
    exceeded: list[Limit] = []
    longest_ns = 0
    worst: Limit | None = None
    for limit, amount in amounts.items():
        debt_ns = limit.algorithm.record(amount, now_ns)
        if debt_ns:
            exceeded.append(limit)
            if debt_ns > longest_ns:
                longest_ns, worst = debt_ns, limit
    return ADMITTED if worst is None else Decision(True, longest_ns, worst, tuple(exceeded))


class _NoLimit(LimitSet):
    """Nothing applies: the fast path of clients without a quota."""

    __slots__ = ()

    def admit(self, amount: int, now_ns: int, ticket: Ticket | None = None) -> Decision:
        if ticket is not None:
            ticket.give_up(now_ns)
        return ADMITTED

    def check(self, now_ns: int) -> Decision:
        return ADMITTED

    def charge(self, amount: int, now_ns: int) -> Decision:
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
        if ticket is not None and ticket.claims:  # of limits that are gone
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

    def spend(self, amount: int, now_ns: int) -> int:
        return -1 if self._limit.waiters.waiting else self._bucket.spend(amount, now_ns)

    def headroom(self, now_ns: int) -> int:
        return 0 if self._limit.waiters.waiting else self._bucket.headroom(now_ns)


NO_LIMITS: Final[LimitSet] = _NoLimit(())


def limit_set(limits: tuple[Limit, ...]) -> LimitSet:
    """The set of these limits, in the form that is fastest for their number."""
    if not limits:
        return NO_LIMITS
    if len(limits) == 1:
        return _OneLimit((limits[0],))
    return LimitSet(limits)
