"""`action=reject`: records of a topic over its limit are taken out of their request, and the rest passes.

A batch has 101 bytes, and the limit no burst: a batch that passes leaves a debt of 0.101 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode

from protocol.api_versions import ClientSoftware
from protocol.apis import API_VERSIONS, PRODUCE
from protocol.messages import decode, encode
from protocol.topics import TopicPartitions
from proxy.config.config import EnforcementOptions, SecurityOptions, UsageOptions
from proxy.sessions.pump import PauseReason
from proxy.streams.refusals import MAX_REFUSED_NS, MAX_WHOLE, refusal_error
from proxy.streams.steps import PIECES_PER_STEP
from quotas.admission.refused_sequences import RefusedSequences
from quotas.parsing.parse import parse_spec
from tests.protocol.kafka_messages import idempotent
from tests.proxy.conversation import Peer, Stage, cut, lines_of, send_in_pieces, until, without_burst
from tests.proxy.dialogue import MANNERS, Dialogue, alter, begin, debts, held
from tests.proxy.frames import TOPIC_ID, Topic, heartbeat, produce_records, produced, refused, request

OpenStage = Callable[..., Stage]

SPEC = "topic=noisy,bytes_in_rate=1000,action=reject"
NOISY = without_burst(SPEC)
JAVA = ClientSoftware("apache-kafka-java", "4.1.0")
LIBRDKAFKA = ClientSoftware("librdkafka", "2.12.1")
SIZE = 101
TRANSACTIONAL = 16
NONE = ErrorCode.none
VERSIONS = [3, 7, 8, 9, 12]

Records = dict[Topic, Sequence[bytes | None]]
Errors = list[tuple[Any, int, int, str | None]]
"""Topic, partition, error code and message."""


def named(software: ClientSoftware, correlation: int = 900, version: int = 3) -> bytes:
    body = encode(ApiVersionsRequest(client_software_name=software.name, client_software_version=software.version))
    return request(API_VERSIONS, version, correlation, body)


async def introduced(stage: Stage, software: ClientSoftware | None = JAVA, manner: str = "whole") -> Dialogue:
    """A connection whose client has named its software."""
    dialogue = await begin(stage, manner)
    if software is not None:
        sent = named(software)
        await dialogue.say(sent)
        assert await dialogue.heard() == sent
        await until(lambda: dialogue.session.identity.refusal_error == refusal_error(software))
        dialogue.session.connection.in_flight.popleft()  # its response is tested elsewhere
        dialogue._arrived.popleft()
    return dialogue


def errors_of(response: bytes, version: int = 9) -> tuple[Errors, int]:
    """Those of the partitions in a response, and its throttle time in ms."""
    start = 8 + (version >= 9)
    message: Any = decode(load_response_schema(PRODUCE, version), response[4:], start - 4)
    return [
        (
            getattr(topic, "name", None) or topic.topic_id,
            each.index,
            each.error_code.value,
            getattr(each, "error_message", None),
        )
        for topic in message.responses
        for each in topic.partition_responses
    ], round(message.throttle_time.total_seconds() * 1000)


def rejects(stage: Stage, limit: str = "bytes_in_rate") -> int:
    histogram = stage.metrics.entities.of("ANONYMOUS", "etl").throttles.get((limit, "reject"))
    return 0 if histogram is None else histogram.count


def message_of(wait_ms: int) -> str:
    return f"bytes_in_rate=1000 of topic:noisy is exceeded: retry in {wait_ms} ms"


async def pass_first(dialogue: Dialogue, number: int = 1, sequence: int = 0) -> None:
    """A batch of the noisy topic that brings it into debt."""
    first = produce_records(number, {"noisy": [idempotent(sequence)]})
    await dialogue.say(first)
    assert await dialogue.heard() == first
    await dialogue.answer(produced(number))
    assert await dialogue.told() == produced(number), "no throttle time"


# ---- requests and responses


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_noisy_topic_is_taken_out_and_the_rest_passes(open_stage: OpenStage, manner: str, version: int) -> None:
    stage = open_stage(quotas=[NOISY], usage=UsageOptions(file=Path("unused")))
    dialogue = await introduced(stage, manner=manner)
    await pass_first(dialogue)
    quiet: Records = {"a": [idempotent(0), idempotent(0)], "z": [idempotent(0)]}
    noisy: Records = {"noisy": [idempotent(4), idempotent(0)]}
    await dialogue.say(produce_records(2, {"a": quiet["a"], **noisy, "z": quiet["z"]}, version))
    assert await dialogue.heard() == produce_records(2, quiet, version)
    none = refused(2, {"a": [NONE, NONE], "z": [NONE]}, version)
    await dialogue.answer(none)
    told = await dialogue.told()
    message = message_of(101) if version >= 8 else None
    expected = [("noisy", 0, 89, message), ("noisy", 1, 89, message)]
    passed: Errors = [("a", 0, 0, None), ("a", 1, 0, None), ("z", 0, 0, None)]
    assert errors_of(told, version) == ([*expected, *passed], 0)
    assert debts(stage) == {("topic:noisy", "bytes_in_rate"): SIZE / 1000}
    assert rejects(stage) == 2
    tallies = stage.metrics.entities.throttle_tallies
    assert tallies is not None
    [tally] = tallies
    assert (tally.entity, tally.refused_bytes, tally.delayed_bytes) == ("topic:noisy", 2 * SIZE, 0)
    assert stage.memory.buffered_bytes == 0 or manner == "with bytes behind"


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("version", VERSIONS)
async def test_where_nothing_is_left_the_proxy_answers_in_order(
    open_stage: OpenStage, manner: str, version: int
) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage, LIBRDKAFKA, manner)
    await pass_first(dialogue)
    before = produce_records(2, {"quiet": [idempotent(0)]}, version)
    await dialogue.say(before)
    assert await dialogue.heard() == before
    await dialogue.say(produce_records(3, {"noisy": [idempotent(4)]}, version))
    after = produce_records(4, {"quiet": [idempotent(4)]}, version)
    await dialogue.say(after)
    assert await dialogue.heard() == after
    await dialogue.answer(produced(2, version))
    assert await dialogue.told() == produced(2, version)
    message = message_of(101) if version >= 8 else None
    assert errors_of(await dialogue.told(), version) == ([("noisy", 0, 19, message)], 0)
    await dialogue.answer(produced(4, version))
    assert await dialogue.told() == produced(4, version)


@pytest.mark.parametrize("step", [1_000_000, 1])
async def test_topics_by_id(open_stage: OpenStage, step: int) -> None:
    stage = open_stage(quotas=[NOISY])
    stage.context.topics.learn([TopicPartitions("noisy", TOPIC_ID.bytes, 2)])
    dialogue = await introduced(stage)
    first = produce_records(1, {TOPIC_ID: [idempotent(0)]}, 13)
    await dialogue.say(first)
    assert await dialogue.heard() == first
    await dialogue.answer(produced(1, 13))
    await dialogue.told()
    other = replace_id(TOPIC_ID, 9)
    sent = produce_records(2, {other: [idempotent(0)], TOPIC_ID: [idempotent(4)]}, 13)
    await send_in_pieces(dialogue.client, dialogue.session.client, cut(sent, [step] * len(sent)))
    assert await dialogue.heard() == produce_records(2, {other: [idempotent(0)]}, 13)
    answer = refused(2, {other: [NONE]}, 13)
    await send_in_pieces(dialogue.broker, dialogue.upstream, cut(answer, [step] * len(answer)))
    errors, _ = errors_of(await dialogue.told(), 13)
    assert errors == [(TOPIC_ID, 0, 89, message_of(101)), (other, 0, 0, None)]


def replace_id(topic_id: Any, number: int) -> Any:
    return type(topic_id)(int=topic_id.int + number)


@pytest.mark.parametrize("size", [200_000, 1_000_000, MAX_WHOLE - 500])
async def test_a_long_request_is_kept_until_it_is_complete(open_stage: OpenStage, size: int) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    quiet = idempotent(0, payload=bytes(size))
    sent = produce_records(2, {"quiet": [quiet], "noisy": [idempotent(4)]})
    await dialogue.client.send(sent[:-1])
    await until(lambda: not stage.unread(dialogue.session) and stage.memory.buffered_bytes >= size)
    assert stage.memory.buffered_bytes <= len(sent) + 100_000
    await dialogue.client.send(sent[-1:])
    assert await dialogue.heard() == produce_records(2, {"quiet": [quiet]})
    await until(lambda: stage.memory.buffered_bytes == dialogue.session.connection.owed_bytes)
    stage.clock.pass_seconds(1)
    whole = produce_records(3, {"quiet": [quiet], "noisy": [idempotent(4)]})
    await dialogue.client.send(whole)
    assert await dialogue.heard() == whole, "as it is, where nothing is refused"
    await until(lambda: stage.memory.buffered_bytes == dialogue.session.connection.owed_bytes)


async def test_a_request_for_many_partitions_is_parsed_in_steps(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    many = [idempotent(0)] * (2 * PIECES_PER_STEP)
    await dialogue.say(produce_records(2, {"quiet": many, "noisy": [idempotent(4)]}))
    assert await dialogue.heard() == produce_records(2, {"quiet": many})


async def test_a_longer_request_is_held(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    quiet = idempotent(0, payload=bytes(MAX_WHOLE))
    sent = produce_records(2, {"noisy": [idempotent(4)], "quiet": [quiet]})
    sending = asyncio_send(dialogue.client, sent)
    await held(stage)
    stage.clock.pass_seconds(0.101)
    assert await dialogue.heard() == sent
    await sending
    assert not rejects(stage)


def asyncio_send(client: Peer, data: bytes) -> Any:
    return client._loop.create_task(client.send(data))


async def test_a_longer_request_does_not_overtake_a_refused_one(open_stage: OpenStage) -> None:
    """The connection is closed: then the producer sends again what was refused, first."""
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    await dialogue.say(produce_records(2, {"noisy": [idempotent(4)]}))
    await dialogue.told()
    sent = produce_records(3, {"noisy": [idempotent(8)], "quiet": [idempotent(0, payload=bytes(MAX_WHOLE))]})
    sending = asyncio_send(dialogue.client, sent)
    await dialogue.client.closed()
    sending.cancel()
    assert stage.metrics.errors.protocol["produce_request_too_large"] == 1


# ---- order


async def test_later_batches_are_refused_until_the_refused_one_has_come_back(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    await dialogue.say(produce_records(2, {"noisy": [idempotent(4)]}))
    assert errors_of(await dialogue.told())[0][0][2] == 89
    stage.clock.pass_seconds(1)
    await dialogue.say(produce_records(3, {"noisy": [idempotent(8)]}))
    assert errors_of(await dialogue.told()) == ([("noisy", 0, 89, message_of(0))], 0)
    earlier = produce_records(4, {"noisy": [idempotent(0)]})
    await dialogue.say(earlier)
    assert await dialogue.heard() == earlier
    await dialogue.answer(produced(4))
    await dialogue.told()
    again = produce_records(5, {"noisy": [idempotent(4)]})
    await dialogue.say(again)
    assert errors_of(await dialogue.told())[0][0][2] == 89, "the earlier one left a debt"
    assert rejects(stage) == 2, "each sequence counts once"
    earlier = produce_records(6, {"noisy": [idempotent(0)]})
    await dialogue.say(earlier)
    await held(stage)
    assert debts(stage) == {("topic:noisy", "bytes_in_rate"): SIZE / 1000}, "it is held, not refused"
    stage.clock.pass_seconds(SIZE / 1000)
    assert await dialogue.heard() == earlier
    await dialogue.answer(produced(6))
    assert await dialogue.told() == produced(6), "no throttle time"
    stage.clock.pass_seconds(1)
    await dialogue.say(again)
    assert await dialogue.heard() == again
    stage.clock.pass_seconds(1)
    last = produce_records(7, {"noisy": [idempotent(8)]})
    await dialogue.say(last)
    assert await dialogue.heard() == last
    assert rejects(stage) == 2


@pytest.mark.parametrize("ahead", [idempotent(4_000), idempotent(0, epoch=3)], ids=["sequence", "epoch"])
async def test_a_refused_batch_far_ahead_frees_no_other_batch(open_stage: OpenStage, ahead: bytes) -> None:
    """A client that makes up sequences or epochs is held as any other."""
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    await dialogue.say(produce_records(2, {"noisy": [ahead]}))
    assert errors_of(await dialogue.told())[0][0][2] == 89
    for number in range(3, 6):
        sent = produce_records(number, {"noisy": [idempotent(4 * (number - 2))]})
        await dialogue.say(sent)
        await held(stage)
        assert debts(stage) == {("topic:noisy", "bytes_in_rate"): SIZE / 1000}
        stage.clock.pass_seconds(SIZE / 1000)
        assert await dialogue.heard() == sent
        await dialogue.answer(produced(number))
        await dialogue.told()


async def test_what_was_refused_is_known_on_another_connection(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY])
    first = await introduced(stage)
    await pass_first(first)
    await first.say(produce_records(2, {"noisy": [idempotent(4)]}))
    await first.told()
    first.client.close()
    stage.clock.pass_seconds(1)
    second = await introduced(stage)
    await second.say(produce_records(1, {"noisy": [idempotent(8)]}))
    assert errors_of(await second.told())[0][0][2] == 89
    other = produce_records(2, {"noisy": [idempotent(8, producer_id=8)]})
    await second.say(other)
    assert await second.heard() == other, "of another producer"


async def test_a_batch_that_was_refused_for_long_is_held(open_stage: OpenStage) -> None:
    """Held frames have their turn, while producers that are refused depend on who comes back first."""
    stage = open_stage(quotas=[without_burst("topic=noisy,bytes_in_rate=1,action=reject")])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    again = produce_records(2, {"noisy": [idempotent(4)]})
    for seconds in (MAX_REFUSED_NS / 1e9 - 1, 1):
        await dialogue.say(again)
        assert errors_of(await dialogue.told())[0][0][2] == 89
        stage.clock.pass_seconds(seconds)
    await dialogue.say(again)
    await held(stage)
    alter(stage, "topic=noisy,bytes_in_rate=1GB")
    stage.clock.pass_seconds(1)
    assert await dialogue.heard() == again


@pytest.mark.parametrize(
    "later", [[], ["topic=noisy,bytes_in_rate=1GB"], ["topic=other,bytes_in_rate=1GB,action=reject"]]
)
@pytest.mark.parametrize("version", [9, 12])
async def test_a_change_of_the_limits_keeps_the_order(open_stage: OpenStage, version: int, later: list[str]) -> None:
    """No limit refuses records of the topic any more; batches sent after a refused one are on their way."""
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    refused_first, behind, next_one = [
        produce_records(number, {"noisy": [idempotent(4 * (number - 1))]}, version) for number in (2, 3, 4)
    ]
    await dialogue.say(refused_first)
    assert errors_of(await dialogue.told(), version)[0][0][2] == 89
    in_force = stage.server.in_force
    in_force.take_over_quotas(replace(in_force.quotas, entries=tuple(without_burst(each) for each in later)))
    stage.clock.pass_seconds(1)
    await dialogue.say(behind)
    message = "an earlier batch of this partition was refused: send that one first"
    assert errors_of(await dialogue.told(), version) == ([("noisy", 0, 89, message)], 0)
    for sent in (refused_first, behind, next_one):
        await dialogue.say(sent)
        assert await dialogue.heard() == sent
        stage.clock.pass_seconds(1)
    identity = dialogue.session.identity
    assert identity.limits.walks
    stage.registry.expire(stage.clock())
    assert stage.registry.resolve(*identity.client.key).walks == bool(later), "and the check ends"


async def test_where_no_more_sequences_can_be_kept_requests_are_held(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY])
    stage.registry.refused = RefusedSequences(most=1)
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    await dialogue.say(produce_records(2, {"noisy": [idempotent(4)]}))
    await dialogue.told()
    other = produce_records(3, {"noisy": [idempotent(0, producer_id=8)]})
    await dialogue.say(other)
    await held(stage)
    stage.clock.pass_seconds(0.101)
    assert await dialogue.heard() == other


# ---- which requests


@pytest.mark.parametrize(
    ("software", "sent"),
    [
        (None, produce_records(2, {"noisy": [idempotent(4)]})),
        (ClientSoftware("sarama", "1.46"), produce_records(2, {"noisy": [idempotent(4)]})),
        (JAVA, produce_records(2, {"noisy": [idempotent(-1, producer_id=-1)]})),
        (JAVA, produce_records(2, {"noisy": [idempotent(4, attributes=TRANSACTIONAL)]})),
        (JAVA, produce_records(2, {"noisy": [idempotent(4) + idempotent(8)]})),
        (JAVA, produce_records(2, {"noisy": [idempotent(4)]}, acks=0)),
    ],
    ids=["unnamed", "unknown", "plain producer", "transaction", "two batches", "acks=0"],
)
async def test_everything_else_is_held(open_stage: OpenStage, software: ClientSoftware | None, sent: bytes) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage, software)
    first = produce_records(1, {"noisy": [idempotent(-1, producer_id=-1)]})
    await dialogue.say(first)
    assert await dialogue.heard() == first
    await dialogue.answer(produced(1))
    assert await dialogue.told() == produced(1, throttle_ms=SIZE), "with a throttle time"
    await dialogue.say(sent)
    await held(stage)
    stage.clock.pass_seconds(0.101)
    assert await dialogue.heard() == sent
    assert not rejects(stage)


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("apache-kafka-java", "2.7.0", 89),
        ("apache-kafka-java", "7.5.0-ccs", 89),
        ("apache-kafka-java", "2.10.0", 89),
        ("apache-kafka-java", "2.6.3", 19),
        ("apache-kafka-java", "unknown", 19),
        ("apache-kafka-java", "9" * 5000 + ".0", 19),
        ("librdkafka", "2.12.1", 19),
        ("confluent-kafka-python", "2.12.1-rdkafka-2.12.1", 19),
        ("confluent-kafka-go", "2.12.0", 19),
        ("kgo", "1.20", 19),
        ("sarama", "1.46.0", 0),
        ("", "", 0),
    ],
)
def test_the_error_of_each_client(name: str, version: str, error: int) -> None:
    assert refusal_error(ClientSoftware(name, version)) == error


async def test_a_topic_without_action_holds_its_requests(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY, without_burst("topic=slow,bytes_in_rate=2000")])
    dialogue = await introduced(stage)
    await dialogue.say(produce_records(1, {"noisy": [idempotent(0)], "slow": [idempotent(0)]}))
    await dialogue.heard()
    await dialogue.answer(produced(1))
    assert await dialogue.told() == produced(1, throttle_ms=51), "for the slow one"
    sent = produce_records(2, {"noisy": [idempotent(4)], "slow": [idempotent(4)]})
    await dialogue.say(sent)
    await held(stage)
    assert not rejects(stage), "nothing is refused before the rest may pass"
    stage.clock.pass_seconds(0.06)
    assert await dialogue.heard() == produce_records(2, {"slow": [idempotent(4)]})
    await until(lambda: not stage.paused())
    assert rejects(stage) == 1


async def test_nothing_of_an_exempt_client_is_refused(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst(f"{SPEC},exempt-client-id=etl")])
    dialogue = await introduced(stage)
    for number in (1, 2, 3):
        await pass_first(dialogue, number, 4 * (number - 1))
    assert not rejects(stage)


async def test_a_long_request_that_is_held_is_decided_again(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY, without_burst("client-id=etl,producer_byte_rate=1MB")])
    dialogue = await introduced(stage)
    await pass_noisily(dialogue)
    quiet = idempotent(0, payload=bytes(1_000_000))
    await dialogue.client.send(produce_records(2, {"quiet": [quiet], "noisy": [idempotent(4)]}) + heartbeat(3))
    await held(stage)
    assert stage.memory.buffered_bytes >= 1_000_000
    stage.clock.pass_seconds(0.01)
    assert await dialogue.heard() == produce_records(2, {"quiet": [quiet]})
    assert await dialogue.broker.frame() == heartbeat(3)
    await until(lambda: stage.memory.buffered_bytes == dialogue.session.connection.owed_bytes)
    assert rejects(stage) == 1


async def pass_noisily(dialogue: Dialogue) -> None:
    await dialogue.say(produce_records(1, {"noisy": [idempotent(0)]}))
    await dialogue.heard()


async def test_a_client_that_goes_in_the_middle_of_a_long_request(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_noisily(dialogue)
    sent = produce_records(2, {"quiet": [idempotent(0, payload=bytes(300_000))], "noisy": [idempotent(4)]})
    await dialogue.client.send(sent[:-10])
    await until(lambda: not stage.unread(dialogue.session) and stage.memory.buffered_bytes > 200_000)
    dialogue.client.end()
    await dialogue.answer(produced(1))
    assert await dialogue.told() == produced(1), "what was forwarded before has its response"
    dialogue.broker.close()
    await stage.no_sessions()


def owed(stage: Stage) -> int:
    """Bytes of errors that wait for responses of the broker."""
    return sum(each.connection.owed_bytes for each in stage.sessions)


async def refuse(dialogue: Dialogue, producers: int) -> None:
    """While the topic is in debt: from now on requests of these producers must not pass without being kept."""
    batches = [idempotent(0, producer_id=number) for number in range(producers)]
    await dialogue.say(produce_records(99, {"noisy": batches}))
    await until(lambda: len(dialogue.session.connection.context.registry.refused) == producers)


async def test_long_requests_wait_for_memory(open_stage: OpenStage) -> None:
    """Where an earlier batch was refused."""
    stage = open_stage(quotas=[NOISY], security=SecurityOptions(max_buffered_bytes=8 * 1_048_576))
    first = await introduced(stage)
    await pass_first(first)
    await refuse(first, 1)
    quiet = idempotent(0, producer_id=0, payload=bytes(1_500_000))
    sent = [produce_records(n, {"quiet": [quiet], "noisy": [idempotent(4 * n, producer_id=0)]}) for n in range(1, 9)]
    dialogues = [await introduced(stage) for _ in sent]
    for dialogue, each in zip(dialogues, sent, strict=True):
        dialogue.client.send_now(each[:-1])
    await until(lambda: stage.paused().get("response_memory", 0) > 1)
    assert stage.memory.used <= 10 * 1_048_576
    for dialogue in (first, *dialogues):
        dialogue.client.close()
        dialogue.broker.close()
    await stage.no_sessions()


async def collected(stage: Stage, size: int = 1_000_000) -> tuple[Dialogue, bytes]:
    """A long request that is held by the client's own limit after it was kept until it was complete."""
    dialogue = await introduced(stage)
    await pass_noisily(dialogue)
    sent = produce_records(2, {"quiet": [idempotent(0, payload=bytes(size))], "noisy": [idempotent(4)]})
    await dialogue.client.send(sent)
    await held(stage)
    return dialogue, sent


