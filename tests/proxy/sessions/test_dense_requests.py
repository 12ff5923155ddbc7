"""Requests with more topics in one read than one step reads: all are charged and forwarded, in bounded turns."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from functools import cache

import pytest

from proxy.sessions.pump import TURN
from proxy.sessions.turns import HEAVY_ROUND_NS, TURN_NS
from proxy.streams.memory import READ_SIZE
from proxy.streams.produce_usage import MAX_REMEMBERED, PIECES
from proxy.streams.steps import PIECES_PER_STEP
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Stage, until, without_burst
from tests.proxy.frames import Topic, batch, heartbeat, produce_records, produced
from tests.proxy.work import Work, WorkClock

OpenStage = Callable[..., Stage]

ANY_TOPIC = parse_spec("topic=<default>,bytes_in_rate=1GB")
TOTAL = parse_spec("total=true,total.bytes.in.per.sec.threshold=1GB")
TOPICS = 6_000


@cache
def dense(number: int, topics: int = TOPICS, *, acks: int = 1, version: int = 9) -> bytes:
    """Topics with a partition of three bytes each, which are no batch: brokers say so, the proxy counts bytes."""
    return produce_records(number, {f"t{each:x}": [b"abc"] for each in range(topics)}, version, acks)


#: Each step takes so long, and so many make a turn.
STEP_NS = 250_000
STEPS = TURN_NS // STEP_NS
#: Pieces that one step reads: the last of them may be a topic and its partition.
MOST_PIECES = PIECES_PER_STEP + 2


def check_bounds(work: Work) -> None:
    """Each step read a bounded number of pieces, each turn took a bounded number of steps, each round of turns."""
    assert max(work.pieces, default=0) <= MOST_PIECES
    assert max(turn.steps for turn in work.turns) <= STEPS
    assert max(work.used_in_rounds(heavy_only=True)) <= HEAVY_ROUND_NS + TURN_NS + 2 * STEP_NS


def accepted(stage: Stage) -> int:
    return stage.registry.thresholds["bytes.in.per.sec.threshold"].accepted.count


@pytest.mark.parametrize("version", [3, 9, 12])
@pytest.mark.parametrize("pieces", [1, 2, 40])
@pytest.mark.pure
async def test_a_step_reads_a_bounded_number_of_topics(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, pieces: int, version: int
) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL], work_clock=WorkClock(STEP_NS))
    client, broker = await stage.pair()
    work = Work(monkeypatch)
    data = dense(1, version=version) + heartbeat(2)
    receiving = asyncio.ensure_future(broker.read(len(data)))
    cuts = sorted(random.Random(pieces).sample(range(1, len(data)), pieces - 1))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        await client.send(data[start:end])
        await until(lambda: not stage.unread(stage.session_of(client)))
    assert await receiving == data
    assert accepted(stage) == 3 * TOPICS
    check_bounds(work)
    assert max(work.pieces) > PIECES
    assert stage.memory.buffered_bytes == 0


@pytest.mark.pure
async def test_many_small_requests_in_one_read(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL], work_clock=WorkClock(STEP_NS))
    client, broker = await stage.pair()
    work = Work(monkeypatch)
    data = b"".join(produce_records(number, {"x": [batch(1, 70)]}, acks=0) for number in range(4_000))
    assert len(data) < READ_SIZE
    _, received = await asyncio.gather(client.send(data), broker.read(len(data)))
    assert received == data
    assert accepted(stage) == 4_000 * 70
    check_bounds(work)


@pytest.mark.pure
async def test_tagged_fields_and_partitions_without_records_are_counted_too(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL], work_clock=WorkClock(STEP_NS))
    client, broker = await stage.pair()
    work = Work(monkeypatch)
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
    check_bounds(work)
    assert len(work.pieces) >= (6_000 + count) // MOST_PIECES


@pytest.mark.pure
async def test_other_clients_are_served_meanwhile_and_few_bytes_are_kept(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a round of the loop the turns of all together are bounded."""
    stage = open_stage(quotas=[ANY_TOPIC], work_clock=WorkClock(STEP_NS))
    pairs = [await stage.pair() for _ in range(3)]
    work = Work(monkeypatch)
    frame = dense(1, 60_000)
    await asyncio.gather(
        *(client.send(frame) for client, _ in pairs), *(broker.read(len(frame)) for _, broker in pairs)
    )
    check_bounds(work)
    late = [turn.size for turn in work.turns[len(work.turns) // 2 :]]
    of_a_turn = STEPS * MOST_PIECES * 10
    assert max(late) <= 4 * of_a_turn, "a read, and what was kept of the one before"


async def test_one_turn_decides_about_a_request_and_the_next_waits_for_the_rest(
    open_stage: OpenStage,
) -> None:
    stage = open_stage(quotas=[without_burst(f"topic=t{TOPICS - 1:x},bytes_in_rate=1000"), ANY_TOPIC])
    client, broker = await stage.pair()
    first, second = dense(1), dense(2, 3)
    await client.send(first + second)
    assert await broker.frame() == first
    await until(lambda: stage.paused().get("quota") == 1)
    usage = stage.session_of(client).connection.usage
    assert usage is not None
    assert len(usage._late) == MAX_REMEMBERED + 1, "those that came first, and the one that is in debt"


async def test_a_broker_that_takes_little_at_a_time(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, TOTAL])
    client, broker = await stage.pair()
    upstream = stage.session_of(client).upstream
    assert upstream is not None
    upstream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
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


async def test_a_connection_that_is_closed_while_it_waits_for_its_turn(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC], work_clock=WorkClock(TURN_NS))
    client, broker = await stage.pair()
    session = stage.session_of(client)
    sending = asyncio.ensure_future(client.send(dense(1)))
    await until(lambda: session.requests.paused & TURN)
    session.close()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await broker.closed()
    await until(lambda: not stage.shared.pumps.turns._heavy)


async def test_draining_finishes_a_request_that_has_begun(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC], work_clock=WorkClock(TURN_NS))
    client, broker = await stage.pair()
    session = stage.session_of(client)
    data = dense(1)
    receiving = asyncio.ensure_future(broker.read(len(data)))
    sending = asyncio.ensure_future(client.send(data))
    await until(lambda: session.requests.paused & TURN)
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
    receiving = asyncio.ensure_future(broker.frame())
    while not receiving.done():
        stage.clock.pass_seconds(0.01)
        await asyncio.sleep(0.001)
    assert await receiving == data
    assert await broker.frame() == heartbeat(3)
    await sending
    assert accepted(stage) == 3 * TOPICS + 1_000


async def test_what_one_step_read_does_not_count_against_the_next(open_stage: OpenStage) -> None:
    """Each request is decided with as many pieces as any."""
    stage = open_stage(quotas=[without_burst("topic=hot,bytes_in_rate=1"), ANY_TOPIC])
    other, broker_of_other = await stage.pair()
    overdraws = produce_records(1, {"hot": [batch(1, 70)]})
    await other.send(overdraws)
    assert await broker_of_other.frame() == overdraws
    client, broker = await stage.pair()
    first = dense(1, PIECES // 2 - 2) + heartbeat(2)
    await client.send(first)
    assert await broker.read(len(first)) == first
    records = [batch(1, 70)]
    await client.send(heartbeat(3) + produce_records(4, {"a": records, "b": records, "c": records, "hot": records}))
    await until(lambda: stage.paused().get("quota", 0) == 1)
    assert await broker.frame() == heartbeat(3)
