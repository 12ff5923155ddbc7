"""Admits new connections, after a wait if a limit on connections requires one (`quotas.connections`).

A connection over its rate is accepted and served after its wait, while others are served. With a wait above
``--max-connection-hold`` it is closed after that time, so that a client that reconnects at once does not cause a
thousand refusals. Only a part of ``--max-connections`` may wait to be closed: a further one is closed at once. So is
one above ``connections``, as in Kafka above those of an address.

Changed limits apply to the next connection: a wait, once begun, stays as it is.
"""

from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from proxy.config.addresses import format_address
from proxy.observability.wait_clock import LIMIT
from proxy.sessions.session import Session
from proxy.sessions.shared import ClientAddress, Shared
from quotas.connections import ConnectionQuotas, Verdict

NS_PER_SECOND: Final = 1_000_000_000
_SERVED: Final = Verdict(True)


@dataclass(frozen=True, slots=True)
class PendingConnection:
    """A connection that is not served yet, since when it is there, and the timer that ends its wait."""

    verdict: Verdict
    since_ns: int
    timer: TimerHandle


class Gate:
    """Shared by all listeners. Call `decide` before a session is made, then `admit`, and `remove` at its end.

    pending       the waits of sessions that are not served yet
    max_refused   connections over their rate that wait to be closed
    """

    def __init__(self, shared: Shared, quotas: ConnectionQuotas, max_refused: int) -> None:
        self._shared = shared
        self._quotas = quotas
        self._measures = shared.context.measures
        self._max_refused = max_refused
        self.pending: dict[Session, PendingConnection] = {}
        self._refused = 0

    def decide(self, origin: ClientAddress) -> Verdict | None:
        """The verdict on a new connection; None: it is refused, counted and logged: close it at once."""
        if not self._measures.enforces:
            return _SERVED
        verdict = self._quotas.over(origin.ip, origin.listener)
        if verdict is None:
            verdict = self._quotas.record(origin.ip, origin.listener, self._shared.clock())
        if verdict.admitted or (verdict.wait_ns and self._refused < self._max_refused):
            return verdict
        self._count_rejected(format_address((origin.ip, origin.port)), replace(verdict, wait_ns=0))
        return None

    def admit(self, session: Session, verdict: Verdict, serve: Callable[[], None]) -> None:
        """Call ``serve`` for an accepted session, now or after its wait, or close it after that.

        verdict   that of `decide` on it
        """
        now_ns = self._shared.clock()
        if not self._measures.enforces:
            self._report_dry_run(session, now_ns)
        self._quotas.open(session.origin.ip, session.origin.listener, admitted=verdict.admitted)
        if not verdict.wait_ns:
            serve()
            return
        session.connection.waits.turn(LIMIT, now_ns, now_ns, (verdict.limit_name or "", verdict.entity), stands=True)
        self._refused += not verdict.admitted
        timer = self._shared.loop.call_later(verdict.wait_ns / NS_PER_SECOND, self._end_wait, session, serve)
        self.pending[session] = PendingConnection(verdict, now_ns, timer)

    def remove(self, session: Session) -> None:
        """The session has ended."""
        pending = self.pending.pop(session, None)
        admitted = True
        if pending is not None:
            pending.timer.cancel()
            admitted = pending.verdict.admitted
            self._refused -= not admitted
        self._quotas.close(session.origin.ip, session.origin.listener, admitted=admitted)

    # ---- inside

    def _end_wait(self, session: Session, serve: Callable[[], None]) -> None:
        verdict = self.pending[session].verdict
        self._measures.report.connection_waited(session.identity.client, verdict, self._shared.clock())
        if verdict.admitted:
            del self.pending[session]
            serve()
        else:
            self._count_rejected(session.identity.client.peer, verdict)
            session.close()

    def _report_dry_run(self, session: Session, now_ns: int) -> None:
        """Report the verdicts of both kinds of limits on a connection that is served in any case."""
        origin = session.origin
        over = self._quotas.over(origin.ip, origin.listener)
        for verdict in (over, self._quotas.record(origin.ip, origin.listener, now_ns)):
            if verdict is not None and verdict.limit_name is not None:
                self._measures.report.connection_waited(session.identity.client, verdict, now_ns)

    def _count_rejected(self, peer: str, verdict: Verdict) -> None:
        held_seconds = verdict.wait_ns / NS_PER_SECOND or None
        reason, limit_value = verdict.limit_name or "", verdict.limit_value
        self._shared.faults.rejected(reason, peer, verdict.entity, limit_value=limit_value, held_seconds=held_seconds)
