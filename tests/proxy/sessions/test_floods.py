"""What one client sends costs others a bounded time, and no client can keep memory, connections or charges for itself.

The proxy's own time is that of `Work`: each look at its work clock costs so much, so a turn ends after so many steps
and what a round does can be counted, however fast the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from proxy.config.config import SecurityOptions
from proxy.server import Server
from proxy.sessions.turns import ROUND_NS, TURN_NS, Turns
from proxy.streams.fetch_ledger import LARGEST_BATCH
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import Peer, Stage, until, without_burst
from tests.proxy.dialogue import debts, held
from tests.proxy.frames import api_versions, fetch_max_bytes, fetched, heartbeat, produce, produced, request
from tests.proxy.mutation_frames import create, deletion
from tests.proxy.streams.exchanges import describe_broker_configs

OpenStage = Callable[..., Stage]

MUTATIONS = without_burst("client-id=etl,controller_mutation_rate=0.001")
#: Two looks for each step; so a turn of 1 ms is about ten steps.
LOOK_NS = 50_000


class Work:
    """A clock of real time for the turns, and the most that one round of the loop used of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self.look_ns = 0
        self.rounds = 0
        self.longest_ns = 0
        self._began_ns = 0
        next_round = Turns._next_round

        def counting(turns: Turns) -> None:
            self.rounds += 1
            self.longest_ns = max(self.longest_ns, self.now_ns - self._began_ns)
            self._began_ns = self.now_ns
            next_round(turns)

        monkeypatch.setattr(Turns, "_next_round", counting)
        init = Server.__init__

        def with_work_clock(server: Server, config: Any, clock: Callable[[], int], _work_clock: object) -> None:
            init(server, config, clock, self)

        monkeypatch.setattr(Server, "__init__", with_work_clock)

    def __call__(self) -> int:
        self.now_ns += self.look_ns
        return self.now_ns

    def begin(self) -> None:
        self.look_ns = LOOK_NS
        self.rounds = 0
        self.longest_ns = 0
        self._began_ns = self.now_ns


async def swallow(peer: Peer) -> None:
    """Read and forget."""
    while await asyncio.get_running_loop().sock_recv(peer.sock, 262_144):
        pass


FLOODS: dict[str, tuple[list[QuotaEntry], Callable[[int], bytes]]] = {
    "ApiVersions of an unknown version": ([], lambda n: api_versions(n, 99)),
    "CreateTopics over its quota": ([MUTATIONS], lambda n: create(n, {"new": 1}, "etl")),
    "DeleteTopics over its quota": ([MUTATIONS], lambda n: deletion(6, n, ["old"])),
    "client ids in turn": ([], lambda n: produce(n, 20, acks=0, client_id=f"client-{n % 2}")),
    "DescribeCluster": ([], lambda n: request(60, 1, n, b"\x00\x01\x00", f"c{n % 2}")),
    "Metadata": ([], lambda n: request(3, 12, n, b"\x00\x00\x00", f"c{n % 2}")),
    "FindCoordinator": ([], lambda n: request(10, 4, n, b"\x00\x01\x00", f"c{n % 2}")),
}


@pytest.mark.parametrize("flooders", [1, 8])
@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.pure
async def test_an_innocent_producer_waits_for_one_round(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, name: str, flooders: int
) -> None:
    """A small request passes in the round in which it comes, or the next; a round uses a bounded time."""
    work = Work(monkeypatch)
    quotas, make = FLOODS[name]
    stage = open_stage(quotas=quotas)
    tasks = []
    floods = []
    for number in range(flooders):
        client, broker = await stage.pair()
        if quotas and not number:  # the first is let through, and leaves debt
            await client.send(create(0, {"first": 100}))
            await broker.frame()
        tasks += [asyncio.ensure_future(swallow(each)) for each in (client, broker)]
        floods.append(client)
    client, broker = await stage.pair()
    await client.send(produce(0, client_id="innocent"))
    await broker.frame()
    work.begin()
    flood = b"".join(make(number) for number in range(1, 900))
    for each in floods:
        each.send_now(flood)
    waited = []
    for number in range(1, 12):
        before, rounds = work.now_ns, work.rounds
        await client.send(produce(number, client_id="innocent"))
        assert await broker.frame() == produce(number, client_id="innocent")
        waited.append((work.now_ns - before, work.rounds - rounds))
    assert max(ns for ns, _ in waited) <= 3 * (ROUND_NS + TURN_NS)
    assert max(rounds for _, rounds in waited) <= 3
    assert work.longest_ns <= ROUND_NS + 2 * TURN_NS
    assert work.rounds > 3, "the flood took more than a few rounds"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- memory


