"""Long frames take turns (`buffers`): in one round of the loop they move a bounded number of bytes, in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from proxy.sessions.buffers import BULK_READS, CROWD, CROWD_READ_SIZE, READ_SIZE, SMALL_READ_SIZE, Buffers
from proxy.sessions.pump import BULK, MEMORY, Pump
from proxy.sessions.request_flow import RequestFlow
from proxy.sessions.response_flow import ResponseFlow
from tests.proxy.conversation import Peer, Stage, until
from tests.proxy.frames import fetch, fetched, heartbeat, heartbeat_answer, produce

OpenStage = Callable[..., Stage]

SIZE = 3_000_000


class Reads:
    """All reads in their order, of long frames and others: in which round of the loop, of whom, how many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bulk: list[tuple[int, str, int]] = []
        self.other: list[tuple[int, str, int, bool]] = []
        self.round = 0
        self.waited = 0
        next_round = Buffers._next_round

        def counting(buffers: Buffers) -> None:
            self.round += 1
            self.waited = max(self.waited, len(buffers._bulk_queue))
            next_round(buffers)

        monkeypatch.setattr(Buffers, "_next_round", counting)
        for flow in (RequestFlow, ResponseFlow):
            monkeypatch.setattr(flow, "take", self._recording(flow.take))

    def _recording(self, take: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def recording(pump: Pump, end: int) -> None:
            if pump.remaining > BULK:
                self.bulk.append((self.round, pump.session.peer, end))
            else:
                self.other.append((self.round, pump.session.peer, end, bool(pump.buffers._bulk_queue)))
            take(pump, end)

        return recording


async def all_at_once(pairs: list[tuple[Peer, Peer]], sent: bytes) -> None:
    """Each client sends this, and each broker connection gets it whole."""

    async def one(client: Peer, broker: Peer) -> None:
        _, received = await asyncio.gather(client.send(sent), broker.frame())
        assert received == sent

    async with asyncio.TaskGroup() as group:
        for pair in pairs:
            group.create_task(one(*pair))


@pytest.mark.parametrize("count", [1, 3, CROWD - 1, 2 * CROWD])
async def test_a_round_moves_a_bounded_number_of_bytes(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    stage = open_stage()
    pairs = [await stage.pair() for _ in range(count)]
    reads = Reads(monkeypatch)
    await all_at_once(pairs, produce(1, SIZE))
    rounds = [list(group) for _, group in groupby(reads.bulk, key=lambda read: read[0])]
    assert max(map(len, rounds)) <= BULK_READS
    assert max(size for _, _, size in reads.bulk) <= READ_SIZE
    got = Counter[str]()
    for _, peer, size in reads.bulk:
        got[peer] += size
    assert len(got) == count, "everyone has had turns"
    assert stage.shared.buffers.bulk_read_size in (READ_SIZE, CROWD_READ_SIZE)
    assert not stage.shared.buffers._bulk_queue
    await until(lambda: not stage.shared.buffers.small_reads)


async def test_in_a_crowd_one_reads_in_a_round_and_less(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for its turn has been in the kernel for long, so all are there from the first round on."""
    stage = open_stage()
    pairs = [await stage.pair() for _ in range(3 * CROWD)]
    frame = produce(1, 1_000_000)
    sent = []
    for client, _ in pairs:
        session = stage.session_of(client)
        session.request_flow.pause(MEMORY)
        sent.append(client.send_now(frame))
    reads = Reads(monkeypatch)
    for client, _ in pairs:
        stage.session_of(client).request_flow.resume(MEMORY)
    receiving = [asyncio.ensure_future(broker.frame()) for _, broker in pairs]
    for (client, _), done in zip(pairs, sent, strict=True):
        await client.send(frame[done:])
    for each in receiving:
        assert await each == frame
    assert reads.waited >= CROWD
    crowded = [read for read in reads.bulk if read[0] > 2][:CROWD]
    assert len({read[0] for read in crowded}) == CROWD, "one in a round"
    assert max(size for _, _, size in crowded) <= CROWD_READ_SIZE
    assert len({peer for _, peer, _ in crowded}) == CROWD, "first come, first served"


async def test_a_small_request_is_read_in_the_round_in_which_it_comes(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage()
    pairs = [await stage.pair() for _ in range(6)]
    client, broker = await stage.pair()
    peer = stage.session_of(client).peer
    reads = Reads(monkeypatch)
    long = asyncio.ensure_future(all_at_once(pairs, produce(1, 6 * SIZE)))
    sent_in: list[int] = []
    while not long.done():
        number = len(sent_in)
        sent_in.append(reads.round)
        await client.send(heartbeat(number))
        await broker.frame()
        await broker.send(heartbeat_answer(number))
        await client.frame()
    await long
    assert len(sent_in) > 4
    read_in = [round_ for round_, each, _, _ in reads.other if each == peer][::2]
    assert max(read - sent for sent, read in zip(sent_in, read_in, strict=True)) <= 2


async def test_others_read_little_at_once_while_long_frames_wait(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be about to begin a long frame themselves."""
    stage = open_stage()
    pairs = [await stage.pair() for _ in range(12)]
    reads = Reads(monkeypatch)

    async def many_of_medium_size(pair: tuple[Peer, Peer]) -> None:
        for number in range(15):
            await all_at_once([pair], produce(number, 60_000))

    async with asyncio.TaskGroup() as group:
        group.create_task(all_at_once(pairs[:6], produce(1, 2 * SIZE)))
        for pair in pairs[6:]:
            group.create_task(many_of_medium_size(pair))
    beside_a_queue = [size for _, _, size, others_wait in reads.other if others_wait]
    assert len(beside_a_queue) > 20
    assert max(beside_a_queue) <= SMALL_READ_SIZE


async def test_responses_take_turns_with_requests(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage()
    pairs = [await stage.pair() for _ in range(4)]
    for client, broker in pairs[2:]:
        await client.send(fetch(1))
        await broker.frame()
    reads = Reads(monkeypatch)
    answer = fetched(1, size=SIZE)
    backwards = [(broker, client) for client, broker in pairs[2:]]
    await asyncio.gather(all_at_once(pairs[:2], produce(1, SIZE)), all_at_once(backwards, answer))
    assert len({peer for _, peer, _ in reads.bulk}) == 4


async def one_in_the_queue(stage: Stage, size: int) -> tuple[Peer, Peer, int, asyncio.Future[None]]:
    """A client whose long frame waits for its turn, how much of it has been sent, and the others before it."""
    pairs = [await stage.pair() for _ in range(5)]
    client, broker = pairs[0]
    flow = stage.session_of(client).request_flow
    others = asyncio.ensure_future(all_at_once(pairs[1:], produce(1, size)))
    at = 0
    while not flow.queued:
        at += client.send_now(produce(1, size)[at : at + 300_000])
        await asyncio.sleep(0)
    assert flow in stage.shared.buffers._bulk_queue
    return client, broker, at, others


@pytest.mark.parametrize("who", ["the client", "the broker", "the session"])
async def test_one_that_goes_while_it_waits_for_its_turn(open_stage: OpenStage, who: str) -> None:
    stage = open_stage()
    client, broker, _, others = await one_in_the_queue(stage, 3 * SIZE)
    session = stage.session_of(client)
    if who == "the client":
        client.reset()
        broker.close()
    elif who == "the broker":
        broker.reset()
    else:
        session.close()
    await until(lambda: session not in stage.shared.sessions)
    await others
    assert session.request_flow not in stage.shared.buffers._bulk_queue


async def test_one_that_must_not_be_read_when_its_turn_comes(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker, at, others = await one_in_the_queue(stage, SIZE)
    flow = stage.session_of(client).request_flow
    flow.pause(MEMORY)
    left = flow.remaining
    await others
    assert not flow.queued
    assert flow.remaining == left
    flow.resume(MEMORY)
    sent = produce(1, SIZE)
    _, received = await asyncio.gather(client.send(sent[at:]), broker.frame())
    assert received == sent
