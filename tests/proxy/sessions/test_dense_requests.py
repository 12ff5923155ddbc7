"""Requests with more topics in one read than one turn of the loop looks at: all is charged and forwarded, in turns."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from functools import cache

import pytest

from proxy.sessions.buffers import BULK_READS, READ_SIZE, Buffers
from proxy.sessions.produce_usage import MAX_REMEMBERED, WORK_AT_ONCE, ProduceUsage
from proxy.sessions.request_flow import DENSE_READ_SIZE
from quotas.spec.parse import parse_spec
from tests.proxy.conversation import Stage, until, without_burst
from tests.proxy.frames import Topic, batch, heartbeat, produce_records, produced

OpenStage = Callable[..., Stage]

ANY_TOPIC = parse_spec("topic=<default>,bytes_in_rate=1GB")
TOTAL = parse_spec("total=true,total.bytes.in.per.sec.threshold=1GB")
TOPICS = 6_000


@cache
def dense(number: int, topics: int = TOPICS, *, acks: int = 1, version: int = 9) -> bytes:
    """Topics with a partition of three bytes each, which are no batch: brokers say so, the proxy counts bytes."""
    return produce_records(number, {f"t{each:x}": [b"abc"] for each in range(topics)}, version, acks)


class Turns:
    """How many pieces of requests each turn has looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[int] = []
        self.largest_read = 0
        begin_turn = ProduceUsage.begin_turn
        next_round = Buffers._next_round
        self.in_round = 0
        self.most_in_a_round = 0

        def counting(usage: ProduceUsage) -> None:
            self._note(usage)
            begin_turn(usage)

        def counting_rounds(buffers: Buffers) -> None:
            self.in_round = 0
            next_round(buffers)
            self.most_in_a_round = max(self.most_in_a_round, self.in_round)

        monkeypatch.setattr(ProduceUsage, "begin_turn", counting)
        monkeypatch.setattr(Buffers, "_next_round", counting_rounds)

    def _note(self, usage: ProduceUsage) -> None:
        self.done.append(WORK_AT_ONCE - usage.work_left)
        self.in_round += self.done[-1]


def accepted(stage: Stage) -> int:
    return stage.shared.registry.thresholds["bytes.in.per.sec.threshold"].accepted.count


@pytest.mark.parametrize("version", [3, 9, 12])
@pytest.mark.parametrize("pieces", [1, 2, 40])
async def test_a_turn_looks_at_a_bounded_number_of_topics(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, pieces: int, version: int
) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL])
    client, broker = await stage.pair()
    turns = Turns(monkeypatch)
    data = dense(1, version=version) + heartbeat(2)
    receiving = asyncio.ensure_future(broker.read(len(data)))
    cuts = sorted(random.Random(pieces).sample(range(1, len(data)), pieces - 1))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        await client.send(data[start:end])
        await until(lambda: not stage.unread(stage.session_of(client)))
    assert await receiving == data
    assert accepted(stage) == 3 * TOPICS
    assert max(turns.done) <= WORK_AT_ONCE + 2, "a topic and its partition are counted each"
    assert turns.most_in_a_round <= BULK_READS * (WORK_AT_ONCE + 2)
    assert stage.shared.buffers.buffered_bytes == 0


async def test_many_small_requests_in_one_read(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL])
    client, broker = await stage.pair()
    turns = Turns(monkeypatch)
    data = b"".join(produce_records(number, {"x": [batch(1, 70)]}, acks=0) for number in range(4_000))
    assert len(data) < READ_SIZE
    _, received = await asyncio.gather(client.send(data), broker.read(len(data)))
    assert received == data
    assert accepted(stage) == 4_000 * 70
    assert max(turns.done) <= WORK_AT_ONCE
    assert turns.most_in_a_round <= BULK_READS * (WORK_AT_ONCE + 2)


async def test_tagged_fields_and_partitions_without_records_are_counted_too(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL])
    client, broker = await stage.pair()
    turns = Turns(monkeypatch)
    partitions = produce_records(1, {"x": [None] * 6_000 + [batch(1, 70)]})
    plain = produce_records(2, {"x": [batch(1, 70)]})
    tags = b"".join(bytes([0x80 | number & 0x7F, number >> 7, 0]) for number in range(128, 10_000))
    count = len(range(128, 10_000))
    body = plain[4:-1] + bytes([0x80 | count & 0x7F, count >> 7]) + tags
    tagged = len(body).to_bytes(4, "big") + body
    data = partitions + tagged
    _, received = await asyncio.gather(client.send(data), broker.read(len(data)))
    assert received == data
    assert accepted(stage) == 140
    assert max(turns.done) <= WORK_AT_ONCE + 2
    assert len(turns.done) >= (6_000 + count) // (WORK_AT_ONCE + 2), "one for each turn but the first"


