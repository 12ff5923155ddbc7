"""Topics by id (Produce 13): names are learned from Metadata responses; requests with unknown ids are answered."""

import uuid
from typing import Any

import pytest
from kio.index import load_response_schema

from protocol.apis import PRODUCE
from protocol.messages import decode
from protocol.topics import TopicPartitions
from proxy.config.config import EnforcementOptions
from proxy.streams.handlers.reject.refusals import UnknownTopicId
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import (
    REAL_HOST,
    REAL_PORT,
    Topic,
    batch,
    heartbeat,
    heartbeat_answer,
    metadata,
    metadata_answer,
    produce_records,
)
from tests.proxy.streams.exchanges import NODE, PROXY
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import CUTS

pytestmark = pytest.mark.claim("enforcement", "a topic id that is not known is no way past a limit of topics")

IDS = {"rows": uuid.UUID(int=7), "cols": uuid.UUID(int=8)}
BY_NAME_AND_TOTAL = [
    without_burst("topic=rows,bytes_in_rate=1"),
    without_burst("total=true,bytes_in_rate=1"),
    without_burst("resource-group=clients,client-id=etl,messages_in_rate=1"),
]


def requested(world: World) -> set[bytes]:
    """Ids that are requested next."""
    return set(world.context.topics._unknown)


@pytest.mark.parametrize("cuts", CUTS)
def test_ids_are_learned_from_metadata_that_passes(cuts: list[int]) -> None:
    pair = Pair(world := World(BY_NAME_AND_TOTAL), cuts=cuts)
    pair.exchange(metadata(1), metadata_answer(1, {NODE: (REAL_HOST, REAL_PORT)}, named=IDS))
    assert pair.to_client == metadata_answer(1, {NODE: PROXY}, named=IDS)
    pair.client_sends(produce_records(2, {IDS["cols"]: [batch(1, 100)], IDS["rows"]: [batch(2, 200)]}, version=13))
    assert world.debts() == {
        ("topic:rows", "bytes_in_rate"): 200,
        ("total", "bytes_in_rate"): 300,
        ("resource-group:clients", "messages_in_rate"): 3,
    }
    assert requested(world) == set()


@pytest.mark.parametrize("version", [10, 12])
@pytest.mark.parametrize("learns", [False, True])
def test_learning_ids_changes_no_byte_of_metadata(version: int, learns: bool) -> None:
    pair = Pair(world := World(BY_NAME_AND_TOTAL if learns else ()))
    pair.client_sends(metadata(1, version))
    pair.broker_sends(metadata_answer(1, {NODE: (REAL_HOST, REAL_PORT)}, version=version, named=IDS))
    assert pair.to_client == metadata_answer(1, {NODE: PROXY}, version=version, named=IDS)
    assert len(world.context.topics._partitions) == (2 if learns else 0)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("size", [100, 700_000])
def test_a_request_with_an_unknown_id_is_answered_and_the_id_requested(size: int, cuts: list[int]) -> None:
    """As a broker does: its client asks for Metadata, and sends it again. Nothing of it is kept or charged."""
    pair = Pair(world := World(BY_NAME_AND_TOTAL), cuts=cuts if size < 1_000 else [])
    sent = produce_records(1, {IDS["rows"]: [batch(2, size), None], IDS["cols"]: [batch(1, 70)]}, version=13)
    pair.client_sends(heartbeat(0), sent, heartbeat(2))
    assert pair.sent() == [heartbeat(0), heartbeat(2)]
    assert pair.received() == [], "the first request has no response yet"
    pair.broker_sends(heartbeat_answer(0), heartbeat_answer(2))
    first, own, last = pair.received()
    assert (first, last) == (heartbeat_answer(0), heartbeat_answer(2))
    assert errors_of(own) == [(IDS["rows"], 0, 100), (IDS["rows"], 1, 100), (IDS["cols"], 0, 100)]
    assert IDS["rows"].bytes in requested(world)
    assert world.debts() == {}
    assert world.memory.buffered_bytes == pair.response_stream.answers.owed_bytes == 0
    pair.exchange(metadata(3), metadata_answer(3, {NODE: (REAL_HOST, REAL_PORT)}, named=IDS))
    pair.client_sends(sent)
    assert pair.sent()[-1] == sent
    assert world.debts()["topic:rows", "bytes_in_rate"] == size


def errors_of(response: bytes) -> list[tuple[uuid.UUID, int, int]]:
    """Topic, partition and error code of each partition."""
    message: Any = decode(load_response_schema(PRODUCE, 13), response, 9)
    return [
        (topic.topic_id, each.index, each.error_code.value)
        for topic in message.responses
        for each in topic.partition_responses
    ]


def test_a_request_with_an_unknown_id_counts_as_a_request() -> None:
    world = World([*BY_NAME_AND_TOTAL, without_burst("client-id=etl,request_rate=1,producer_byte_rate=1")])
    pair = Pair(world)
    pair.client_sends(produce_records(1, {IDS["rows"]: [batch(2, 200)]}, version=13))
    assert world.debts() == {("client-id:etl", "request_rate"): 1}
    assert len(pair.received()) == 1


