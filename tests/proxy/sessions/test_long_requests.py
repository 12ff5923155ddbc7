"""Produce requests longer than what is looked at before they are decided upon, and than any one read.

What stands late in them is charged while it streams by, and the session's next request waits for that. Whatever the
split, the broker gets the bytes that were sent.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator

import pytest

from proxy.config.config import EnforcementOptions, SecurityOptions
from proxy.sessions.lifecycle import State
from proxy.streams.memory import READ_SIZE, Holding
from proxy.streams.produce_usage import LOOKAHEAD, MAX_REMEMBERED
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Peer, Stage, readable_bytes, until, without_burst
from tests.proxy.dialogue import alter, debts, held
from tests.proxy.frames import Topic, batch, heartbeat, produce_records, produced, request

OpenStage = Callable[..., Stage]

#: A second of debt for each byte.
EACH_SLOW = [without_burst(f"topic={name},bytes_in_rate=1") for name in ("early", "late", "last")]
LATE = without_burst("topic=late,bytes_in_rate=1MB")
ANY_TOPIC = parse_spec("topic=<default>,bytes_in_rate=1GB")


def long_request(number: int, *, acks: int = 1, late: int = 1_000) -> bytes:
    """Its topic "late" begins behind what is looked at, "last" is longer than a read."""
    topics: dict[Topic, list[bytes | None]] = {
        "early": [batch(1, 70_000)],
        "late": [batch(3, late)],
        "last": [None, batch(1, READ_SIZE + 90_000)],
    }
    return produce_records(number, topics, acks=acks)


def small(number: int, topic: str = "other", version: int = 9) -> bytes:
    return produce_records(number, {topic: [batch(1, 100)]}, version)


async def sent_in_pieces(stage: Stage, client: Peer, data: bytes, cuts: list[int]) -> None:
    """Each piece is read by the proxy before the next one is sent."""
    session = stage.session_of(client)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        await client.send(data[start:end])
        await until(lambda: session.held or session.state is State.CLOSED or not stage.unread(session))


async def passed_from(stage: Stage, client: Peer, data: bytes) -> None:
    """The request is decided upon before its topic "late" has come."""
    await sent_in_pieces(stage, client, data, [LOOKAHEAD + 1_000])


def splits(data: bytes) -> Iterator[list[int]]:
    yield []
    at = data.index(b"late")
    # Byte by byte where one topic ends and the next begins, and at the very end.
    yield [*range(at - 12, at + 30), *range(len(data) - 12, len(data))]
    for boundary in (LOOKAHEAD, READ_SIZE):
        yield [boundary - 1, boundary, boundary + 1, 2 * boundary]
    chance = random.Random(4)
    for _ in range(5):
        yield sorted(chance.sample(range(1, len(data)), 12))


@pytest.mark.parametrize("split", range(9))
async def test_the_broker_gets_what_was_sent_and_every_topic_is_charged(open_stage: OpenStage, split: int) -> None:
    stage = open_stage(quotas=EACH_SLOW)
    client, broker = await stage.pair()
    data = long_request(1)
    sending = asyncio.ensure_future(sent_in_pieces(stage, client, data, list(splits(data))[split]))
    assert await broker.frame() == data
    await sending
    assert debts(stage) == {
        ("topic:early", "bytes_in_rate"): 70_000,
        ("topic:late", "bytes_in_rate"): 1_000,
        ("topic:last", "bytes_in_rate"): READ_SIZE + 90_000,
    }
    assert stage.memory.buffered_bytes == 0


@pytest.mark.parametrize("size", [1_000, 65_000, 65_400, 66_000, 600_000])
async def test_a_request_is_decided_upon_when_64_kib_have_come_or_all_of_it(open_stage: OpenStage, size: int) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    data = produce_records(1, {"rows": [batch(1, size)]})
    needed = min(len(data), LOOKAHEAD)
    await client.send(data[: needed - 1])
    await until(lambda: stage.memory.buffered_bytes == needed - 1)
    assert readable_bytes(broker.sock) == 0
    await client.send(data[needed - 1 : needed])
    assert await broker.read(needed) == data[:needed]
    await client.send(data[needed:] + heartbeat(2))
    assert await broker.read(len(data) - needed) == data[needed:]
    assert await broker.frame() == heartbeat(2)


async def test_long_and_short_requests_in_sequence(open_stage: OpenStage) -> None:
    burst = 100_000_000
    stage = open_stage(quotas=[parse_spec("topic=rows,bytes_in_rate=1MB,burst_seconds=100")])
    client, broker = await stage.pair()
    chance = random.Random(5)
    data = b""
    rows = 0
    for number in range(40):
        size = chance.choice([70, 900, 20_000, 65_300, 70_000, 400_000])
        rows += size
        data += produce_records(number, {"x": [batch(1, 80)], "rows": [batch(1, size)]}, chance.choice([3, 9, 12]))
        data += heartbeat(number) if chance.random() < 0.3 else b""
    cuts = sorted(chance.sample(range(1, len(data)), 60))
    received, _ = await asyncio.gather(broker.read(len(data)), sent_in_pieces(stage, client, data, cuts))
    assert received == data
    [limit] = stage.registry.limits_in_use()
    assert limit.algorithm.headroom(stage.clock()) == burst - rows


@pytest.mark.parametrize("acks", [0, 1])
async def test_the_next_request_waits_for_late_charges(open_stage: OpenStage, acks: int) -> None:
    stage = open_stage(quotas=[LATE])
    client, broker = await stage.pair()
    data = long_request(1, acks=acks, late=5_000)
    _, received = await asyncio.gather(passed_from(stage, client, data + small(2)), broker.frame())
    assert received == data
    await held(stage)
    [waiting] = stage.waiting()
    assert (waiting.entity, waiting.remaining_seconds) == ("topic:late", 0.005)
    stage.clock.pass_seconds(0.005)
    assert await broker.frame() == small(2)
    # And only the next one: others may put what they like into that topic.
    other, broker_of_other = await stage.pair()
    await other.send(small(1, "late"))
    await broker_of_other.frame()
    assert debts(stage) == {("topic:late", "bytes_in_rate"): 0.0001}
    await client.send(small(3))
    assert await broker.frame() == small(3)


async def test_late_charges_are_in_the_throttle_time(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[LATE])
    client, broker = await stage.pair()
    data = long_request(1, late=7_000)
    _, received = await asyncio.gather(passed_from(stage, client, data), broker.frame())
    assert received == data
    await broker.send(produced(1))
    assert await client.frame() == produced(1, throttle_ms=7)


async def test_a_removed_late_limit_holds_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("topic=late,bytes_in_rate=1"), parse_spec("topic=x,bytes_in_rate=1")])
    client, broker = await stage.pair()
    data = long_request(1)
    _, received = await asyncio.gather(passed_from(stage, client, data), broker.frame())
    assert received == data
    assert debts(stage)
    alter(stage, "topic=late,bytes_in_rate=1", away=True)
    await client.send(small(2))
    assert await broker.frame() == small(2)
    assert stage.paused() == {}


async def test_limits_that_come_and_go_while_a_request_passes(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    data = long_request(1)
    for number, away in enumerate((True, False)):
        await client.send(data[:90_000])
        assert await broker.read(65_000) == data[:65_000]
        alter(stage, "topic=<default>,bytes_in_rate=1GB", away=away)
        await client.send(data[90_000:])
        assert await broker.read(len(data) - 65_000) == data[65_000:]
        await client.send(small(number))
        assert await broker.frame() == small(number)


async def test_late_debt_holds_nothing_in_a_dry_run(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=EACH_SLOW, enforcement=EnforcementOptions(dry_run=True))
    client, broker = await stage.pair()
    data = long_request(1)
    _, received = await asyncio.gather(passed_from(stage, client, data + small(2, "late")), broker.frame())
    assert received == data
    assert await broker.frame() == small(2, "late")
    assert stage.paused() == {}


async def test_a_late_part_that_cannot_be_read_closes_the_connection(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    data = long_request(1)
    at = data.index(b"late") - 1
    await passed_from(stage, client, data[:at] + b"\x00" + data[at + 1 :])  # a topic without a name
    await client.closed()
    received = await broker.rest()
    assert len(received) >= LOOKAHEAD
    assert data.startswith(received)
    errors = stage.metrics.errors.protocol
    assert errors["malformed_frame"] + errors["truncated_frame"] == 1


async def test_a_client_that_dies_while_its_request_passes(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=EACH_SLOW)
    client, broker = await stage.pair()
    data = long_request(1, acks=0)
    await client.send(data[:300_000])
    client.close()
    assert await broker.rest() == data[:300_000]
    broker.close()
    await stage.no_sessions()
    assert stage.metrics.errors.protocol["closed_mid_frame"] == 1


async def test_draining_forwards_the_rest_of_a_request(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    data = long_request(1)
    await client.send(data[:200_000])
    received = await broker.read(200_000 - 64)  # the walk keeps a few bytes of what it has not seen the end of
    session = stage.session_of(client)
    session.drain()
    assert session.state is State.DRAINING
    await client.send(data[200_000:] + small(2))
    received += await broker.read(len(data) - len(received))
    assert received == data
    await broker.send(produced(1))
    assert await client.frame() == produced(1)
    assert await broker.rest() == b""


async def test_a_broker_that_takes_little_at_a_time(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=EACH_SLOW)
    client, broker = await stage.pair()
    upstream = stage.session_of(client).upstream
    assert upstream is not None
    upstream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    broker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    data = long_request(1)
    sending = asyncio.ensure_future(client.send(data))
    received = b""
    while len(received) < len(data):
        received += await broker.read(min(7_001, len(data) - len(received)))
    assert received == data
    await sending
    assert len(debts(stage)) == 3


# Memory


async def test_requests_before_their_decision_do_not_use_up_memory(open_stage: OpenStage) -> None:
    """Else nothing could be read that completes them, for ever."""
    stage = open_stage(quotas=[ANY_TOPIC], security=SecurityOptions(max_buffered_bytes=300_000))
    data = produce_records(1, {"rows": [batch(1, 100_000)]})
    pairs = [await stage.pair() for _ in range(12)]
    for client, _ in pairs:
        session = stage.session_of(client)
        await client.send(data[:60_000])
        await until(lambda session=session: not stage.unread(session))  # type: ignore[misc]
    assert stage.memory.buffered_bytes < 300_000
    for client, broker in pairs:
        await client.send(data[60_000:])
        assert await broker.frame() == data
    assert stage.paused() == {}


async def test_a_request_decided_early_is_charged_in_full(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=EACH_SLOW, security=SecurityOptions(max_buffered_bytes=2_000))
    client, broker = await stage.pair()
    others = Holding()
    stage.memory.update(others, 0, 2_500, 0)
    assert stage.memory.is_tight
    data = long_request(1)
    await client.send(data[:100])
    assert await broker.read(40) == data[:40]
    await client.send(data[100:])
    assert await broker.read(len(data) - 40) == data[40:]
    assert len(debts(stage)) == 3
    stage.memory.forget(others)


async def test_a_request_with_many_topics_keeps_little_state(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC, parse_spec("total=true,total.bytes.in.per.sec.threshold=1GB")])
    client, broker = await stage.pair()
    topics: dict[Topic, list[bytes | None]] = {"x": [batch(1, 70_000)]}
    topics |= {f"topic-{number}": [batch(1, 70)] for number in range(MAX_REMEMBERED + 500)}
    data = produce_records(1, topics)
    _, received = await asyncio.gather(passed_from(stage, client, data), broker.frame())
    assert received == data
    usage = stage.session_of(client).connection.usage
    assert usage is not None
    assert len(usage._late) == MAX_REMEMBERED
    assert usage.counted is not None
    assert len(usage.counted.usages) == MAX_REMEMBERED
    accepted = stage.registry.thresholds["bytes.in.per.sec.threshold"].accepted.count
    assert accepted == 70_000 + 70 * (MAX_REMEMBERED + 500), "and all of them are charged"


async def test_requests_of_other_kinds_pass_without_a_wait(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    data = request(12, 4, 1, bytes(90_000))
    await client.send(data[:300])
    assert await broker.read(300) == data[:300]
