"""One direction over wires in memory: back-pressure, the steps of a stream, turns that end, and memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.config import SecurityOptions
from proxy.sessions.pump import Pump
from proxy.sessions.pump_set import (
    CONNECTING,
    IN_FLIGHT,
    LOGIN,
    MEMORY,
    QUOTA,
    RESPONSE_MEMORY,
    STOPPED,
    TURN,
    WRITE_BACKPRESSURE,
)
from proxy.sessions.turns import HEAVY_ROUND_NS, TURN_NS
from proxy.streams.memory import FIRST_READ_SIZE, OWN_SIZE, READ_SIZE
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import heartbeat, heartbeat_answer, produce
from tests.proxy.streams.pair import Pair, World
from tests.proxy.wires import MemoryWire

MAX_IN_FLIGHT = SecurityOptions().max_pending_requests


class Recorded:
    """What the pumps told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def after_step(self) -> None:
        self.told.append("after_step")

    def on_hold(self, pump: Pump) -> None:
        self.told.append("hold")

    def on_delay(self) -> None:
        self.told.append("delay")

    def on_wait(self, pump: Pump, reason: int) -> None:
        """Not asserted: see `test_wait_states`."""

    def on_source_ended(self, pump: Pump, error: OSError | None = None) -> None:
        self.told.append("source ended" if error is None else "source failed")
        pump.stop()

    def on_sink_failed(self, pump: Pump, error: OSError) -> None:
        self.told.append("sink failed")
        pump.writer.discard()

    def close_for(self, error: Exception, pump: Pump | None = None) -> None:
        self.told.append(type(error).__name__)


class Bench:
    """Pumps of one connection, client to broker and back."""

    def __init__(self, world: World | None = None) -> None:
        self.world = World() if world is None else world
        self.rounds, self.work, self.pumps = self.world.loop, self.world.work, self.world.shared.pumps
        self.owner = Recorded()
        self.client, self.broker = MemoryWire(), MemoryWire()
        pair = Pair(self.world)
        self.connection = pair.connection
        self.request_stream, self.response_stream = pair.request_stream, pair.response_stream
        self.requests = Pump(self.pumps, self.owner, pair.request_stream, self.client, self.broker)
        self.responses = Pump(self.pumps, self.owner, pair.response_stream, self.broker, self.client)
        self.requests.resume(CONNECTING)
        self.responses.resume(CONNECTING)

    def client_sends(self, data: bytes, *, wakes: int = 1) -> None:
        self.client.received += data
        self.wake(self.client, wakes)

    def broker_sends(self, data: bytes, *, wakes: int = 1) -> None:
        self.broker.received += data
        self.wake(self.broker, wakes)

    def wake(self, wire: MemoryWire, times: int = 1) -> None:
        for _ in range(times):
            if wire.on_readable is not None:
                wire.on_readable()

    def write(self, wire: MemoryWire) -> None:
        if wire.on_writable is not None:
            wire.on_writable()

    def run(self) -> None:
        """Rounds until all that can be read has been."""
        for _ in range(10_000):
            before = len(self.client.received), len(self.broker.received), len(self.rounds.soon)
            self.rounds.round()
            self.wake(self.client)
            self.wake(self.broker)
            if not self.rounds.soon and before[:2] == (len(self.client.received), len(self.broker.received)):
                return
        raise AssertionError("it never rests")

    def paused(self) -> dict[str, int]:
        return {name: count for name, count in self.world.metrics.connections.paused.items() if count}


def test_a_wake_up_is_one_read() -> None:
    bench = Bench()
    bench.client_sends(produce(1, 3 * READ_SIZE))
    assert bench.client.reads == [FIRST_READ_SIZE]
    assert len(bench.broker.taken) == FIRST_READ_SIZE
    bench.run()
    assert bytes(bench.broker.taken) == produce(1, 3 * READ_SIZE)
    assert bench.paused() == {}


