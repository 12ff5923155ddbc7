"""Seed 004 at work: a topic waits only while the total and the topic are above their thresholds; errors count apart.

Minutes pass on the test's clock and not on the loop's, so a timer is far away; a change of any limit makes everyone who
waits look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from proxy.config.config import EnforcementOptions
from quotas.admission.topic_thresholds import Thresholds
from quotas.limit_kinds import BYTES_THRESHOLD, MESSAGES_THRESHOLD
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Peer, Stage, lines_of, readable_bytes, until
from tests.proxy.dialogue import MANNERS, alter, begin, held
from tests.proxy.frames import batch, produce_records, produced, refused

OpenStage = Callable[..., Stage]

TOTAL = parse_spec("total=true,total.bytes.in.per.sec.threshold=1000")
ROWS = parse_spec("topic=rows,bytes.in.per.sec.threshold=600")
OK = ErrorCode.none
TOO_LARGE = ErrorCode.message_too_large


def bytes_of(stage: Stage) -> Thresholds:
    return stage.registry.thresholds[BYTES_THRESHOLD]


def counts(stage: Stage) -> tuple[int, int, int]:
    """Accepted, erroneous and throttled bytes."""
    thresholds = bytes_of(stage)
    return thresholds.accepted.count, thresholds.erroneous.count, thresholds.throttled.count


def rows(number: int, size: int, topic: str = "rows", acks: int = 1) -> bytes:
    return produce_records(number, {topic: [batch(1, size)]}, acks=acks)


def look_again(stage: Stage) -> None:
    alter(stage, "ip=127.0.0.9,connections=1000")


async def above_both(stage: Stage, client: Peer, broker: Peer) -> None:
    """The total at 2000 bytes per second, all of it for "rows"."""
    await client.send(rows(1, 10_000))
    assert await broker.frame() == rows(1, 10_000)
    stage.clock.pass_seconds(5)


@pytest.mark.parametrize("manner", MANNERS)
async def test_a_topic_above_its_threshold_waits_while_the_total_is_above_too(
    open_stage: OpenStage, manner: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[TOTAL, ROWS])
    dialogue = await begin(stage, manner)
    await dialogue.say(rows(1, 10_000))
    assert await dialogue.heard() == rows(1, 10_000), "before the first tick nothing has been observed"
    stage.clock.pass_seconds(5)
    # 2000 a second: by a factor of exp(-1/12) less every five seconds, it is at most 1000 after nine times.
    await dialogue.say(rows(2, 300))
    await held(stage)
    [waiting] = stage.waiting()
    assert (waiting.limit, waiting.entity, waiting.limit_value) == (BYTES_THRESHOLD, "topic:rows", 600)
    assert waiting.remaining_seconds == 45
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["topics"]) == ("throttled", "rows")
    stage.clock.pass_seconds(44.9)
    look_again(stage)
    await held(stage)
    stage.clock.pass_seconds(0.1)
    look_again(stage)
    assert await dialogue.heard() == rows(2, 300)
    assert counts(stage) == (10_300, 0, 300), "throttled once, though it was looked at three times"


async def test_a_topic_below_its_share_passes_though_the_total_is_above(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[TOTAL, ROWS])
    client, broker = await stage.pair()
    await above_both(stage, client, broker)
    await client.send(rows(2, 1_000, "cols"))
    assert await broker.frame() == rows(2, 1_000, "cols")
    await client.send(produce_records(3, {"cols": [batch(1, 100)], "rows": [batch(1, 100)]}))
    await held(stage)
    assert counts(stage) == (11_000, 0, 100), "only the refused topic's bytes are throttled"


async def test_a_topic_above_its_threshold_passes_while_the_total_is_not(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[TOTAL, ROWS])
    client, broker = await stage.pair()
    await client.send(rows(1, 4_500))
    await broker.frame()
    stage.clock.pass_seconds(5)
    assert bytes_of(stage).accepted.one_minute_rate(stage.clock()) == 900
    await client.send(rows(2, 500))
    assert await broker.frame() == rows(2, 500)
    assert stage.paused() == {}


async def test_messages_have_thresholds_of_their_own(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("total=true,total.messages.in.per.sec.threshold=10")])
    client, broker = await stage.pair()
    await client.send(produce_records(1, {"rows": [batch(60, 1_000)]}))
    await broker.frame()
    stage.clock.pass_seconds(5)
    await client.send(produce_records(2, {"rows": [batch(1, 100)]}))
    await held(stage)
    [waiting] = stage.waiting()
    assert (waiting.limit, waiting.entity, waiting.limit_value) == (MESSAGES_THRESHOLD, "topic:rows", 10)


async def test_another_total_holds_at_once(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[TOTAL, ROWS])
    client, broker = await stage.pair()
    await above_both(stage, client, broker)
    await client.send(rows(2, 100))
    await held(stage)
    alter(stage, "total=true,total.bytes.in.per.sec.threshold=2000")
    assert await broker.frame() == rows(2, 100)
    alter(stage, "total=true,total.bytes.in.per.sec.threshold=1500")
    await client.send(rows(3, 100))
    await held(stage)
    alter(stage, "topic=rows,bytes.in.per.sec.threshold=600", away=True)
    await held(stage)
    alter(stage, "total=true,total.bytes.in.per.sec.threshold=1500", away=True)
    assert await broker.frame() == rows(3, 100)
    assert stage.paused() == {}


async def test_a_dry_run_counts_what_would_be_throttled(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[TOTAL, ROWS], enforcement=EnforcementOptions(dry_run=True))
    client, broker = await stage.pair()
    await above_both(stage, client, broker)
    await client.send(rows(2, 300))
    assert await broker.frame() == rows(2, 300)
    assert counts(stage)[2] == 300


# Errors


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("version", [3, 8, 9, 12])
async def test_refused_records_count_as_erroneous(open_stage: OpenStage, version: int, split: bool) -> None:
    stage = open_stage(quotas=[TOTAL, ROWS])
    dialogue = await begin(stage, "whole")
    await dialogue.say(produce_records(1, {"rows": [batch(1, 400), batch(1, 600)], "cols": [batch(1, 200)]}, version))
    await dialogue.heard()
    assert counts(stage) == (1_200, 0, 0)
    answer = refused(1, {"rows": [OK, TOO_LARGE], "cols": [OK]}, version)
    if split:
        for at in range(len(answer) - 1):
            await dialogue.broker.send(answer[at : at + 1])
            await until(lambda: not readable_bytes(dialogue.upstream))
        answer = answer[-1:]
    await dialogue.answer(answer)
    assert await dialogue.told() == refused(1, {"rows": [OK, TOO_LARGE], "cols": [OK]}, version)
    assert counts(stage) == (700, 500, 0), "half of its partitions: half of its bytes"
    stage.clock.pass_seconds(5)
    produced_now = {name: rate for _, name, rate in stage.registry.produced(stage.clock())}
    assert produced_now == {"accepted": 140, "erroneous": 100, "throttled": 0}


async def test_each_response_belongs_to_its_own_request(open_stage: OpenStage) -> None:
    """Requests without a response among them, and a long one whose later part has no part in another's error."""
    stage = open_stage(quotas=[TOTAL])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    long = produce_records(3, {"x": [batch(1, 70_000)], "rows": [batch(1, 5_000)]}, acks=0)
    await client.send(rows(1, 1_000) + rows(2, 50_000, acks=0) + long[:67_000])
    await until(lambda: not stage.unread(session))
    await client.send(long[67_000:] + rows(4, 100))
    for _ in range(4):
        await broker.frame()
    await broker.send(refused(1, {"rows": [TOO_LARGE]}) + refused(4, {"rows": [OK]}))
    await client.frame()
    await client.frame()
    assert counts(stage) == (125_100, 1_000, 0)