OWN = without_burst("client-id=etl,producer_byte_rate=1MB")


async def test_draining_drops_a_held_long_request(open_stage: OpenStage) -> None:
    """Nothing of it has been forwarded, and its producer sends it again."""
    stage = open_stage(quotas=[NOISY, OWN])
    dialogue, _ = await collected(stage)
    dialogue.session.drain()
    await dialogue.broker.send(produced(1))
    assert (await dialogue.client.frame())[4:8] == produced(1)[4:8]
    await stage.no_sessions()


async def test_draining_drops_the_beginning_of_a_long_request(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_noisily(dialogue)
    sent = produce_records(2, {"quiet": [idempotent(0, payload=bytes(300_000))], "noisy": [idempotent(4)]})
    await dialogue.client.send(sent[:-10])
    await until(lambda: not stage.unread(dialogue.session) and stage.memory.buffered_bytes > 200_000)
    dialogue.session.drain()
    await dialogue.broker.send(produced(1))
    await stage.no_sessions()


async def test_a_held_long_request_finds_the_limits_of_now(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY, OWN])
    dialogue, sent = await collected(stage)
    stage.clock.pass_seconds(0.001)
    alter(stage, SPEC, away=True)
    assert await dialogue.heard() == sent, "the topic has no limit any more"
    assert not rejects(stage)