def test_one_unknown_id_among_known_ones_is_enough() -> None:
    world = World(BY_NAME_AND_TOTAL)
    world.context.topics.learn([TopicPartitions("rows", IDS["rows"].bytes, 3)])
    pair = Pair(world)
    pair.client_sends(produce_records(1, {IDS["rows"]: [batch(2, 200)], IDS["cols"]: [batch(1, 70)]}, version=13))
    assert (pair.sent(), world.debts(), len(pair.received())) == ([], {}, 1)


@pytest.mark.parametrize(
    ("quota", "is_refused", "is_requested"),
    [
        ("topic=<default>,bytes_in_rate=1GB", True, True),
        ("topic=other,messages_in_rate=1000000", True, True),
        ("resource-group=g,topic=other,bytes_in_rate=1GB", True, True),
        ("total,total.bytes.in.per.sec.threshold=1GB", True, True),
        ("total,bytes_in_rate=1GB", False, True),
        ("client-id=etl,producer_byte_rate=1GB", False, False),
        ("resource-group=g,client-id=etl,bytes_in_rate=1GB", False, True),
        ("user=ANONYMOUS,producer_ids_rate=5", False, False),
    ],
)
def test_an_unknown_id_is_refused_if_a_limit_needs_its_name(quota: str, is_refused: bool, is_requested: bool) -> None:
    pair = Pair(world := World([parse_spec(quota)]))
    sent = [produce_records(number, {IDS["rows"]: [batch(2, 200)]}, version=13) for number in range(20)]
    for each in sent:  # 19 of them would pass together
        pair.client_sends(each)
    assert (pair.sent(), len(pair.received())) == (([], 20) if is_refused else (sent, 0))
    assert requested(world) == ({IDS["rows"].bytes} if is_requested else set())


def test_a_dry_run_refuses_no_unknown_id() -> None:
    pair = Pair(world := World(BY_NAME_AND_TOTAL, enforcement=EnforcementOptions(dry_run=True)))
    sent = produce_records(1, {IDS["rows"]: [batch(2, 70_000)], IDS["cols"]: [batch(1, 70_000)]}, version=13)
    pair.client_sends(sent[:80_000])
    pair.client_sends(sent[80_000:])
    assert pair.to_broker == sent
    assert world.debts() == {("total", "bytes_in_rate"): 140_000, ("resource-group:clients", "messages_in_rate"): 3}
    assert requested(world) == {each.bytes for each in IDS.values()}


@pytest.mark.parametrize("cuts", CUTS)
def test_what_expects_no_response_closes_the_connection(cuts: list[int]) -> None:
    """As brokers do with acks=0: else its client would never ask for Metadata."""
    pair = Pair(world := World(BY_NAME_AND_TOTAL), cuts=cuts)
    with pytest.raises(UnknownTopicId):
        pair.client_sends(produce_records(1, {IDS["rows"]: [batch(2, 200)]}, version=13, acks=0))
    assert pair.sent() == []
    assert world.debts() == {}
    assert world.metrics.errors.protocol["unknown_topic_id"] == 1
    assert requested(world) == {IDS["rows"].bytes}


def test_an_id_that_is_found_after_the_first_part_has_passed_closes_the_connection() -> None:
    """The broker drops the incomplete request."""
    world = World(BY_NAME_AND_TOTAL)
    world.context.topics.learn([TopicPartitions("rows", IDS["rows"].bytes, 3)])
    pair = Pair(world)
    sent = produce_records(1, {IDS["rows"]: [batch(2, 70_000)], IDS["cols"]: [batch(1, 70_000)]}, version=13)
    pair.client_sends(sent[:60_000])
    assert pair.to_broker == sent[:60_000]
    with pytest.raises(UnknownTopicId):
        pair.client_sends(sent[60_000:])
    assert len(pair.to_broker) < 71_000
    assert world.memory.buffered_bytes == 0
    assert world.metrics.errors.protocol["unknown_topic_id"] == 1


@pytest.mark.parametrize("pieces", [1, 150])
def test_invented_ids_keep_no_limit_from_counting(pieces: int) -> None:
    """However many of them are asked for: 190 in each request, and then the topic with the limit."""
    world = World([parse_spec("topic=rows,bytes_in_rate=100kB"), without_burst("total,bytes_in_rate=1GB")])
    pair = Pair(world)
    for number in range(20):
        invented: dict[Topic, list[bytes | None]] = {uuid.UUID(int=1_000 * number + at): [None] for at in range(pieces)}
        pair.client_sends(produce_records(number, invented | {IDS["rows"]: [batch(1, 90_000)]}, version=13))
    assert (pair.sent(), world.debts()) == ([], {})


def test_the_zero_id_is_not_requested() -> None:
    world = World(BY_NAME_AND_TOTAL)
    Pair(world).client_sends(produce_records(1, {uuid.UUID(int=0): [batch(1, 100)]}, version=13))
    assert (requested(world), world.loop.asked) == (set(), 0)
