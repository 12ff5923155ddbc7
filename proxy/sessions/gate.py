"""Admits new connections, after a wait if a limit on connections requires one (`quotas.connections`).

A connection over its rate, or without a free slot below the ``connections`` of its listener or the total, is accepted
and served after its wait, while others are served. Without an end of the wait within ``--max-connection-hold`` it is
closed after that time, so that a client that reconnects at once does not cause a thousand refusals. Only a part of
``--max-connections`` may wait to be closed: a further one is closed at once. One above the ``connections`` of its
address is closed at once, too, as in Kafka.

When limits change, each waiting connection is served after the rest of its wait, or after the wait under the new limits
if that is shorter.
"""

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from proxy.config.config import format_address
from proxy.enforcement.report import Report
from proxy.observability.logs import RateLimited, event
from proxy.observability.metrics import ConnectionMetrics
from proxy.sessions.session import Origin, Session
from proxy.streams.context import Context
from quotas.connections import ConnectionQuotas, Verdict, WaitingConnection
from quotas.limit_kinds import CONNECTION_CREATION_RATE

NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
#: Connections that a change admits are served in groups of this size, a millisecond apart.
SERVED_AT_ONCE: Final = 64
#: Refused connections that are decided again at once: 50 us each.
REVIEWED_AT_ONCE: Final = 100

_log = logging.getLogger("proxy.sessions.gate")


class _Waiting(WaitingConnection):
    """The connection of a session that is not served yet, and the function that serves it.

    cause   the latest verdict with a limit, for which it waits since `begun_ns`; None: it does not wait
    """

    __slots__ = ("begun_ns", "cause", "serve", "session", "timer")

    timer: TimerHandle

    def __init__(self, session: Session, verdict: Verdict, serve: Callable[[], None], now_ns: int) -> None:
        super().__init__(session.origin.ip, session.origin.listener, verdict, now_ns)
        self.session = session
        self.serve = serve
        self.begin(verdict, now_ns)

    def begin(self, verdict: Verdict, now_ns: int) -> None:
        """It waits from now on as this verdict requires."""
        self.verdict = verdict
        self.cause = verdict if verdict.wait_ns and verdict.limit_name is not None else None
        self.begun_ns = now_ns

    @property
    def is_refused(self) -> bool:
        """Its rates refuse it: it waits to be closed."""
        return not self.verdict.admitted and self.verdict.limit_name == CONNECTION_CREATION_RATE


