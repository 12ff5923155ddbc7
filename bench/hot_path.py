"""CPU of the hot path alone: both pumps and streams of one connection, on bytes in memory, with one limit and with all.

They take turns of a few milliseconds with a loop of plain Python that does the least a proxy with one limit could do. A
ratio is the median of those of neighbouring turns, in CPU time of the thread, so other work on the machine hardly
changes it. The targets are about 1.6 times the ratios of 2026-11 with Python 3.11; a loss of a factor of two misses
them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from struct import Struct
from time import thread_time_ns
from typing import Any, NoReturn, cast

from bench.options import Options
from bench.peers import ONE_LIMIT, all_limits
from bench.processes import LOOPBACK
from bench.report import Figure
from bench.shapes import Produce
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.background.host import Host
from proxy.config.config import Config, ListeningOptions, QuotaOptions
from proxy.enforcement.identity import Identity
from proxy.process.server import Server
from proxy.sessions.pump import Owner, Pump
from proxy.sessions.pump_set import CONNECTING, PumpSet
from proxy.sessions.slices import Slices
from proxy.sessions.wire import Wire
from proxy.streams.connection import Connection
from proxy.streams.memory import READ_SIZE
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream
from quotas.parsing.parse import parse_spec

NAME = "hot_path"
SHAPE = Produce(1024, version=12, rotation=12, is_idempotent=True)
#: Requests of one turn.
TURN_REQUESTS = 200
LOOP, ONE, ALL = "loop", "one limit", "all limits"
#: By requests in one read: the largest ratio of one limit to the loop, and of all limits to one.
TARGETS = {1: (6.4, 3.3), 50: (4.0, 2.4)}

Exchange = Callable[[], None]


def run(options: Options) -> list[Figure]:
    """A chunk of requests, then one of their responses, at each depth."""
    return asyncio.run(_run(options))  # a server needs a loop, though nothing here waits for one


async def _run(options: Options) -> list[Figure]:
    rounds = options.rounds or (21 if options.quick else 101)
    figures: list[Figure] = []
    for depth, targets in TARGETS.items():
        scenario = f"produce 1 KiB, {depth} in a read"
        if options.scenario not in scenario:
            continue
        options.progress(f"{scenario}: {rounds} rounds")
        with _proxying(ONE_LIMIT, depth) as one, _proxying(all_limits(), depth) as every:
            costs = _in_turns({LOOP: _least(depth), ONE: one, ALL: every}, depth, rounds)
        figures += [Figure(NAME, scenario, "CPU", "µs/request", peer, cost) for peer, cost in costs.items()]
        for at, (to, target) in zip((-2, -1), ((LOOP, targets[0]), (ONE, targets[1])), strict=True):
            ratios = (mine / other for mine, other in zip(figures[at].rounds, costs[to], strict=True))
            figures[at] = replace(figures[at], ratio=median(ratios), ratio_to=to, ratio_target=target)
    return figures


def _in_turns(exchanges: dict[str, Exchange], depth: int, rounds: int) -> dict[str, tuple[float, ...]]:
    """CPU microseconds of a request and its response, in each round."""
    times = max(4, TURN_REQUESTS // depth)
    costs: dict[str, list[float]] = {name: [] for name in exchanges}
    for _ in range(rounds + 1):
        for name, exchange in exchanges.items():
            started_ns = thread_time_ns()
            for _ in range(times):
                exchange()
            costs[name].append((thread_time_ns() - started_ns) / 1_000 / times / depth)
    return {name: tuple(each[1:]) for name, each in costs.items()}  # without the first, which warms up


def _one_read(depth: int) -> tuple[bytes, bytes]:
    """`depth` requests, and their responses."""
    shape = SHAPE.build()
    return (
        shape.requests.data[: shape.requests.bytes_in(depth)],
        shape.answers.data[: shape.answers.bytes_in(depth)],
    )


class _ScriptedWire(Wire):
    """Receives the same bytes whenever it is read, and takes all that is sent."""

    __slots__ = ("sent_bytes",)

    def __init__(self, received: bytes) -> None:
        def recv_into(buffer: bytearray, size: int) -> int:
            buffer[: len(received)] = received
            return len(received)

        def send(data: memoryview) -> int:
            self.sent_bytes += len(data)
            return len(data)

        self.sent_bytes = 0
        self.buffers = False
        self.recv_into = recv_into
        self.send = send

    def when_readable(self, callback: Callable[[], None]) -> None:
        """Reads happen when the benchmark calls for them."""

    def stop_reading(self) -> None:
        raise AssertionError("nothing pauses these connections")


class _NoSession:
    """The owner of the pumps, which has nothing to do here."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"a pump calls {name}")


class _Rounds(deque[Callable[[], None]]):
    """The event loop of `Slices`."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.append(callback)


@contextmanager
def _proxying(quotas: tuple[str, ...], depth: int) -> Iterator[Exchange]:
    """Both pumps and streams of one session. The clock stands still, so no slice ends early."""

    def clock() -> int:
        return 1_000_000_000

    config = Config(
        bootstrap_servers=((LOOPBACK, 9092),),
        listening=ListeningOptions(address=(LOOPBACK, 0), broker_ports=None),
        quotas=QuotaOptions(entries=tuple(parse_spec(quota) for quota in quotas)),
    )
    server = Server(config, Host(clock=clock, work_clock=clock))
    server.start(asyncio.get_running_loop())
    context, rounds, received = server.shared.context, _Rounds(), _one_read(depth)
    connection = Connection(context, Identity(config, context.registry, context.metrics.entities, f"{LOOPBACK}:1"))
    turns = Slices(cast("Any", rounds), clock)
    shared = PumpSet(context.memory, turns, clock, context.metrics.connections.paused)
    owner = cast("Owner", _NoSession())
    client, broker = map(_ScriptedWire, received)
    to_client = ResponseStream(connection)
    to_broker = RequestStream(connection, to_client, server.shared.kinds)
    requests = Pump(shared, owner, to_broker, client, broker)
    responses = Pump(shared, owner, to_client, broker, client)
    requests.resume(CONNECTING)
    responses.resume(CONNECTING)

    def exchange() -> None:
        requests.on_readable()
        responses.on_readable()
        if rounds:
            rounds.popleft()()

    try:
        exchange()
        assert (broker.sent_bytes, client.sent_bytes) == tuple(map(len, received))
        yield exchange
    finally:
        server.close()


def _least(depth: int) -> Exchange:
    """The same reads and writes: each header compared with the one before, one bucket, requests matched by id."""
    received = _one_read(depth)
    client, broker = map(_ScriptedWire, received)
    buffer = bytearray(READ_SIZE)
    view = memoryview(buffer)
    head = received[0][:40]
    key, tail = unpack_prefix(head, 0)[1], head[PREFIX_SIZE:]
    unpack_response = Struct(">ii").unpack_from
    in_flight: deque[int] = deque()
    level = 0

    def exchange() -> None:
        nonlocal level
        size = client.recv_into(buffer, READ_SIZE)
        pos = 0
        while pos < size:
            length, seen, correlation_id = unpack_prefix(buffer, pos)
            assert seen == key
            assert buffer.startswith(tail, pos + PREFIX_SIZE)
            in_flight.append(correlation_id)
            pos += 4 + length
        level += pos
        broker.send(view[:size])
        size = broker.recv_into(buffer, READ_SIZE)
        pos = 0
        while pos < size:
            length, correlation_id = unpack_response(buffer, pos)
            assert correlation_id == in_flight.popleft()
            pos += 4 + length
        client.send(view[:size])

    return exchange
