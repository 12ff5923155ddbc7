"""One limit of one entity: its bucket and its queue."""

from fractions import Fraction
from typing import Any, Final, NoReturn, Protocol

from quotas.admission.fair_queue import FairQueue
from quotas.algorithms.algorithm import Algorithm
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.entity import AnyEntity, EntityKind, Named
from quotas.limit_kinds import DISK_GUARD, PRODUCER_BYTE_RATE
from quotas.limit_options import NO_OPTIONS, LimitOptions
from quotas.time_units import NS_PER_SECOND

SPARE_NS: Final = 20_000_000
"""A limit may have earned this much while its waiters need more, since timers fire late."""
SOFT_NS: Final = 20_000_000
"""The soft mark: what a limit earns in this time, at most half of its burst."""
#: In which order a frame passes its limits: those of the client first, then those that it shares with more and more.
_RANKS: Final = {EntityKind.RESOURCE_GROUP: 1, EntityKind.TOPIC: 2, EntityKind.TOTAL: 3}
#: Before all others: what the disk guard refuses was charged to no other limit.
_FIRST: Final = -1


class _NoWaiters(FairQueue[Any]):
    """Shared by all limits that never had waiters: nearly all, and there may be a million."""

    __slots__ = ()

    def push(self, waiter: object, size: int, *, is_first: bool = False) -> NoReturn:
        raise TypeError("shared by all limits without waiters: use Limit.enqueue")


_NO_WAITERS: Final = _NoWaiters()


class Whole(Protocol):
    """A quota that several processes share; a limit of each has a part of it, for now."""

    @property
    def fleet(self) -> str:
        """The name of those that share it."""

    @property
    def members(self) -> int:
        """How many they are."""

    @property
    def rate(self) -> int | float:
        """Units per second of all together."""

    @property
    def share(self) -> int | Fraction:
        """What the limit of this process has now, or is about to have since it is asked for: units per second."""

    @property
    def lowest(self) -> str:
        """The process whose figure that is, if it is below the one here; "": the one here holds."""

    @property
    def own_rate(self) -> int | float:
        """The figure here."""

    def wanted(self) -> None:
        """A frame begins to wait for the limit, or leaves it in debt."""


