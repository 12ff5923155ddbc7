"""Requests that are kept until they are complete, for `action=reject`: memory for them, and the time of one step."""

from __future__ import annotations

import pytest

from proxy.config.config import SecurityOptions
from tests.protocol.kafka_messages import idempotent
from tests.proxy.conversation import Stage, until, without_burst
from tests.proxy.dialogue import Dialogue, held
from tests.proxy.frames import produce_records, produced
from tests.proxy.sessions.test_floods import sweep_whole
from tests.proxy.sessions.test_noisy_topics import NOISY, OpenStage, Records, errors_of, introduced, pass_first

LIMIT = 8 << 20
TIMEOUT_SECONDS = 30.0
OWN = without_burst("client-id=slow,producer_byte_rate=1000")
SECURITY = SecurityOptions(
    max_buffered_bytes=LIMIT, stalled_client_timeout_seconds=TIMEOUT_SECONDS, handshake_timeout_seconds=0
)


async def fill(stage: Stage, *, complete: bool) -> list[Dialogue]:
    """Connections with requests that use the memory for such: each stops in the middle, or its own limit holds it."""
    dialogues = []
    client_id = "slow" if complete else "stalled"
    if complete:
        first = await introduced(stage)
        await first.say(produce_records(1, {"quiet": [idempotent(0)]}, client_id=client_id))
        await first.heard()
    for number in range(2):
        records: Records = {"noisy": [idempotent(0, producer_id=number, payload=bytes(1_900_000))]}
        sent = produce_records(2, records, client_id=client_id)
        dialogue = await introduced(stage)
        await dialogue.client.send(sent if complete else sent[:70_000])
        dialogues.append(dialogue)
    await until(lambda: stage.memory.used > 2 * 1_890_000)
    return dialogues


def closed_as_stalled(stage: Stage) -> int:
    return stage.metrics.connections.closed["stalled"]


LONG: Records = {"quiet": [idempotent(0, producer_id=77, payload=bytes(900_000))]}


@pytest.mark.parametrize("complete", [False, True])
async def test_no_other_producer_waits_for_their_memory(open_stage: OpenStage, *, complete: bool) -> None:
    stage = open_stage(quotas=[NOISY, OWN], security=SECURITY)
    await fill(stage, complete=complete)
    dialogue = await introduced(stage)
    sent = produce_records(3, {"noisy": [idempotent(0, producer_id=77)], **LONG}, client_id="good")
    await dialogue.client.send(sent)
    assert await dialogue.broker.frame() == sent


async def test_without_memory_a_request_is_held(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY], security=SECURITY)
    await fill(stage, complete=False)
    noisy, dialogue = await introduced(stage), await introduced(stage)
    await pass_first(noisy)
    sent = produce_records(3, {"noisy": [idempotent(0, producer_id=77)], **LONG})
    dialogue.client.send_now(sent)
    await held(stage)
    stage.clock.pass_seconds(0.101)
    assert await dialogue.broker.frame() == sent


@pytest.mark.parametrize("complete", [False, True])
async def test_requests_that_keep_memory_for_long_are_closed(open_stage: OpenStage, *, complete: bool) -> None:
    """One with a refused batch must not pass without being kept: it waits until those have been closed."""
    stage = open_stage(quotas=[NOISY, OWN], security=SECURITY)
    filling = await fill(stage, complete=complete)
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    await dialogue.say(produce_records(2, {"noisy": [idempotent(4)]}))
    await dialogue.told()
    sent: Records = {"quiet": [idempotent(0, payload=bytes(900_000))], "noisy": [idempotent(8)]}
    dialogue.client.send_now(produce_records(3, sent))
    await until(lambda: dialogue.session.requests.stream.holding.waits > 0)
    sweep_whole(stage)
    stage.clock.pass_seconds(TIMEOUT_SECONDS - 1)
    sweep_whole(stage)
    assert closed_as_stalled(stage) == 0
    stage.clock.pass_seconds(1)
    sweep_whole(stage)
    assert closed_as_stalled(stage) == 1
    assert sum(each.session in stage.sessions for each in filling) == 1, "a quarter is free"
    quiet: Records = {"quiet": sent["quiet"]}
    assert await dialogue.broker.frame() == produce_records(3, quiet), "the later batch is refused"
    await dialogue.broker.send(produced(3))
    errors, _ = errors_of(await dialogue.told())
    assert [topic for topic, _, error, _ in errors if error] == ["noisy"]
