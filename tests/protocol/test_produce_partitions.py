"""Whole Produce requests without some of their partitions, and responses with errors for these, against kio's codec."""

import datetime
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import PRODUCE
from protocol.errors import MalformedFrame, ProtocolError, UnsupportedVersion
from protocol.messages import decode
from protocol.produce_partitions import MAX_PARTITIONS, ProduceRequest, TooManyPartitions
from protocol.produce_refusals import MAX_HEAD, MAX_MESSAGE, Refused, add_refused, refused_produce_response
from protocol.topics import Topic
from tests.protocol.kafka_messages import (
    CORRELATION_ID,
    header,
    idempotent,
    parsed,
    record_batch,
    response_bytes,
    responses,
)
from tests.protocol.test_produce_walk import body_of, topic_of

HEAD = b"h" * 21
"""The bytes before a body: they are not read."""
VERSIONS = st.integers(3, 13)
TRANSACTIONAL, CONTROL = 16, 32


def read(version: int, body: bytes, work: int = MAX_PARTITIONS * 2) -> ProduceRequest:
    request = ProduceRequest(version, HEAD + body, len(HEAD))
    while not request.read(work):
        pass
    return request


def kept_by_kio(version: int, body: bytes) -> list[tuple[Any, list[tuple[int, Any]]]]:
    message: Any = decode(load_request_schema(PRODUCE, version), body, 0)
    return [
        (getattr(topic, "name", None) or topic.topic_id, [(each.index, each.records) for each in topic.partition_data])
        for topic in message.topic_data
    ]


records = st.none() | st.binary(max_size=90) | st.integers(0, 2**31 - 1).map(idempotent)


@given(
    version=VERSIONS,
    topics=st.lists(st.lists(records, max_size=4), max_size=4),
    removed=st.sets(st.integers(0, 15)),
    work=st.integers(1, 5),
    transactional_id=st.none() | st.just("tx"),
)
def test_a_request_without_some_partitions(
    version: int,
    topics: list[list[bytes | None]],
    removed: set[int],
    work: int,
    transactional_id: str | None,
) -> None:
    body = body_of(version, ((topic_of(version, at), each) for at, each in enumerate(topics)), transactional_id)
    request = read(version, body, work)
    rest = request.without(removed)
    assert rest.startswith(HEAD)
    numbers = iter(range(16))
    expected = []
    for topic, partitions in kept_by_kio(version, body):
        kept = [each for each in partitions if next(numbers) not in removed]
        if len(kept) == len(partitions) or kept:
            expected.append((topic, kept))
    assert kept_by_kio(version, rest[len(HEAD) :]) == expected
    after: Any = decode(load_request_schema(PRODUCE, version), rest, len(HEAD))
    assert (after.transactional_id, after.acks, after.timeout) == (transactional_id, -1, datetime.timedelta(seconds=30))
    assert request.without(()) == HEAD + body


@given(version=VERSIONS, transactional_id=st.none() | st.just("tx"), sequence=st.integers(0, 2**31 - 1))
@example(version=9, transactional_id=None, sequence=2**31 - 3)
def test_what_each_partition_contains(version: int, transactional_id: str | None, sequence: int) -> None:
    one, none = idempotent(sequence), (-1, -1, -1, -1)
    known = (7, -1, -1, -1)
    batches = {
        one: (4, (7, 2, sequence, (sequence + 4) % 2**31)),
        idempotent(sequence, attributes=TRANSACTIONAL): (4, known),
        idempotent(sequence, attributes=CONTROL): (4, known),
        idempotent(-1, producer_id=-1): (4, none),
        one + one: (0, none),
        one[:-1]: (0, none),
        record_batch(4, b"\x01" * 40, magic=1): (0, none),
        b"": (0, none),
    }
    topic = topic_of(version, 0)
    found = read(version, body_of(version, [(topic, list(batches))], transactional_id)).partitions
    assert [each.partition for each in found] == list(range(len(batches)))
    for each, (records, (messages, producer)) in zip(found, batches.items(), strict=True):
        assert each.topic == topic
        assert (each.record_bytes, each.messages) == (len(records), messages)
        expected = (*producer[:1], -1, -1, -1) if transactional_id else producer
        assert (each.producer_id, each.epoch, each.sequence, each.next_sequence) == expected


def test_tags_are_kept() -> None:
    tags = b"\x01\x05\x02ab"
    partition = pack(">i", 3) + b"\x01" + tags
    topic = b"\x02t\x03" + partition + partition + tags
    body = b"\x00" + pack(">hi", 1, 9) + b"\x03" + topic + topic + tags
    request = read(9, body)
    assert request.without(()) == HEAD + body
    one = b"\x02t\x02" + partition + tags
    assert request.without({0, 2, 3}) == HEAD + b"\x00" + pack(">hi", 1, 9) + b"\x02" + one + tags


@given(version=VERSIONS, cut=st.integers(0, 400), junk=st.binary(max_size=3))
def test_any_bytes(version: int, cut: int, junk: bytes) -> None:
    body = body_of(version, [(topic_of(version, 0), [idempotent(0), None]), (topic_of(version, 1), [b"x"])])
    broken = body[:cut] + junk
    if broken == body:
        return
    try:
        request = read(version, broken)
    except ProtocolError:
        return
    assert request.without(()) == HEAD + broken