async def test_others_are_served_meanwhile_and_little_is_kept(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a round of the loop the turns of all together are bounded."""
    stage = open_stage(quotas=[ANY_TOPIC])
    pairs = [await stage.pair() for _ in range(3)]
    turns = Turns(monkeypatch)
    frame = dense(1, 60_000)
    reads: list[int] = []
    take = type(stage.session_of(pairs[0][0]).request_flow).take

    def recording(flow: object, end: int) -> None:
        reads.append(end)
        take(flow, end)  # type: ignore[arg-type]

    monkeypatch.setattr(type(stage.session_of(pairs[0][0]).request_flow), "take", recording)
    await asyncio.gather(
        *(client.send(frame) for client, _ in pairs), *(broker.read(len(frame)) for _, broker in pairs)
    )
    assert turns.most_in_a_round <= BULK_READS * (WORK_AT_ONCE + 2)
    assert max(turns.done) <= WORK_AT_ONCE + 2
    late = reads[len(reads) // 2 :]
    assert max(late) <= 2 * DENSE_READ_SIZE, "a read, and what was kept of the one before"


async def test_a_request_is_decided_upon_by_what_one_turn_sees_and_the_next_waits_for_the_rest(
    open_stage: OpenStage,
) -> None:
    stage = open_stage(quotas=[without_burst(f"topic=t{TOPICS - 1:x},bytes_in_rate=1000"), ANY_TOPIC])
    client, broker = await stage.pair()
    first, second = dense(1), dense(2, 3)
    await client.send(first + second)
    assert await broker.frame() == first
    await until(lambda: stage.paused().get("quota") == 1)
    usage = stage.session_of(client).request_flow._usage
    assert usage is not None
    assert len(usage._late) == MAX_REMEMBERED + 1, "those that came first, and the one that is in debt"
    assert not usage.is_dense


async def test_a_broker_that_takes_little_at_a_time(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL])
    client, broker = await stage.pair()
    upstream = stage.session_of(client).upstream
    assert upstream is not None
    upstream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
    broker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    data = dense(1) + dense(2, 10)
    sending = asyncio.ensure_future(client.send(data))
    received = b""
    while len(received) < len(data):
        received += await broker.read(min(3_001, len(data) - len(received)))
    await sending
    assert received == data
    assert accepted(stage) == 3 * (TOPICS + 10)


async def test_a_client_that_sends_and_leaves(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL])
    client, broker = await stage.pair()
    data = dense(1, acks=0) + dense(2, 2_000, acks=0)
    receiving = asyncio.ensure_future(broker.rest())
    await client.send(data)
    client.end()
    assert await receiving == data
    broker.close()
    await stage.no_sessions()


async def test_one_that_is_closed_while_it_waits_for_its_turn(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    sending = asyncio.ensure_future(client.send(dense(1)))
    await until(lambda: session.request_flow.queued)
    session.close()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await broker.closed()
    await until(lambda: not stage.shared.buffers._bulk_queue)


async def test_draining_lets_the_request_finish_that_has_begun(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    data = dense(1)
    receiving = asyncio.ensure_future(broker.read(len(data)))
    sending = asyncio.ensure_future(client.send(data))
    await until(lambda: session.request_flow.queued)
    session.drain()
    await sending
    assert await receiving == data
    await broker.send(produced(1))
    assert await client.frame() == produced(1)
    assert await broker.rest() == b""


async def test_a_request_that_waits_for_a_limit_and_then_takes_many_turns(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1MB"), ANY_TOPIC, TOTAL])
    client, broker = await stage.pair()
    first: dict[Topic, list[bytes | None]] = {"x": [batch(1, 1_000)]}
    await client.send(produce_records(1, first))
    await broker.frame()
    data = dense(2)
    sending = asyncio.ensure_future(client.send(data + heartbeat(3)))
    await until(lambda: stage.paused().get("quota") == 1)
    stage.clock.pass_seconds(0.01)
    assert await broker.frame() == data
    assert await broker.frame() == heartbeat(3)
    await sending
    assert accepted(stage) == 3 * TOPICS + 1_000


async def test_what_one_turn_looked_at_does_not_count_against_the_next(open_stage: OpenStage) -> None:
    """A turn that begins with a request like the one before may look at as much as any."""
    stage = open_stage(quotas=[without_burst("topic=hot,bytes_in_rate=1"), ANY_TOPIC])
    other, broker_of_other = await stage.pair()
    overdraws = produce_records(1, {"hot": [batch(1, 70)]})
    await other.send(overdraws)
    assert await broker_of_other.frame() == overdraws
    client, broker = await stage.pair()
    first = dense(1, WORK_AT_ONCE // 2 - 2) + heartbeat(2)
    await client.send(first)
    assert await broker.read(len(first)) == first
    records = [batch(1, 70)]
    await client.send(heartbeat(3) + produce_records(4, {"a": records, "b": records, "c": records, "hot": records}))
    await until(lambda: stage.paused().get("quota", 0) == 1)
    assert await broker.frame() == heartbeat(3)
