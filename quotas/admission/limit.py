"""One limit of one entity, its queue, and the ticket of a held frame.

A limit with waiters counts as in debt for all other frames, so new frames queue. How a caller holds and releases
(single-threaded, with one timer per limit with waiters):

    decision = limits.admit(size, now_ns)
    not decision.admitted:  ticket = Ticket(); decision.limit.enqueue(session, size); a timer after wait_ns
    timer fires:            while the limit is out of debt and has waiters: session = limit.waiters.pop(),
                            ticket.at_limit = limit, limits.admit(size, now_ns, ticket); if another limit refuses, the
                            frame queues there
    session ends:           limit.waiters.discard(session); ticket.release()
"""

from collections.abc import Container
from itertools import count
from typing import Any, Final, NoReturn

from quotas.admission.fair_queue import FairQueue
from quotas.algorithms.algorithm import NS_PER_SECOND, Algorithm
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import AnyEntity
from quotas.exemption import Exemption

SPARE_NS: Final = 20_000_000
"""A limit may have earned this much while its waiters need more, since timers fire late."""
SOFT_NS: Final = 20_000_000
"""The soft mark: what a limit earns in this time, at most half of its burst."""


class Waiters(FairQueue[Any]):
    """The waiters of a limit, and the tickets that reserve of it while they wait for other limits.

    holders   these tickets, with the amounts of their frames, at least 1
    held      the sum of these amounts
    """

    __slots__ = ("held", "holders")

    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[Ticket, int] = {}
        self.held = 0


class _NoWaiters(Waiters):
    """Shared by all limits that never had waiters: nearly all, and there may be a million."""

    __slots__ = ()

    def push(self, waiter: object, size: int, *, is_first: bool = False) -> NoReturn:
        raise TypeError("shared by all limits without waiters: use Limit.enqueue")


_NO_WAITERS: Final = _NoWaiters()
_numbers: Final = count()


class Limit:
    """One limit of one entity: "producer_byte_rate" of client-id:etl. Compared and hashed by identity.

    name        Kafka's key
    entity      the scope of the bucket, with real names only
    origin      the configured entity of the rate: the same, or one with `DEFAULT`
    mode        the entry's throttle mode, or None
    rejects     whether records over it are refused where the client can handle it (`action=reject`)
    algorithm   the bucket; the same one for the life of the limit
    reserved    units of frames that were admitted and have not passed yet, and of tickets: see `Passage`, `Ticket`
    waiters     its queue, served byte-fair; add to it with `enqueue`
    exempt      the clients that it neither charges nor holds, or None
    """

    __slots__ = ("algorithm", "entity", "exempt", "mode", "name", "origin", "rejects", "reserved", "waiters")

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
        self.rejects = False
        self.reserved = 0
        self.waiters: Waiters = _NO_WAITERS
        self.exempt: Exemption | None = None

    def __repr__(self) -> str:
        return f"<Limit {self.name} of {self.entity}: {self.rate}/s>"

    @property
    def rate(self) -> int | float:  # not `float`: mypyc would make it one
        """Units per second, or producer ids per window; an int if whole, else the nearest float."""
        if isinstance(self.algorithm, ProducerIdQuota):
            return self.algorithm.ids_per_window
        rate = self.algorithm.rate
        return rate.numerator if rate.denominator == 1 else float(rate)

    @property
    def burst(self) -> int:
        """Units of which a token bucket is out of debt when they are reserved and it is full; 0 for other algorithms,
        some of which are in debt with less.
        """
        algorithm = self.algorithm
        return algorithm.rate * algorithm.burst_ns // NS_PER_SECOND if type(algorithm) is TokenBucket else 0

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt, with what is reserved."""
        return self.algorithm.debt_ns(now_ns, self.reserved)

    def headroom(self, now_ns: int) -> int:
        """Whole units that fit beside what is reserved before it is in debt; 0 with waiters."""
        return 0 if self.waiters.waiting else max(0, self.algorithm.headroom(now_ns) - self.reserved)

    def queued_ns(self, more: int = 0) -> int:
        """Nanoseconds of this rate for the queued frames and `more` units; rounded up."""
        return self.time_of(self.waiters.queued + more)

    def soft_wait_ns(self, now_ns: int) -> int:
        """Nanoseconds until the headroom is above the soft mark (`SOFT_NS`) again; 0: it is, or there is no burst."""
        mark_ns = min(SOFT_NS, self.algorithm.burst_ns // 2)
        return max(0, mark_ns - self.time_of(self.headroom(now_ns))) if mark_ns else 0

    def time_of(self, amount: int) -> int:
        """Nanoseconds in which the limit earns `amount`, rounded up."""
        rate = self.algorithm.rate  # 0: a topic with a share of 0
        return -(-amount * rate.denominator * NS_PER_SECOND // rate.numerator) if rate else 0

    def has_room_for_all(self, now_ns: int) -> bool:
        """Whether all queued frames fit, with some spare."""
        algorithm = self.algorithm
        spare = algorithm.rate * min(SPARE_NS, algorithm.burst_ns // 2) // NS_PER_SECOND
        return algorithm.headroom(now_ns) - self.reserved > self.waiters.queued + spare

    def enqueue(self, waiter: object, size: int, *, is_first: bool = False) -> None:
        """Queue a frame of `size` units for this limit; see `FairQueue.push`."""
        self._own_waiters().push(waiter, size, is_first=is_first)

    def _own_waiters(self) -> Waiters:
        if self.waiters is _NO_WAITERS:
            self.waiters = Waiters()
        return self.waiters


def limits_for(user: str, client_id: str, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Of these limits, those from which the client is not exempt."""
    return tuple([limit for limit in limits if limit.exempt is None or not limit.exempt.covers(user, client_id)])


