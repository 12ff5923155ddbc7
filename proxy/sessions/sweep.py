"""Checks every session about once a second, some of them in each tick of the server. It ends sessions that exceed a
timeout, and those that were connected to a bootstrap server instead of a node that is known by now.
"""

from collections.abc import Collection
from typing import Final

from proxy.brokers.nodes import Place
from proxy.config.addresses import format_address
from proxy.observability.logs import EventLog, RateLimited
from proxy.observability.metrics import HANDSHAKE_TIMEOUT, MAX_AGE, MAX_IDLE, STALLED
from proxy.sessions.lifecycle import State
from proxy.sessions.proxy_headers import ProxyHeaders
from proxy.sessions.session import Session
from proxy.streams.connection import Context
from quotas.time_units import NS_PER_SECOND

#: A sweep has this many parts. With ten ticks a second, each session is checked once a second.
PARTS: Final = 10
#: The most sessions that are checked in one round of the event loop, which takes 2 ms.
CHECKED_AT_ONCE: Final = 100

_log = EventLog("proxy.sessions.sweep")


class Sweep:
    """Closes sessions that exceed a timeout. Stalled sessions are closed only while memory is short.

    A session is stalled when the number of its bytes in memory has not changed for `--stalled-client-timeout`. Those
    with the most bytes are closed first, until a quarter of the pool is free.
    """

    def __init__(self, sessions: Collection[Session], headers: ProxyHeaders, context: Context) -> None:
        self._sessions = sessions
        self._headers = headers
        self._memory = context.memory
        self._nodes = context.nodes
        self._metrics = context.metrics.connections
        options = context.config.security
        self._stalled_ns = int(options.stalled_client_timeout_seconds * NS_PER_SECOND)
        self._handshake_ns = int(options.handshake_timeout_seconds * NS_PER_SECOND)
        self._max_idle_ns = int(options.connections_max_idle_seconds * NS_PER_SECOND)
        self._lines = RateLimited()
        self._part = 0
        self._current: list[Session] = []
        #: The sessions of the current part that have not been checked.
        self._due: list[Session] = []

    def tick(self, now_ns: int, *, is_short: bool) -> bool:
        """Check some sessions of the next part. `is_short`: some sessions are not read because memory is used up.

        Returns whether sessions of this part are left. If so, call it again in the loop's next round.
        """
        if not self._due:
            self._begin_part(now_ns, is_short=is_short)
        some = self._due[-CHECKED_AT_ONCE:]
        del self._due[-CHECKED_AT_ONCE:]
        for session in some:
            session.sweep(now_ns)
            if session.state in {State.CONNECTING, State.OPEN}:
                self._close_overdue(session, now_ns)
            if session.unexpected_at is not None and session.state is State.OPEN:
                self._drain_unexpected(session, session.unexpected_at, now_ns)
        return bool(self._due)

    def _begin_part(self, now_ns: int, *, is_short: bool) -> None:
        if self._part == 0:
            self._current = list(self._sessions)
            if is_short or self._memory.keeps_much:
                self._close_stalled(now_ns)
        self._due = self._current[self._part :: PARTS]
        self._part = (self._part + 1) % PARTS
        self._headers.expire(now_ns)

    def _close_overdue(self, session: Session, now_ns: int) -> None:
        """End a session that exceeds a timeout."""
        handshake_ns, max_idle_ns = self._handshake_ns, self._max_idle_ns
        if handshake_ns and session.lacks_request(handshake_ns, now_ns):
            self._close(session, HANDSHAKE_TIMEOUT, now_ns, timeout_seconds=handshake_ns / NS_PER_SECOND)
        elif max_idle_ns and session.upstream is not None and session.timeouts.is_idle(max_idle_ns, now_ns):
            self._close(session, MAX_IDLE, now_ns, timeout_seconds=max_idle_ns / NS_PER_SECOND)
        elif session.upstream is not None and session.timeouts.is_old(now_ns):
            if not session.timeouts.retires:
                self._report(session, MAX_AGE, now_ns)
            session.retire()

    def _drain_unexpected(self, session: Session, place: Place, now_ns: int) -> None:
        """Drain the session if the node that its client expected is known now. Otherwise the bootstrap server would
        keep answering that it is not the leader, and the client would ask for metadata but keep the connection.
        """
        broker = self._nodes.broker_at(place)
        if broker is not None and format_address(broker) != session.watch.broker:
            session.unexpected_at = None
            peer, address = session.identity.client.peer, format_address(broker)
            self._lines.event(_log.info, "connection_rerouted", "stray", now_ns, peer=peer, broker=address)
            session.drain()

    def _close(self, session: Session, reason: str, now_ns: int, **fields: object) -> None:
        self._report(session, reason, now_ns, **fields)
        session.close()

    def _report(self, session: Session, reason: str, now_ns: int, **fields: object) -> None:
        self._metrics.closed[reason] += 1
        client = session.identity.client
        log = _log.info if reason in {MAX_IDLE, MAX_AGE} else _log.warning
        at = {"reason": reason, "peer": client.peer, "client_id": client.client_id}
        self._lines.event(log, "connection_closed", reason, now_ns, **at, **fields)

    def _close_stalled(self, now_ns: int) -> None:
        memory = self._memory
        stalled = [
            session
            for session in self._current
            if session.upstream is not None
            and session.timeouts.stalled_bytes
            and now_ns - session.timeouts.stalled_since_ns >= self._stalled_ns
        ]
        stalled.sort(key=lambda session: session.timeouts.stalled_bytes, reverse=True)
        hint = "memory is used up, and this peer has read nothing of what is held for it"
        for session in stalled:
            if not memory.is_full and not memory.keeps_much:
                break
            held_bytes, since_ns = session.timeouts.stalled_bytes, session.timeouts.stalled_since_ns
            seconds = (now_ns - since_ns) // NS_PER_SECOND
            self._close(session, STALLED, now_ns, held_bytes=held_bytes, stalled_seconds=seconds, hint=hint)
