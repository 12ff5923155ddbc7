"""Checks every session about once a second, a part of them in each tick of the server."""

import logging
from collections.abc import Collection
from typing import Final

from proxy.config.config import SecurityOptions
from proxy.observability.logs import event
from proxy.observability.metrics import ConnectionMetrics
from proxy.sessions.proxy_headers import ProxyHeaders
from proxy.sessions.session import Session
from proxy.streams.memory import MemoryPool

NS_PER_SECOND: Final = 1_000_000_000
#: Parts of a sweep: with ten ticks a second each session is checked once a second.
PARTS: Final = 10

_log = logging.getLogger("proxy.sessions.sweep")


class Sweep:
    """See the module. It also closes stalled sessions while memory is short.

    A session is stalled when the number of its bytes in memory has not changed for `--stalled-client-timeout`. The one
    with most bytes is closed first, until a quarter of the pool is free.
    """

    def __init__(
        self,
        sessions: Collection[Session],
        headers: ProxyHeaders,
        memory: MemoryPool,
        metrics: ConnectionMetrics,
        options: SecurityOptions,
    ) -> None:
        self._sessions = sessions
        self._headers = headers
        self._memory = memory
        self._metrics = metrics
        self._stalled_ns = int(options.stalled_client_timeout_seconds * NS_PER_SECOND)
        self._part = 0
        self._current: list[Session] = []

    def tick(self, now_ns: int, *, is_short: bool) -> None:
        """Check the next part; `is_short`: some sessions are not read because memory is used up."""
        if self._part == 0:
            self._current = list(self._sessions)
            if is_short:
                self._close_stalled(now_ns)
        for session in self._current[self._part :: PARTS]:
            session.sweep(now_ns)
        self._headers.expire(now_ns)
        self._part = (self._part + 1) % PARTS

    def _close_stalled(self, now_ns: int) -> None:
        memory = self._memory
        stalled = [
            session
            for session in self._current
            if session.progress.held and now_ns - session.progress.since_ns >= self._stalled_ns
        ]
        stalled.sort(key=lambda session: session.progress.held, reverse=True)
        for session in stalled:
            if memory.used <= memory.limit * 3 // 4:
                break
            self._metrics.stalled_closed += 1
            event(
                _log,
                logging.WARNING,
                "stalled_connection_closed",
                peer=session.identity.peer,
                client_id=session.identity.client_id,
                held_bytes=session.progress.held,
                stalled_seconds=(now_ns - session.progress.since_ns) // NS_PER_SECOND,
                hint="memory is used up and this connection took none of what is held for it",
            )
            session.close()
