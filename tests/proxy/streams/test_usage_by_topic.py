"""Usage by topic: what is counted of Produce requests and Fetch responses, whole and cut anywhere."""

import struct
import uuid
from collections.abc import Iterable
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.errors import MalformedFrame
from protocol.topics import TopicPartitions
from proxy.config.config import UsageOptions
from proxy.observability.topic_traffic import OTHER_TOPICS
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.protocol.fetch_responses import TOPICS, Partitions, fetch_response, record_bytes, share_response
from tests.protocol.kafka_messages import CORRELATION_ID, idempotent, topic_of
from tests.proxy import frames
from tests.proxy.conversation import cut, without_burst
from tests.proxy.frames import batch, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds

BY_TOPIC = UsageOptions(by_topic=True)
ROWS_ID, COLS_ID = uuid.UUID(int=0x70), uuid.UUID(int=0x71)
CORRELATION = int.from_bytes(CORRELATION_ID, "big")
#: None counts records, some do, some hold.
QUOTAS = [
    [],
    ["client-id=etl,producer_byte_rate=1GB,consumer_byte_rate=1GB"],
    ["topic=<default>,bytes_in_rate=1GB,messages_in_rate=1000000"],
    ["client-id=etl,producer_byte_rate=3000"],
    ["topic=rows,bytes_in_rate=2000", "user=ANONYMOUS,producer_ids_rate=2"],
]


def world_with(quotas: Iterable[str | QuotaEntry] = (), **options: Any) -> World:
    options.setdefault("usage", BY_TOPIC)
    world = World([parse_spec(each) if isinstance(each, str) else each for each in quotas], **options)
    world.context.topics.learn([TopicPartitions("rows", ROWS_ID.bytes, 3)])
    return world


def produced_of(world: World) -> dict[str, tuple[int, int]]:
    """Bytes and messages by topic, of the client `etl`."""
    return {topic: counts[:2] for (client_id, topic), counts in world.topics().items() if client_id == "etl"}


def check_totals(world: World) -> None:
    """Records are a part of what a client sends and receives."""
    for entity in world.metrics.entities:
        assert entity.topics is not None
        assert sum(each.produce_bytes for each in entity.topics.values()) <= entity.produce_bytes
        assert sum(each.fetch_bytes for each in entity.topics.values()) <= entity.fetch_bytes


# ---- produce
@pytest.mark.claim(
    "pipeline/records", "requests with acks=0, and of those that were read the idempotent and uncompressed"
)
@pytest.mark.parametrize("options", [{}, {"usage": UsageOptions()}], ids=["by topic", "not read"])
def test_facts_about_requests_are_counted_where_they_are_read_anyway(options: dict[str, Any]) -> None:
    world = world_with(**options)
    for codec, producer_id, acks, count in ((0, -1, 1, 4), (4, 7, 1, 8), (4, -1, 0, 16)):
        pair = Pair(world)
        sent = produce_records(1, {"rows": [batch(1, 100, codec=codec, producer_id=producer_id)]}, 9, acks)
        pair.client_sends(sent)
        pair.client_sends(sent * count)
        assert pair.to_broker == sent * (count + 1)
    [entity] = world.metrics.entities
    facts = entity.facts
    found = facts.unanswered, facts.inspected, facts.idempotent, facts.uncompressed
    assert found == ((17, 31, 9, 5) if not options else (17, 0, 0, 0))


