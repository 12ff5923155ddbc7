"""Lets new connections in, one after the other where `connection_creation_rate` asks for it.

A connection over its rate is accepted and not served for the computed time, while the others go on. One that would have
to wait longer than ``--max-connection-hold`` waits that long and is closed, so that a client which tries again at once
does not turn one refusal into a thousand. One beyond ``connections`` is closed at once, as Kafka does.

When limits change, those that wait look again: each is served after what is left of its wait or after what the limits
ask for now, whichever is sooner.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from proxy.observability.logs import event
from proxy.sessions.throttling import NS_PER_MS, NS_PER_SECOND
from quotas.connections import ConnectionQuotas, Held, Verdict
from quotas.entity import AnyEntity

if TYPE_CHECKING:
    from proxy.sessions.session import Session
    from proxy.sessions.shared import Shared

#: Of those that a change lets in so many are served a millisecond later, and the next ones another millisecond later.
SERVED_AT_ONCE = 64

_log = logging.getLogger("proxy.sessions.connection_gate")


class ConnectionGate:
    """Shared by all listeners. Each session that went through it says when it is ``gone``."""

    def __init__(self, shared: "Shared", quotas: ConnectionQuotas) -> None:
        self._shared = shared
        self._quotas = quotas
        #: Those that wait, in the order in which they were recorded, each with what serves it.
        self._held: dict[Session, Callable[[], None]] = {}

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
            self._held[session] = serve
            held = Held(session.ip, session.listener, verdict, now_ns)
            session.wait_to_be_served(held, verdict.wait_ns, self._has_waited)
        else:
            self._turn_away(session, verdict)

    def gone(self, session: "Session") -> None:
        """The session is closed."""
        self._held.pop(session, None)
        self._quotas.closed(session.ip, session.listener)

    def limits_changed(self, entities: Iterable[AnyEntity] | None) -> None:
        """The limits of these entities were replaced, None: of all. Costs nothing where nobody waits."""
        if not self._held or (entities is not None and not self._quotas.concerned_by(entities)):
            return
        now_ns = self._shared.clock()
        waiting = [(session, session.waits_to_be_served) for session in self._held]
        held = {session: before for session, before in waiting if before is not None}
        verdicts = self._quotas.look_again(list(held.values()), now_ns)
        free = 0
        for (session, before), verdict in zip(held.items(), verdicts, strict=True):
            left_ns = before.since_ns + verdict.wait_ns - now_ns
            if left_ns <= 0:
                left_ns = (1 + free // SERVED_AT_ONCE) * NS_PER_MS
                free += 1
            if verdict.admitted and not before.verdict.admitted:  # recorded now, behind all others
                self._held[session] = self._held.pop(session)
            session.wait_to_be_served(before._replace(verdict=verdict), left_ns, self._has_waited)

    def _has_waited(self, session: "Session", held: Held) -> None:
        serve = self._held.pop(session)
        if held.verdict.admitted:
            serve()
        else:
            self._turn_away(session, held.verdict)

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
