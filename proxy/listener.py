"""Listening sockets: they accept in batches, and pause when descriptors run out."""

import errno
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Any

from proxy.config.addresses import Address
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Metrics

#: Most connections accepted per wake-up, so that a burst leaves time for traffic.
ACCEPT_BATCH = 64
BACKLOG = 4_096
#: Pause of accepting without descriptors or memory.
PAUSE_SECONDS = 0.1

_EXHAUSTED = {
    errno.EMFILE: "descriptors_exhausted",
    errno.ENFILE: "descriptors_exhausted",
    errno.ENOBUFS: "no_memory",
    errno.ENOMEM: "no_memory",
}

_log = EventLog("proxy.listener")


def listening_socket(address: Address, *, reuse_port: bool = False) -> socket.socket:
    """Bound and listening, without blocking. `*` and `[::]` are all interfaces, of IPv6 and IPv4 whatever the host's
    net.ipv6.bindv6only; without IPv6 they are those of IPv4. Raises OSError.
    """
    host, port = address
    if host in {"*", "::"}:
        try:
            return _listening(socket.AF_INET6, ("::", port), reuse_port=reuse_port)
        except OSError as error:
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                raise
            return _listening(socket.AF_INET, ("0.0.0.0", port), reuse_port=reuse_port)  # noqa: S104 - was asked for
    family, _, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _listening(family, at, reuse_port=reuse_port)


def _listening(family: int, at: tuple[Any, ...], *, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        # On Linux accepted sockets inherit both, which saves two calls for each connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if at[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(at)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


Accepted = Callable[[socket.socket, tuple[Any, ...], int], None]


class Listener:
    """One bound port. Calls ``accepted`` with each new non-blocking socket, its peer and this listener's port.

    `reuse_port`: share it with other processes. Raises OSError if the address cannot be bound.
    """

    def __init__(
        self, loop: AbstractEventLoop, address: Address, accepted: Accepted, metrics: Metrics, *, reuse_port: bool
    ) -> None:
        self._loop = loop
        self._accepted = accepted
        self._metrics = metrics
        self._resume: TimerHandle | None = None
        self._is_shared = reuse_port
        self._sock = sock = listening_socket(address, reuse_port=reuse_port)
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
        """Stop accepting; connections in the backlog are refused. Those of a shared port are accepted first: the kernel
        would reset them, where net.ipv4.tcp_migrate_req does not let it give them to the other processes.
        """
        if self._is_shared:
            self._accept(BACKLOG)
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
