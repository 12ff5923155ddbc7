"""Limits of topics: what a Produce request puts into which topic, and who is held for it.

A limit of 1 per second that holds nothing turns what it has counted into seconds of debt, to be read off; limits that
hold somebody for a test are fast, so that the loop's timers are short.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.config.config import EnforcementOptions
from proxy.streams.handlers.data import HEAD_READ_SIZE
from proxy.streams.memory import READ_SIZE
from proxy.streams.produce_usage import LOOKAHEAD
from quotas.parsing.parse import parse_spec
from tests.protocol.kafka_messages import set_entry
from tests.proxy.conversation import Stage, lines_of, until, without_burst
from tests.proxy.dialogue import MANNERS, begin, debts, held
from tests.proxy.frames import (
    batch,
    heartbeat,
    noise,
    produce,
    produce_records,
    produced,
)

OpenStage = Callable[..., Stage]

FAST = without_burst("topic=rows,bytes_in_rate=1MB")
SLOW = without_burst("topic=rows,bytes_in_rate=1,messages_in_rate=1")


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("version", [2, 3, 8, 9, 12])
async def test_a_request_that_finds_its_topic_in_debt_waits(open_stage: OpenStage, manner: str, version: int) -> None:
    stage = open_stage(quotas=[FAST])
    dialogue = await begin(stage, manner)
    first = produce_records(1, {"rows": [batch(2, 100), batch(3, 4_900)]}, version)
    await dialogue.say(first)
    assert await dialogue.heard() == first
    assert debts(stage) == {("topic:rows", "bytes_in_rate"): 0.005}, "records, without what is wrapped round them"
    second = produce_records(2, {"rows": [batch(1, 200)]}, version)
    await dialogue.say(second)
    await held(stage)
    stage.clock.pass_seconds(0.005)
    assert await dialogue.heard() == second
    await until(lambda: not stage.paused())
    assert debts(stage) == {("topic:rows", "bytes_in_rate"): 0.0002}


@pytest.mark.parametrize("manner", MANNERS)
async def test_its_response_contains_the_wait(open_stage: OpenStage, manner: str) -> None:
    stage = open_stage(quotas=[FAST])
    dialogue = await begin(stage, manner)
    await dialogue.say(produce_records(1, {"rows": [batch(1, 300), batch(1, 1_700)]}))
    await dialogue.heard()
    await dialogue.answer(produced(1))
    assert await dialogue.told() == produced(1, throttle_ms=2)


async def test_messages_are_counted_by_their_batches(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    dialogue = await begin(stage, "whole")
    records = [
        batch(5, 400) + batch(7, 500),
        None,
        b"",
        batch(900, 300, codec=4),
    ]
    await dialogue.say(produce_records(1, {"rows": records}))
    await dialogue.heard()
    assert debts(stage) == {("topic:rows", "bytes_in_rate"): 1_200, ("topic:rows", "messages_in_rate"): 912}


async def test_messages_of_clients_older_than_batches(open_stage: OpenStage) -> None:
    """Version 2 of Produce, with message sets: plain entries, and a compressed one that wraps eight."""
    stage = open_stage(quotas=[SLOW])
    dialogue = await begin(stage, "whole")
    records = set_entry(1, noise(20)) + set_entry(1, noise(30)) + set_entry(1, noise(90), offset=7, codec=1)
    await dialogue.say(produce_records(1, {"rows": [records]}, version=2))
    await dialogue.heard()
    assert debts(stage) == {("topic:rows", "bytes_in_rate"): len(records), ("topic:rows", "messages_in_rate"): 10}


async def test_a_default_gives_each_topic_a_bucket_of_its_own(open_stage: OpenStage) -> None:
    stage = open_stage(
        quotas=[without_burst("topic=<default>,bytes_in_rate=1"), without_burst("topic=rows,bytes_in_rate=2")]
    )
    client, broker = await stage.pair()
    for number, topic in enumerate(("a", "b", "rows")):
        await client.send(produce_records(number, {topic: [batch(1, 100 + number)]}))
        await broker.frame()
    assert debts(stage) == {
        ("topic:a", "bytes_in_rate"): 100,
        ("topic:b", "bytes_in_rate"): 101,
        ("topic:rows", "bytes_in_rate"): 51,
    }
    await client.send(produce_records(9, {"b": [batch(1, 70)]}))
    await held(stage)
    [waiting] = stage.waiting()
    assert (waiting.limit, waiting.entity) == ("bytes_in_rate", "topic:b")


@pytest.mark.parametrize("manner", MANNERS)
async def test_a_request_for_several_topics_waits_for_each_and_is_charged_to_each(
    open_stage: OpenStage, manner: str
) -> None:
    stage = open_stage(
        quotas=[without_burst(f"topic={name},bytes_in_rate=1MB") for name in ("a", "b")]
        + [without_burst("topic=c,bytes_in_rate=1")]
    )
    dialogue = await begin(stage, manner)
    await dialogue.say(produce_records(1, {"b": [batch(1, 3_000)]}))
    await dialogue.heard()
    both = produce_records(2, {"a": [batch(1, 100)], "free": [batch(1, 90)], "b": [batch(1, 200)], "c": [batch(1, 80)]})
    await dialogue.say(both)
    await held(stage)
    assert debts(stage) == {("topic:b", "bytes_in_rate"): 0.003}, "nobody is charged for what has not passed"
    stage.clock.pass_seconds(0.003)
    assert await dialogue.heard() == both
    assert debts(stage) == {
        ("topic:a", "bytes_in_rate"): 0.0001,
        ("topic:b", "bytes_in_rate"): 0.0002,
        ("topic:c", "bytes_in_rate"): 80,
    }


async def test_the_log_contains_the_topics_of_a_held_request(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[without_burst(f"topic={name},bytes_in_rate=1") for name in ("a", "b", "c")])
    client, _ = await stage.pair()
    await client.send(produce_records(1, {"a": [batch(1, 100)], "c": [batch(1, 200)]}))
    await until(lambda: debts(stage))
    stage.clock.pass_seconds(10)  # after which the log speaks of the same limit again
    caplog.clear()
    await client.send(produce_records(2, {name: [batch(1, 80)] for name in ("a", "b", "c", "free")}))
    await held(stage)
    [(name, fields)] = lines_of(caplog.records)
    assert name == "throttled"
    assert (fields["limit"], fields["entity"], fields["mode"]) == ("bytes_in_rate", "topic:c", "pause")
    assert (fields["topics"], fields["debt_seconds"]) == ("a,c", 190)


async def test_limits_of_the_total_and_of_groups_are_charged_too(open_stage: OpenStage) -> None:
    """A group of the client counts all its records, one of topics those of its topics, one of both counts them once."""
    stage = open_stage(
        quotas=[
            without_burst("total=true,bytes_in_rate=1,messages_in_rate=1"),
            without_burst("resource-group=clients,client-id=et*,bytes_in_rate=1"),
            without_burst("resource-group=topics,topic=ro*,bytes_in_rate=1"),
            without_burst("resource-group=both,client-id=etl,topic=rows,messages_in_rate=1"),
            without_burst("resource-group=others,client-id=web,topic=cols,bytes_in_rate=1"),
        ]
    )
    client, broker = await stage.pair()
    await client.send(produce_records(1, {"rows": [batch(3, 300)], "other": [batch(4, 200)]}))
    await broker.frame()
    assert debts(stage) == {
        ("total", "bytes_in_rate"): 500,
        ("total", "messages_in_rate"): 7,
        ("resource-group:clients", "bytes_in_rate"): 500,
        ("resource-group:topics", "bytes_in_rate"): 300,
        ("resource-group:both", "messages_in_rate"): 7,
    }


async def test_topics_of_clients_under_different_names_share_the_topics_limit(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    first, broker_of_first = await stage.pair()
    second, broker_of_second = await stage.pair()
    await first.send(produce_records(1, {"rows": [batch(1, 4_000)]}))
    await broker_of_first.frame()
    waits = produce_records(2, {"rows": [batch(1, 80)]}, client_id="web")
    passes = produce_records(1, {"cols": [batch(1, 80)]}, client_id="web")
    await second.send(passes + waits)
    assert await broker_of_second.frame() == passes
    await held(stage)
    stage.clock.pass_seconds(0.004)
    assert await broker_of_second.frame() == waits


async def test_acks_0_is_counted_and_held(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await stage.pair()
    sent = [produce_records(number, {"rows": [batch(1, 1_000)]}, acks=0) for number in range(3)]
    await client.send(b"".join(sent))
    for number in range(3):
        assert await broker.frame() == sent[number]
        if number < 2:
            await held(stage)
        stage.clock.pass_seconds(0.001)
    await until(lambda: not stage.paused())


@pytest.mark.parametrize(
    ("limit", "want"),
    [
        ("topic=rows,bytes_in_rate=1GB", READ_SIZE),
        ("topic=other,bytes_in_rate=1", READ_SIZE),
        ("client-id=etl,request_rate=100000", READ_SIZE),
        ("total=true,total.bytes.in.per.sec.threshold=1GB", READ_SIZE),
        ("topic=rows,bytes_in_rate=500000", HEAD_READ_SIZE),
        ("topic=rows,messages_in_rate=5000", HEAD_READ_SIZE),
        ("client-id=etl,request_rate=500", HEAD_READ_SIZE),
        ("total=true,total.bytes.in.per.sec.threshold=1000", HEAD_READ_SIZE),
    ],
)
async def test_only_near_its_limits_a_session_reads_frame_by_frame(
    open_stage: OpenStage, limit: str, want: int
) -> None:
    """A read full of such requests, of about 1000 bytes and with 10 messages each, would fit into the first ones."""
    stage = open_stage(quotas=[parse_spec(limit)])
    client, broker = await stage.pair()
    await client.send(produce_records(1, {"rows": [batch(10, 950)]}))
    await broker.frame()
    await until(lambda: stage.session_of(client).requests.stream.want == want)


async def test_a_held_session_keeps_only_what_was_parsed(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    await client.send(produce_records(1, {"rows": [batch(1, 5_000)]}))
    await broker.frame()
    await client.send(produce_records(2, {"rows": [batch(1, 90_000)]}) + produce_records(3, {"rows": [batch(1, 80)]}))
    await held(stage)
    await until(lambda: stage.unread(session) > 20_000)
    assert LOOKAHEAD <= stage.memory.buffered_bytes <= LOOKAHEAD + HEAD_READ_SIZE


async def test_a_dry_run_counts_topics_and_changes_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST], enforcement=EnforcementOptions(dry_run=True))
    client, broker = await stage.pair()
    for number in range(3):
        sent = produce_records(number, {"rows": [batch(1, 1_000)]})
        await client.send(sent)
        assert await broker.frame() == sent
        await broker.send(produced(number))
        assert await client.frame() == produced(number)
    counted = {
        key: histogram.count for key, histogram in stage.metrics.entities.of("ANONYMOUS", "etl").throttles.items()
    }
    assert counted == {("bytes_in_rate", "notify"): 1, ("bytes_in_rate", "pause"): 2}


# What is walked, and what is not


async def test_requests_are_not_parsed_without_a_limit_that_needs_it(open_stage: OpenStage) -> None:
    """The body of these requests is noise, which no walk gets through: with a limit of a topic they are errors."""
    for quotas, passes in (
        ([], True),
        ([parse_spec("client-id=etl,producer_byte_rate=1GB,request_rate=1000")], True),
        ([parse_spec("user=somebody,producer_ids_rate=1")], True),
        ([parse_spec("ip=<default>,connections=100,connection_creation_rate=100")], True),
        ([parse_spec("topic=other,bytes_in_rate=1GB")], False),
        ([parse_spec("user=ANONYMOUS,producer_ids_rate=1")], False),
        ([parse_spec("total=true,total.bytes.in.per.sec.threshold=1GB")], False),
    ):
        stage = open_stage(quotas=quotas)
        client, broker = await stage.pair()
        await client.send(produce(1))
        if passes:
            assert await broker.frame() == produce(1)
            await broker.send(produced(1))
            assert await client.frame() == produced(1)
        else:
            await client.closed()
            assert await broker.rest() == b""
            errors = stage.metrics.errors.protocol
            assert errors["malformed_frame"] + errors["truncated_frame"] == 1


@pytest.mark.parametrize("manner", MANNERS[:2])
async def test_records_that_are_no_batches_are_forwarded(open_stage: OpenStage, manner: str) -> None:
    stage = open_stage(quotas=[SLOW])
    dialogue = await begin(stage, manner)
    sent = produce_records(1, {"rows": [noise(333), batch(2, 100)[:90]]})
    await dialogue.say(sent)
    assert await dialogue.heard() == sent
    assert debts(stage) == {("topic:rows", "bytes_in_rate"): 423}


async def test_what_passed_before_a_request_that_cannot_be_read_is_forwarded(open_stage: OpenStage) -> None:
    """They came in one read, and were charged."""
    stage = open_stage(quotas=[parse_spec("topic=rows,bytes_in_rate=1MB")])
    client, broker = await stage.pair()
    good = [produce_records(1, {"rows": [batch(1, 100)]}), heartbeat(2), produce_records(3, {"rows": [batch(1, 90)]})]
    await client.send(b"".join(good) + produce(4))
    await client.closed()
    assert await broker.rest() == b"".join(good)
    assert sum(stage.metrics.errors.protocol.values()) == 1
