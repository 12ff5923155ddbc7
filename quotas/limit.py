"""One limit of one entity, and the set of limits that one request has to meet.

`check` all, then charge: a request that one limit holds costs the others nothing. A limit for which somebody waits
counts as in debt for everybody else, so that newcomers queue up behind; `turn` lets the one through whose turn it is.

How a caller holds and wakes (single-threaded, with one timer per limit that has waiters):

    decision = limits.admit(size, now_ns)
    not decision.admitted:  decision.limit.waiters.push(session, size); a timer for the limit after wait_ns
    timer fires:            while the limit is out of debt and has waiters: session = limit.waiters.pop(),
                            then limits.admit(size, now_ns, turn=limit); if another limit holds it now, it queues there
    session dies:           limit.waiters.discard(session)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from quotas.decision import ADMITTED, Decision
from quotas.fair_queue import FairQueue

if TYPE_CHECKING:
    from fractions import Fraction

    from quotas.entity import Entity

UNLIMITED: Final = (1 << 63) - 1
"""The headroom where no limit applies."""


class Algorithm(Protocol):
    """What a limit asks of its bucket (`quotas.token_bucket.TokenBucket`). Every duration is in nanoseconds."""

    @property
    def rate(self) -> int | Fraction: ...
    @property
    def burst_ns(self) -> int: ...
    @property
    def last_ns(self) -> int: ...
    def admit(self, amount: int, now_ns: int, /) -> int: ...
    def record(self, amount: int, now_ns: int, /) -> int: ...
    def spend(self, amount: int, now_ns: int, /) -> int: ...
    def debt_ns(self, now_ns: int, /) -> int: ...
    def headroom(self, now_ns: int, /) -> int: ...
    def set_rate(self, rate: int | Fraction, burst_ns: int, now_ns: int, /) -> None: ...


class Limit:
    """One limit of one entity: "producer_byte_rate" of client-id:etl. Compared and hashed by identity.

    name        Kafka's key
    entity      whose bucket this is, with real names only
    origin      the configured entity that gave the rate: the same, or one with `DEFAULT` in it
    mode        the entry's own throttle mode, None where it has none
    algorithm   the bucket
    waiters     who waits for it, served byte-fair
    """

    __slots__ = ("algorithm", "entity", "mode", "name", "origin", "waiters")

    def __init__(
        self, name: str, entity: Entity, algorithm: Algorithm, *, origin: Entity | None = None, mode: str | None = None
    ) -> None:
        self.name = name
        self.entity = entity
        self.algorithm = algorithm
        self.origin = entity if origin is None else origin
        self.mode = mode
        self.waiters: FairQueue[Any] = FairQueue()

    def __repr__(self) -> str:
        return f"<Limit {self.name} of {self.entity}: {self.rate}/s>"

    @property
    def rate(self) -> float:
        """Units per second: an int where it is a whole number, else the nearest float."""
        rate = self.algorithm.rate
        return rate.numerator if rate.denominator == 1 else float(rate)

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt; 0 when it is."""
        return self.algorithm.debt_ns(now_ns)

    def queued_ns(self) -> int:
        """How long the frames that wait here will take at this rate, in nanoseconds, rounded up."""
        rate = self.algorithm.rate
        return -(-self.waiters.queued * rate.denominator * 1_000_000_000 // rate.numerator)


class LimitSet:
    """All limits that apply to one kind of request of one client. Make one with `limit_set`.

    Amounts are in the limits' unit (bytes); `now_ns` is a monotonic time in nanoseconds.
    """

    __slots__ = ("limits",)

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits: Final = limits

    def admit(self, amount: int, now_ns: int, turn: Limit | None = None) -> Decision:
        """Charge every limit with `amount` if none is in debt; else charge nothing and say who holds.

        `turn`: the limit whose queue has just named this request, and does not hold it for the sake of others any more.
        """
        held = self.check(now_ns, turn)
        return self.charge(amount, now_ns) if held.admitted else held

    def check(self, now_ns: int, turn: Limit | None = None) -> Decision:
        """As `admit`, without charging."""
        exceeded: tuple[Limit, ...] = ()
        longest_ns = -1
        worst: Limit | None = None
        for limit in self.limits:
            wait_ns = limit.algorithm.debt_ns(now_ns)
            if wait_ns or (limit.waiters.waiting and limit is not turn):
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


class _NoLimit(LimitSet):
    """Nothing applies: the fast path of clients without a quota."""

    __slots__ = ()

    def admit(self, amount: int, now_ns: int, turn: Limit | None = None) -> Decision:
        return ADMITTED

    def check(self, now_ns: int, turn: Limit | None = None) -> Decision:
        return ADMITTED

    def charge(self, amount: int, now_ns: int) -> Decision:
        return ADMITTED

    def spend(self, amount: int, now_ns: int) -> int:
        return UNLIMITED

    def headroom(self, now_ns: int) -> int:
        return UNLIMITED


class _OneLimit(LimitSet):
    """Exactly one limit: check and charge are one call."""

    __slots__ = ("_bucket", "_limit", "_waiters")

    def __init__(self, limits: tuple[Limit]) -> None:
        super().__init__(limits)
        self._limit: Final = limits[0]
        self._bucket: Final = limits[0].algorithm
        self._waiters: Final = limits[0].waiters

    def admit(self, amount: int, now_ns: int, turn: Limit | None = None) -> Decision:
        if self._waiters.waiting and turn is not self._limit:
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
        return -1 if self._waiters.waiting else self._bucket.spend(amount, now_ns)

    def headroom(self, now_ns: int) -> int:
        return 0 if self._waiters.waiting else self._bucket.headroom(now_ns)


NO_LIMITS: Final[LimitSet] = _NoLimit(())


def limit_set(limits: tuple[Limit, ...]) -> LimitSet:
    """The set of these limits, in the form that is fastest for their number."""
    if not limits:
        return NO_LIMITS
    if len(limits) == 1:
        return _OneLimit((limits[0],))
    return LimitSet(limits)