async def test_a_long_request_that_stalls_counts_as_stalled(open_stage: OpenStage) -> None:
    """Also while it is held: others wait for its memory."""
    stage = open_stage(quotas=[NOISY, OWN])
    dialogue = await introduced(stage)
    await pass_noisily(dialogue)
    sent = produce_records(2, {"quiet": [idempotent(0, payload=bytes(300_000))], "noisy": [idempotent(4)]})
    await dialogue.client.send(sent[:-10])
    await until(lambda: not stage.unread(dialogue.session) and stage.memory.buffered_bytes > 200_000)
    assert dialogue.session.progress.held_bytes == len(sent) - 10 - 4
    await dialogue.client.send(sent[-10:])
    await held(stage)
    assert dialogue.session.progress.held_bytes == len(sent) - 4


async def test_long_requests_that_are_held_leave_memory_for_others(open_stage: OpenStage) -> None:
    limit = 8 * 1_048_576
    stage = open_stage(quotas=[NOISY, OWN], security=SecurityOptions(max_buffered_bytes=limit))
    await collected(stage)
    await refuse(await introduced(stage), 8)
    for number in range(8):
        dialogue = await introduced(stage)
        quiet = idempotent(0, producer_id=number, payload=bytes(1_000_000))
        dialogue.client.send_now(produce_records(2, {"quiet": [quiet], "noisy": [idempotent(4, producer_id=number)]}))
    await until(lambda: stage.paused().get("response_memory", 0) > 1)
    assert stage.memory.used <= limit * 3 // 4
    assert not stage.shared.pumps.is_short, "the proxy is ready"
    waiting = next(each for each in stage.sessions if each.requests.paused & PauseReason.RESPONSE_MEMORY)
    assert waiting.progress.held_bytes == 0, "it waits for memory itself"
    client, broker = await stage.pair()
    sent = produce_records(1, {"other": [idempotent(0, payload=bytes(200_000))]}, client_id="other")
    await client.send(sent)
    assert await broker.frame() == sent
    alter(stage, "client-id=etl,producer_byte_rate=1MB", away=True)
    alter(stage, SPEC, away=True)
    await until(lambda: not stage.paused() and stage.memory.buffered_bytes == owed(stage))
    assert not stage.shared.pumps.queued, "those that waited for memory pass"


