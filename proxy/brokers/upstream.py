"""Opens connections to the brokers for sessions: resolves names in threads (cached, so that 1,000 clients need one
lookup), connects over TCP, opens the wire (a TLS handshake), and tries the next candidate after a failure.
"""

import asyncio
import errno
import os
import socket
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from proxy.background.host import Host
from proxy.background.threads import OutsideThreads
from proxy.config.addresses import Address, format_address, ip_literal
from proxy.config.values import MAX_PORT

CONNECT_TIMEOUT_SECONDS = 30.0
"""For everything before the first request: names, TCP, TLS, one address after the other, and the proxy's login. This is
librdkafka's socket.connection.setup.timeout.ms, and the maximum in Java."""
NEXT_ADDRESS_SECONDS = 8.0
"""After this time the next address is tried: librdkafka waits 10 s for its first response, by
api.version.request.timeout.ms, and Java 30 s."""
NEXT_ATTEMPT_SECONDS = 0.25
"""After this time without an answer the next address of the same name is tried as well: the delay of RFC 8305."""
RESOLVED_FOR_NS = 30_000_000_000
MAX_NAMES: Final = 1_000
"""The most names to remember: clusters have fewer."""
_THREADS: Final = OutsideThreads("names of brokers", 16)
_STREAM: Final = socket.SOCK_STREAM

SocketAddress = tuple[int, tuple[Any, ...]]
"""Address family, and the argument of ``connect``."""


class OpenableWire(Protocol):
    """The methods that are called on the wire of a connected socket."""

    def open(self, done: Callable[[], None], failed: Callable[[str, str], None]) -> None: ...

    def close(self) -> None: ...


W = TypeVar("W", bound=OpenableWire)
Attempt: TypeAlias = Task[W | None]
"""Opens one connection. When cancelled, it closes what it has opened and calls nothing."""


