"""CPU of the hot path, relative to a loop of plain Python that does the least a proxy with one limit could do.

Both run in this process, on bytes in memory, in turns of a few milliseconds. The result is the median of the ratios of
neighbouring turns, in CPU time of the thread, so other work on the machine hardly changes it. The bounds are about 1.6
times the ratios of 2026-11 with Python 3.11: a loss of a factor of two fails.

`python -m bench --only against_haproxy` measures the whole proxy.
"""

from collections import deque
from collections.abc import Callable
from statistics import median
from struct import Struct
from time import thread_time_ns
from typing import Any, NoReturn, cast

import pytest

from bench.peers import ONE_LIMIT, all_limits
from bench.shapes import Produce
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.sessions.pump import CONNECTING, Owner, Pump, PumpSet
from proxy.sessions.turns import Turns
from proxy.sessions.wire import Wire
from proxy.streams.memory import READ_SIZE
from quotas.parsing.parse import parse_spec
from tests.proxy.streams.pair import Pair, World

#: A bound on CPU is no test that passes on any machine.
pytestmark = pytest.mark.nightly

#: Frames of one turn, and turns of each side.
FRAMES, ROUNDS = 200, 21
#: Largest ratios to the reference, by frames in one read.
ONE_LIMIT_BOUND = {1: 6.4, 50: 4.0}
#: Largest ratios of all limits to one limit.
ALL_LIMITS_BOUND = {1: 3.3, 50: 2.4}

Exchange = Callable[[], None]


class ScriptedWire(Wire):
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
        self.recv_into = recv_into
        self.send = send

    def when_readable(self, callback: Callable[[], None]) -> None:
        """Reads happen when the test calls for them."""

    def stop_reading(self) -> None:
        raise AssertionError("nothing pauses these connections")


class NoSession:
    """The owner of the pumps, which has nothing to do here."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"a pump calls {name}")


class Rounds(deque[Callable[[], None]]):
    """The event loop of `Turns`."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.append(callback)


def one_read_of(depth: int) -> tuple[bytes, bytes]:
    """`depth` Produce requests as a real producer sends them, and their answers."""
    shape = Produce(1024, version=12, rotation=12, is_idempotent=True).build()
    return (
        shape.requests.data[: shape.requests.bytes_in(depth)],
        shape.answers.data[: shape.answers.bytes_in(depth)],
    )


def proxy_exchange(quotas: tuple[str, ...], depth: int) -> Exchange:
    """Both pumps and streams of one session: one read of requests, then one of their answers."""
    world = World([parse_spec(quota) for quota in quotas])
    pair = Pair(world)
    rounds = Rounds()
    turns = Turns(cast("Any", rounds), world.clock)  # this clock stands still, so no turn ends early
    shared = PumpSet(world.memory, turns, world.clock, world.metrics.connections.paused)
    owner = cast("Owner", NoSession())
    client, broker = map(ScriptedWire, one_read_of(depth))
    requests = Pump(shared, owner, pair.request_stream, client, broker)
    responses = Pump(shared, owner, pair.response_stream, broker, client)
    requests.resume(CONNECTING)
    responses.resume(CONNECTING)

    def exchange() -> None:
        requests.on_readable()
        responses.on_readable()
        if rounds:
            rounds.popleft()()

    exchange()
    assert (broker.sent_bytes, client.sent_bytes) == tuple(map(len, one_read_of(depth)))
    return exchange


def reference_exchange(depth: int) -> Exchange:
    """The same reads and writes: each header compared with the one before, one bucket, requests matched by id."""
    client, broker = map(ScriptedWire, one_read_of(depth))
    buffer = bytearray(READ_SIZE)
    view = memoryview(buffer)
    head = one_read_of(depth)[0][:40]
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


def cpu_ns(exchange: Exchange, times: int) -> int:
    started_ns = thread_time_ns()
    for _ in range(times):
        exchange()
    return thread_time_ns() - started_ns


def ratio(measured: Exchange, reference: Exchange, depth: int) -> float:
    """CPU of `measured` over that of `reference`: the median over turns that alternate."""
    times = max(4, FRAMES // depth)
    cpu_ns(measured, times)
    cpu_ns(reference, times)
    return median(cpu_ns(measured, times) / cpu_ns(reference, times) for _ in range(ROUNDS))


@pytest.mark.parametrize("depth", [1, 50])
def test_one_limit_costs_little_more_than_plain_forwarding(depth: int) -> None:
    found = ratio(proxy_exchange(ONE_LIMIT, depth), reference_exchange(depth), depth)

    assert found <= ONE_LIMIT_BOUND[depth], f"{found:.2f} times the reference"


@pytest.mark.parametrize("depth", [1, 50])
def test_all_limits_cost_little_more_than_one(depth: int) -> None:
    found = ratio(proxy_exchange(all_limits(), depth), proxy_exchange(ONE_LIMIT, depth), depth)

    assert found <= ALL_LIMITS_BOUND[depth], f"{found:.2f} times one limit"