class Limit:
    """One limit of one entity: "producer_byte_rate" of client-id:etl. Compared and hashed by identity.

    name             Kafka's key
    entity           the scope of the bucket, with real names only
    origin           the configured entity of the rate: the same, or one with `DEFAULT`
    options          those of the entry, and of the total's entry for a threshold
    algorithm        the bucket; the same one for the life of the limit
    rank             its place among the limits of a frame: lower ranks first
    last_charged_by  number of the frame that was charged last; while in debt, the one that took the limit there
    waiters          its queue, served byte-fair; add to it with `enqueue`
    uncharged        units that a dry run has let pass without a charge, since the debt was too large already
    whole            the quota that other processes share; None if the limit is this process's alone
    """

    __slots__ = (
        "algorithm",
        "entity",
        "last_charged_by",
        "name",
        "options",
        "origin",
        "rank",
        "uncharged",
        "waiters",
        "whole",
    )

    def __init__(
        self,
        name: str,
        entity: AnyEntity,
        algorithm: Algorithm,
        *,
        origin: AnyEntity | None = None,
        options: LimitOptions = NO_OPTIONS,
    ) -> None:
        self.name = name
        self.entity = entity
        self.algorithm: Final = algorithm
        self.origin = entity if origin is None else origin
        self.options = options
        self.uncharged = 0
        rank = _RANKS.get(entity.kind, 0) if isinstance(entity, Named) else 0
        self.rank: Final = _FIRST if name == DISK_GUARD else rank
        self.last_charged_by = 0
        self.waiters: FairQueue[Any] = _NO_WAITERS
        self.whole: Whole | None = None

    def __repr__(self) -> str:
        return f"<Limit {self.name} of {self.entity}: {self.rate}/s>"

    @property
    def rate(self) -> int | float:  # not `float`: mypyc would make it one
        """Units per second now, or producer ids per window; an int if whole, else the nearest float."""
        if isinstance(self.algorithm, ProducerIdQuota):
            return self.algorithm.ids_per_window
        rate = self.algorithm.rate
        return rate.numerator if rate.denominator == 1 else float(rate)

    @property
    def moves(self) -> bool:
        """Whether its rate changes on purpose all the time, so that it may differ within a fleet."""
        return self.options.moving(self.name) is not None

    @property
    def request_cost(self) -> int:
        """What each request is charged at least; 0: its bytes. Not of the other limits of the same entry."""
        return self.options.request_cost if self.name == PRODUCER_BYTE_RATE else 0

    @property
    def rejects(self) -> bool:
        """Whether records over it are refused where the client can handle it: only a topic's, not the other limits of
        the same entry.
        """
        return bool(self.options.rejects) and isinstance(self.entity, Named) and self.entity.kind is EntityKind.TOPIC

    @property
    def passed(self) -> int:
        """Units so far, charged or not."""
        return self.algorithm.passed + self.uncharged

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt."""
        return self.algorithm.debt_ns(now_ns)

    def charge(self, units: int, now_ns: int) -> int:
        """Charge a read. Returns how long the client should wait for the debt; see `expected_ns`."""
        debt_ns = self.algorithm.record(units, now_ns)
        if self.whole is None or not debt_ns:
            return debt_ns
        self.whole.wanted()
        return self.expected_ns(debt_ns, now_ns)

    def expected_ns(self, debt_ns: int, now_ns: int) -> int:
        """A debt of `debt_ns` at the present rate, by the rate that will pay it: a share of a fleet's limit that is not
        in use is a thousandth of what it becomes within some tens of ms.
        """
        algorithm = self.algorithm
        if self.whole is None or not debt_ns or not isinstance(algorithm, LeasedBucket):
            return debt_ns
        return _time_of(algorithm.owed(now_ns), self.whole.share)

    def wait_ns(self, now_ns: int, own: int = 0) -> int:
        """Nanoseconds until debt and queued frames have passed, as is to be expected; `own`: until a frame of so many
        units is served that is in the queue.
        """
        queued = self.waiters.queued - own
        if own:
            queued = min(queued, (self.waiters.waiting - 1) * own)
        return self.expected_ns(self.debt_ns(now_ns), now_ns) + self.expected_time_of(queued)

    def headroom(self, now_ns: int) -> int:
        """Whole units that fit before it is in debt; 0 with waiters."""
        return 0 if self.waiters.waiting else self.algorithm.headroom(now_ns)

    def queued_ns(self, own_ns: int) -> int:
        """Nanoseconds in which a frame that needs the limit for `own_ns` lets queued frames pass, rounded up. The queue
        is fair by bytes, so each passes at most as much before it, whatever length it has announced.
        """
        return min(self.expected_time_of(self.waiters.queued), self.waiters.waiting * own_ns)

    def expected_time_of(self, amount: int) -> int:
        """Like `time_of`, by the rate that will serve it."""
        return self.time_of(amount) if self.whole is None else _time_of(amount, self.whole.share)

    def soft_wait_ns(self, now_ns: int) -> int:
        """Nanoseconds until the headroom is above the soft mark (`SOFT_NS`) again; 0: it is, or there is no burst."""
        mark_ns = min(SOFT_NS, self.algorithm.burst_ns // 2)
        return max(0, mark_ns - self.time_of(self.headroom(now_ns))) if mark_ns else 0

    def time_of(self, amount: int) -> int:
        """Nanoseconds in which the limit earns `amount`, rounded up."""
        return _time_of(amount, self.algorithm.rate)

    def has_room_for_all(self, now_ns: int) -> bool:
        """Whether all queued frames fit, with some spare. With a burst below it, a queue ends when it is empty."""
        # With less to spare, each timer that fires late ends the queue, and the same client goes first each time.
        algorithm = self.algorithm
        spare = algorithm.rate * min(SPARE_NS, algorithm.burst_ns) // NS_PER_SECOND
        return algorithm.headroom(now_ns) > self.waiters.queued + spare

    def enqueue(self, waiter: object, size: int, *, is_first: bool = False) -> None:
        """Queue a frame of `size` units for this limit; see `FairQueue.push`."""
        if self.waiters is _NO_WAITERS:
            self.waiters = FairQueue()
        if self.whole is not None and not self.waiters.waiting:
            self.whole.wanted()
        self.waiters.push(waiter, size, is_first=is_first)


def _time_of(amount: int, rate: int | Fraction) -> int:
    """0 for a rate of 0: of a topic with a share of 0."""
    return -(-amount * rate.denominator * NS_PER_SECOND // rate.numerator) if rate else 0


def limits_for(user: str, client_id: str, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Of these limits, those from which the client is not exempt."""
    return tuple([limit for limit in limits if not limit.options.exempts(user, client_id)])