class BrokerFailed(OSError):
    """A broker cannot be used. `reason` is the label of the metric, and `str()` is a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def connect_failure(error: Exception) -> BrokerFailed:
    """Why there is no TCP connection."""
    if isinstance(error, BrokerFailed):
        return error
    if isinstance(error, socket.gaierror):
        return BrokerFailed("name_resolution", error.strerror or str(error))
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return BrokerFailed("connect_refused" if isinstance(error, ConnectionRefusedError) else "connect_failed", text)


class Upstream:
    """Resolves and connects; shared by all sessions."""

    def __init__(self, loop: AbstractEventLoop, host: Host) -> None:
        self._loop = loop
        self._host = host
        #: Whether a broker's address belongs to this proxy: connections to it would loop until none is left.
        self.is_own: Callable[[Address], bool] = lambda address: False
        #: The latest lookup of each name, and until when it is valid.
        self._names: dict[Address, tuple[int, Task[list[SocketAddress]]]] = {}
        #: For names with several addresses, the address that worked last.
        self._working: dict[Address, SocketAddress] = {}

    def connect(
        self,
        candidates: Sequence[Address],
        wire_to: Callable[[socket.socket, str], W],
        connected: Callable[[W, str], None],
        failed: Callable[[str, str, str], None],
        exhausted: Callable[[], None],
    ) -> Attempt[W]:
        """Try ``candidates`` in order until one accepts the connection and its wire is open.

        ``wire_to`` makes a wire of a socket and the broker's host. ``failed`` is called for each failure, with the
        address, a reason (a metric label) and a sentence. Finally ``connected``, with the wire and the address, or
        ``exhausted`` is called, once; after a cancel, none of the three.
        """

        async def attempt() -> W | None:
            until = self._loop.time() + CONNECT_TIMEOUT_SECONDS
            for others, candidate in zip(reversed(range(len(candidates))), candidates, strict=True):
                try:
                    wire = await self._open(candidate, wire_to, until, others)
                except BrokerFailed as error:
                    failed(format_address(candidate), error.reason, str(error))
                else:
                    connected(wire, format_address(candidate))
                    return wire
            exhausted()
            return None

        return self._loop.create_task(attempt())

    async def resolve(self, address: Address) -> list[SocketAddress]:
        """Socket addresses of a literal, or of a name. Raises OSError."""
        host, port = address
        # It may come from a broker's response. uvloop uses only the last 16 bits of a port, and resolvers raise
        # ValueError for a zero byte.
        if not host or "\0" in host or not 0 <= port <= MAX_PORT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        literal = ip_literal(host)
        if literal is not None:
            # No server is asked. This finds the number of an interface, as in fe80::1%eth0, which uvloop drops.
            found = socket.getaddrinfo(str(literal), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            return [(info[0], info[4]) for info in found]
        try:
            return await asyncio.shield(self._latest_look_up(address))
        except OSError:
            self._names.pop(address, None)
            raise

    def _latest_look_up(self, address: Address) -> Task[list[SocketAddress]]:
        until_ns, look_up = self._names.get(address, (0, None))
        if look_up is None or self._host.clock() >= until_ns:
            look_up = self._loop.create_task(self._look_up(*address))
            self._names[address] = self._host.clock() + RESOLVED_FOR_NS, look_up
            if len(self._names) > MAX_NAMES:
                del self._names[next(iter(self._names))]
        return look_up

    async def _look_up(self, host: str, port: int) -> list[SocketAddress]:
        found = await self._loop.run_in_executor(_THREADS, partial(self._host.addresses_of, host, port, type=_STREAM))
        return [(info[0], info[4]) for info in found]

    async def dial(self, address: Address) -> socket.socket:
        """A TCP connection to the first address that accepts it. Raises BrokerFailed."""
        found = await self._resolved(address)
        sock, chosen = await self._first_of(found)
        self._remember(address, found, chosen)
        return sock

    def forget(self, address: Address) -> None:
        """Forget which address worked: it accepted a connection but did not work."""
        self._working.pop(address, None)

    async def _resolved(self, address: Address) -> list[SocketAddress]:
        """The socket addresses of a broker, starting with the one that worked last. Raises BrokerFailed."""
        try:
            found = await self.resolve(address)
        except (OSError, UnicodeError) as error:
            raise connect_failure(error) from error
        # The addresses are compared as well: the proxy may have another name, and 127.0.0.1 is also 127.1.
        if any(map(self.is_own, [address, *(sockaddr[:2] for _, sockaddr in found)])):
            raise BrokerFailed(
                "connect_failed",
                "this address is the proxy itself: correct --bootstrap-servers, or advertised.listeners of the broker",
            )
        last = self._working.get(address)
        return sorted(found, key=lambda each: each != last)

    def _remember(self, address: Address, found: Sequence[SocketAddress], chosen: SocketAddress) -> None:
        if len(found) > 1:
            self._working[address] = chosen
            if len(self._working) > MAX_NAMES:
                del self._working[next(iter(self._working))]

    async def _open(self, address: Address, wire_to: Callable[[socket.socket, str], W], until: float, others: int) -> W:
        """The open wire to the first address of a broker that works. Raises BrokerFailed for the last address.

        until    the loop's time at which the client is no longer kept waiting
        others   brokers that may be tried after this one
        """
        found = await self._resolved(address)
        left = list(found)
        while left:
            rest = until - self._loop.time()
            seconds = min(rest, NEXT_ADDRESS_SECONDS) if len(left) > 1 or others else rest
            try:
                wire, chosen = await self._open_one(left, lambda sock: wire_to(sock, address[0]), seconds, others)
            except OSError as error:  # also without a free descriptor
                failure = connect_failure(error)
            else:
                self._remember(address, found, chosen)
                return wire
        self.forget(address)
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this call, and so to the session: a cycle

    async def _open_one(
        self, left: list[SocketAddress], wire_of: Callable[[socket.socket], W], seconds: float, others: int
    ) -> tuple[W, SocketAddress]:
        """The open wire to the first of these addresses that accepts a connection. Removes from `left` the addresses
        that failed. If all are silent it removes the first, or all if there are `others`, because all have been tried.
        """
        wire: W | None = None
        try:
            async with asyncio.timeout(seconds):
                sock, chosen = await self._first_of(left)
                left.remove(chosen)
                try:
                    wire = wire_of(sock)
                    await self._opened(wire)
                except BaseException:
                    (wire or sock).close()
                    raise
        except TimeoutError:
            if wire is None:
                del left[: None if others else 1]
            reason, what = ("connect_timeout", "no answer") if wire is None else ("tls_failed", "no TLS handshake")
            raise BrokerFailed(reason, f"{what} within {max(seconds, 0):.3g} s") from None
        except OSError:
            if wire is None:
                left.clear()
            raise
        return wire, chosen

    async def _first_of(self, found: Sequence[SocketAddress]) -> tuple[socket.socket, SocketAddress]:
        """The first connection that succeeds. An attempt starts when the previous one has failed, or has had no answer
        for `NEXT_ATTEMPT_SECONDS`, the way clients do it (RFC 8305). Raises OSError if all fail.
        """
        if len(found) == 1:
            return await self._connected(*found[0]), found[0]
        waiting, attempts = list(reversed(found)), dict[Task[socket.socket], SocketAddress]()
        failure = connect_failure(OSError("there is no address"))
        try:
            while waiting or attempts:
                if waiting:
                    chosen = waiting.pop()
                    attempts[self._loop.create_task(self._connected(*chosen))] = chosen
                pause = NEXT_ATTEMPT_SECONDS if waiting else None
                done, _ = await asyncio.wait(attempts, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    error = attempt.exception()
                    if error is None:
                        return attempt.result(), attempts.pop(attempt)
                    del attempts[attempt]
                    failure = connect_failure(error) if isinstance(error, Exception) else failure
            raise failure
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_close)
            del failure

    async def _connected(self, family: int, sockaddr: tuple[Any, ...]) -> socket.socket:
        sock = self._host.new_socket(family)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await self._loop.sock_connect(sock, sockaddr)
        except BaseException:
            sock.close()
            raise
        return sock

    def _opened(self, wire: OpenableWire) -> "Future[None]":
        opened: Future[None] = self._loop.create_future()

        def done() -> None:
            if not opened.done():  # cancelled
                opened.set_result(None)

        def failed(reason: str, detail: str) -> None:
            if not opened.done():
                opened.set_exception(BrokerFailed(reason, detail))

        wire.open(done, failed)
        return opened


def _close(attempt: "Task[socket.socket]") -> None:
    """Close a connection that was not needed."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def upstream_of(loop: AbstractEventLoop) -> Upstream:
    """How connections that belong to no session are made: the upstream of `proxy.internal_clients.event_loops`, or one
    without memory.
    """
    return getattr(loop, "upstream", None) or Upstream(loop, Host())
