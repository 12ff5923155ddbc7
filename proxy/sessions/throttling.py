"""Acts on the quota engine's Decisions: tells clients, holds frames, and wakes those whose turn it is.

One rule underneath: a data frame that finds its limits out of debt passes and is charged; one that finds debt is held
at its boundary until its turn. Each limit with waiters has one timer; when the debt is paid the fair queue names who
is next.
"""

import logging
from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.config.config import Config
from proxy.observability.admin import WaitingClient
from proxy.observability.logs import RateLimited, event
from proxy.observability.metrics import Metrics
from proxy.sessions.pump import QUOTA
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit, Ticket
from quotas.connections import Verdict

if TYPE_CHECKING:
    from proxy.sessions.session import Session

_log = logging.getLogger("proxy.sessions.throttling")

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
#: Those whose turn it is are served for so long at one go; then the loop sees to others, for a millisecond at least.
LONGEST_PASS_NS = 5_000_000
#: The rest of a frame that has passed, the head of the next one, and what must be seen of that to decide upon it.
READS_TO_NEXT_FRAME = 3


@dataclass(slots=True)
class Held:
    """A frame at whose boundary a session waits. ``size`` in bytes; ``answered``: the client waits for a response.

    ``ticket``: what it has been charged while it waits for one limit after another.

    ``deadline``: the timer after which it passes whatever the limit says, where there is one.
    """

    limit: Limit
    since_ns: int
    size: int
    answered: bool
    ticket: Ticket
    deadline: TimerHandle | None = None


