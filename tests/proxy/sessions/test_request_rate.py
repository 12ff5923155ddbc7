"""`request_rate` at work: every request counts, and only those for data are held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.config.config import EnforcementOptions, QuotaAlgorithm, QuotaOptions
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Stage, until, without_burst
from tests.proxy.dialogue import MANNERS, alter, begin, debts, held
from tests.proxy.frames import (
    api_versions,
    correlation_of,
    fetch,
    fetch_max_bytes,
    fetched,
    heartbeat,
    heartbeat_answer,
    metadata,
    produce,
    produce_throttle_ms,
    produced,
    request,
)

OpenStage = Callable[..., Stage]

#: A second of debt for each request.
SLOW = without_burst("client-id=etl,request_rate=1")
#: A millisecond.
FAST = without_burst("client-id=etl,request_rate=1000")
OWED = ("client-id:etl", "request_rate")


@pytest.mark.parametrize("manner", MANNERS[:2])
async def test_every_kind_of_request_counts(open_stage: OpenStage, manner: str) -> None:
    stage = open_stage(quotas=[SLOW])
    dialogue = await begin(stage, manner)
    sent = [
        heartbeat(1),
        metadata(2),
        api_versions(3, 3),
        request(19, 7, 4, b"\x01\x00\x00\x00\x00\x00\x00"),
        request(20, 1, 5, bytes(8)),
        heartbeat(6),
    ]
    for number, each in enumerate(sent, 1):
        await dialogue.say(each)
        assert await dialogue.heard() == each
        assert debts(stage) == {OWED: 1}, "each leaves a second"
        stage.clock.pass_seconds(0 if number == len(sent) else 1)
    await dialogue.say(heartbeat(7))
    assert await dialogue.heard() == heartbeat(7)
    assert debts(stage) == {OWED: 1}, "and what finds debt is not charged"
    assert stage.paused() == {}


async def test_a_request_that_the_proxy_answers_itself_counts(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, _ = await stage.pair()
    await client.send(api_versions(1, 99))
    assert await client.frame()
    assert debts(stage) == {OWED: 1}


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize(
    "data",
    [produce(9), produce(9, acks=0), produce(9, version=2), fetch(9)],
    ids=["produce", "acks 0", "version 2", "fetch"],
)
async def test_only_data_is_held(open_stage: OpenStage, manner: str, data: bytes) -> None:
    stage = open_stage(quotas=[FAST])
    dialogue = await begin(stage, manner)
    for number in range(1, 4):
        await dialogue.say(heartbeat(number))
        assert await dialogue.heard() == heartbeat(number)
    await dialogue.say(data)
    await held(stage)
    assert debts(stage)[OWED] == 0.001, "what waits has not been counted, and what found debt is not"
    stage.clock.pass_seconds(0.001)
    assert correlation_of(await dialogue.heard()) == 9
    assert debts(stage) == {OWED: 0.001}


async def test_a_run_of_small_requests_is_counted_one_by_one(open_stage: OpenStage) -> None:
    """They come in one read and pass together where there is room, which is not the same as passing for one."""
    stage = open_stage(quotas=[parse_spec("client-id=etl,request_rate=500,producer_byte_rate=1GB")])
    client, broker = await stage.pair()
    small = [produce(number, 5) for number in range(700)]
    await client.send(b"".join(small))
    for number in range(501):
        assert await broker.frame() == small[number]
    await held(stage)
    assert debts(stage) == {OWED: 0.002}
    for number in range(501, 511):
        stage.clock.pass_seconds(0.002)
        assert await broker.frame() == small[number]
    await held(stage)
    stage.clock.pass_seconds(1)
    for number in range(511, 700):
        assert await broker.frame() == small[number]


async def test_of_a_run_of_control_requests_only_the_first_finds_no_debt(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await stage.pair()
    await client.send(b"".join(heartbeat(number) for number in range(300)))
    for number in range(300):
        assert await broker.frame() == heartbeat(number)
    assert debts(stage) == {OWED: 0.001}


@pytest.mark.parametrize(("algorithm", "seconds"), [("token-bucket", 0.1), ("ewma", 0), ("sampled-window", 2.1)])
async def test_control_requests_leave_a_bounded_debt(
    open_stage: OpenStage, algorithm: QuotaAlgorithm, seconds: float
) -> None:
    """However many they are, data waits for the last one that found no debt."""
    quota = parse_spec("client-id=etl,request_rate=10")
    stage = open_stage(
        quotas=QuotaOptions(entries=(quota,), algorithm=algorithm, window_num=2, window_size_seconds=2.0)
    )
    client, broker = await stage.pair()
    owed = []
    for number in range(24):
        sent = b"".join(heartbeat(number) for _ in range(40))
        await client.send(sent)
        assert await broker.read(len(sent)) == sent
        owed.append(debts(stage).get(OWED, 0))
        stage.clock.pass_seconds(0.5)
    assert max(owed) == seconds


async def test_responses_to_control_requests_carry_the_wait(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await stage.pair()
    await client.send(heartbeat(1) + heartbeat(2) + request(12, 0, 3, bytes(20)))
    for _ in range(3):
        await broker.frame()
    await broker.send(heartbeat_answer(1))
    assert await client.frame() == heartbeat_answer(1, throttle_ms=1)
    await broker.send(heartbeat_answer(2, throttle_ms=7))
    assert await client.frame() == heartbeat_answer(2, throttle_ms=7), "the broker's own is longer"
    await broker.send(heartbeat_answer(3))
    assert await client.frame() == heartbeat_answer(3), "version 0 has no such field"
    await client.send(heartbeat(4))
    await broker.frame()
    stage.clock.pass_seconds(0.004)
    await broker.send(heartbeat_answer(4))
    assert await client.frame() == heartbeat_answer(4), "it is over"


@pytest.mark.parametrize("version", range(4, 14))
async def test_its_debt_is_in_data_responses(open_stage: OpenStage, version: int) -> None:
    stage = open_stage(quotas=[FAST], enforcement=EnforcementOptions(throttle_mode="notify"))
    client, broker = await stage.pair()
    await client.send(heartbeat(1))
    await broker.frame()
    stage.clock.pass_seconds(0.001)
    await client.send(produce(2, 3, version))
    await broker.frame()
    await client.send(b"".join(heartbeat(number) for number in range(3, 6)))
    for _ in range(3):
        await broker.frame()
    await broker.send(heartbeat_answer(1) + produced(2, version))
    await client.frame()
    assert produce_throttle_ms(await client.frame(), version) == 1, "what this request left behind"


async def test_bytes_and_requests_are_separate_limits(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,request_rate=1000,producer_byte_rate=1MB")])
    client, broker = await stage.pair()
    await client.send(produce(1, 3_000))
    size = len(await broker.frame()) - 4
    assert debts(stage) == {OWED: 0.001, ("client-id:etl", "producer_byte_rate"): size / 1_000_000}
    await client.send(produce(2))
    await held(stage)
    stage.clock.pass_seconds(0.001)
    [waiting] = stage.waiting()
    assert waiting.limit == "producer_byte_rate", "the one that takes longest"
    stage.clock.pass_seconds(0.003)
    assert await broker.frame() == produce(2)


async def test_a_fetch_is_counted_at_its_request(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    await client.send(fetch(1))
    assert fetch_max_bytes(await broker.frame()) == 50_000_000, "requests say nothing about its size"
    assert debts(stage) == {OWED: 1}
    await broker.send(fetched(1, size=5_000))
    assert len(await client.frame()) > 5_000
    assert debts(stage) == {OWED: 1}


async def test_a_raised_or_removed_rate_releases_at_once(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await stage.pair()
    await client.send(heartbeat(1) + produce(2))
    await broker.frame()
    await held(stage)
    alter(stage, "client-id=etl,request_rate=1", away=True)
    assert await broker.frame() == produce(2)
    await until(lambda: not stage.paused())
