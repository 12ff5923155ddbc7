"""Admits new connections, after a wait if a limit on connections requires one (`quotas.connections`).

A connection over its rate is accepted, and served after its wait, while others are served. If the wait would exceed
``--max-connection-hold``, the connection is closed after that time instead of at once, so that a client that reconnects
immediately does not cause thousands of refusals. Only a part of ``--max-connections`` may wait to be closed; beyond
that, connections are closed at once. So are those above ``connections``, the way Kafka treats those of one address.

Changed limits apply to new connections; a wait that has started is not recalculated.
"""

from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from proxy.config.addresses import format_address
from proxy.observability.client_times import LIMIT
from proxy.sessions.session import Session
from proxy.sessions.shared import ClientAddress, Shared
from quotas.connections import ConnectionQuotas, ConnectionVerdict
from quotas.time_units import NS_PER_SECOND

_SERVED: Final = ConnectionVerdict(True)


@dataclass(frozen=True, slots=True)
class PendingConnection:
    """A connection that is not served yet, the time at which it was accepted, and the timer that ends its wait."""

    verdict: ConnectionVerdict
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
        self._actions = shared.context.actions
        self._max_refused = max_refused
        self.pending: dict[Session, PendingConnection] = {}
        self._refused = 0

    def decide(self, origin: ClientAddress) -> ConnectionVerdict | None:
        """The verdict on a new connection. None: it is refused, which has been counted and logged; close it at once."""
        if not self._actions.enforces:
            return _SERVED
        verdict = self._quotas.over(origin.ip, origin.listener)
        if verdict is None:
            verdict = self._quotas.record(origin.ip, origin.listener, self._shared.clock())
        if verdict.admitted or (verdict.wait_ns and self._refused < self._max_refused):
            return verdict
        self._count_rejected(format_address((origin.ip, origin.port)), replace(verdict, wait_ns=0))
        return None

    def admit(self, session: Session, verdict: ConnectionVerdict, serve: Callable[[], None]) -> None:
        """Call ``serve`` for an accepted session, now or after its wait, or close it after its wait.

        verdict   what `decide` returned for it
        """
        now_ns = self._shared.clock()
        if not self._actions.enforces:
            self._report_dry_run(session, now_ns)
        self._quotas.open(session.origin.ip, session.origin.listener, admitted=verdict.admitted)
        if not verdict.wait_ns:
            serve()
            return
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
        verdict, now_ns = self.pending[session].verdict, self._shared.clock()
        session.connection.observer.spend(LIMIT, now_ns, (verdict.limit_name or "", verdict.entity))
        self._actions.report.connection_waited(session.identity.client, verdict, now_ns)
        if verdict.admitted:
            del self.pending[session]
            serve()
        else:
            self._count_rejected(session.identity.client.peer, verdict)
            session.close()

    def _report_dry_run(self, session: Session, now_ns: int) -> None:
        """Report what both kinds of limits would have done with a connection that is served in any case."""
        origin = session.origin
        over = self._quotas.over(origin.ip, origin.listener)
        for verdict in (over, self._quotas.record(origin.ip, origin.listener, now_ns)):
            if verdict is not None and verdict.limit_name is not None:
                self._actions.report.connection_waited(session.identity.client, verdict, now_ns)

    def _count_rejected(self, peer: str, verdict: ConnectionVerdict) -> None:
        held_seconds = verdict.wait_ns / NS_PER_SECOND or None
        reason, limit_value = verdict.limit_name or "", verdict.limit_value
        self._shared.faults.rejected(reason, peer, verdict.entity, limit_value=limit_value, held_seconds=held_seconds)
