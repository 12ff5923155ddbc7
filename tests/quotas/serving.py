"""Serves sessions on a virtual clock as proxy/sessions/throttling.py does: holds, timers, turns, tickets, deaths."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import LimitSet

SECOND = 1_000_000_000


@dataclass(slots=True)
class Held:
    limit: Limit
    size: int
    ticket: Ticket


@dataclass(slots=True, eq=False)
class Session:
    """Shows one frame of `sizes` after the other, each `pause_ns` after the one before has passed."""

    name: str
    limits: LimitSet
    sizes: Iterator[int]
    pause_ns: int = 0
    is_dead: bool = False
    passed: int = 0
    """How many of its frames."""
    holds: Counter[int] = field(default_factory=Counter)
    """How often each of its frames was held, by the frame's number."""
    holds_as_first: Counter[int] = field(default_factory=Counter)
    """How often it was held (again) while no other held frame had been held before it."""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Passed:
    """A frame that was forwarded, under which limits."""

    at_ns: int
    session: Session
    size: int
    limits: tuple[Limit, ...]


class Serving:
    """A timer fires at the first multiple of `tick_ns` at which it is due: event loops count in milliseconds."""

    def __init__(self, tick_ns: int = 1) -> None:
        self.now_ns = 0
        self.passed: list[Passed] = []
        self._tick_ns = tick_ns
        self._timers: dict[Limit, int] = {}
        self._held: dict[Session, Held] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        """Call `action` then."""
        self._count += 1
        heappush(self._events, (at_ns, self._count, action))

    def join(self, sessions: Iterable[Session], at_ns: int = 0) -> None:
        """They show their first frames then."""
        for session in sessions:
            self.at(at_ns, partial(self._show, session))

    def run(self, end_ns: int, frames: int = 1 << 62) -> None:
        """Until then, or until so many frames have passed."""
        while self._events and self._events[0][0] < end_ns and len(self.passed) < frames:
            self.now_ns, _, action = heappop(self._events)
            action()

    def die(self, session: Session) -> None:
        """It hangs up: nobody waits for its frame."""
        session.is_dead = True
        held = self._held.pop(session, None)
        if held is None:
            return
        held.limit.waiters.discard(session)
        held.ticket.release()
        if not held.limit.waiters.waiting:
            self._timers.pop(held.limit, None)

    @property
    def held(self) -> dict[Session, Held]:
        """Who waits."""
        return self._held

    def limits_changed(self) -> None:
        """Everyone who waits looks again, under the limits that the session has now."""
        waiting: list[Session] = []
        for limit in list(self._timers):
            del self._timers[limit]
            while limit.waiters.waiting:
                waiting.append(limit.waiters.pop())
        for session in waiting:
            self._release(session)

    def _show(self, session: Session) -> None:
        if not session.is_dead:
            size = next(session.sizes, None)
            if size is not None:
                self._look(session, size, None)

    def _look(self, session: Session, size: int, ticket: Ticket | None) -> None:
        decision = session.limits.admit(size, self.now_ns, ticket)
        if decision.admitted:
            session.passed += 1
            self.passed.append(Passed(self.now_ns, session, size, session.limits.limits))
            self.at(self.now_ns + session.pause_ns, partial(self._show, session))
            return
        limit = decision.limit
        assert limit is not None
        held = self._held[session] = Held(limit, size, ticket or Ticket())
        session.holds[session.passed] += 1
        if held.ticket.number == min(each.ticket.number for each in self._held.values()):
            session.holds_as_first[session.passed] += 1
        limit.enqueue(session, size)
        if limit not in self._timers:
            self._arm(limit, decision.wait_ns)

    def _arm(self, limit: Limit, wait_ns: int) -> None:
        due_ns = -(-(self.now_ns + max(1, wait_ns)) // self._tick_ns) * self._tick_ns
        self._timers[limit] = due_ns
        self.at(due_ns, partial(self._serve, limit, due_ns))

    def _serve(self, limit: Limit, due_ns: int) -> None:
        if self._timers.get(limit) != due_ns:
            return  # was disarmed
        del self._timers[limit]
        while limit.waiters.waiting:
            debt_ns = limit.debt_ns(self.now_ns)
            if debt_ns:
                if limit not in self._timers:
                    self._arm(limit, debt_ns)
                return
            self._release(limit.waiters.pop())

    def _release(self, session: Session) -> None:
        held = self._held.pop(session)
        held.ticket.at_limit = held.limit
        self._look(session, held.size, held.ticket)