async def test_a_dry_run_refuses_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY], enforcement=EnforcementOptions(dry_run=True))
    dialogue = await introduced(stage)
    for number in range(3):
        sent = produce_records(number, {"noisy": [idempotent(4 * number)]})
        await dialogue.say(sent)
        assert await dialogue.heard() == sent


# ---- what is counted


async def test_thresholds_count_a_refused_sequence_once(open_stage: OpenStage) -> None:
    """Seed 004: refused only if topic and total are both above their thresholds."""
    stage = open_stage(
        quotas=[
            parse_spec("total,total.bytes.in.per.sec.threshold=20,action=reject"),
            parse_spec("topic=noisy,bytes.in.per.sec.threshold=2,action=reject"),
            parse_spec("topic=kept,bytes.in.per.sec.threshold=10"),
        ]
    )
    dialogue = await introduced(stage)
    for number in range(60):
        sent = produce_records(number, {"noisy": [idempotent(4 * number)], "quiet": [idempotent(0)]})
        await dialogue.say(sent)
        assert await dialogue.heard() == sent
        await dialogue.answer(produced(number))
        await dialogue.told()
    stage.clock.pass_seconds(5)
    for _ in range(2):
        await dialogue.say(produce_records(70, {"noisy": [idempotent(240)], "quiet": [idempotent(4)]}))
        [noisy, quiet], _throttle = errors_of(await dialogue.told())
        assert (noisy[:3], quiet[:3]) == (("noisy", 0, 89), ("quiet", 0, 89))
    thresholds = stage.registry.thresholds["bytes.in.per.sec.threshold"]
    assert rejects(stage, "bytes.in.per.sec.threshold") == 2
    stage.clock.pass_seconds(5)
    assert thresholds.throttled.one_minute_rate(stage.clock()) == pytest.approx(2 * SIZE / 5, rel=0.01)


