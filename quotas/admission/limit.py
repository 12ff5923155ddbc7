"""One limit of one entity, its queue, and the ticket of a frame that waits.

A limit that frames wait for counts as in debt for all other frames, so that newcomers queue up. How a caller holds and
wakes (single-threaded, with one timer per limit that has waiters):

    decision = limits.admit(size, now_ns)
    not decision.admitted:  ticket = Ticket(); decision.limit.enqueue(session, size); a timer after wait_ns
    timer fires:            while the limit is out of debt and has waiters: session = limit.waiters.pop(),
                            ticket.turn = limit, limits.admit(size, now_ns, ticket); if another limit holds it now, it
                            queues there
    session dies:           limit.waiters.discard(session); ticket.release(now_ns)
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import count
from typing import Any, Final, NoReturn

from quotas.admission.fair_queue import FairQueue
from quotas.algorithms.algorithm import NS_PER_SECOND, Algorithm
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.entity import AnyEntity

SPARE_NS: Final = 20_000_000
"""A limit may have earned this much while its waiters want more, because timers fire late.
"""
UNLIMITED: Final = (1 << 63) - 1
"""The headroom where no limit applies."""


class Waiters(FairQueue[Any]):
    """The waiters of a limit, and `claimants`, the tickets with a claim on it."""

    __slots__ = ("claimants",)

    def __init__(self) -> None:
        super().__init__()
        self.claimants: set[Ticket] = set()


class _Nobody(Waiters):
    """Shared by all limits that have had no waiters yet: nearly all, and there may be a million."""

    __slots__ = ()

    def push(self, waiter: object, size: int) -> NoReturn:
        raise TypeError("this queue is that of all limits without waiters: join one with Limit.enqueue")


_NOBODY: Final = _Nobody()
_numbers: Final = count()


class Limit:
    """One limit of one entity: "producer_byte_rate" of client-id:etl. Compared and hashed by identity.

    name        Kafka's key
    entity      the scope of the bucket, with real names only
    origin      the configured entity that gave the rate: the same, or one with `DEFAULT` in it
    mode        the entry's own throttle mode, None where it has none
    algorithm   the bucket; the same one as long as the limit lives
    waiters     its queue, served byte-fair; join it with `enqueue`
    """

    __slots__ = ("algorithm", "entity", "mode", "name", "origin", "waiters")

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

    def __repr__(self) -> str:
        return f"<Limit {self.name} of {self.entity}: {self.rate}/s>"

    @property
    def rate(self) -> float:
        """Units per second, or producer ids per window; an int where it is whole, else the nearest float."""
        if isinstance(self.algorithm, ProducerIdQuota):
            return self.algorithm.ids_per_window
        rate = self.algorithm.rate
        return rate.numerator if rate.denominator == 1 else float(rate)

    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds until out of debt; 0 when it is."""
        return self.algorithm.debt_ns(now_ns)

    def queued_ns(self) -> int:
        """How long the queued frames take at this rate, in nanoseconds, rounded up."""
        rate = self.algorithm.rate
        if not rate:  # a topic whose share of the total is nothing
            return 0
        return -(-self.waiters.queued * rate.denominator * NS_PER_SECOND // rate.numerator)

    def has_room_for_all(self, now_ns: int) -> bool:
        """Whether all queued frames fit, with so much spare that this limit is no reason to wait."""
        algorithm = self.algorithm
        spare = algorithm.rate * min(SPARE_NS, algorithm.burst_ns // 2) // NS_PER_SECOND
        return algorithm.headroom(now_ns) > self.waiters.queued + spare

    def enqueue(self, waiter: object, size: int) -> None:
        """A frame of `size` units waits for this limit; see `FairQueue.push`."""
        self._own_waiters().push(waiter, size)

    def _own_waiters(self) -> Waiters:
        if self.waiters is _NOBODY:
            self.waiters = Waiters()
        return self.waiters


class Ticket:
    """A frame that waits: the limit where it has its turn, and what it was charged before it passes.

    Where two limits hold frames, one that leaves the first queue for the second might find the first in debt again
    each time, for ever. So at its turn a frame is charged to that limit (a *claim*), and waits only for the others.

    A bucket does not take any number of claims (see `TokenBucket.claim`), so frames might hold what others need, each
    of another limit. Where there is no room, frames that were held later give their claims back (wound-wait,
    Rosenkrantz, Stearns and Lewis 1978). The one that was held first of all never loses a claim and is never refused
    one: it passes when it has had one turn at each of its limits, then the next one is the first. So no frame waits
    without end.
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
        """It is this frame's turn for a limit that is out of debt, and another one holds it."""
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
        """The frame passes with these amounts; returns what is left to charge. Where less than what was claimed is
        needed now, the rest is given back.
        """
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
        """The frame does not pass under these limits (all `but` some): give back what it was charged to them."""
        for limit, amount in list(self.claims.items()):
            if limit not in but:
                limit.algorithm.unclaim(amount, self._claimed_ns[limit], now_ns)
                self._forget(limit)

    def _forget(self, limit: Limit) -> None:
        del self.claims[limit], self._claimed_ns[limit]
        limit.waiters.claimants.remove(self)
