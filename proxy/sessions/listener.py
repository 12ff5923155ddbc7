"""Listeners, which accept in batches, and pause when file descriptors run out."""

import errno
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Any

from proxy.background.host import BACKLOG, listening_socket, tcp_socket
from proxy.config.addresses import Address
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Metrics

#: The most connections accepted per wake-up, so that a burst of them leaves time for traffic.
ACCEPT_BATCH = 64
#: How long accepting pauses when there are no descriptors or no memory.
PAUSE_SECONDS = 0.1

_EXHAUSTED = {
    errno.EMFILE: "descriptors_exhausted",
    errno.ENFILE: "descriptors_exhausted",
    errno.ENOBUFS: "no_memory",
    errno.ENOMEM: "no_memory",
}

_log = EventLog("proxy.sessions.listener")


Accepted = Callable[[socket.socket, tuple[Any, ...], int], None]


class Listener:
    """One bound port. Calls ``accepted`` with each new non-blocking socket, its peer and this listener's port.

    `reuse_port`: share it with other processes. Raises OSError if the address cannot be bound.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        address: Address,
        accepted: Accepted,
        metrics: Metrics,
        new_socket: Callable[[int], socket.socket] = tcp_socket,
        *,
        reuse_port: bool,
    ) -> None:
        self._loop = loop
        self._accepted = accepted
        self._metrics = metrics
        self._resume: TimerHandle | None = None
        self._is_shared = reuse_port
        self._sock = sock = listening_socket(address, new_socket, reuse_port=reuse_port)
        self.host: str
        self.port: int
        self.host, self.port = sock.getsockname()[:2]
        loop.add_reader(sock.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        self._accept(ACCEPT_BATCH)

    def _accept(self, most: int) -> None:
        accept = self._sock.accept
        for _ in range(most):
            try:
                client, peer = accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._on_error(error)
                return
            client.setblocking(False)
            self._accepted(client, peer, self.port)

    def _on_error(self, error: OSError) -> None:
        reason = _EXHAUSTED.get(error.errno or 0)
        if reason is None:
            self._metrics.errors.accept["aborted" if error.errno == errno.ECONNABORTED else "other"] += 1
            return
        self._metrics.errors.accept[reason] += 1
        _log.warning("accept_paused", reason=reason, port=self.port, seconds=PAUSE_SECONDS)
        descriptor = self._sock.fileno()
        self._loop.remove_reader(descriptor)
        self._resume = self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, descriptor, self._on_acceptable)

    def close(self) -> None:
        """Stop accepting; connections in the backlog are refused. On a shared port they are accepted first, because the
        kernel would reset them unless net.ipv4.tcp_migrate_req lets it pass them to the other processes.
        """
        if self._is_shared:
            self._accept(BACKLOG)
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