class Throttling:
    """Shared by all sessions; single-threaded, in the event loop."""

    def __init__(self, loop: AbstractEventLoop, config: Config, metrics: Metrics, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._metrics = metrics
        self._clock = clock
        self._max_notice_ns = config.max_throttle_ms * NS_PER_MS
        self._dry_run = config.dry_run
        self._timers: dict[Limit, TimerHandle] = {}
        #: Those who may look at their held frames again, each with what it waited for.
        self._looking_again: deque[tuple[Session, Held | None]] = deque()
        self._next_look: Handle | None = None
        self._lines = RateLimited()

    # ---- telling

    def notify_later(self, session: "Session", decision: Decision, now_ns: int) -> None:
        """A frame passed and left debt: from now on responses carry the wait, until it is over."""
        limit = decision.limit
        if limit is None:
            return
        wait_ns = decision.wait_ns + limit.queued_ns()
        self._count(session, limit, "notify", wait_ns, decision.wait_ns, now_ns)
        if not self._dry_run and now_ns + wait_ns > session.not_before_ns:
            session.not_before_ns = now_ns + wait_ns
            session.notice_limit = limit

    def notice_ms(self, not_before_ns: int) -> int:
        """What a response written now says, in milliseconds rounded up; 0 when the wait is over."""
        remaining_ns = min(not_before_ns - self._clock(), self._max_notice_ns)
        return -(-remaining_ns // NS_PER_MS) if remaining_ns > 0 else 0

    def wait_of(self, session: "Session", decision: Decision, mode: str, now_ns: int) -> int:
        """Until when the client of one request shall wait, as its own response is to say; 0 in a dry run.

        Nothing is held for it, and no other response tells of it.
        """
        limit = decision.limit
        if limit is None:
            return 0
        self._count(session, limit, mode, decision.wait_ns, decision.wait_ns, now_ns)
        return 0 if self._dry_run else now_ns + decision.wait_ns

    # ---- holding

    def hold(
        self,
        session: "Session",
        decision: Decision,
        size: int,
        *,
        answered: bool,
        now_ns: int,
        units: int | None = None,
        ticket: Ticket | None = None,
        until_ns: int | None = None,
    ) -> bool:
        """Hold the session at this frame's boundary. True in a dry run: the frame passes all the same.

        ``units``: what the limit counts of the frame, where that is not its bytes. ``ticket``: that of a frame which
        was held before. At ``until_ns`` at the latest the session is told to look again; to pass then is up to it.
        """
        limit = decision.limit
        if limit is None:
            return True
        if self._dry_run:
            self._count(session, limit, "pause", decision.wait_ns, decision.wait_ns, now_ns)
            return True
        if ticket is None:
            entity, wait_ns = str(limit.entity), decision.wait_ns + limit.queued_ns()
            self._log(
                session, limit.name, entity, limit.rate, "pause", wait_ns, decision.wait_ns, now_ns, decision.topics
            )
        held = session.held = Held(limit, now_ns, size, answered, ticket or Ticket())
        if until_ns is not None:
            held.deadline = self._after(until_ns - now_ns, self._on_deadline, session, until_ns)
        session.request_flow.pause(QUOTA)
        limit.wait(session, size if units is None else units)
        if limit not in self._timers:
            self._arm(limit, decision.wait_ns)
        return False

    def forget(self, session: "Session") -> None:
        """The session is gone, or gives its held frame up: nobody waits for it."""
        held = session.held
        if held is None:
            return
        session.held = None
        held.limit.waiters.discard(session)
        self.give_up(held.ticket)
        if held.deadline is not None:
            held.deadline.cancel()
        if not held.limit.waiters.waiting:
            self._disarm(held.limit)

    def give_up(self, ticket: Ticket) -> None:
        """A frame will not pass under this ticket: what it has been charged is there for others."""
        claimed = tuple(ticket.claims)
        ticket.give_up(self._clock())
        self.eased(claimed)

    def eased(self, limits: Iterable[Limit]) -> None:
        """Something was given back to these limits: who waits for one of them may have to wait less."""
        for limit in limits:
            if limit in self._timers:
                self._disarm(limit)
                self._arm(limit, limit.debt_ns(self._clock()))

    def limits_changed(self) -> None:
        """Limits were replaced: everyone who waits looks again under the new ones, in the order of their turns."""
        limits = list(self._timers)
        for limit in limits:
            self._disarm(limit)
        self._all_look_again(limits)

    def _all_look_again(self, limits: Iterable[Limit]) -> None:
        """Nobody waits for these limits any more; who has to wait again queues up again."""
        for limit in limits:
            while limit.waiters.waiting:
                session = limit.waiters.pop()
                self._looking_again.append((session, session.held))
        if self._next_look is None:
            self._look_again()

    def _look_again(self) -> None:
        """For so long as one pass may take; the others in the loop's next round."""
        now_ns = self._clock()
        ends_ns = now_ns + LONGEST_PASS_NS
        while self._looking_again and now_ns < ends_ns:
            session, held = self._looking_again.popleft()
            if session.held is held:  # it is still there
                self._release(session)
            now_ns = self._clock()
        self._next_look = self._loop.call_soon(self._look_again) if self._looking_again else None

    def close(self) -> None:
        self._looking_again.clear()
        for limit in list(self._timers):
            self._disarm(limit)

    def _arm(self, limit: Limit, wait_ns: int) -> None:
        self._timers[limit] = self._after(wait_ns, self._serve, limit)

    def _after(self, wait_ns: int, callback: Callable[..., None], *arguments: object) -> TimerHandle:
        # The loop's timers count in milliseconds. Waking late costs nothing: the bucket fills meanwhile.
        wait_ms = max(1, -(-wait_ns // NS_PER_MS))
        return self._loop.call_later(wait_ms / 1000, callback, *arguments)

    def _disarm(self, limit: Limit) -> None:
        timer = self._timers.pop(limit, None)
        if timer is not None:
            timer.cancel()

    def _serve(self, limit: Limit) -> None:
        """The debt should be paid: let waiters pass, one frame each, until there is debt again.

        Who has passed shows its next frame at once. The queue is fair among those that are in it: a session of small
        frames that came back only in the loop's next round would get one of them for each large one of another.

        Where there is room for all, all go at once: else those that never stop sending would find each other waiting
        for ever, and pass a frame at a time, however little of the limit that uses.
        """
        self._timers.pop(limit, None)
        waiters = limit.waiters
        now_ns = self._clock()
        ends_ns = now_ns + LONGEST_PASS_NS
        while waiters.waiting and now_ns < ends_ns and not limit.debt_ns(now_ns):
            if limit.has_room_for_all(now_ns):
                self._all_look_again((limit,))
                break
            session = waiters.pop()
            self._release(session)
            for _ in range(READS_TO_NEXT_FRAME):
                if session.held is None:
                    session.request_flow.read_on()
            now_ns = self._clock()
        self._disarm(limit)
        if waiters.waiting:
            self._arm(limit, limit.debt_ns(now_ns))

    def _on_deadline(self, session: "Session", until_ns: int) -> None:
        """It has waited as long as it may: it leaves the queue out of its turn."""
        held = session.held
        if held is None:
            return
        left_ns = until_ns - self._clock()
        if left_ns > 0:
            held.deadline = self._after(left_ns, self._on_deadline, session, until_ns)
            return
        held.limit.waiters.discard(session)
        if not held.limit.waiters.waiting:
            self._disarm(held.limit)
        self._release(session)

    def _release(self, session: "Session") -> None:
        held = session.held
        if held is None:
            return
        session.held = None
        if held.deadline is not None:
            held.deadline.cancel()
        now_ns = self._clock()
        self._measure(session, held.limit.name, "pause", now_ns - held.since_ns, now_ns)
        session.release(held)
        if session.held is None:
            session.request_flow.resume(QUOTA)

    # ---- saying

    def connection_waits(self, session: "Session", verdict: Verdict, now_ns: int) -> None:
        """A new connection is over a rate, or one too many."""
        name, entity = verdict.limit_name or "", str(verdict.entity)
        self._measure(session, name, "pause", verdict.wait_ns, now_ns)
        self._log(session, name, entity, verdict.limit_value, "pause", verdict.wait_ns, verdict.wait_ns, now_ns)

    def _count(self, session: "Session", limit: Limit, mode: str, wait_ns: int, debt_ns: int, now_ns: int) -> None:
        self._measure(session, limit.name, mode, wait_ns, now_ns)
        self._log(session, limit.name, str(limit.entity), limit.rate, mode, wait_ns, debt_ns, now_ns)

    def _measure(self, session: "Session", limit_name: str, mode: str, wait_ns: int, now_ns: int) -> None:
        self._metrics.throttled(limit_name, session.user, session.client_id, mode, wait_ns / NS_PER_SECOND, now_ns)

    def _log(
        self,
        session: "Session",
        limit_name: str,
        entity: str,
        limit_value: float,
        mode: str,
        wait_ns: int,
        debt_ns: int,
        now_ns: int,
        topics: tuple[str, ...] = (),
    ) -> None:
        suppressed = self._lines.admit((entity, limit_name), now_ns)
        if suppressed is not None:
            event(
                _log,
                logging.WARNING,
                "would_throttle" if self._dry_run else "throttled",
                client_id=session.client_id,
                user=session.user,
                peer=session.peer,
                limit=limit_name,
                entity=entity,
                limit_value=limit_value,
                debt_seconds=round(debt_ns / NS_PER_SECOND, 3),
                throttle_ms=-(-min(wait_ns, self._max_notice_ns) // NS_PER_MS),
                mode=mode,
                topics=",".join(topics) or None,
                suppressed=suppressed,
            )

    def waiting(self, sessions: "Iterable[Session]") -> list[WaitingClient]:
        """Who waits now: held sessions, and those whose notice is not over."""
        now_ns = self._clock()
        found = []
        for session in sessions:
            held = session.held
            if held is not None:
                limit, mode = held.limit, "pause"
                remaining_ns, waited_ns = limit.debt_ns(now_ns), now_ns - held.since_ns
                name, entity, value = limit.name, str(limit.entity), limit.rate
            elif session.not_before_ns > now_ns and session.notice_limit is not None:
                limit, mode = session.notice_limit, "notify"
                remaining_ns, waited_ns = session.not_before_ns - now_ns, 0
                name, entity, value = limit.name, str(limit.entity), limit.rate
            elif session.waits_to_be_served is not None:
                verdict = session.waits_to_be_served.verdict
                if verdict.limit_name is None:  # its limit is gone: it is about to be served
                    continue
                mode, waited_ns = "pause", now_ns - session.waits_to_be_served.since_ns
                remaining_ns = max(0, verdict.wait_ns - waited_ns)
                name, entity, value = verdict.limit_name or "", str(verdict.entity), verdict.limit_value
            else:
                continue
            found.append(
                WaitingClient(
                    user=session.user,
                    client_id=session.client_id,
                    peer=session.peer,
                    limit=name,
                    entity=entity,
                    limit_value=float(value),
                    waited_seconds=waited_ns / NS_PER_SECOND,
                    remaining_seconds=remaining_ns / NS_PER_SECOND,
                    mode=mode,
                )
            )
        return found
