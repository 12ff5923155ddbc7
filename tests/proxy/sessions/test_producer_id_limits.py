"""`producer_ids_rate` at work: new producer ids of a user are counted per window, known ones cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from proxy.config.config import EnforcementOptions, QuotaOptions
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Stage, until
from tests.proxy.dialogue import MANNERS, alter, begin, held
from tests.proxy.frames import batch, fetch, heartbeat, produce_records

OpenStage = Callable[..., Stage]

TWO = parse_spec("user=ANONYMOUS,producer_ids_rate=2")
WINDOW_SECONDS = 100


def of(number: int, *producer_ids: int, version: int = 9, acks: int = 1) -> bytes:
    """A request with a batch of each of these producers."""
    records = [batch(1, 100, producer_id=each) for each in producer_ids]
    return produce_records(number, {"rows": list(records)}, version, acks)


def counted(stage: Stage) -> int:
    """How many of the two ids that are allowed are used up."""
    [limit] = stage.registry.limits_in_use()
    return 2 - limit.algorithm.headroom(stage.clock())


def look_again(stage: Stage) -> None:
    alter(stage, "ip=127.0.0.9,connections=1000")


def with_two_ids(open_stage: OpenStage) -> Stage:
    return open_stage(
        quotas=QuotaOptions(entries=(TWO,), producer_id_window_size_seconds=WINDOW_SECONDS, producer_id_window_count=4),
    )


@pytest.mark.parametrize("manner", MANNERS)
async def test_the_third_new_id_waits_and_a_known_one_never(open_stage: OpenStage, manner: str) -> None:
    stage = with_two_ids(open_stage)
    dialogue = await begin(stage, manner)
    other, broker_of_other = await stage.pair()
    for number, producer_id in enumerate((7, 7, 8, 7, 8, 8)):
        await dialogue.say(of(number, producer_id))
        assert await dialogue.heard() == of(number, producer_id)
    assert counted(stage) == 2
    await dialogue.say(of(9, 9))
    await held(stage)
    [waiting] = stage.waiting()
    assert (waiting.limit, waiting.entity) == ("producer_ids_rate", "user:ANONYMOUS")
    assert waiting.remaining_seconds == WINDOW_SECONDS
    for number in range(3):  # the ids are the user's, whichever connection they come over
        await other.send(of(number, 8))
        assert await broker_of_other.frame() == of(number, 8)
    stage.clock.pass_seconds(WINDOW_SECONDS - 1)
    look_again(stage)
    await held(stage)
    stage.clock.pass_seconds(1)
    look_again(stage)
    assert await dialogue.heard() == of(9, 9)
    assert counted(stage) == 1


@pytest.mark.parametrize("version", [3, 8, 12])
async def test_producers_without_an_id_cost_nothing(open_stage: OpenStage, version: int) -> None:
    stage = with_two_ids(open_stage)
    client, broker = await stage.pair()
    for number in range(10):
        await client.send(of(number, -1, -1, version=version))
        assert await broker.frame() == of(number, -1, -1, version=version)
    assert counted(stage) == 0


async def test_a_request_with_several_new_ids_counts_each_once(open_stage: OpenStage) -> None:
    stage = with_two_ids(open_stage)
    client, broker = await stage.pair()
    await client.send(of(1, 5, 5, -1))
    await broker.frame()
    assert counted(stage) == 1
    await client.send(of(2, 5, 6, 7, 6))
    assert await broker.frame() == of(2, 5, 6, 7, 6), "it passes whole, being the one that finds room"
    await client.send(of(3, 1))
    await held(stage)


async def test_an_id_that_becomes_known_while_its_frame_waits(open_stage: OpenStage) -> None:
    stage = with_two_ids(open_stage)
    first, broker_of_first = await stage.pair()
    second, broker_of_second = await stage.pair()
    await first.send(of(1, 1, 2))
    await broker_of_first.frame()
    await first.send(of(2, 3))
    await second.send(of(2, 3))
    await held(stage, 2)
    stage.clock.pass_seconds(WINDOW_SECONDS)
    look_again(stage)
    assert await broker_of_first.frame() == of(2, 3)
    assert await broker_of_second.frame() == of(2, 3)
    assert counted(stage) == 1, "the second of them brings nothing new"


async def test_what_is_no_produce_request_passes(open_stage: OpenStage) -> None:
    stage = with_two_ids(open_stage)
    client, broker = await stage.pair()
    await client.send(of(1, 1, 2))
    await broker.frame()
    for sent in (heartbeat(2), fetch(3)):
        await client.send(sent)
        assert await broker.frame() == sent
    assert stage.paused() == {}


async def test_acks_0_is_held_too(open_stage: OpenStage) -> None:
    stage = with_two_ids(open_stage)
    client, broker = await stage.pair()
    await client.send(of(1, 1, 2, acks=0) + of(2, 2, acks=0) + of(3, 3, acks=0))
    assert await broker.frame() == of(1, 1, 2, acks=0)
    assert await broker.frame() == of(2, 2, acks=0)
    await held(stage)


async def test_an_id_that_comes_late_in_a_long_request(open_stage: OpenStage) -> None:
    """Else ids could be had without end behind the first 64 KiB."""
    stage = with_two_ids(open_stage)
    client, broker = await stage.pair()
    session = stage.session_of(client)
    records = [batch(1, 70_000, producer_id=1), *(batch(1, 100, producer_id=each) for each in (1, 2, 3))]
    long = produce_records(1, {"rows": records})
    receiving = asyncio.ensure_future(broker.frame())
    await client.send(long[:67_000])
    await until(lambda: not stage.unread(session))
    assert counted(stage) == 1
    await client.send(long[67_000:])
    assert await receiving == long
    assert counted(stage) == 2, "all of them, of which there are three"
    await client.send(of(2, 1))
    await held(stage)
    stage.clock.pass_seconds(WINDOW_SECONDS)
    look_again(stage)
    assert await broker.frame() == of(2, 1)
    assert counted(stage) == 1, "after the window it is new again"


async def test_other_users_are_not_throttled(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=QuotaOptions(entries=(TWO,), principal="alice"))
    client, broker = await stage.pair()
    for number in range(5):
        await client.send(of(number, number))
        await broker.frame()
    assert list(stage.registry.limits_in_use()) == []


async def test_a_default_counts_each_user_apart(open_stage: OpenStage) -> None:
    stage = open_stage(
        quotas=QuotaOptions(entries=(parse_spec("user=<default>,producer_ids_rate=1"),), principal="alice")
    )
    client, broker = await stage.pair()
    await client.send(of(1, 1))
    await broker.frame()
    await client.send(of(2, 2))
    await held(stage)
    [waiting] = stage.waiting()
    assert waiting.entity == "user:alice"


async def test_a_dry_run_holds_no_frame(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[TWO], enforcement=EnforcementOptions(dry_run=True))
    client, broker = await stage.pair()
    for number in range(5):
        await client.send(of(number, number))
        assert await broker.frame() == of(number, number)
    counts = {
        key: histogram.count for key, histogram in stage.metrics.entities.of("ANONYMOUS", "etl").throttles.items()
    }
    assert counts == {("producer_ids_rate", "pause"): 3}


async def test_the_last_allowed_id_gets_no_throttle_time(open_stage: OpenStage) -> None:
    """Clients act on what they are told, and this one's next request, with an id that is known, would pass at once."""
    stage = open_stage(quotas=[TWO])
    client, broker = await stage.pair()
    for number in range(2):
        await client.send(of(number, number))
        await broker.frame()
    session = stage.session_of(client)
    assert [limit.debt_ns(stage.clock()) > 0 for limit in stage.registry.limits_in_use()] == [True]
    assert session.identity.notice.throttle_time_ms(stage.clock()) == 0