BATCH = st.tuples(st.sampled_from([1, 4, 30]), st.sampled_from([61, 70, 300, 17_000]), st.sampled_from([0, 4]))
#: Partitions with batches, of up to three topics.
SENT = st.dictionaries(
    st.sampled_from(["rows", "cols", "idle"]),
    st.lists(st.lists(BATCH, max_size=3), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


@settings(max_examples=50)
@given(
    quotas=st.sampled_from(QUOTAS),
    version=st.sampled_from([0, 3, 8, 9, 12, 13]),
    sent=st.lists(st.tuples(SENT, st.integers(1, 5)), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 3_000), max_size=6),
)
def test_produced_records(
    quotas: list[str],
    version: int,
    sent: list[tuple[dict[str, list[list[tuple[int, int, int]]]], int]],
    cuts: list[int],
) -> None:
    """Each request several times: what reaches the broker is what is counted, once, also if it was held."""
    pair = Pair(world := world_with(quotas), cuts=cuts)
    ids = {"rows": ROWS_ID, "cols": COLS_ID, "idle": uuid.UUID(int=0x72)}
    if any(quota.startswith("topic=") for quota in quotas):  # else a request with an id that is not known is refused
        world.context.topics.learn([TopicPartitions(name, each.bytes, 3) for name, each in ids.items()])
    totals: dict[str, tuple[int, int]] = {}
    everything = b""
    for number, (topics, times) in enumerate(sent):
        made: dict[frames.Topic, list[bytes | None]] = {}
        for topic, partitions in topics.items():
            made[topic if version < 13 else ids[topic]] = [
                b"".join(batch(min(count, (size - 61) // 7), size, codec=codec) for count, size, codec in each) or None
                for each in partitions
            ]
            batches = [each for partition in partitions for each in partition]
            messages = sum(min(count, (size - 61) // 7) for count, size, _ in batches)
            name = topic if version < 13 or world.context.topics.name_of(ids[topic].bytes) else OTHER_TOPICS
            record_bytes, before = totals.get(name, (0, 0))
            totals[name] = record_bytes + times * sum(each[1] for each in batches), before + times * messages
        data = b"".join(produce_records(number * 10 + again, made, version) for again in range(times))
        everything += data
        pair.client_sends(data)
        pass_holds(world)
    assert bytes(pair.to_broker) == everything
    assert produced_of(world) == {name: total for name, total in totals.items() if total[0]}
    check_totals(world)


@pytest.mark.parametrize("cuts", [[], [40]], ids=["whole", "cut"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_topic_without_a_name_is_another(partitions: int, cuts: list[int]) -> None:
    world = world_with([])
    Pair(world, cuts=cuts).client_sends(produce_records(1, {"": [batch(4, 300)] * partitions}, 12))
    assert produced_of(world) == {OTHER_TOPICS: (300 * partitions, 4 * partitions)}


@pytest.mark.parametrize("first", ["", "topic=other,bytes_in_rate=1GB", "topic=<default>,bytes_in_rate=1GB"])
def test_records_are_forwarded_and_counted_as_they_arrive(first: str) -> None:
    """But for the beginning of a batch: its header says how many messages it has."""
    pair = Pair(world := world_with([first] if first else []))
    sent = produce_records(1, {"cols": [batch(3, 30_000)], "rows": [batch(1, 90_000), batch(1, 70)]})
    pair.client_sends(sent[:20_000])
    assert (len(pair.to_broker), pair.requests.backlog.kept) == (20_000, b"")
    forwarded = 20_000 - sent.index(b"cols") - len("cols") - 1 - 4 - 3
    assert produced_of(world) == {"cols": (forwarded, 2)}, "messages in proportion, whether the rest comes or not"
    pair.client_sends(sent[20_000:70_000])
    pair.client_sends(sent[70_000:])
    assert bytes(pair.to_broker) == sent
    assert produced_of(world) == {"cols": (30_000, 3), "rows": (90_070, 2)}


def test_a_refused_request_is_no_usage() -> None:
    """It is counted when it is sent again and passes."""
    pair = Pair(world := world_with([without_burst("topic=noisy,bytes_in_rate=1000,action=reject")]))
    pair.connection.identity.refusal_error = 19
    for number in range(3):
        pair.client_sends(produce_records(number, {"noisy": [idempotent(4 * number)]}, 9))
    assert produced_of(world) == {"noisy": (101, 4)}
    world.clock.pass_seconds(1)
    pair.client_sends(produce_records(3, {"noisy": [idempotent(4)]}, 9))
    assert produced_of(world) == {"noisy": (202, 8)}
    check_totals(world)


# ---- fetch
def fetched(pair: Pair, version: int, topics: list[Partitions], cuts: list[int]) -> bytes:
    """A fetch and its response; returns what the client receives."""
    response = fetch_response(version, topics)
    pair.cuts = []
    pair.client_sends(frames.fetch(CORRELATION, version))
    pair.cuts = [size for size in cuts if size]
    before = len(pair.to_client)
    pair.broker_sends(frames.frame(response))
    return bytes(pair.to_client[before:])


@given(
    quotas=st.sampled_from(QUOTAS[:3]),
    version=st.sampled_from([0, 3, 4, 11, 12, 13, 15, 16, 18]),
    topics=TOPICS,
    cuts=st.lists(st.integers(0, 700), max_size=200),
)
def test_fetched_records(quotas: list[str], version: int, topics: list[Partitions], cuts: list[int]) -> None:
    world = world_with(quotas)
    names = {topic_of(version, index): f"topic-{index}" for index in range(len(topics))}
    if version >= 13:
        world.context.topics.learn([TopicPartitions(name, topic, 1) for topic, name in names.items()])  # type: ignore[arg-type]
    pair = Pair(world)
    assert len(fetched(pair, version, topics, cuts)) == 4 + len(fetch_response(version, topics))
    counted = {topic: counts[2] for (_, topic), counts in world.topics().items()}
    assert counted == {names[topic]: size for topic, size in record_bytes(version, topics).items()}
    check_totals(world)
    pair.hang_up()
    assert not world.memory.used


def test_share_fetch() -> None:
    pair = Pair(world := world_with())
    pair.client_sends(frames.share_fetch(CORRELATION))
    world.context.topics.learn([TopicPartitions("shared", topic_of(13, 0), 1)])  # type: ignore[arg-type]
    pair.broker_sends(frames.frame(share_response(1, [[bytes(300), bytes(100)]])))
    assert world.topics() == {("etl", "shared"): (0, 0, 400)}


def test_an_unknown_id_is_counted_as_other_and_learnt_from_metadata() -> None:
    """Metadata responses are read for it, whatever the limits are."""
    pair = Pair(world := world_with())
    records: list[Partitions] = [[batch(4, 300)]]
    fetched(pair, 17, records, [])
    pair.client_sends(produce_records(1, {uuid.UUID(bytes=topic_of(17, 0)): [batch(1, 100)]}, 13))  # type: ignore[arg-type]
    pair.broker_sends(frames.produced(1, 13))
    assert world.topics() == {("etl", OTHER_TOPICS): (100, 1, 300)}
    pair.client_sends(frames.metadata(2))
    ids = {"cols": uuid.UUID(bytes=topic_of(17, 0))}  # type: ignore[arg-type]
    pair.broker_sends(frames.metadata_answer(2, {7: (frames.REAL_HOST, frames.REAL_PORT)}, named=ids))
    fetched(pair, 17, records, [])
    assert world.topics() == {("etl", OTHER_TOPICS): (100, 1, 300), ("etl", "cols"): (0, 0, 300)}


def test_a_large_response_is_not_kept() -> None:
    """At the end of a read, only the beginning of a partition."""
    pair = Pair(world := world_with())
    records = b"".join(batch(4, 16_384) for _ in range(256))
    pair.client_sends(frames.fetch(CORRELATION, 17))
    for piece in cut(frames.frame(fetch_response(17, [[records], [records]])), cycle([65_536, 1_000, 200_000])):
        pair.broker_sends(piece)
        assert len(pair.responses.backlog.kept) < 61
    assert len(pair.to_client) > 8 << 20
    assert world.topics() == {("etl", OTHER_TOPICS): (0, 0, 2 * len(records))}


# ---- off
def test_off_nothing_is_parsed_or_counted() -> None:
    pair = Pair(world := world_with(usage=UsageOptions()))
    pair.client_sends(*(frames.produce(n) for n in range(6)))
    pair.client_sends(frames.fetch(7), frames.metadata(8))
    pair.broker_sends(*(frames.produced(n) for n in range(6)), frames.fetched(7))
    assert len(pair.received()) == 7
    assert all(entity.topics is None for entity in world.metrics.entities)
    assert pair.connection.topics is None
    assert world.topics() == {}


def test_a_response_that_is_no_fetch_response_closes_the_connection() -> None:
    """As in all that is parsed; without usage by topic, responses before version 16 are not."""
    pair = Pair(world_with())
    pair.client_sends(frames.fetch(1, 11))
    with pytest.raises(MalformedFrame):
        pair.broker_sends(frames.frame(struct.pack(">iihii", 1, 0, 0, 0, 2**31 - 1)))


# ---- records that the broker refuses
NONE, BUSY = ErrorCode.none, ErrorCode.concurrent_transactions
VERSIONS = [3, 7, 8, 9, 12, 13]


def rows(version: int) -> frames.Topic:
    return ROWS_ID if version >= 13 else "rows"


@pytest.mark.claim(
    "enforcement",
    "usage by topic has the records that the broker accepted, by partition, whatever the version, "
    "the splits and the requests in flight; counters never decrease",
)
@pytest.mark.parametrize("quotas", QUOTAS[:4], ids=["none", "client", "topic", "held"])
@pytest.mark.parametrize("cuts", [[], [40], [300]], ids=["whole", "cut", "late"])
@pytest.mark.parametrize("version", VERSIONS)
def test_refused_records_count_when_they_are_accepted(version: int, cuts: list[int], quotas: list[str]) -> None:
    """Partitions of other sizes: each counts as the response has it."""
    world, topic = world_with(quotas), rows(version)
    pair = Pair(world, cuts=cuts)
    pair.client_sends(produce_records(1, {topic: [batch(1, 100), batch(5, 300), batch(2, 80)]}, version))
    pass_holds(world)
    assert produced_of(world) == {"rows": (480, 8)}
    pair.broker_sends(frames.refused(1, {topic: [BUSY, NONE, BUSY]}, version))
    assert produced_of(world) == {"rows": (300, 5)}
    pair.client_sends(produce_records(2, {topic: [batch(1, 100)]}, version))
    pass_holds(world)
    pair.broker_sends(frames.refused(2, {topic: [BUSY]}, version))
    assert produced_of(world) == {"rows": (300, 5)}
    pair.client_sends(produce_records(3, {topic: [batch(1, 100)]}, version))
    pass_holds(world)
    pair.broker_sends(frames.refused(3, {topic: [NONE]}, version))
    assert produced_of(world) == {"rows": (400, 6)}
    assert len(pair.received()) == 3
    assert [entity.topics["rows"].refused_bytes for entity in world.metrics.entities if entity.topics] == [280]


@pytest.mark.claim(
    "enforcement",
    "usage by topic has the records that the broker accepted, by partition, whatever the version, "
    "the splits and the requests in flight; counters never decrease",
)
@pytest.mark.parametrize("partitions", [1, 2, 90])
@pytest.mark.parametrize("version", VERSIONS)
def test_one_refused_request_of_many_in_flight(version: int, partitions: int) -> None:
    """Requests in a row, and their responses in one read: of the others nothing is taken back."""
    world, topic = world_with(), rows(version)
    pair = Pair(world)
    for first in (0, 40):
        sent = [produce_records(first + n, {topic: [batch(n % 7, 200 + n)] * partitions}, version) for n in range(40)]
        pair.client_sends(*sent)
        errors = {3: [BUSY] * partitions, 17: [BUSY] + [NONE] * (partitions - 1), 39: [BUSY] * partitions}
        answers = [frames.refused(first + n, {topic: errors.get(n, [NONE] * partitions)}, version) for n in range(40)]
        before = len(pair.to_client)
        pair.broker_sends(*answers)
        assert bytes(pair.to_client[before:]) == b"".join(answers)
    accepted = {n: partitions - errors.get(n, []).count(BUSY) for n in range(40)}
    size = 2 * sum((200 + n) * count for n, count in accepted.items())
    assert produced_of(world) == {"rows": (size, 2 * sum(n % 7 * count for n, count in accepted.items()))}


@pytest.mark.parametrize("version", VERSIONS)
def test_of_several_topics_one_is_refused(version: int) -> None:
    """Also of one whose name was not known when its records passed, and is now."""
    pair = Pair(world := world_with())
    here, there = rows(version), COLS_ID if version >= 13 else "cols"
    for number in range(3):
        sent = {here: [batch(1, 100), batch(2, 200)], there: [batch(4, 400)]}
        pair.client_sends(produce_records(number, sent, version))
    world.context.topics.learn([TopicPartitions("cols", COLS_ID.bytes, 3)])
    for number in range(2):
        pair.broker_sends(frames.refused(number, {there: [BUSY], here: [NONE, BUSY]}, version))
    assert produced_of(world) == {"rows": (500, 5), OTHER_TOPICS if version >= 13 else "cols": (400, 4)}


def test_without_a_response_records_count_as_sent() -> None:
    """With acks=0, and where the connection breaks before."""
    pair = Pair(world := world_with())
    pair.client_sends(*(produce_records(n, {"rows": [batch(1, 100)]}, acks=0) for n in range(3)))
    pair.client_sends(*(produce_records(n, {"rows": [batch(1, 100)]}) for n in range(3, 6)))
    pair.broker_sends(frames.refused(3, {"rows": [BUSY]}))
    pair.hang_up()
    assert produced_of(world) == {"rows": (500, 5)}


def test_answered_requests_are_forgotten() -> None:
    """What is kept for responses is bounded by the requests in flight, and by the partitions in them."""
    pair = Pair(world_with())
    records = pair.response_stream.answers.sent_records
    assert records is not None
    for number in range(200):
        pair.client_sends(produce_records(number, {"rows": [batch(1, 100)] * (1 + number % 2)}))
        pair.broker_sends(frames.refused(number, {"rows": [NONE] * (1 + number % 2)}))
        assert len(records) <= 1
    pair.client_sends(*(produce_records(n, {"rows": [batch(1, 70)] * 126}) for n in range(200)))
    assert sum(len(partitions) for _, partitions, _ in records) <= 26_000
