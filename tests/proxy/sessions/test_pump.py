"""One direction over wires in memory: back-pressure, the steps of a stream, turns that end, and memory."""

import pytest

from proxy.config.config import SecurityOptions
from proxy.sessions.lifecycle import State
from proxy.sessions.pump_set import LOGIN, MEMORY, RESPONSE_MEMORY, SLICE
from proxy.sessions.session import Session
from proxy.sessions.slices import HEAVY_ROUND_NS, SLICE_NS
from proxy.streams.memory import FIRST_READ_SIZE, OWN_SIZE, READ_SIZE
from tests.proxy import frames
from tests.proxy.frames import heartbeat, produce
from tests.proxy.streams.pair import Pair, World
from tests.proxy.wires import MemoryWire


class Bench(Pair):
    """A pair of which each wake-up is the test's."""

    @staticmethod
    def on_closed(_: Session) -> None:
        """An error is told by the metrics."""

    def __init__(self, world: World | None = None) -> None:
        super().__init__(World() if world is None else world)

    def _receives(self, wire: MemoryWire, data: bytes) -> None:
        wire.received += data
        self.wake(wire)

    def wake(self, wire: MemoryWire) -> None:
        if wire.on_readable is not None:
            wire.on_readable()

    def write(self, wire: MemoryWire) -> None:
        if wire.on_writable is not None:
            wire.on_writable()

    def run(self) -> None:
        """Rounds until all that can be read has been."""
        for wire in (self.client, self.broker):
            wire.receive(b"")
        self.world.loop.run()

    def paused(self) -> dict[str, int]:
        return {name: count for name, count in self.world.metrics.connections.paused.items() if count}


def test_a_wake_up_is_one_read() -> None:
    bench = Bench()
    bench.client_sends(produce(1, 3 * READ_SIZE))
    assert (bench.client.reads, len(bench.to_broker)) == ([FIRST_READ_SIZE], FIRST_READ_SIZE)
    bench.run()
    assert (bytes(bench.to_broker), bench.paused()) == (produce(1, 3 * READ_SIZE), {})


def test_frames_of_megabytes_share_their_part_of_a_round() -> None:
    long = Bench()
    short = Bench(long.world)
    turns = long.world.shared.pumps.slices
    sent = produce(1, 3 * READ_SIZE)
    long.client_sends(sent)
    assert turns.heavy_used_ns > 0
    turns.heavy_used_ns = HEAVY_ROUND_NS
    turns.begin_round()
    long.wake(long.client)
    short.client_sends(produce(2))
    assert long.client.reads == [FIRST_READ_SIZE], "its next read waits for the next round"
    assert short.to_broker == produce(2)
    long.run()
    assert long.to_broker == sent
    turns.heavy_used_ns = HEAVY_ROUND_NS
    turns.begin_round()
    long.client_sends(produce(3))
    assert long.to_broker == sent + produce(3), "after its end the connection is as any other"


# ---- steps
@pytest.mark.pure
def test_a_defect_costs_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(type(bench.requests.stream), "next_step", lambda *_: 1 // 0)
    bench.client_sends(produce(1))
    assert bench.world.metrics.errors.protocol["defect"] == 1
    assert bench.session.state is State.CLOSED


# ---- turns
def alternating(count: int) -> bytes:
    """Requests of two kinds in turn, so that each takes a step of its own."""
    return b"".join(heartbeat(n) if n % 2 else produce(n, 60, acks=0) for n in range(count))


def test_a_turn_ends_after_its_time_and_reads_shrink_and_grow() -> None:
    bench = Bench()
    sent = alternating(900)
    bench.world.work.step_ns = SLICE_NS // 10
    bench.client_sends(sent)
    first = len(bench.to_broker)
    assert 0 < first < len(sent)
    assert bench.requests.paused == SLICE
    assert bench.requests.backlog.unparsed
    assert bench.client.on_readable is None, "nothing more is read meanwhile"
    assert len(bench.requests.backlog.kept) == len(sent) - first
    assert bench.world.memory.buffered_bytes == len(sent) - first
    bench.world.loop.round()
    assert first < len(bench.to_broker) <= 3 * first
    bench.run()
    assert bench.to_broker == sent
    shrunk = bench.requests.backlog.read_limit
    assert shrunk <= 8_192
    bench.client.reads.clear()
    bench.world.work.step_ns = 0
    bench.client_sends(produce(901, 3 * READ_SIZE, acks=0))
    for _ in range(7):
        bench.wake(bench.client)
    grown = [min(READ_SIZE, shrunk * 2**each) for each in range(8)]
    assert bench.client.reads == grown, "each read that is parsed in one turn doubles the next"
    assert bench.requests.backlog.read_limit == READ_SIZE


def test_a_wire_that_buffers_is_read_to_its_end_without_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decrypted bytes are not known to the loop: the pump has turns until none are left."""
    buffers = property(lambda wire: bool(wire.received), lambda wire, _: None)
    monkeypatch.setattr(MemoryWire, "buffers", buffers, raising=False)
    monkeypatch.setattr(MemoryWire, "byte_cost", 4)  # of TLS: of others it is not asked
    bench = Bench()
    sent = produce(1, 3 * READ_SIZE)
    bench.client_sends(sent)
    for _ in range(10):
        bench.world.loop.round()
    assert (bytes(bench.to_broker), bench.paused()) == (sent, {})
    bench.requests.pause(LOGIN)
    bench.client.received += heartbeat(2)
    bench.requests.resume(LOGIN)
    bench.world.loop.round()
    assert bench.to_broker == sent + heartbeat(2)


# ---- memory
def without_memory() -> tuple[World, Bench]:
    """A broker does not take what fills 100 kB."""
    world = World(security=SecurityOptions(max_buffered_bytes=100_000))
    full = Bench(world)
    full.broker.room = 0
    full.client_sends(produce(1, 100_000 + OWN_SIZE))
    assert world.memory.read_size == 0
    return world, full


def test_a_direction_without_memory_is_read_when_there_is_some() -> None:
    world, full = without_memory()
    waiting = Bench(world)
    waiting.client_sends(frames.metadata(1)[:9])
    waiting.requests.backlog.keep(bytes(OWN_SIZE))  # its allocate is used up
    waiting.client_sends(produce(2))
    assert waiting.requests.paused == MEMORY
    assert list(world.shared.pumps.short) == [waiting.requests]
    assert waiting.client.on_readable is None
    full.requests.stop()
    assert not world.shared.pumps.short
    assert waiting.client.on_readable is not None


def test_a_response_that_ends_lets_the_next_one_be_collected() -> None:
    """Five wait for what four hold. Each that has been sent whole makes room for one, without any other event."""
    world = World(security=SecurityOptions(max_buffered_bytes=400_000))
    answer = frames.coordinators_answer(1, 3_500)
    first = Bench(world)
    benches = [first] + [Bench(world) for _ in range(8)]
    for bench in benches:
        bench.exchange(frames.find_coordinator(1), answer[:20])
    assert [bench.responses.paused for bench in benches] == [0] * 4 + [RESPONSE_MEMORY] * 5
    for bench in benches[:4]:
        bench.broker_sends(answer[20:])
    for bench in benches[4:]:
        bench.broker.received += answer[20:]
    for bench in benches:
        bench.run()
    assert [len(bench.to_client) > 5_000 for bench in benches] == [True] * 9
    assert world.memory.used == world.memory.buffered_bytes == 0
    assert first.paused() == {}