async def test_responses_that_must_be_collected_do_not_stop_others(open_stage: OpenStage) -> None:
    """Six that together fill the memory, of which the broker never sends the end: others get their answers."""
    stage = open_stage(security=SecurityOptions(max_buffered_bytes=4 << 20))
    stuck = []
    for number in range(6):
        client, broker = await stage.pair()
        described = describe_broker_configs(number)
        await client.send(described.request)
        assert await broker.frame() == described.request
        announced = (1 << 20) - 4
        head = announced.to_bytes(4, "big") + number.to_bytes(4, "big") + b"\x00" + bytes(4) + b"\x02\x00\x00\x00\x04"
        await broker.send(head + b"\x027\xff\xff\x03")
        stuck.append((client, broker))
    await until(lambda: stage.paused().get("response_memory", 0) == 2)
    client, broker = await stage.pair()
    for number in range(5):
        await client.send(produce(number, 500) + heartbeat(100 + number))
        assert await broker.frame() == produce(number, 500)
        assert await broker.frame() == heartbeat(100 + number)
        await broker.send(produced(number) + frames.heartbeat_answer(100 + number, 500))
        assert await client.frame() == produced(number)
        assert await client.frame() == frames.heartbeat_answer(100 + number, 500)
    for gone in stuck[:2]:
        for side in gone:
            side.close()
    await until(lambda: "response_memory" not in stage.paused())


async def test_clients_that_never_read_do_not_stop_others(open_stage: OpenStage) -> None:
    """Their responses fill the memory. Short requests pass still; who takes nothing for long is closed."""
    stage = open_stage(security=SecurityOptions(max_buffered_bytes=1 << 20, stalled_client_timeout_seconds=30.0))
    senders = []
    response = fetched(1, size=20_000_000)
    for _ in range(12):
        client, broker = await stage.pair()
        client.sock.setsockopt(1, 8, 2_048)  # SOL_SOCKET, SO_RCVBUF
        await client.send(fetch_of(1))
        await broker.frame()
        senders.append(asyncio.ensure_future(broker.send(response)))
    await until(lambda: stage.memory.used > (1 << 20) * 3 // 4)
    client, broker = await stage.pair()
    await client.send(produce(1, 300))
    assert await broker.frame() == produce(1, 300)
    await broker.send(produced(1))
    assert await client.frame() == produced(1)
    sweep_whole(stage, is_short=True)
    stage.clock.pass_seconds(31)
    sweep_whole(stage, is_short=True)
    assert stage.metrics.connections.closed["stalled"] > 0
    assert stage.memory.used <= (1 << 20) * 3 // 4
    assert stage.session_of(client) in stage.sessions
    for each in senders:
        each.cancel()
    await asyncio.gather(*senders, return_exceptions=True)


async def test_short_rewritten_responses_pass_and_are_no_reason_to_close(open_stage: OpenStage) -> None:
    """Responses that are stuck have reserved all memory: Metadata of 1 KB needs none of it, and a longer one waits."""
    stage = open_stage(security=SecurityOptions(max_buffered_bytes=4 << 20, stalled_client_timeout_seconds=30.0))
    stuck = []
    for _ in range(4):
        client, broker = await stage.pair()
        await client.send(frames.find_coordinator(1))
        await broker.frame()
        await broker.send(frames.coordinators_answer(1, 37_000)[:1_000])
        stuck.append(client)
    await until(lambda: stage.memory.used > 3_500_000)
    client, broker = await stage.pair()
    await client.send(frames.metadata(1))
    await broker.frame()
    await broker.send(frames.metadata_answer(1, {1: ("127.0.0.9", 9092)}))
    assert (await client.frame())[4:8] == (1).to_bytes(4, "big")
    await client.send(frames.find_coordinator(2))
    await broker.frame()
    await broker.send(frames.coordinators_answer(2, 37_000)[:1_000])
    await until(lambda: stage.session_of(client).responses.stream.holding.waits > 0)
    sweep_whole(stage, is_short=True)
    stage.clock.pass_seconds(31)
    for _ in range(2):
        stuck[0].send_now(b"\x00")  # of its next request: that does not make up for the response
        await asyncio.sleep(0.01)
        sweep_whole(stage, is_short=True)
    assert stage.session_of(client) in stage.sessions
    assert stage.metrics.connections.closed["stalled"] > 0


def fetch_of(number: int) -> bytes:
    return frames.fetch(number)


def sweep_whole(stage: Stage, *, is_short: bool = False) -> None:
    """One whole sweep over the sessions."""
    assert stage.server._ticks is not None
    sweep = stage.server._ticks.sweep
    sweep._part = 0
    for _ in range(10):
        sweep.tick(stage.clock(), is_short=is_short)


# ---- charges


async def test_a_head_that_announces_much_and_hangs_up_costs_others_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("total,producer_byte_rate=1000000")])
    client, broker = await stage.pair()
    innocent, innocents_broker = await stage.pair()
    head = bytearray(produce(1, 100)[:23])
    head[:4] = (100_000_000).to_bytes(4, "big")
    await client.send(bytes(head))
    assert await broker.read(23) == head
    assert debts(stage)["total", "producer_byte_rate"] == pytest.approx(100)
    await innocent.send(produce(2))
    await held(stage)
    client.close()
    await until(lambda: debts(stage).get(("total", "producer_byte_rate"), 0) < 0.001)
    stage.clock.pass_seconds(0.001)
    assert await innocents_broker.frame() == produce(2)
    assert not stage.session_of(innocent).is_held


