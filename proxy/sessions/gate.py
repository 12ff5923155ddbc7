"""Admits new connections, after a wait if `connection_creation_rate` requires one.

A connection over its rate is accepted and served after its wait, while others are served. One with a wait above
``--max-connection-hold`` is closed after that time, so that a client that reconnects at once does not cause a thousand
refusals. One above ``connections`` is closed at once, as in Kafka.

When limits change, each waiting connection is served after the rest of its wait, or after the wait under the new limits
if that is shorter.
"""

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from proxy.enforcement.report import Report
from proxy.observability.logs import RateLimited, event
from proxy.observability.metrics import ConnectionMetrics
from proxy.sessions.session import Session
from proxy.streams.context import Context
from quotas.connections import ConnectionQuotas, Verdict, WaitingConnection

NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
#: Connections that a change admits are served in groups of this size, a millisecond apart.
SERVED_AT_ONCE: Final = 64

_log = logging.getLogger("proxy.sessions.gate")


class _Waiting:
    """A connection over its rate, its verdict, and the function that serves it."""

    __slots__ = ("connection", "serve", "timer")

    def __init__(self, connection: WaitingConnection, serve: Callable[[], None], timer: TimerHandle) -> None:
        self.connection = connection
        self.serve = serve
        self.timer = timer


class Gate:
    """Shared by all listeners. Call `remove` at the end of each session."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        quotas: ConnectionQuotas,
        report: Report,
        metrics: ConnectionMetrics,
        context: Context,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._quotas = quotas
        self._report = report
        self._metrics = metrics
        self._context = context
        self._lines = RateLimited()
        #: In the order of their recording.
        self._waiting: dict[Session, _Waiting] = {}

    def admit(self, session: Session, serve: Callable[[], None]) -> None:
        """Call ``serve`` for an accepted session, now or when its rate allows it, or close it."""
        now_ns = self._clock()
        origin = session.origin
        verdict = self._quotas.count_opened(origin.ip, origin.listener, now_ns)
        if verdict.limit_name is None:
            serve()
            return
        if not self._context.policy.enforces:
            self._report_dry_run(session, verdict, now_ns)
            serve()
            return
        if verdict.wait_ns:  # else it is closed at once and not throttled
            self._report.connection_waits(session.identity, verdict, now_ns)
            connection = WaitingConnection(origin.ip, origin.listener, verdict, now_ns)
            timer = self._after(verdict.wait_ns, session)
            self._waiting[session] = _Waiting(connection, serve, timer)
        else:
            self._reject(session, verdict)

    def remove(self, session: Session) -> None:
        """The session has ended."""
        waiting = self._waiting.pop(session, None)
        if waiting is not None:
            waiting.timer.cancel()
        self._quotas.count_closed(session.origin.ip, session.origin.listener)

    def wait_of(self, session: Session) -> WaitingConnection | None:
        """The wait of a session over its rate; None if it is served."""
        waiting = self._waiting.get(session)
        return None if waiting is None else waiting.connection

    def limits_changed(self) -> None:
        """Limits or the policy were replaced. Costs nothing while no connection waits."""
        if not self._waiting:
            return
        now_ns = self._clock()
        waiting = dict(self._waiting)
        verdicts = self._quotas.review([each.connection for each in waiting.values()], now_ns)
        free = 0
        for (session, each), verdict in zip(waiting.items(), verdicts, strict=True):
            before = each.connection
            if not self._context.policy.enforces:
                verdict = replace(verdict, admitted=True, wait_ns=0)
            left_ns = before.since_ns + verdict.wait_ns - now_ns
            if left_ns <= 0:
                left_ns = (1 + free // SERVED_AT_ONCE) * NS_PER_MS
                free += 1
            if verdict.admitted and not before.verdict.admitted:  # recorded now, after all others
                self._waiting[session] = self._waiting.pop(session)
            each.timer.cancel()
            each.connection = before._replace(verdict=verdict)
            each.timer = self._after(left_ns, session)

    def _after(self, wait_ns: int, session: Session) -> TimerHandle:
        return self._loop.call_later(wait_ns / NS_PER_SECOND, self._end_wait, session)

    def _end_wait(self, session: Session) -> None:
        waiting = self._waiting.pop(session)
        if waiting.connection.verdict.admitted:
            waiting.serve()
        else:
            self._reject(session, waiting.connection.verdict)

    def _report_dry_run(self, session: Session, verdict: Verdict, now_ns: int) -> None:
        """Report the verdict. A connection above ``connections`` is served, so its rates count it too."""
        self._report.connection_waits(session.identity, verdict, now_ns)
        if not verdict.wait_ns:
            verdict = self._quotas.record_creation(session.origin.ip, session.origin.listener, now_ns)
            if verdict.limit_name is not None:
                self._report.connection_waits(session.identity, verdict, now_ns)

    def _reject(self, session: Session, verdict: Verdict) -> None:
        reason = verdict.limit_name or ""
        self._metrics.rejected[reason] += 1
        suppressed = self._lines.admit(("connection_rejected", reason, verdict.entity), self._clock())
        if suppressed is not None:
            event(
                _log,
                logging.WARNING,
                "connection_rejected",
                peer=session.identity.peer,
                reason=reason,
                entity=str(verdict.entity),
                limit_value=verdict.limit_value,
                held_seconds=verdict.wait_ns / NS_PER_SECOND or None,
                suppressed=suppressed or None,
            )
        session.close()