class Gate:
    """Shared by all listeners. Call `over` before a session is made, then `admit`, and `remove` at its end.

    max_refused   connections over their rate that wait to be closed
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        quotas: ConnectionQuotas,
        report: Report,
        metrics: ConnectionMetrics,
        context: Context,
        max_refused: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._quotas = quotas
        self._report = report
        self._metrics = metrics
        self._context = context
        self._max_refused = max_refused
        self._lines = RateLimited()
        #: In the order of their recording in rates.
        self._waiting: dict[Session, _Waiting] = {}
        self._refused: set[_Waiting] = set()

    def over(self, origin: Origin) -> Verdict | None:
        """The verdict on a new connection above `connections`, or above its rate while `max_refused` others wait to be
        closed. Without a wait it has been counted and logged: close it. None in a dry run.
        """
        if not self._context.measures.enforces:
            return None
        over = self._quotas.over(origin.ip, origin.listener)
        if over is None and len(self._refused) >= self._max_refused:
            over = self._quotas.refused(origin.ip, origin.listener, self._clock())
        if over is not None and not over.wait_ns:
            self._count_rejected(format_address((origin.ip, origin.port)), over)
        return over

    def admit(self, session: Session, over: Verdict | None, serve: Callable[[], None]) -> None:
        """Call ``serve`` for an accepted session, now or after its wait, or close it after that.

        over   the verdict of `over` on it
        """
        now_ns = self._clock()
        origin = session.origin
        if not self._context.measures.enforces:
            self._report_dry_run(session, now_ns)
            serve()
        elif over is not None:
            waiting = _Waiting(session, over, serve, now_ns)
            self._quotas.wait(waiting)
            self._hold(waiting, over.wait_ns)
        else:
            verdict = self._quotas.open(origin.ip, origin.listener, now_ns)
            if verdict.limit_name is None:
                serve()
            else:
                self._hold(_Waiting(session, verdict, serve, now_ns), verdict.wait_ns)

    def remove(self, session: Session) -> None:
        """The session has ended."""
        waiting = self._waiting.pop(session, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._refused.discard(waiting)
        self._quotas.close(session.origin.ip, session.origin.listener, waiting)
        self._grant_slots()

    def wait_of(self, session: Session) -> WaitingConnection | None:
        """The wait of a session that is not served yet; None if it is."""
        return self._waiting.get(session)

    def limits_changed(self) -> None:
        """Limits or the measures have changed. Costs nothing while no connection waits."""
        if not self._waiting:
            return
        now_ns = self._clock()
        waiting = list(self._waiting.values())
        nth = 0
        if not self._context.measures.enforces:
            for each in waiting:
                self._quotas.let_in(each)
                nth += self._hold_again(each, nth, now_ns)
            return
        nth = self._review([each for each in waiting if each.verdict.admitted], nth, now_ns)
        self._review_refused([each for each in waiting if not each.verdict.admitted], nth)

    # ---- inside

    def _review(self, waiting: list[_Waiting], nth: int, now_ns: int) -> int:
        """Apply changed limits to these; `nth` others are served at once. Returns their number after that."""
        for each, verdict in zip(waiting, self._quotas.review(waiting, now_ns), strict=True):
            if verdict.admitted and not each.verdict.admitted:  # recorded now, after all others
                self._waiting[each.session] = self._waiting.pop(each.session)
            each.verdict = verdict
            if verdict.limit_name is not None:
                each.cause = verdict
            nth += self._hold_again(each, nth, now_ns)
        return nth

    def _review_refused(self, waiting: list[_Waiting], nth: int) -> None:
        """Apply changed limits to those that were refused, some at a time: there may be thousands."""
        if self._context.measures.enforces:
            some = [each for each in waiting[:REVIEWED_AT_ONCE] if self._waiting.get(each.session) is each]
            nth = self._review([each for each in some if not each.verdict.admitted], nth, self._clock())
            self._grant_slots(nth)
            if len(waiting) > REVIEWED_AT_ONCE:
                self._loop.call_later(0.001, self._review_refused, waiting[REVIEWED_AT_ONCE:], nth)

    def _grant_slots(self, nth: int = 0) -> None:
        """Give free slots to connections that wait for them; `nth` others are served at once.

        They are served by a timer: a session that fails at once ends here again.
        """
        now_ns = self._clock()
        while (waiting := self._quotas.grant(now_ns)) is not None:
            assert isinstance(waiting, _Waiting)  # noqa: S101 - for the type checker
            self._waiting[waiting.session] = self._waiting.pop(waiting.session)
            self._report_wait(waiting, now_ns)
            verdict = waiting.verdict
            if not verdict.admitted and len(self._refused) >= self._max_refused:
                verdict = replace(verdict, wait_ns=0)
            waiting.begin(verdict, now_ns)
            nth += self._hold_again(waiting, nth, now_ns)

    def _hold(self, waiting: _Waiting, wait_ns: int) -> None:
        waiting.timer = self._loop.call_later(wait_ns / NS_PER_SECOND, self._end_wait, waiting)
        self._waiting[waiting.session] = waiting
        if waiting.is_refused:
            self._refused.add(waiting)
        else:
            self._refused.discard(waiting)

    def _hold_again(self, waiting: _Waiting, nth: int, now_ns: int) -> bool:
        """Hold it for the rest of its wait. Returns whether that is over: it is served after `nth` others."""
        left_ns = waiting.since_ns + waiting.verdict.wait_ns - now_ns
        waiting.timer.cancel()
        self._hold(waiting, left_ns if left_ns > 0 else (1 + nth // SERVED_AT_ONCE) * NS_PER_MS)
        return left_ns <= 0

    def _end_wait(self, waiting: _Waiting) -> None:
        session, verdict = waiting.session, waiting.verdict
        self._report_wait(waiting, self._clock())
        if verdict.admitted:
            del self._waiting[session]
            waiting.serve()
            return
        self._count_rejected(session.identity.client.peer, verdict)
        session.close()

    def _report_wait(self, waiting: _Waiting, now_ns: int) -> None:
        """A wait has ended, for a slot or for rates."""
        if waiting.cause is not None:
            verdict = replace(waiting.cause, wait_ns=now_ns - waiting.begun_ns)
            self._report.connection_waited(waiting.session.identity.client, verdict, now_ns)

    def _report_dry_run(self, session: Session, now_ns: int) -> None:
        """Report the verdicts of both kinds of limits on a connection that is served in any case."""
        origin = session.origin
        over = self._quotas.over(origin.ip, origin.listener)
        verdict = self._quotas.open(origin.ip, origin.listener, now_ns)
        if not verdict.admitted:
            self._quotas.take_slots(origin.listener)
        for each in (over, verdict):
            if each is not None and each.limit_name is not None:
                self._report.connection_waited(session.identity.client, each, now_ns)

    def _count_rejected(self, peer: str, verdict: Verdict) -> None:
        reason = verdict.limit_name or ""
        self._metrics.rejected[reason] += 1
        suppressed = self._lines.admit(("connection_rejected", reason, verdict.entity), self._clock())
        if suppressed is not None:
            event(
                _log,
                logging.WARNING,
                "connection_rejected",
                peer=peer,
                reason=reason,
                entity=str(verdict.entity),
                limit_value=verdict.limit_value,
                held_seconds=verdict.wait_ns / NS_PER_SECOND or None,
                suppressed=suppressed or None,
            )
