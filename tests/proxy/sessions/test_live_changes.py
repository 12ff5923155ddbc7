"""Limits that are set, changed and taken away one by one while frames are held, answers owed and long ones pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from proxy.config.config import EnforcementOptions
from proxy.config.quotas_file import Quotas
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Peer, Stage, until, without_burst
from tests.proxy.dialogue import alter, debts, held
from tests.proxy.frames import (
    batch,
    fetch,
    fetched,
    heartbeat,
    heartbeat_answer,
    produce,
    produce_records,
    produce_throttle_ms,
    produced,
)

OpenStage = Callable[..., Stage]

ROWS = {number: produce_records(number, {"rows": [batch(1, 1_000)]}) for number in range(5)}
#: A limit at which a frame owes for long, and the same as it is called with another rate.
SLOW = [
    "client-id=etl,producer_byte_rate={}",
    "client-id=<default>,producer_byte_rate={}",
    "user=ANONYMOUS,client-id=etl,producer_byte_rate={}",
    "total=true,producer_byte_rate={}",
    "client-id=etl,request_rate={}",
    "topic=rows,bytes_in_rate={}",
    "topic=<default>,messages_in_rate={}",
    "total=true,bytes_in_rate={}",
]


async def waiting_for(stage: Stage) -> tuple[Peer, Peer]:
    """A client whose second frame is held."""
    client, broker = await stage.pair()
    await client.send(ROWS[1])
    assert await broker.frame() == ROWS[1]
    await client.send(ROWS[2])
    await held(stage)
    return client, broker


@pytest.mark.parametrize("spec", SLOW)
async def test_a_removed_limit_releases_at_once(open_stage: OpenStage, spec: str) -> None:
    stage = open_stage(quotas=[without_burst(spec.format("0.01" if "request" in spec else 1))])
    _, broker = await waiting_for(stage)
    alter(stage, spec.format(1), away=True)
    assert await broker.frame() == ROWS[2]
    assert stage.paused() == {}
    assert stage.shared.wakeups._timers == {}


@pytest.mark.parametrize("spec", SLOW)
async def test_debt_of_a_raised_limit_is_paid_at_the_new_rate(open_stage: OpenStage, spec: str) -> None:
    """What is owed stays owed, and the timer that was set for minutes is not waited for."""
    stage = open_stage(quotas=[without_burst(spec.format("0.01" if "request" in spec else 1))])
    _, broker = await waiting_for(stage)
    [(key, before)] = debts(stage).items()
    rate = 10 if "request" in spec or "messages" in spec else 100_000
    alter(stage, spec.format(rate))
    await held(stage)
    [(key_now, now)] = debts(stage).items()
    assert key_now == key
    assert now == pytest.approx(before * (0.01 if "request" in spec else 1) / rate, rel=1e-6)
    stage.clock.pass_seconds(now)
    assert await broker.frame() == ROWS[2]


@pytest.mark.parametrize("spec", SLOW)
async def test_the_share_scales_every_rate_while_frames_wait(open_stage: OpenStage, spec: str) -> None:
    """What is owed stays owed, and takes as much longer as the share is smaller."""
    entry = without_burst(spec.format("0.01" if "request" in spec else 1))
    stage = open_stage(quotas=[entry])
    _, broker = await waiting_for(stage)
    [(key, before)] = debts(stage).items()
    stage.server.active_config.replace_quotas(Quotas((entry,), 0.1))
    await held(stage)
    assert debts(stage) == {key: pytest.approx(10 * before, rel=1e-6)}
    stage.clock.pass_seconds(9.5 * before)
    stage.server.active_config.replace_quotas(Quotas((entry,), 1))
    assert debts(stage) == {key: pytest.approx(0.05 * before, rel=1e-6)}
    stage.clock.pass_seconds(0.051 * before)
    stage.server.active_config.replace_quotas(Quotas((entry,), 0.5))  # looks again: the timer is the loop's
    assert await broker.frame() == ROWS[2]


async def test_the_share_leaves_numbers_of_connections_as_they_are(open_stage: OpenStage) -> None:
    entry = parse_spec("total=true,connections=2,connection_creation_rate=10")
    stage = open_stage(quotas=[entry])
    stage.server.active_config.replace_quotas(Quotas((entry,), 0.5))
    await stage.pair()
    await stage.pair()
    assert {limit.name: limit.rate for limit in stage.registry.limits_in_use()} == {"connection_creation_rate": 5}
    third = await stage.client()
    await third.closed()
    assert stage.metrics.connections.open == 2


async def test_a_limit_lowered_holds_for_longer(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("topic=rows,bytes_in_rate=1MB")])
    _, broker = await waiting_for(stage)
    alter(stage, "topic=rows,bytes_in_rate=1000")
    stage.clock.pass_seconds(0.999)
    alter(stage, "ip=<default>,connections=1000")  # everyone looks again
    await held(stage)
    stage.clock.pass_seconds(0.001)
    assert await broker.frame() == ROWS[2]


async def test_a_limit_of_another_level_holds_in_its_place(open_stage: OpenStage) -> None:
    """As in Kafka: another level, another bucket, which starts anew."""
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1")])
    client, broker = await waiting_for(stage)
    alter(stage, "user=ANONYMOUS,client-id=etl,producer_byte_rate=100")
    assert await broker.frame() == ROWS[2]
    await client.send(ROWS[3])
    await held(stage)
    [waiting] = stage.waiting()
    assert waiting.entity == "user:ANONYMOUS,client-id:etl"


async def test_changes_of_other_limits_keep_the_order(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1MB")])
    pairs = [await stage.pair() for _ in range(4)]
    await pairs[0][0].send(ROWS[0])
    await pairs[0][1].frame()
    for number, (client, _) in enumerate(pairs):
        await client.send(ROWS[number])
        await held(stage, number + 1)
    for _ in range(3):
        alter(stage, "client-id=web,producer_byte_rate=7")
        alter(stage, "client-id=web,producer_byte_rate=7", away=True)
        assert stage.paused() == {"quota": 4}
    for number, (_, broker) in enumerate(pairs):
        stage.clock.pass_seconds(0.0011)
        assert await broker.frame() == ROWS[number]
        await held(stage, 3 - number)


async def test_a_limit_of_topics_that_is_set_while_the_head_of_a_frame_waits(open_stage: OpenStage) -> None:
    """Only the head has been read, and what the frame carries must be known now."""
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1MB")])
    client, broker = await stage.pair()
    long = produce_records(2, {"rows": [batch(1, 30_000)]})
    await client.send(ROWS[1])
    await broker.frame()
    await client.send(long)
    await held(stage)
    alter(stage, "topic=rows,bytes_in_rate=1")
    stage.clock.pass_seconds(1)
    assert await broker.frame() == long
    assert debts(stage)[("topic:rows", "bytes_in_rate")] == 29_999, "with the burst of a second that it came with"
    entity = stage.session_of(client).identity.entity
    assert entity.throttles[("producer_byte_rate", "pause")].count == 1, "its hold"


async def test_a_fetch_that_waits(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,consumer_byte_rate=1")])
    client, broker = await stage.pair()
    await client.send(fetch(1))
    await broker.frame()
    await broker.send(fetched(1))
    await client.frame()
    await client.send(fetch(2))
    await held(stage)
    alter(stage, "client-id=etl,consumer_byte_rate=1", away=True)
    assert await broker.frame() == fetch(2), "with the budget that it asks for"


@pytest.mark.parametrize("spec", ["client-id=etl,producer_byte_rate={}", "topic=rows,bytes_in_rate={}"])
async def test_the_throttle_time_ends_with_the_limit(open_stage: OpenStage, spec: str) -> None:
    stage = open_stage(
        quotas=[without_burst(spec.format(10))], enforcement=EnforcementOptions(max_throttle_ms=1_000_000)
    )
    client, broker = await stage.pair()
    await client.send(ROWS[1])
    await broker.frame()
    await broker.send(produced(1))
    assert produce_throttle_ms(await client.frame(), 9) >= 100_000
    alter(stage, spec.format(10), away=True)
    await client.send(ROWS[2])
    assert await broker.frame() == ROWS[2]
    await broker.send(produced(2))
    assert await client.frame() == produced(2)


async def test_the_throttle_time_follows_the_rate(open_stage: OpenStage) -> None:
    stage = open_stage(
        quotas=[without_burst("client-id=etl,producer_byte_rate=10")],
        enforcement=EnforcementOptions(max_throttle_ms=1_000_000),
    )
    client, broker = await stage.pair()
    sent = produce(1, 5_000)
    await client.send(sent)
    await broker.frame()
    alter(stage, "client-id=etl,producer_byte_rate=1000")
    await client.send(heartbeat(2))
    await broker.frame()
    await broker.send(produced(1) + heartbeat_answer(2))
    assert produce_throttle_ms(await client.frame(), 9) == len(sent) - 4
    assert await client.frame() == heartbeat_answer(2)


async def test_a_storm_of_changes_while_many_are_held(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1MB")])
    pairs = [await stage.pair() for _ in range(6)]
    for number, (client, _) in enumerate(pairs):
        await client.send(b"".join(produce_records(each, {f"t{number}": [batch(1, 500)]}) for each in range(8)))
    for step in range(40):
        alter(stage, "topic=<default>,bytes_in_rate=2MB", away=step % 3 == 0)
        alter(stage, "total=true,producer_byte_rate=1MB", away=step % 4 == 0)
        alter(stage, f"client-id=etl,producer_byte_rate={1_000_000 + step}")
        stage.clock.pass_seconds(0.001)

    async def receive(number: int, broker: Peer) -> None:
        for each in range(8):
            assert await broker.frame() == produce_records(each, {f"t{number}": [batch(1, 500)]})

    receiving = [asyncio.ensure_future(receive(number, broker)) for number, (_, broker) in enumerate(pairs)]

    def time_passes() -> bool:
        stage.clock.pass_seconds(0.001)
        return all(each.done() for each in receiving)

    await until(time_passes)
    await asyncio.gather(*receiving)
    await until(lambda: not stage.paused())


async def test_a_change_that_cannot_be_made_changes_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("total=true,total.bytes.in.per.sec.threshold=100")])
    with pytest.raises(ValueError, match="200"):
        alter(stage, "topic=rows,bytes.in.per.sec.threshold=200")
    client, broker = await stage.pair()
    await client.send(ROWS[1])
    assert await broker.frame() == ROWS[1]
