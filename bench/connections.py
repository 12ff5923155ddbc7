"""New connections per second, and the memory of an idle one.

A new connection is a connect, an ApiVersions exchange and a close, as the first thing of every Kafka client. An idle
one has exchanged ApiVersions and then says nothing. Memory is what the process holds alone (USS) at 5,000 connections
less that at 100, so that the process itself and its first buffers are not counted.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench import frames
from bench.frames import Address
from bench.load import CpuClock, LoadError, connect, no_cpu, receive_frame
from bench.null_broker import null_broker
from bench.options import Options
from bench.peers import Peer, PeerStarter
from bench.processes import pin, raise_descriptor_limit
from bench.report import Figure, compare

NAME = "connections"
CLIENT_ID = "connections"
AT_ONCE = 32
FEW, MANY = 100, 5000
TARGET_PER_SECOND = 3000
TARGET_BYTES = 4096


def run(options: Options) -> list[Figure]:
    """Both measurements for each peer. Raises PeerError, LoadError."""
    rounds, seconds = options.rounds or (3 if options.quick else 7), 1.0 if options.quick else 2.0
    options.progress(f"new connections: {rounds} rounds of {seconds:g} s, {AT_ONCE} at once")
    figures = _rates(options, rounds, seconds)
    for name, start in options.peers.items():
        if name in ("direct", "all limits"):
            continue
        options.progress(f"idle connections of {name}: {FEW} and {MANY:,}")
        figures += _memory(options, start, 1 if options.quick else 3)
    return compare(figures, other="haproxy")


def _rates(options: Options, rounds: int, seconds: float) -> list[Figure]:
    with ExitStack() as stack:
        broker = stack.enter_context(null_broker(core=options.cores.broker, port=options.broker_port))
        peers = [
            stack.enter_context(start(broker, options.cores.peer))
            for name, start in options.peers.items()
            if name != "all limits"
        ]
        pin(options.cores.load)
        rates: list[list[float]] = [[] for _ in peers]
        costs: list[list[float]] = [[] for _ in peers]
        for _ in range(rounds):
            for peer, rate, cost in zip(peers, rates, costs, strict=True):
                per_second, cpu_us = open_and_close(peer.address, seconds=seconds, cpu_clock=peer.cpu_clock)
                rate.append(per_second)
                cost.append(cpu_us)
        figures = []
        for peer, rate, cost in zip(peers, rates, costs, strict=True):
            target = TARGET_PER_SECOND if peer.limits else None
            figures.append(_figure("new connections", "rate", "1/s", peer, rate, target=target, at_least=True))
            if peer.pid is not None:
                figures.append(_figure("new connections", "CPU", "µs each", peer, cost))
    return figures


def _figure(
    scenario: str,
    metric: str,
    unit: str,
    peer: Peer,
    values: Sequence[float],
    *,
    target: float | None = None,
    at_least: bool = False,
) -> Figure:
    return Figure(NAME, scenario, metric, unit, peer.name, tuple(values), target=target, at_least=at_least)


def open_and_close(
    address: Address, *, seconds: float, cpu_clock: CpuClock = no_cpu, context: ssl.SSLContext | None = None
) -> tuple[float, float]:
    """Connect, with TLS if there is a `context`, ask ApiVersions, close; `AT_ONCE` at a time: (connections per second,
    CPU µs of the peer for each).
    """
    request = frames.api_versions_request(CLIENT_ID)
    waiting: dict[int, tuple[socket.socket, bytearray]] = {}
    done = 0
    with select.epoll() as epoll:

        def start() -> None:
            # Connecting over loopback finishes within the call, because the kernel completes the handshake alone.
            sock = socket.create_connection(address)
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname=address[0])
            sock.sendall(request)
            sock.setblocking(False)
            waiting[sock.fileno()] = (sock, bytearray())
            epoll.register(sock.fileno(), select.EPOLLIN)

        try:
            started_ns, cpu_before = time.perf_counter_ns(), cpu_clock()
            until_ns = started_ns + int(seconds * 1e9)
            for _ in range(AT_ONCE):
                start()
            while time.perf_counter_ns() < until_ns:
                events = epoll.poll(15)
                if not events:
                    raise LoadError("no answer to ApiVersions within 15 s")
                for fd, _ in events:
                    sock, answer = waiting[fd]
                    answer += _receive(sock)
                    if len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
                        continue
                    _check_api_versions(answer)
                    del waiting[fd]
                    sock.close()
                    done += 1
                    start()
            elapsed_ns, cpu_used = time.perf_counter_ns() - started_ns, cpu_clock().since(cpu_before).total_ns
        finally:
            for sock, _ in waiting.values():
                sock.close()
    if not done:
        raise LoadError(f"not one connection in {seconds} s")
    return done * 1e9 / elapsed_ns, cpu_used / done / 1000


def _receive(sock: socket.socket) -> bytes:
    try:
        data = sock.recv(65536)
    except ssl.SSLWantReadError:
        return b""
    except ConnectionError as error:
        raise LoadError(f"a new connection failed: {error}") from error
    if not data:
        raise LoadError("a new connection was closed without an answer")
    return data


def _check_api_versions(answer: bytes | bytearray) -> None:
    _, correlation_id, error = struct.unpack_from(">iih", answer)
    if correlation_id or error:
        raise LoadError(f"ApiVersions was answered with correlation id {correlation_id}, error {error}")


@contextmanager
def idle_connections() -> Iterator[list[socket.socket]]:
    """A list of connections that `extend_to` fills; all are closed at the end."""
    held: list[socket.socket] = []
    try:
        yield held
    finally:
        for sock in held:
            sock.close()


def extend_to(held: list[socket.socket], count: int, address: Address, context: ssl.SSLContext | None = None) -> None:
    """Open connections, with TLS if there is a `context`, until `held` has `count`, each of which has exchanged
    ApiVersions.
    """
    request = frames.api_versions_request(CLIENT_ID)
    while len(held) < count:
        sock = connect(address, context)
        held.append(sock)
        sock.sendall(request)
        _check_api_versions(receive_frame(sock))


def _memory(options: Options, starter: PeerStarter, rounds: int) -> list[Figure]:
    # This process and the broker hold one descriptor for each connection, the peer two.
    many = min(MANY, (raise_descriptor_limit() - 400) // 2)
    each: list[float] = []
    start, end, after = [], [], []
    with null_broker(core=options.cores.broker, port=options.broker_port) as broker:
        pin(options.cores.load)
        for _ in range(rounds):
            with starter(broker, options.cores.peer) as peer:
                with idle_connections() as held:
                    extend_to(held, FEW, peer.address)
                    at_few = peer.private_bytes()
                    extend_to(held, many, peer.address)
                    at_many = peer.private_bytes()
                each.append((at_many - at_few) / (many - FEW))
                start.append(at_few / 1e6)
                end.append(at_many / 1e6)
                _wait_until_idle(peer)
                after.append(peer.private_bytes() / 1e6)
    target = TARGET_BYTES if peer.limits else None
    return [
        _figure("idle connections", f"memory at {FEW}", "MB", peer, start),
        _figure("idle connections", f"memory at {many:,}", "MB", peer, end),
        _figure("idle connections", f"memory each beyond {FEW}", "bytes", peer, each, target=target),
        _figure("idle connections", "memory when all are closed", "MB", peer, after),
    ]


def _wait_until_idle(peer: Peer, timeout_seconds: float = 10) -> None:
    """Return when the peer uses no CPU any more: it has seen all the connections close."""
    deadline = time.monotonic() + timeout_seconds
    before = peer.cpu_clock()
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = peer.cpu_clock()
        if now.since(before).total_ns < 5_000_000:
            return
        before = now