async def test_a_head_that_announces_much_and_stalls_delays_others_by_a_second(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("total,producer_byte_rate=1000000")])
    client, broker = await stage.pair()
    innocent, innocents_broker = await stage.pair()
    sent = produce(1, 1_000_000)
    await client.send(sent[:23])
    assert await broker.read(23) == sent[:23]
    await innocent.send(produce(2))
    await held(stage)
    stage.clock.pass_seconds(0.9)
    for _ in range(2):
        await one_tick(stage)
    assert stage.paused() == {"quota": 1}, "it may continue yet"
    stage.clock.pass_seconds(0.1)
    assert await innocents_broker.frame() == produce(2)
    assert debts(stage)["total", "producer_byte_rate"] < 0.001
    stage.clock.pass_seconds(1)
    received = asyncio.ensure_future(broker.read(len(sent) - 23))
    sending = asyncio.ensure_future(client.send(sent[23:]))
    began_ns = stage.clock()

    def has_come() -> bool:
        stage.clock.pass_seconds(0.01)
        return received.done()

    await until(has_come)
    assert await received == sent[23:]
    await sending
    owed = debts(stage).get(("total", "producer_byte_rate"), 0.0)
    assert owed + (stage.clock() - began_ns) / 1e9 >= 0.99, "the rest was charged"


async def one_tick(stage: Stage) -> None:
    """Wait for the proxy's next tick, of ten in a second."""
    ticks = stage.server._ticks
    assert ticks is not None
    before = ticks._count
    await until(lambda: ticks._count > before)


# ---- connections


async def hang_up_while_held(stage: Stage, count: int) -> list[Peer]:
    """So many clients hang up while a limit holds a request of theirs, and are swept. Returns their brokers."""
    first, broker = await stage.pair()
    await first.send(produce(1, 10_000))
    assert await broker.frame() == produce(1, 10_000)
    pairs = [await stage.pair() for _ in range(count)]
    for client, _ in pairs:
        await client.send(produce(2))
    await held(stage, count)
    for client, _ in pairs:
        client.close()
    sweeps = 0
    while stage.metrics.connections.open > 1:
        assert sweeps < 200, "the kernel tells at once"
        sweep_whole(stage)
        sweeps += 1
        await asyncio.sleep(0.001)
    return [each for _, each in pairs]


async def test_clients_that_hang_up_while_held_do_not_count(open_stage: OpenStage) -> None:
    """After one sweep."""
    stage = open_stage(
        quotas=[without_burst("client-id=etl,producer_byte_rate=1000")], security=SecurityOptions(max_connections=40)
    )
    brokers = await hang_up_while_held(stage, 39)
    for each in brokers:
        assert await each.rest() == b""
        each.close()
    await until(lambda: len(stage.sessions) == 1)
    assert stage.metrics.connections.dropped_frames == 39
    another, anothers_broker = await stage.pair()
    await another.send(heartbeat(3))
    assert await anothers_broker.frame() == heartbeat(3), "there is room again"


# ---- fetches


async def test_new_fetch_connections_share_what_is_left(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("client-id=etl,consumer_byte_rate=1MB")])
    pairs = [await stage.pair() for _ in range(100)]
    for client, _ in pairs:
        await client.send(frames.fetch(1))
    await until(lambda: stage.paused().get("quota", 0) + stage.metrics.connections.in_flight() == 100)
    budgets = []
    for client, broker in pairs:
        if not stage.session_of(client).is_held:
            budgets.append(fetch_max_bytes(await broker.frame()))
    assert len(budgets) <= 2
    assert sum(max(each, LARGEST_BATCH) for each in budgets) <= 1_000_000 + LARGEST_BATCH


async def test_share_fetches_share_what_is_left(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("client-id=etl,consumer_byte_rate=1MB")])
    pairs = [await stage.pair() for _ in range(20)]
    for client, _ in pairs:
        await client.send(frames.share_fetch(1))
    await until(lambda: stage.paused().get("quota", 0) + stage.metrics.connections.in_flight() == 20)
    assert stage.metrics.connections.in_flight() <= 2


# ---- peers that break the rules


async def test_a_broker_that_closes_inside_a_response_that_is_rewritten_is_counted(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(frames.find_coordinator(1))
    await broker.frame()
    await broker.send(frames.coordinators_answer(1, 20)[:100])
    await until(lambda: stage.memory.buffered_bytes)
    broker.close()
    assert await client.rest() == b""
    assert stage.metrics.errors.upstream["closed_mid_frame"] == 1
    await stage.no_sessions()


async def test_a_sweep_passes_over_sessions_that_have_closed_since_it_began(open_stage: OpenStage) -> None:
    stage = open_stage()
    pairs = [await stage.pair() for _ in range(30)]
    assert stage.server._ticks is not None
    sweep = stage.server._ticks.sweep
    sweep._part = 0
    sweep.tick(stage.clock(), is_short=False)
    for client, broker in pairs:
        client.close()
        broker.close()
    await stage.no_sessions()
    for _ in range(9):
        sweep.tick(stage.clock(), is_short=False)