async def test_the_log_names_the_limit(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await introduced(stage)
    await pass_first(dialogue)
    await dialogue.say(produce_records(2, {"noisy": [idempotent(4)]}))
    await dialogue.told()
    [(_, fields)] = [line for line in lines_of(caplog.records) if line[0] == "throttled"]
    assert fields["mode"] == "reject"
    assert (fields["limit"], fields["entity"], fields["throttle_ms"]) == ("bytes_in_rate", "topic:noisy", 101)


async def test_only_what_passes_is_charged(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[NOISY, without_burst("client-id=etl,producer_byte_rate=1000000,request_rate=1000")])
    dialogue = await introduced(stage)
    stage.clock.pass_seconds(1)
    await pass_noisily(dialogue)
    stage.clock.pass_seconds(0.05)
    await dialogue.say(produce_records(2, {"quiet": [idempotent(0)], "noisy": [idempotent(4)]}))
    rest = produce_records(2, {"quiet": [idempotent(0)]})
    assert await dialogue.heard() == rest
    now_owed = debts(stage)
    assert now_owed[("client-id:etl", "producer_byte_rate")] == (len(rest) - 4) / 1_000_000
    assert now_owed[("topic:noisy", "bytes_in_rate")] == pytest.approx(SIZE / 1000 - 0.05)


@pytest.mark.parametrize("version", [-1, 99])
async def test_a_version_of_api_versions_that_is_not_in_the_table_is_answered(
    open_stage: OpenStage, version: int
) -> None:
    stage = open_stage(quotas=[NOISY])
    dialogue = await begin(stage, "whole")
    await dialogue.say(named(JAVA, 5, version))
    told = await dialogue.told()
    assert told[4:10] == bytes((0, 0, 0, 5, 0, 35))
    assert not dialogue.session.identity.refusal_error
