"""What one client sends costs others a bounded time, and no client can keep memory, connections or charges for itself.

The proxy's own time is that of `Work`: each look at its work clock costs so much, so a turn ends after so many steps
and what a round does can be counted, however fast the machine is.
"""

import asyncio
from collections.abc import Callable

import pytest

from proxy.config.config import SecurityOptions
from proxy.sessions.slices import ROUND_NS, SLICE_NS, Slices
from quotas.entry import QuotaEntry
from tests.proxy import frames
from tests.proxy.conversation import OpenStage, Peer, arrives, until, without_burst
from tests.proxy.frames import api_versions, produce, request
from tests.proxy.mutation_frames import create, deletion

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
        next_round = Slices._next_round

        def counting(turns: Slices) -> None:
            self.rounds += 1
            self.longest_ns = max(self.longest_ns, self.now_ns - self._began_ns)
            self._began_ns = self.now_ns
            next_round(turns)

        monkeypatch.setattr(Slices, "_next_round", counting)

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
    stage = open_stage(quotas=quotas, work_clock=work)
    tasks = []
    floods = []
    for number in range(flooders):
        client, broker = await stage.pair()
        if quotas and not number:  # the first is let through, and leaves debt
            await arrives(client, broker, create(0, {"first": 100}))
        tasks += [asyncio.ensure_future(swallow(each)) for each in (client, broker)]
        floods.append(client)
    client, broker = await stage.pair()
    await arrives(client, broker, produce(0, client_id="innocent"))
    work.begin()
    flood = b"".join(make(number) for number in range(1, 900))
    for each in floods:
        each.send_now(flood)
    waited = []
    for number in range(1, 12):
        before, rounds = work.now_ns, work.rounds
        await arrives(client, broker, produce(number, client_id="innocent"))
        waited.append((work.now_ns - before, work.rounds - rounds))
    assert max(ns for ns, _ in waited) <= 3 * (ROUND_NS + SLICE_NS)
    assert max(rounds for _, rounds in waited) <= 3
    assert work.longest_ns <= ROUND_NS + 2 * SLICE_NS
    assert work.rounds > 3, "the flood took more than a few rounds"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- memory
async def test_short_rewritten_responses_pass_and_are_no_reason_to_close(open_stage: OpenStage) -> None:
    """Responses that are stuck have allocated all memory: Metadata of 1 KB needs none of it, and a longer one waits."""
    stage = open_stage(security=SecurityOptions(max_buffered_bytes=4 << 20, stalled_client_timeout_seconds=30.0))
    stuck = []
    for _ in range(4):
        client, broker = await stage.pair()
        await arrives(client, broker, frames.find_coordinator(1))
        await broker.send(frames.coordinators_answer(1, 37_000)[:1_000])
        stuck.append(client)
    await until(lambda: stage.memory.used > 3_500_000)
    client, broker = await stage.pair()
    await arrives(client, broker, frames.metadata(1))
    await broker.send(frames.metadata_answer(1, {1: ("127.0.0.9", 9092)}))
    assert (await client.frame())[4:8] == (1).to_bytes(4, "big")
    await arrives(client, broker, frames.find_coordinator(2))
    await broker.send(frames.coordinators_answer(2, 37_000)[:1_000])
    await until(lambda: stage.session_of(client).responses.stream.holding.waits > 0)
    stage.sweep(is_short=True)
    stage.clock.pass_seconds(31)
    for _ in range(2):
        stuck[0].send_now(b"\x00")  # of its next request: that does not make up for the response
        await asyncio.sleep(0.01)
        stage.sweep(is_short=True)
    assert stage.session_of(client) in stage.sessions
    assert stage.metrics.connections.closed["stalled"] > 0
