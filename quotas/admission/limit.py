"""One limit of one entity, its queue, and the ticket of a held frame.

A limit with waiters counts as in debt for all other frames, so new frames queue. How a caller holds and releases
(single-threaded, with one timer per limit with waiters):

    decision = limits.admit(size, now_ns)
    not decision.admitted:  ticket = Ticket(); decision.limit.enqueue(session, size); a timer after wait_ns
    timer fires:            while the limit is out of debt and has waiters: session = limit.waiters.pop(),
                            ticket.turn = limit, limits.admit(size, now_ns, ticket); if another limit refuses, the
                            frame queues there
    session ends:           limit.waiters.discard(session); ticket.release(now_ns)
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import count
from typing import Any, Final, NoReturn

from quotas.admission.fair_queue import FairQueue
from quotas.algorithms.algorithm import NS_PER_SECOND, Algorithm
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.entity import AnyEntity
from quotas.exemption import Exemption

SPARE_NS: Final = 20_000_000
"""A limit may have earned this much while its waiters need more, since timers fire late.
"""


class Waiters(FairQueue[Any]):
    """The waiters of a limit, and `claimants`, the tickets with a claim on it."""

    __slots__ = ("claimants",)

    def __init__(self) -> None:
        super().__init__()
        self.claimants: set[Ticket] = set()


class _NoWaiters(Waiters):
    """Shared by all limits that never had waiters: nearly all, and there may be a million."""

    __slots__ = ()

    def push(self, waiter: object, size: int, *, uncertain: int = 0, is_first: bool = False) -> NoReturn:
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
    waiters     its queue, served byte-fair; add to it with `enqueue`
    exempt      the clients that it neither charges nor holds, or None
    """

    __slots__ = ("algorithm", "entity", "exempt", "mode", "name", "origin", "rejects", "waiters")

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

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt."""
        return self.algorithm.debt_ns(now_ns)

    def queued_ns(self, more: int = 0) -> int:
        """Nanoseconds of this rate for what the queued frames will be charged, as expected, and `more` units; rounded
        up.
        """
        return self.time_of(self.waiters.queued - self.waiters.uncertain + more)

    def soft_wait_ns(self, round_trip_ns: int, now_ns: int) -> int:
        """Nanoseconds until the headroom is above the soft mark again, 0: it is. The mark is what the limit earns in a
        round trip, at most half of its burst: a notice there arrives before the debt.
        """
        algorithm = self.algorithm
        mark_ns = min(round_trip_ns, algorithm.burst_ns // 2)
        return max(0, mark_ns - self.time_of(algorithm.headroom(now_ns))) if mark_ns else 0

    def time_of(self, amount: int) -> int:
        """Nanoseconds in which the limit earns `amount`, rounded up."""
        rate = self.algorithm.rate  # 0: a topic with a share of 0
        return -(-amount * rate.denominator * NS_PER_SECOND // rate.numerator) if rate else 0

    def has_room_for_all(self, now_ns: int) -> bool:
        """Whether all queued frames fit, with some spare."""
        algorithm = self.algorithm
        spare = algorithm.rate * min(SPARE_NS, algorithm.burst_ns // 2) // NS_PER_SECOND
        return algorithm.headroom(now_ns) > self.waiters.queued + spare

    def enqueue(self, waiter: object, size: int, *, uncertain: int = 0, is_first: bool = False) -> None:
        """Queue a frame of `size` units for this limit; see `FairQueue.push`."""
        self._own_waiters().push(waiter, size, uncertain=uncertain, is_first=is_first)

    def _own_waiters(self) -> Waiters:
        if self.waiters is _NO_WAITERS:
            self.waiters = Waiters()
        return self.waiters


def limits_for(user: str, client_id: str, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Of these limits, those from which the client is not exempt."""
    return tuple([limit for limit in limits if limit.exempt is None or not limit.exempt.covers(user, client_id)])


class Ticket:
    """A held frame: the limit where it has its turn, and its charges before it passes.

    With two limits, a frame that moves from the first queue to the second could find the first in debt each time and
    starve. So at its turn a frame is charged to that limit (a *claim*), and waits only for the others.

    A bucket bounds its claims (see `TokenBucket.claim`), so frames with claims on different limits could block each
    other. If there is no room for a claim, frames that were held later release theirs (wound-wait, Rosenkrantz, Stearns
    and Lewis 1978). The frame held first never loses a claim and is never refused one: it passes after one turn at each
    of its limits, then the next one is first. So no frame starves.
    """

    __slots__ = ("_claimed_ns", "claims", "number", "reported", "turn")

    def __init__(self) -> None:
        self.turn: Limit | None = None
        self.claims: dict[Limit, int] = {}
        self._claimed_ns: dict[Limit, int] = {}
        self.number: Final = next(_numbers)
        #: Thresholds that have counted this frame as throttled (see `count_throttled`), by name and entity.
        self.reported: set[tuple[str, AnyEntity]] = set()

    def claim(self, amount: int, now_ns: int) -> None:
        """Claim `amount` of `turn`, which is out of debt, while another limit holds the frame."""
        limit = self.turn
        if limit is None or limit in self.claims:
            return
        if limit.algorithm.claim(amount, now_ns) or self._claim_before_later_ones(limit, amount, now_ns):
            self.claims[limit], self._claimed_ns[limit] = amount, now_ns
            limit._own_waiters().claimants.add(self)

    def _claim_before_later_ones(self, limit: Limit, amount: int, now_ns: int) -> bool:
        algorithm = limit.algorithm
        claimants = limit.waiters.claimants
        later = sorted((each for each in claimants if each.number > self.number), key=lambda each: each.number)
        if not later:
            return False
        for each in later:
            algorithm.unclaim(each.claims[limit], each._claimed_ns[limit], now_ns)
        is_claimed = algorithm.claim(amount, now_ns)
        for each in later:
            if algorithm.claim(each.claims[limit], now_ns):
                each._claimed_ns[limit] = now_ns
            else:
                each._forget(limit)
        return is_claimed

    def settle(self, now_ns: int, amounts: Mapping[Limit, int]) -> dict[Limit, int]:
        """The frame passes with these amounts; returns what is left to charge. Claims above an amount are refunded."""
        left = dict(amounts)
        for limit, claimed in list(self.claims.items()):
            needed = min(claimed, amounts[limit])
            if needed < claimed:
                limit.algorithm.unclaim(claimed - needed, self._claimed_ns[limit], now_ns)
            limit.algorithm.settle(needed, now_ns)
            left[limit] -= needed
            self._forget(limit)
        return left

    def release(self, now_ns: int, but: Container[Limit] = ()) -> None:
        """Refund the claims on all limits except those in `but`."""
        for limit, amount in list(self.claims.items()):
            if limit not in but:
                limit.algorithm.unclaim(amount, self._claimed_ns[limit], now_ns)
                self._forget(limit)

    def _forget(self, limit: Limit) -> None:
        del self.claims[limit], self._claimed_ns[limit]
        limit.waiters.claimants.remove(self)
