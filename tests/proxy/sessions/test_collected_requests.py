"""Requests that are kept until they are complete, for `action=reject`: memory for them, and the time of one step."""

from __future__ import annotations

import pytest

from proxy.config.config import SecurityOptions
from proxy.streams.handlers.produce import DECIDED_PER_STEP
from proxy.streams.refusals import MAX_MESSAGES
from proxy.streams.steps import REPLACE, YIELD
from quotas.parsing.parse import parse_spec
from tests.protocol.kafka_messages import idempotent
from tests.proxy.conversation import Stage, until, without_burst
from tests.proxy.dialogue import Dialogue, held
from tests.proxy.frames import produce_records, produced
from tests.proxy.sessions.test_floods import sweep_whole
from tests.proxy.sessions.test_noisy_topics import NOISY, OpenStage, Records, errors_of, introduced, pass_first
from tests.proxy.streams.pair import Pair, World

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


# ---- many partitions


def many(sequence: int, noisy: int = 1) -> Records:
    """A request for more topics than one step decides; `noisy`: partitions of the limited topic."""
    quiet: Records = {f"quiet{number}": [idempotent(sequence)] for number in range(600)}
    return {"noisy": [idempotent(sequence)] * noisy, **quiet}


def pair_of(world: World, *, breaks: bool = False) -> Pair:
    pair = Pair(world, breaks=breaks)
    pair.connection.identity.refusal_error = 89
    return pair


@pytest.mark.parametrize("breaks", [False, True])
def test_a_request_for_many_partitions_is_decided_in_steps(*, breaks: bool) -> None:
    pair = pair_of(World([NOISY]), breaks=breaks)
    for number, noisy in ((1, 1), (2, 2), (3, 1)):
        pair.client_sends(produce_records(number, many(4 * number, noisy)))
        steps = pair.requests.steps
        assert steps.count(YIELD) >= 600 // DECIDED_PER_STEP, "a step decides some of the partitions"
        steps.clear()
    quiet = many(8)
    del quiet["noisy"]
    later = many(12)
    del later["noisy"]
    assert pair.sent() == [
        produce_records(1, many(4)),
        produce_records(2, quiet),
        produce_records(3, later),
    ]
    assert len(pair.world.registry.refused) == 2
    pair.world.clock.pass_seconds(0.2)
    pair.client_sends(produce_records(4, {"noisy": [idempotent(12)]}))
    assert len(pair.sent()) == 3, "it is later than the refused one"
    pair.client_sends(produce_records(5, many(8)))
    assert pair.sent()[3:] == [produce_records(5, many(8))]


def test_one_that_is_held_is_decided_once_for_the_same_limits() -> None:
    world = World([NOISY, without_burst("client-id=etl,producer_byte_rate=100000")])
    pair = pair_of(world)
    pair.client_sends(produce_records(1, many(0)))
    pair.client_sends(produce_records(2, many(4)))
    assert pair.hold is not None
    pair.requests.steps.clear()
    world.clock.pass_seconds(1)
    pair.release(pair.hold)
    assert pair.requests.steps == [REPLACE]
    quiet = many(4)
    del quiet["noisy"]
    assert pair.sent()[1:] == [produce_records(2, quiet)]


def test_a_change_of_the_limits_decides_anew() -> None:
    world = World([NOISY, without_burst("client-id=etl,producer_byte_rate=100000")])
    pair = pair_of(world)
    pair.client_sends(produce_records(1, many(0)))
    pair.client_sends(produce_records(2, many(4)))
    assert pair.hold is not None
    world.registry.replace([], now_ns=world.clock())
    pair.release(pair.hold)
    assert pair.sent()[1:] == [produce_records(2, many(4))], "without limits the refused one passes"
    assert not len(world.registry.refused)


# ---- the proxy's own responses


def test_errors_that_wait_are_counted_in_the_memory() -> None:
    """A response with errors is not much longer than its request, and its bytes are in the pool."""
    world = World([NOISY])
    pair = pair_of(world)
    pair.client_sends(produce_records(1, {"noisy": [idempotent(0)]}))
    sent = produce_records(2, {"noisy": [idempotent(4)] * 2_000})
    pair.client_sends(sent)
    connection = pair.connection
    assert 2_000 * 26 < connection.owed_bytes == world.memory.buffered_bytes < len(sent)
    pair.client_sends(produce_records(3, {"noisy": [idempotent(8)]}))
    assert len(connection.in_flight) == 2, "no request passes until these are sent"
    pair.broker_sends(produced(1))
    errors, _ = errors_of(pair.received()[1])
    assert len(errors) == 2_000
    assert [bool(message) for *_, message in errors] == [True] * MAX_MESSAGES + [False] * (2_000 - MAX_MESSAGES)
    assert world.memory.buffered_bytes == 0


def test_the_throttle_time_is_that_of_when_the_response_is_sent() -> None:
    world = World([NOISY, parse_spec("client-id=etl,producer_byte_rate=100000,burst_seconds=1")])
    pair = pair_of(world)
    pair.client_sends(produce_records(1, {"noisy": [idempotent(0)]}))
    pair.broker_sends(produced(1))
    pair.client_sends(produce_records(2, {"quiet": [idempotent(0, payload=bytes(500_000))]}))
    pair.client_sends(produce_records(3, {"noisy": [idempotent(4)]}))
    world.clock.pass_seconds(3.9)
    pair.broker_sends(produced(2))
    of_broker, own = pair.received()[1:]
    assert 0 < errors_of(own)[1] == errors_of(of_broker)[1] < 200