def test_frames_of_megabytes_share_their_part_of_a_round() -> None:
    long = Bench()
    short = Bench(long.world)
    turns = long.pumps.turns
    sent = produce(1, 3 * READ_SIZE)
    long.client_sends(sent)
    assert turns.heavy_used_ns > 0
    turns.heavy_used_ns = HEAVY_ROUND_NS
    turns.begin_round()
    long.wake(long.client)
    short.client_sends(produce(2))
    assert long.client.reads == [FIRST_READ_SIZE], "its next read waits for the next round"
    assert bytes(short.broker.taken) == produce(2)
    long.run()
    assert bytes(long.broker.taken) == sent
    turns.heavy_used_ns = HEAVY_ROUND_NS
    turns.begin_round()
    long.client_sends(produce(3))
    assert bytes(long.broker.taken) == sent + produce(3), "after its end the connection is as any other"


# ---- back-pressure


def test_while_the_sink_takes_nothing_the_source_is_not_read() -> None:
    bench = Bench()
    bench.broker.room = 100
    bench.client_sends(produce(1, 1_000) + produce(2, 1_000))
    assert bench.requests.paused == WRITE_BACKPRESSURE
    assert bench.client.on_readable is None
    pending = len(produce(1, 1_000)) * 2 - 100
    assert bench.world.memory.buffered_bytes == pending
    for room, left in ((0, pending), (60, pending - 60), (None, 0)):
        bench.broker.room = room
        bench.write(bench.broker)
        assert bench.world.memory.buffered_bytes == left
    assert bytes(bench.broker.taken) == produce(1, 1_000) + produce(2, 1_000)
    assert bench.owner.told == ["after_step"]
    assert bench.paused() == {}
    assert callable(bench.client.on_readable)


@given(st.lists(st.integers(0, 700), min_size=1, max_size=30), st.integers(1, 6))
def test_partial_writes_change_no_bytes(rooms: list[int], count: int) -> None:
    bench = Bench()
    sent = b"".join(produce(number, 300) for number in range(count))
    bench.broker.room = 0
    bench.client_sends(sent)
    for room in rooms:
        bench.broker.room = room
        if bench.broker.on_writable is not None:
            bench.broker.on_writable()
        bench.wake(bench.client)
        left = 0 if bench.requests.writer.pending is None else len(bench.requests.writer.pending)
        assert bench.world.memory.buffered_bytes == left
    bench.broker.room = None
    if bench.broker.on_writable is not None:
        bench.broker.on_writable()
    bench.run()
    assert bytes(bench.broker.taken) == sent
    assert bench.world.memory.used == bench.world.memory.buffered_bytes == 0


def test_a_sink_that_fails_is_reported_and_its_bytes_are_dropped() -> None:
    bench = Bench()
    bench.broker.room = 10
    bench.client_sends(produce(1))
    bench.broker.broken = True
    assert bench.broker.on_writable is not None
    bench.broker.on_writable()
    assert bench.owner.told == ["sink failed", "after_step"]
    assert bench.paused() == {}
    assert bench.world.memory.buffered_bytes == 0
    bench.client_sends(produce(2))
    assert bench.owner.told == ["sink failed", "after_step"], "the source is read to its end"
    bench = Bench()
    bench.broker.broken = True
    bench.client_sends(produce(1))
    assert bench.owner.told == ["sink failed"]


def test_a_source_that_ends_or_fails_is_reported() -> None:
    bench = Bench()
    bench.client.ended = True
    bench.wake(bench.client)
    bench.broker.broken = True
    bench.wake(bench.broker)
    assert bench.owner.told == ["source ended", "source failed"]
    assert bench.requests.paused == bench.responses.paused == STOPPED
    bench.requests.pause(QUOTA)
    assert bench.paused() == {}


# ---- steps


def test_an_incomplete_head_is_kept() -> None:
    bench = Bench()
    bench.client_sends(produce(1)[:9])
    assert (bench.requests.backlog.kept, bench.requests.backlog.unparsed) == (produce(1)[:9], False)
    assert bench.world.memory.buffered_bytes == 9
    assert bench.paused() == {}
    bench.client_sends(produce(1)[9:])
    assert bytes(bench.broker.taken) == produce(1)
    assert bench.world.memory.buffered_bytes == 0


