"""A proxy between peers that a test plays itself: raw client sockets, and a broker that says what the test gives it.

    stage = await open_stage(quotas=[...])
    client, broker = await stage.pair()
    await client.send(produce(1))
    assert await broker.frame() == produce(1)

Nothing here sleeps for a time: peers wait for bytes, and `until` for a condition. The proxy's clock is the test's
(`stage.clock`); only the timers are the loop's.
"""

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from proxy.admin.throttles import throttled
from proxy.background.host import Host
from proxy.config.config import Config, ListeningOptions, QuotaOptions
from proxy.enforcement.report import ThrottleStatus
from proxy.process.server import Server
from proxy.sessions.lifecycle import State
from proxy.sessions.session import Session
from proxy.sessions.sweep import PARTS
from proxy.sessions.wire import Wire
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec

#: A test that waits longer than this waits for something that does not happen.
PATIENCE_SECONDS = 20.0
NS_PER_SECOND = 1_000_000_000
LOOPBACK = "127.0.0.1"
_ABORT = struct.pack("ii", 1, 0)


async def until(condition: Callable[[], object]) -> None:
    """Go on when the condition holds; give the loop turns meanwhile."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what the proxy is inside has no event to wait for
                await asyncio.sleep(0.0005)
    except TimeoutError:
        raise AssertionError("what the test waits for does not happen") from None


def without_burst(spec: str) -> QuotaEntry:
    """The quota of this SPEC with a bucket that holds nothing: each frame leaves a debt of its own length."""
    entry = parse_spec(spec)
    return replace(entry, options=replace(entry.options, burst_seconds=0))


class Clock:
    """Nanoseconds that pass only when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000 * NS_PER_SECOND

    def __call__(self) -> int:
        return self.now_ns

    def pass_seconds(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_SECOND)


class Peer:
    """One end of a connection, played by the test."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes | memoryview) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._loop.sock_sendall(self.sock, data)

    def send_now(self, data: bytes | memoryview) -> int:
        """As much as the kernel takes at once."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes. Raises EOFError when the stream ends before, ConnectionResetError when it breaks."""
        data = bytearray()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(data) < size:
                more = await self._loop.sock_recv(self.sock, size - len(data))
                if not more:
                    raise EOFError(bytes(data))
                data += more
        return bytes(data)

    async def frame(self) -> bytes:
        """The next whole frame, length prefix included."""
        head = await self.read(4)
        return head + await self.read(int.from_bytes(head, "big"))

    async def rest(self) -> bytes:
        """Everything up to the end of the stream, which must be a clean one."""
        data = bytearray()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while more := await self._loop.sock_recv(self.sock, 65_536):
                data += more
        return bytes(data)

    async def closed(self) -> None:
        """Wait for the other side to close, cleanly or by a reset; what it sent before is passed over."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await self.rest()

    def end(self) -> None:
        """Send no more, go on reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Break the connection: the other side sees ECONNRESET."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self.sock.close()


class ScriptedBroker:
    """A listening socket on the loopback; the test accepts and plays each connection."""

    def __init__(self, host: str = LOOPBACK, port: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, port), family=family, backlog=4_096)
        self._sock.setblocking(False)
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        self._peers: list[Peer] = []

    async def accept(self) -> Peer:
        async with asyncio.timeout(PATIENCE_SECONDS):
            sock, _ = await self._loop.sock_accept(self._sock)
        peer = Peer(sock)
        self._peers.append(peer)
        return peer

    async def first_frame(self) -> bytes:
        """Of the next connection."""
        return await (await self.accept()).frame()

    def close(self) -> None:
        self._sock.close()
        for peer in self._peers:
            peer.close()


OpenBroker = Callable[..., ScriptedBroker]


def nobody_listens() -> tuple[str, int]:
    """An address where connecting fails."""
    with socket.create_server((LOOPBACK, 0)) as gone:
        address: tuple[str, int] = gone.getsockname()[:2]
        return address


@contextlib.contextmanager
def nobody_accepts() -> Iterator[tuple[str, int]]:
    """An address where connecting neither succeeds nor fails: its backlog is full."""
    server = socket.create_server((LOOPBACK, 0), backlog=0)
    waiting: list[socket.socket] = []
    try:
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(server.getsockname())
            waiting.append(sock)
        yield server.getsockname()[:2]
    finally:
        for sock in [*waiting, server]:
            sock.close()


