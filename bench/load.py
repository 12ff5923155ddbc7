"""The load: connections that each keep a number of requests in flight, and what came of it.

One process, raw sockets, frames built beforehand. `run_pipelined` measures throughput and the CPU that another process
spends for it; `run_depth_one` measures latency, one request at a time on one connection. `check_answers` is called
first: it compares every byte of a cycle of answers with what the null broker sent, so that a fast but wrong peer fails.
"""

import itertools
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from bench import frames
from bench.frames import Address
from bench.processes import NO_CPU_TIME, CpuTime
from bench.shapes import Shape
from bench.streams import CyclicStream, end_of

TIMEOUT_SECONDS = 15
_Number = TypeVar("_Number", int, float)
_TIMEVAL = struct.pack("ll", TIMEOUT_SECONDS, 0)

#: Reads the CPU time of the measured process; `no_cpu` where there is none between load and broker.
CpuClock = Callable[[], CpuTime]


def no_cpu() -> CpuTime:
    """The CPU clock of a peer that is not there."""
    return NO_CPU_TIME


class LoadError(Exception):
    """Nothing moved for TIMEOUT_SECONDS, or an answer was not the one that the null broker sends."""


@dataclass(frozen=True, slots=True)
class Load:
    """What passed in the measured time. `cpu` is what the peer spent; `latencies_ns` are there at depth 1 only."""

    requests: int
    payload_bytes: int
    elapsed_ns: int
    cpu: CpuTime
    latencies_ns: tuple[int, ...] = ()

    @property
    def megabytes_per_second(self) -> float:
        return self.payload_bytes * 1000 / self.elapsed_ns

    @property
    def requests_per_second(self) -> float:
        return self.requests * 1e9 / self.elapsed_ns

    def latency_microseconds(self, quantile: float) -> float:
        """The latency that the share `quantile` of requests did not exceed."""
        return percentile(self.latencies_ns, quantile) / 1000