def test_a_hold_keeps_what_was_read_and_stops_reading() -> None:
    bench = Bench(World([without_burst("client-id=etl,producer_byte_rate=1000")]))
    bench.client_sends(produce(1) + produce(2) + produce(3))
    assert bytes(bench.broker.taken) == produce(1)
    assert bench.requests.paused == QUOTA
    assert bench.owner.told == ["hold"]
    assert bench.requests.backlog.kept == produce(2) + produce(3)
    bench.world.clock.pass_seconds(10)
    request = bench.request_stream.held
    assert request is not None
    assert request.limit is not None
    assert request.limit.waiters.pop() is request
    request.on_release(bench.world.clock())
    bench.requests.parse_kept()
    assert bytes(bench.broker.taken) == produce(1) + produce(2)
    assert bench.requests.backlog.kept == produce(3)


def test_a_full_queue_stops_reading_until_the_session_is_needed() -> None:
    bench = Bench()
    sent = b"".join(heartbeat(number) for number in range(MAX_IN_FLIGHT + 5))
    bench.client_sends(sent)
    assert bench.requests.paused == IN_FLIGHT
    assert bench.owner.told == ["after_step"]
    bench.broker_sends(b"".join(heartbeat_answer(number) for number in range(MAX_IN_FLIGHT)))
    assert bench.response_stream.has_room_again
    bench.requests.resume(IN_FLIGHT)
    bench.run()
    assert bytes(bench.broker.taken) == sent


def test_bytes_before_an_error_are_forwarded() -> None:
    bench = Bench()
    bench.client_sends(produce(1) + b"\xff\xff\xff\xff" + bytes(20))
    assert bytes(bench.broker.taken) == produce(1)
    assert bench.owner.told == ["NegativeFrameLength"]


@pytest.mark.pure
def test_a_defect_costs_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def broken(pos: int, end: int, now_ns: int) -> int:
        raise ZeroDivisionError

    stream = bench.requests.stream
    monkeypatch.setattr(type(stream), "take", lambda self, pos, end, now_ns: broken(pos, end, now_ns))
    bench.client_sends(produce(1))
    assert bench.owner.told == ["ZeroDivisionError"]


# ---- turns


def alternating(count: int) -> bytes:
    """Requests of two kinds in turn, so that each takes a step of its own."""
    return b"".join(heartbeat(n) if n % 2 else produce(n, 60, acks=0) for n in range(count))


def test_a_turn_ends_after_its_time_and_reads_shrink_and_grow() -> None:
    bench = Bench()
    sent = alternating(900)
    bench.work.step_ns = TURN_NS // 10
    bench.client_sends(sent)
    first = len(bench.broker.taken)
    assert 0 < first < len(sent)
    assert bench.requests.paused == TURN
    assert bench.requests.backlog.unparsed
    assert bench.client.on_readable is None, "nothing more is read meanwhile"
    assert len(bench.requests.backlog.kept) == len(sent) - first
    assert bench.world.memory.buffered_bytes == len(sent) - first
    bench.rounds.round()
    assert first < len(bench.broker.taken) <= 3 * first
    bench.run()
    assert bytes(bench.broker.taken) == sent
    shrunk = bench.requests.backlog.read_limit
    assert shrunk <= 8_192
    bench.client.reads.clear()
    bench.work.step_ns = 0
    bench.client_sends(produce(901, 3 * READ_SIZE, acks=0), wakes=8)
    grown = [min(READ_SIZE, shrunk * 2**each) for each in range(8)]
    assert bench.client.reads == grown, "each read that is parsed in one turn doubles the next"
    assert bench.requests.backlog.read_limit == READ_SIZE


def test_what_is_left_of_a_turn_waits_with_a_hold_of_another_reason() -> None:
    """Broken off, then paused for something else: its turn comes and reads nothing until that is over."""
    bench = Bench()
    bench.work.step_ns = TURN_NS
    bench.client_sends(alternating(20))
    bench.requests.pause(MEMORY)
    taken = len(bench.broker.taken)
    bench.run()
    assert len(bench.broker.taken) == taken
    assert bench.paused() == {"memory": 1}
    bench.requests.resume(MEMORY)
    bench.run()
    assert bytes(bench.broker.taken) == alternating(20)
    assert bench.paused() == {}