def test_the_number_of_partitions_is_bounded() -> None:
    read(9, body_of(9, [("t", [None] * (MAX_PARTITIONS - 1))]))
    with pytest.raises(TooManyPartitions):
        read(9, body_of(9, [("t", [None] * MAX_PARTITIONS)]))
    with pytest.raises(TooManyPartitions):  # a tagged field takes time too
        read(9, body_of(9, [])[:-1] + b"\xff\xff\x03")
    with pytest.raises(UnsupportedVersion):
        ProduceRequest(2, b"", 0)
    with pytest.raises(UnsupportedVersion):
        ProduceRequest(14, b"", 0)


# ---- responses

ANY_VERSION = st.integers(0, 13)


def refused_of(version: int, numbers: list[tuple[int, int]], message: str = "wait") -> list[Refused]:
    return [Refused(topic_of(version, topic), index, 89, message) for topic, index in sorted(numbers)]


def partition_of(version: int, index: int, message: str = "wait") -> Any:
    module: Any = load_payload_module(PRODUCE, version, EntityType.response)
    more: dict[str, Any] = {"log_append_time": None} if version >= 2 else {}
    more |= {"log_start_offset": -1} if version >= 5 else {}
    more |= {"record_errors": (), "error_message": message} if version >= 8 else {}
    return module.PartitionProduceResponse(
        index=index, error_code=ErrorCode.throttling_quota_exceeded, base_offset=-1, **more
    )


def topics_of(version: int, refused: list[Refused], message: str = "wait") -> tuple[Any, ...]:
    module: Any = load_payload_module(PRODUCE, version, EntityType.response)
    by_topic: dict[Topic, list[int]] = {}
    for each in refused:
        by_topic.setdefault(each.topic, []).append(each.partition)
    return tuple(
        module.TopicProduceResponse(
            **({"topic_id": UUID(bytes=topic)} if isinstance(topic, bytes) else {"name": topic}),
            partition_responses=tuple(partition_of(version, index, message) for index in indexes),
        )
        for topic, indexes in by_topic.items()
    )


partition_numbers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, unique=True)


@given(version=st.integers(3, 13), numbers=partition_numbers, throttle_time_ms=st.integers(0, 5000))
def test_all_partitions_are_refused(version: int, numbers: list[tuple[int, int]], throttle_time_ms: int) -> None:
    refused = refused_of(version, numbers)
    correlation_id = int.from_bytes(CORRELATION_ID)
    response = parsed(PRODUCE, version, refused_produce_response(version, correlation_id, refused, throttle_time_ms))
    assert response.responses == topics_of(version, refused)
    assert response.throttle_time == datetime.timedelta(milliseconds=throttle_time_ms)


@given(version=st.integers(3, 13), data=st.data(), numbers=partition_numbers)
def test_errors_go_before_the_brokers(version: int, data: st.DataObject, numbers: list[tuple[int, int]]) -> None:
    broker = data.draw(responses(PRODUCE, version))
    refused = refused_of(version, numbers)
    frame = response_bytes(PRODUCE, version, broker)
    for size in range(12):
        assert size > len(frame) or add_refused(version, frame[:size], refused) in (
            None,
            add_refused(version, frame, refused),
        )
    added = add_refused(version, frame, refused)
    assert added is not None
    first, replaced = added
    response = parsed(PRODUCE, version, first + frame[replaced:])
    assert response.responses == (*topics_of(version, refused), *broker.responses)
    assert response.throttle_time == broker.throttle_time


@given(version=st.integers(3, 13), message=st.text())
@example(version=9, message="\u00e9" * MAX_MESSAGE)
def test_a_message_is_at_most_500_bytes(version: int, message: str) -> None:
    response = refused_produce_response(version, 0xC0FFEE, refused_of(version, [(0, 0)], message), 0)
    found = parsed(PRODUCE, version, response).responses[0].partition_responses[0]
    if version < 8:
        assert not hasattr(found, "error_message")
    else:
        assert message.startswith(found.error_message)
        assert min(len(message.encode()), MAX_MESSAGE - 1) <= len(found.error_message.encode()) <= MAX_MESSAGE


def test_responses_that_are_malformed() -> None:
    refused = refused_of(9, [(0, 0)])
    with pytest.raises(MalformedFrame):
        add_refused(9, header(PRODUCE, 9) + b"\x00", refused)  # a null array
    with pytest.raises(MalformedFrame):
        add_refused(8, CORRELATION_ID + b"\xff\xff\xff\xff", refused)
    with pytest.raises(MalformedFrame):
        add_refused(9, CORRELATION_ID + b"\x01\x01\xff\x7f" + bytes(MAX_HEAD), refused)
    for call in (add_refused(9, CORRELATION_ID, refused), add_refused(8, CORRELATION_ID + b"\x00", refused)):
        assert call is None
    with pytest.raises(UnsupportedVersion):
        add_refused(14, b"", refused)
