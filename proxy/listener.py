"""Listening sockets: accepted in batches, and at rest for a moment when descriptors run out."""

import errno
import logging
import socket
from asyncio import AbstractEventLoop, TimerHandle
from typing import Any, Protocol

from proxy.config.config import Address
from proxy.observability.logs import event
from proxy.observability.metrics import Metrics

#: At most this many connections for each wake-up, so that a storm of them leaves room for traffic.
ACCEPT_BATCH = 64
BACKLOG = 4_096
#: How long accepting rests when the process is out of descriptors or memory.
REST_SECONDS = 0.1

_EXHAUSTED = {
    errno.EMFILE: "descriptors_exhausted",
    errno.ENFILE: "descriptors_exhausted",
    errno.ENOBUFS: "no_memory",
    errno.ENOMEM: "no_memory",
}

_log = logging.getLogger("proxy.listener")


class Accepted(Protocol):
    def __call__(self, client: socket.socket, peer: tuple[Any, ...], port: int) -> None: ...


class Listener:
    """One bound port. ``accepted`` gets each new non-blocking socket, its peer and this listener's port.

    Raises OSError when the address cannot be bound.
    """

    def __init__(self, loop: AbstractEventLoop, address: Address, accepted: Accepted, metrics: Metrics) -> None:
        self._loop = loop
        self._accepted = accepted
        self._metrics = metrics
        self._rest: TimerHandle | None = None
        host, port = address
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(info[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Linux hands both on to accepted sockets, which saves two calls for each connection.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.bind(info[4])
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        self._sock = sock
        self.port: int = sock.getsockname()[1]
        loop.add_reader(sock.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        accept = self._sock.accept
        for _ in range(ACCEPT_BATCH):
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
            self._metrics.accept_error("aborted" if error.errno == errno.ECONNABORTED else "other")
            return
        self._metrics.accept_error(reason)
        event(_log, logging.WARNING, "accept_rests", reason=reason, port=self.port, seconds=REST_SECONDS)
        self._loop.remove_reader(self._sock.fileno())
        self._rest = self._loop.call_later(REST_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._rest = None
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def close(self) -> None:
        """Stop accepting; what waits in the backlog is refused."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        else:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