async def test_errors_of_late_records_count_too(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[TOTAL])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    long = produce_records(1, {"x": [batch(1, 70_000)], "rows": [batch(1, 5_000)]})
    receiving = asyncio.ensure_future(broker.frame())
    await client.send(long[:67_000])
    await until(lambda: not stage.unread(session))
    await client.send(long[67_000:])
    assert await receiving == long
    await broker.send(refused(1, {"x": [OK], "rows": [TOO_LARGE]}))
    await client.frame()
    assert counts(stage) == (70_000, 5_000, 0)


async def test_responses_match_their_requests_while_thresholds_change(open_stage: OpenStage) -> None:
    total = "total=true,total.bytes.in.per.sec.threshold=1000"
    stage = open_stage(quotas=[parse_spec("topic=other,bytes_in_rate=1GB")])
    client, broker = await stage.pair()

    async def said(number: int) -> None:
        await client.send(rows(number, 100 * number))
        await broker.frame()

    async def answered(number: int, error: ErrorCode) -> None:
        await broker.send(refused(number, {"rows": [error]}))
        await client.frame()

    await said(1)
    alter(stage, total)
    await said(2)
    await answered(1, TOO_LARGE)
    assert counts(stage) == (200, 0, 0), "what was not counted is not taken back"
    alter(stage, total, away=True)
    alter(stage, "topic=other,bytes_in_rate=1GB", away=True)
    await said(3)
    await answered(2, OK)
    alter(stage, total)
    await said(4)
    await answered(3, TOO_LARGE)
    await answered(4, OK)
    assert counts(stage) == (600, 0, 0)
    await said(5)
    await answered(5, TOO_LARGE)
    assert counts(stage) == (600, 500, 0)


async def test_a_response_that_cannot_be_read_closes_the_connection(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[TOTAL])
    client, broker = await stage.pair()
    await client.send(rows(1, 100))
    await broker.frame()
    cut = produced(1)[4:-3]
    await broker.send(len(cut).to_bytes(4, "big") + cut)
    await client.closed()
    errors = stage.metrics.errors.protocol
    assert errors["malformed_frame"] + errors["truncated_frame"] == 1