class Ticket:
    """A held frame: the limit where it has its turn, and what it reserves of limits before it passes.

    With two limits, a frame that moves from the first queue to the second could find the first in debt each time and
    starve. So at its turn it reserves its amount of that limit, at most the burst, and waits only for the others.

    The reservations at a limit are within its burst, so its queue moves; a frame larger than that reserves alone. If
    there is no room, frames that were held later lose their reservations. The frame held first never loses one and is
    never refused one: it passes after one turn at each of its limits, then the next one is first. So no frame starves,
    with any number of limits.

    In any time T at most rate * T + burst + one frame passes a token bucket. For a frame above the burst that several
    limits may hold, its size counts in place of the burst: rate * T + two such frames, and less than one unit, as
    reservations are whole units.

    at_limit   where it has its turn, or None
    reserved   by limit
    reported   thresholds that have counted this frame as throttled (see `count_throttled`), by name and entity
    """

    __slots__ = ("at_limit", "number", "reported", "reserved")

    def __init__(self) -> None:
        self.at_limit: Limit | None = None
        self.reserved: dict[Limit, int] = {}
        self.number: Final = next(_numbers)
        self.reported: set[tuple[str, AnyEntity]] = set()

    def reserve(self, amount: int) -> None:
        """Reserve `amount` of `at_limit`, which is out of debt, while another limit holds the frame."""
        limit = self.at_limit
        if limit is None or limit in self.reserved:
            return
        waiters, burst = limit._own_waiters(), limit.burst
        amount = max(1, amount)  # else one larger than the burst reserves beside an empty frame, which loses its own
        if waiters.held + amount > burst and not self._make_room(waiters, limit, burst - amount):
            return
        waiters.holders[self] = amount
        waiters.held += amount
        self.reserved[limit] = min(amount, burst)
        limit.reserved += self.reserved[limit]

    def review(self, limits: Container[Limit]) -> None:
        """Drop the reservations of limits that are not among these, and those above a burst that has become smaller."""
        for limit, reserved in list(self.reserved.items()):
            waiters, burst = limit.waiters, limit.burst
            is_above = waiters.held > burst and len(waiters.holders) > 1
            if limit not in limits or reserved > burst or is_above:
                self._drop(limit)

    def release(self) -> None:
        """The frame passes, or never will: drop the reservations, and its turn."""
        self.at_limit = None
        for limit in list(self.reserved):
            self._drop(limit)

    def _make_room(self, waiters: Waiters, limit: Limit, most: int) -> bool:
        """Drop reservations of frames that were held later, the latest first, until `most` units or none are held.
        Returns whether that is so; else nothing changes.
        """
        later = sorted([each for each in waiters.holders if each.number > self.number], key=lambda each: each.number)
        if waiters.held - sum([waiters.holders[each] for each in later]) > max(0, most):
            return False
        while later and waiters.held > most:
            later.pop()._drop(limit)
        return True

    def _drop(self, limit: Limit) -> None:
        limit.reserved -= self.reserved.pop(limit)
        limit.waiters.held -= limit.waiters.holders.pop(self)