def percentile(values: Sequence[_Number], quantile: float) -> _Number:
    """The smallest of `values` that at least the share `quantile` of them does not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    rank = -(-quantile * len(values) // 1)
    return sorted(values)[max(0, int(rank) - 1)]


def receive_frame(sock: socket.socket) -> bytes:
    """The next whole frame of a blocking socket, length prefix included."""
    head = _receive_exactly(sock, 4)
    return head + _receive_exactly(sock, struct.unpack(">i", head)[0])


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            received = sock.recv_into(view)
        except BlockingIOError as error:
            raise LoadError(f"no answer within {TIMEOUT_SECONDS} s") from error
        if not received:
            raise LoadError(f"closed with {len(view)} of {size} bytes still to come")
        view = view[received:]
    return bytes(data)


def connect(address: Address, context: ssl.SSLContext | None = None) -> socket.socket:
    """A blocking connection that gives up after TIMEOUT_SECONDS without a byte (in the kernel, so at no cost)."""
    sock = socket.create_connection(address, timeout=TIMEOUT_SECONDS)
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname=address[0])
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def greet(sock: socket.socket, client_id: str) -> dict[int, Address]:
    """What every client sends first: ApiVersions and Metadata. Returns the addresses of the nodes."""
    sock.sendall(frames.api_versions_request(client_id))
    receive_frame(sock)
    sock.sendall(frames.metadata_request(client_id))
    return frames.nodes_in_metadata(receive_frame(sock))


def check_answers(address: Address, shape: Shape, context: ssl.SSLContext | None = None) -> None:
    """Send one cycle, one request at a time, and compare every byte that comes back. Raises LoadError."""
    with connect(address, context) as sock:
        greet(sock, shape.name)
        for number in range(min(len(shape.requests.ends), 32)):
            sock.sendall(shape.requests.frame(number))
            if receive_frame(sock) != shape.answers.frame(number):
                raise LoadError(f"{shape.name}: answer {number} is not the one that the broker sent")


@contextmanager
def _streams(
    address: Address, shape: Shape, connections: int, context: ssl.SSLContext | None
) -> Iterator[tuple[select.epoll, dict[int, CyclicStream]]]:
    streams: dict[int, CyclicStream] = {}
    with select.epoll() as epoll:
        try:
            for _ in range(connections):
                sock = connect(address, context)
                streams[sock.fileno()] = CyclicStream(
                    end_of(sock), epoll, shape.answers, shape.requests, one_by_one=shape.one_by_one
                )
                greet(sock, shape.name)
                sock.setblocking(False)
                epoll.register(sock.fileno(), select.EPOLLIN)
            yield epoll, streams
        finally:
            for stream in streams.values():
                stream.sock.close()


def _turn(epoll: select.epoll, streams: dict[int, CyclicStream], until_ns: int) -> int:
    """Send a new request for each answer until the time is up. Returns the number of answers."""
    total = 0
    clock = time.perf_counter_ns
    while clock() < until_ns:
        events = epoll.poll(TIMEOUT_SECONDS)
        if not events:
            raise LoadError(f"no answer within {TIMEOUT_SECONDS} s")
        for fd, event in events:
            stream = streams[fd]
            if event & select.EPOLLOUT:
                stream.flush()
            if event & ~select.EPOLLOUT:
                count = stream.receive()
                if count:
                    total += count
                    stream.send_frames(count)
    return total


def run_pipelined(
    address: Address,
    shape: Shape,
    *,
    connections: int,
    depth: int,
    seconds: float,
    windows: int = 1,
    warm_up_seconds: float = 0.2,
    cpu_clock: CpuClock = no_cpu,
    context: ssl.SSLContext | None = None,
) -> list[Load]:
    """Keep `depth` requests in flight on each of `connections` connections; after a warm-up, a Load for each of
    `windows` windows of `seconds`.
    """
    loads = []
    with _streams(address, shape, connections, context) as (epoll, streams):
        for stream in streams.values():
            stream.send_frames(depth)
        until_ns = time.perf_counter_ns() + int(warm_up_seconds * 1e9)
        _turn(epoll, streams, until_ns)
        before_ns, cpu_before = time.perf_counter_ns(), cpu_clock()
        until_ns = before_ns
        for _ in range(windows):
            until_ns += int(seconds * 1e9)
            requests = _turn(epoll, streams, until_ns)
            cpu_after, after_ns = cpu_clock(), time.perf_counter_ns()
            payload_bytes = int(requests * shape.payload_bytes)
            loads.append(Load(requests, payload_bytes, after_ns - before_ns, cpu_after.since(cpu_before)))
            before_ns, cpu_before = after_ns, cpu_after
    if not all(load.requests for load in loads):
        raise LoadError(f"{shape.name}: not one answer in {seconds} s")
    return loads


class DepthOne:
    """One connection that sends one request at a time, and how long each takes. A context manager: closes it."""

    def __init__(self, address: Address, shape: Shape, context: ssl.SSLContext | None = None) -> None:
        self._shape = shape
        self._sock = connect(address, context)
        self._answer = bytearray(max(shape.answers.size_of(number) for number in range(len(shape.answers.ends))))
        #: Each request with the size of its answer.
        self._cycle = itertools.cycle(
            [(shape.requests.frame(number), shape.answers.size_of(number)) for number in range(len(shape.answers.ends))]
        )

    def __enter__(self) -> Self:
        try:
            greet(self._sock, self._shape.name)
        except BaseException:
            self._sock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def warm_up(self, seconds: float) -> None:
        """Send for `seconds`, measure nothing."""
        self._exchange(int(seconds * 1e9))

    def run_for(self, seconds: float, cpu_clock: CpuClock = no_cpu) -> Load:
        """Measure for `seconds`."""
        return self._measured(int(seconds * 1e9), None, cpu_clock)

    def run_until(self, over: Callable[[], bool], *, longest_seconds: float) -> Load:
        """Measure until `over()`, which is asked after each 16 requests, or until `longest_seconds` have passed."""
        return self._measured(int(longest_seconds * 1e9), over, no_cpu)

    def _measured(self, longest_ns: int, over: Callable[[], bool] | None, cpu_clock: CpuClock) -> Load:
        started_ns, cpu_before = time.perf_counter_ns(), cpu_clock()
        latencies = self._exchange(longest_ns, over)
        cpu_used, elapsed_ns = cpu_clock().since(cpu_before), time.perf_counter_ns() - started_ns
        payload_bytes = int(len(latencies) * self._shape.payload_bytes)
        return Load(len(latencies), payload_bytes, elapsed_ns, cpu_used, tuple(latencies))

    def _exchange(self, longest_ns: int, over: Callable[[], bool] | None = None) -> list[int]:
        clock, send, receive, cycle = time.perf_counter_ns, self._sock.sendall, self._sock.recv_into, self._cycle
        answer, latencies = self._answer, []
        now = clock()
        until_ns = now + longest_ns
        while now < until_ns:
            started = now
            request, size = next(cycle)
            send(request)
            got = 0
            while got < size:
                received = receive(answer, size - got)
                if not received:
                    raise LoadError("closed in the middle of an answer")
                got += received
            now = clock()
            latencies.append(now - started)
            if over is not None and not len(latencies) & 15 and over():
                break
            now = clock() if over is not None else now
        return latencies


def run_depth_one(
    address: Address,
    shape: Shape,
    *,
    seconds: float,
    warm_up_seconds: float = 0.2,
    cpu_clock: CpuClock = no_cpu,
    context: ssl.SSLContext | None = None,
) -> Load:
    """One request at a time on one connection for `seconds`, after a warm-up."""
    with DepthOne(address, shape, context) as load:
        load.warm_up(warm_up_seconds)
        return load.run_for(seconds, cpu_clock)