def test_a_wire_that_buffers_is_read_to_its_end_without_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decrypted bytes are not known to the loop: the pump has turns until none are left."""
    buffers = property(lambda wire: bool(wire.received), lambda wire, _: None)
    monkeypatch.setattr(MemoryWire, "buffers", buffers, raising=False)
    bench = Bench()
    sent = produce(1, 3 * READ_SIZE)
    bench.client_sends(sent)
    for _ in range(10):
        bench.rounds.round()
    assert bytes(bench.broker.taken) == sent
    assert bench.paused() == {}
    bench.requests.pause(LOGIN)
    bench.client.received += heartbeat(2)
    bench.requests.resume(LOGIN)
    bench.rounds.round()
    assert bytes(bench.broker.taken) == sent + heartbeat(2)


# ---- memory


def test_without_memory_long_requests_wait_and_short_ones_pass() -> None:
    world = World(security=SecurityOptions(max_buffered_bytes=100_000))
    full = Bench(world)
    full.broker.room = 0
    full.client_sends(produce(1, 100_000 + OWN_SIZE))
    assert world.memory.read_size == 0
    short = Bench(world)
    short.client_sends(heartbeat(1) + heartbeat(2))
    assert bytes(short.broker.taken) == heartbeat(1) + heartbeat(2)
    short.broker.room = 0
    short.client_sends(produce(3, 5_000))
    assert short.client.reads[-1] == OWN_SIZE, "what it may hold outside of the pool"
    assert world.memory.used <= 100_000 + OWN_SIZE
    full.broker.room = None
    assert full.broker.on_writable is not None
    full.broker.on_writable()
    assert world.memory.read_size > 0


def test_a_direction_without_memory_is_read_when_there_is_some() -> None:
    world = World(security=SecurityOptions(max_buffered_bytes=100_000))
    full = Bench(world)
    full.broker.room = 0
    full.client_sends(produce(1, 100_000 + OWN_SIZE))
    waiting = Bench(world)
    waiting.client_sends(frames.metadata(1)[:9])
    waiting.requests.backlog.keep(bytes(OWN_SIZE))  # its allocate is used up
    waiting.client_sends(produce(2))
    assert waiting.requests.paused == MEMORY
    assert list(full.pumps.short) == [waiting.requests]
    assert waiting.client.on_readable is None
    full.requests.stop()
    assert not full.pumps.short
    assert waiting.client.on_readable is not None


def test_a_response_that_ends_lets_the_next_one_be_collected() -> None:
    """Five wait for what four hold. Each that has been sent whole makes room for one, without any other event."""
    world = World(security=SecurityOptions(max_buffered_bytes=400_000))
    answer = frames.coordinators_answer(1, 3_500)
    first = Bench(world)
    benches = [first] + [Bench(world) for _ in range(8)]
    for bench in benches:
        bench.client_sends(frames.find_coordinator(1))
        bench.broker_sends(answer[:20])
    assert [bench.responses.paused for bench in benches] == [0] * 4 + [RESPONSE_MEMORY] * 5
    for bench in benches[:4]:
        bench.broker_sends(answer[20:])
    for bench in benches[4:]:
        bench.broker.received += answer[20:]
    for _ in range(10):
        world.loop.round()
        for bench in benches:
            bench.wake(bench.broker)
    assert [len(bench.client.taken) > 5_000 for bench in benches] == [True] * 9
    assert world.memory.used == world.memory.buffered_bytes == 0
    assert first.paused() == {}


def test_stopping_frees_everything() -> None:
    world = World(security=SecurityOptions(max_buffered_bytes=40_000))
    bench = Bench(world)
    bench.broker.room = 10
    bench.client_sends(frames.find_coordinator(1) + produce(2)[:20])
    bench.broker_sends(frames.coordinators_answer(1, 350)[:500])
    assert world.memory.buffered_bytes
    bench.requests.stop()
    bench.responses.stop()
    assert world.memory.used == world.memory.buffered_bytes == 0
    assert bench.paused() == {}
    world.loop.round()
    bench.requests.on_turn()
    assert (bench.client.on_readable, bench.broker.on_writable) == (None, None)
