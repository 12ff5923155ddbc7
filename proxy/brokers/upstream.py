"""Opens connections to the brokers without blocking the event loop.

An attempt is a chain of callbacks: name resolution by the loop's resolver (cached, so 1,000 clients need one look-up),
a non-blocking ``connect``, the opening of the wire (a TLS handshake), and the next candidate after a failure.
"""

import errno
import ipaddress
import os
import socket
from asyncio import AbstractEventLoop, Future, TimerHandle, ensure_future
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from proxy.config.config import Address, format_address

CONNECT_TIMEOUT_SECONDS = 5.0
RESOLVED_FOR_NS = 30_000_000_000

SocketAddress = tuple[int, tuple[Any, ...]]
"""Address family, and the argument of ``connect``."""


class Opening(Protocol):
    """What an attempt calls of the wire of a connected socket."""

    def open(self, done: Callable[[], None], failed: Callable[[str, str], None]) -> None: ...

    def close(self) -> None: ...


W = TypeVar("W", bound=Opening)


class Failed(Protocol):
    def __call__(self, address: str, reason: str, detail: str) -> None: ...


class Exhausted(Protocol):
    def __call__(self) -> None: ...


class Upstream:
    """Resolves and connects; shared by all sessions."""

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], int]) -> None:
        self.loop = loop
        self._clock = clock
        self._literals: dict[Address, list[SocketAddress]] = {}  # one for each broker ever seen
        self._resolved: dict[Address, tuple[int, list[SocketAddress]]] = {}
        self._resolving: dict[Address, Future[list[SocketAddress]]] = {}

    def connect(
        self,
        candidates: Sequence[Address],
        wire_to: Callable[[socket.socket, str], W],
        connected: Callable[[W, str], None],
        failed: Failed,
        exhausted: Exhausted,
    ) -> "Attempt[W]":
        """Try ``candidates`` in order until one accepts the connection and its wire is open.

        ``wire_to`` makes a wire of a socket and the broker's host. ``failed`` is called for each failure, with the
        address, a reason (a metric label) and a sentence. Finally ``connected``, with the wire and the address, or
        ``exhausted`` is called, once; after a cancel, none of the three.
        """
        attempt = Attempt(self, candidates, wire_to, connected, failed, exhausted)
        attempt.next_candidate()
        return attempt

    def resolve(self, address: Address) -> "list[SocketAddress] | Future[list[SocketAddress]]":
        """Socket addresses of a literal or from the cache, else a future of them."""
        literal = self._literals.get(address)
        if literal is not None:
            return literal
        host, port = address
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            pass
        else:
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            found: list[SocketAddress] = [(family, (host, port))]
            self._literals[address] = found
            return found
        cached = self._resolved.get(address)
        if cached is not None and self._clock() - cached[0] < RESOLVED_FOR_NS:
            return cached[1]
        future = self._resolving.get(address)
        if future is None:
            future = ensure_future(self._look_up(host, port), loop=self.loop)
            self._resolving[address] = future
            future.add_done_callback(lambda done: self._resolution_done(address, done))
        return future

    async def _look_up(self, host: str, port: int) -> list[SocketAddress]:
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(info[0], info[4]) for info in found]

    def _resolution_done(self, address: Address, done: "Future[list[SocketAddress]]") -> None:
        self._resolving.pop(address, None)
        if not done.cancelled() and done.exception() is None:
            self._resolved[address] = (self._clock(), done.result())


class Attempt(Generic[W]):
    """One session's attempt to connect to a broker. A connection and its handshake have `CONNECT_TIMEOUT_SECONDS`."""

    __slots__ = (
        "_address",
        "_candidates",
        "_connected",
        "_exhausted",
        "_failed",
        "_is_cancelled",
        "_left",
        "_sock",
        "_timer",
        "_upstream",
        "_wire",
        "_wire_to",
    )

    def __init__(
        self,
        upstream: Upstream,
        candidates: Sequence[Address],
        wire_to: Callable[[socket.socket, str], W],
        connected: Callable[[W, str], None],
        failed: Failed,
        exhausted: Exhausted,
    ) -> None:
        self._upstream = upstream
        self._candidates = list(reversed(candidates))
        self._wire_to = wire_to
        self._connected = connected
        self._failed = failed
        self._exhausted = exhausted
        self._address: Address = candidates[0]
        self._left: list[SocketAddress] = []
        self._sock: socket.socket | None = None
        self._wire: W | None = None
        self._timer: TimerHandle | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Stop the attempt, without a callback."""
        self._is_cancelled = True
        self._close()

    def next_candidate(self) -> None:
        self._address = self._candidates.pop()
        found = self._upstream.resolve(self._address)
        if isinstance(found, Future):
            found.add_done_callback(self._on_resolved)
        else:
            self._left = list(reversed(found))
            self._next_socket_address()

    def _on_resolved(self, done: "Future[list[SocketAddress]]") -> None:
        if self._is_cancelled:
            return
        if done.cancelled():
            self._fail_address("name_resolution", "the look-up was cancelled")
            return
        error = done.exception()
        if error is not None:
            self._fail_address("name_resolution", getattr(error, "strerror", None) or str(error))
            return
        self._left = done.result()[::-1]
        self._next_socket_address()

    def _next_socket_address(self) -> None:
        family, sockaddr = self._left.pop()
        try:
            sock = self._sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            code = sock.connect_ex(sockaddr)
        except OSError as error:  # usually no free descriptor
            self._on_error(error.errno or errno.EIO)
            return
        except OverflowError:  # a port above 65535 in a broker's response
            self._on_error(errno.EINVAL)
            return
        if code not in (0, errno.EINPROGRESS):
            self._on_error(code)
            return
        loop = self._upstream.loop
        self._timer = loop.call_later(CONNECT_TIMEOUT_SECONDS, self._on_timeout)
        if code:
            loop.add_writer(sock.fileno(), self._on_writable)
        else:
            self._open()

    def _on_writable(self) -> None:
        sock = self._sock
        assert sock is not None  # noqa: S101 - for the type checker: the writer is registered only with a socket
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._on_error(code)
        else:
            self._upstream.loop.remove_writer(sock.fileno())
            self._open()

    def _open(self) -> None:
        sock, self._sock = self._sock, None
        assert sock is not None  # noqa: S101 - for the type checker
        self._wire = self._wire_to(sock, self._address[0])
        self._wire.open(self._on_open, self._on_not_open)

    def _on_open(self) -> None:
        wire, self._wire = self._wire, None
        assert wire is not None  # noqa: S101 - for the type checker
        self._close()
        self._connected(wire, format_address(self._address))

    def _on_not_open(self, reason: str, detail: str) -> None:
        self._close()
        self._try_next(reason, detail)

    def _on_timeout(self) -> None:
        reason, what = ("connect_timeout", "no answer") if self._wire is None else ("tls_failed", "no TLS handshake")
        self._close()
        self._try_next(reason, f"{what} within {CONNECT_TIMEOUT_SECONDS:g} s")

    def _on_error(self, code: int) -> None:
        self._close()
        reason = "connect_refused" if code == errno.ECONNREFUSED else "connect_failed"
        self._try_next(reason, os.strerror(code))

    def _try_next(self, reason: str, detail: str) -> None:
        if self._left:
            self._next_socket_address()
        else:
            self._fail_address(reason, detail)

    def _fail_address(self, reason: str, detail: str) -> None:
        self._failed(format_address(self._address), reason, detail)
        if self._candidates:
            self.next_candidate()
        else:
            self._exhausted()

    def _close(self) -> None:
        """Stop the timer, and close what has not been handed over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock is not None:
            self._upstream.loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._sock = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None