class Stage:
    """One proxy, one scripted broker behind it, and the clients in front of it."""

    def __init__(
        self,
        quotas: Iterable[QuotaEntry] | QuotaOptions = (),
        work_clock: Callable[[], int] = time.monotonic_ns,
        **options: Any,
    ) -> None:
        self.clock = Clock()
        self.broker = ScriptedBroker()
        options.setdefault("bootstrap_servers", (self.broker.address,))
        options.setdefault("listening", ListeningOptions(address=(LOOPBACK, 0), broker_ports=None))
        if not isinstance(quotas, QuotaOptions):
            quotas = QuotaOptions(entries=tuple(quotas))
        self.config = Config(quotas=quotas, **options)
        self.server = Server(self.config, Host(clock=self.clock, work_clock=work_clock))
        self.server.start(asyncio.get_running_loop())
        self.metrics = self.server.metrics
        self.shared = self.server.shared
        self.context = self.shared.context
        self.sessions = self.server.sessions
        self.registry = self.context.registry
        self.memory = self.context.memory
        self.port: int = self.server.ports.bootstrap
        self.clients: list[Peer] = []

    async def client(self, port: int | None = None) -> Peer:
        """A new connection to the proxy."""
        sock = socket.socket()
        sock.setblocking(False)
        peer = Peer(sock)
        self.clients.append(peer)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.get_running_loop().sock_connect(sock, (LOOPBACK, self.port if port is None else port))
        return peer

    async def pair(self, port: int | None = None) -> tuple[Peer, Peer]:
        """A client, and the broker's side of what the proxy opened for it."""
        client = await self.client(port)
        broker = await self.broker.accept()
        session = self.session_of(client)
        await until(lambda: session.state is not State.CONNECTING)
        return client, broker

    def session_of(self, client: Peer) -> Session:
        host, port = client.sock.getsockname()[:2]
        return next(session for session in self.sessions if session.identity.client.peer == f"{host}:{port}")

    def sweep(self, ticks: int = PARTS, *, is_short: bool = False) -> None:
        """One whole sweep over the sessions."""
        assert self.server._ticks is not None
        sweep = self.server._ticks.sweep
        sweep._part = 0
        for _ in range(ticks):
            sweep.tick(self.clock(), is_short=is_short)

    async def no_sessions(self) -> None:
        await until(lambda: not self.sessions)

    def unread(self, session: Session) -> int:
        """Bytes that the client sent and that wait in the kernel."""
        return readable_bytes(session.client)

    def paused(self) -> dict[str, int]:
        """Reasons for which a flow is not being read now, with how many."""
        return {reason: count for reason, count in self.metrics.connections.paused.items() if count}

    def waiting(self) -> list[ThrottleStatus]:
        """What `/throttles` shows."""
        return [each for group in throttled(self.sessions, self.server.gate, self.server._host.clock) for each in group]

    def close(self) -> None:
        self.server.close()
        for client in self.clients:
            client.close()
        self.broker.close()

    def check_at_rest(self) -> None:
        """Nothing is left of the sessions that were: no gauge, no byte, no waiter, no timer, no defect."""
        assert not self.sessions
        assert (self.metrics.connections.open, self.paused()) == (0, {})
        assert (self.memory.buffered_bytes, self.memory.used) == (0, 0)
        assert not self.shared.pumps.short
        assert not self.shared.pumps.queued
        assert self.metrics.connections.in_flight() == 0
        for limit in self.registry.limits_in_use():
            assert (limit.waiters.waiting, limit.waiters.queued) == (0, 0)
        wakeups = self.shared.wakeups
        assert (wakeups._timers, wakeups._owners, wakeups._delays) == ({}, {}, {})
        assert not self.shared.wires.incoming.pending, "what a wire left there, another would read"
        assert not self.shared.wires.outgoing.pending
        assert self.metrics.errors.protocol["defect"] == 0


OpenStage = Callable[..., Stage]


async def arrives(client: Any, broker: Any, sent: bytes) -> None:
    """A request reaches the broker unchanged, between peers with TLS or without."""
    await client.send(sent)
    assert await broker.frame() == sent


async def exchange(client: Any, broker: Any, sent: bytes, answer: bytes) -> None:
    """So does a request, and its response the client."""
    await arrives(client, broker, sent)
    await arrives(broker, client, answer)


def readable_bytes(end: Wire | socket.socket) -> int:
    """What waits in the kernel to be read from this end of a connection."""
    count = array.array("i", [0])
    fcntl.ioctl(end.fd if isinstance(end, Wire) else end.fileno(), termios.FIONREAD, count)
    return count[0] + (end.buffers if isinstance(end, Wire) else 0)


def cut(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """Pieces of these sizes, and what is left as the last one."""
    at = 0
    for size in sizes:
        if at >= len(data):
            return
        yield data[at : at + size]
        at += size
    if at < len(data):
        yield data[at:]


def lines_of(records: Iterable[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Events that were logged, with their fields."""
    return [(record.event, record.fields) for record in records if hasattr(record, "event")]
