"""Lets new connections in, one after the other where `connection_creation_rate` asks for it.

A connection over its rate is accepted and not served for the computed time, while the others go on. One that would have
to wait longer than ``--max-connection-hold`` waits that long and is closed, so that a client which tries again at once
does not turn one refusal into a thousand. One beyond ``connections`` is closed at once, as Kafka does.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy.observability.logs import event
from proxy.sessions.throttling import NS_PER_SECOND
from quotas.connections import ConnectionQuotas, Verdict

if TYPE_CHECKING:
    from proxy.sessions.session import Session
    from proxy.sessions.shared import Shared

_log = logging.getLogger("proxy.sessions.connection_gate")


class ConnectionGate:
    """Shared by all listeners. Each session that went through it says when it is ``gone``."""

    def __init__(self, shared: "Shared", quotas: ConnectionQuotas) -> None:
        self._shared = shared
        self._quotas = quotas

    def let_in(self, session: "Session", serve: Callable[[], None]) -> None:
        """Call ``serve`` for a session that was accepted, now or when its rate allows; or close it."""
        shared = self._shared
        now_ns = shared.clock()
        verdict = self._quotas.opened(session.ip, session.listener, now_ns)
        if verdict.limit_name is None:
            serve()
            return
        if shared.config.dry_run:
            self._rehearse(session, verdict, now_ns)
            serve()
            return
        if verdict.wait_ns:  # who is closed at once is not throttled
            shared.throttling.connection_waits(session, verdict, now_ns)
        if verdict.admitted:
            session.wait_to_be_served(verdict, now_ns, serve)
        elif verdict.wait_ns:
            session.wait_to_be_served(verdict, now_ns, lambda: self._turn_away(session, verdict))
        else:
            self._turn_away(session, verdict)

    def gone(self, session: "Session") -> None:
        """The session is closed."""
        self._quotas.closed(session.ip, session.listener)

    def _rehearse(self, session: "Session", verdict: Verdict, now_ns: int) -> None:
        """Say what would be done with it. One beyond ``connections`` is served, so its rates count it too."""
        throttling = self._shared.throttling
        throttling.connection_waits(session, verdict, now_ns)
        if not verdict.wait_ns:
            verdict = self._quotas.created(session.ip, session.listener, now_ns)
            if verdict.limit_name is not None:
                throttling.connection_waits(session, verdict, now_ns)

    def _turn_away(self, session: "Session", verdict: Verdict) -> None:
        shared = self._shared
        reason = verdict.limit_name or ""
        shared.metrics.connection_rejected(reason)
        suppressed = shared.lines.admit(("connection_rejected", reason, verdict.entity), shared.clock())
        if suppressed is not None:
            event(
                _log,
                logging.WARNING,
                "connection_rejected",
                peer=session.peer,
                reason=reason,
                entity=str(verdict.entity),
                limit_value=verdict.limit_value,
                held_seconds=verdict.wait_ns / NS_PER_SECOND or None,
                suppressed=suppressed or None,
            )
        session.close()
