"""The partitions of Produce requests, and responses with errors for all of these, against kio's codec."""

import datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.apis import PRODUCE
from protocol.produce_partitions import PartitionData, ProducePartitionsWalk
from protocol.produce_refusals import MAX_MESSAGE, MAX_MESSAGES, refused_produce_response
from protocol.topics import Topic
from tests.protocol.kafka_messages import (
    CORRELATION_ID,
    idempotent,
    of_response,
    parsed,
    produce_body,
    record_batch,
    topic_of,
)

VERSIONS = st.integers(3, 13)
TRANSACTIONAL, CONTROL = 16, 32


def read(version: int, body: bytes, cuts: list[int] | None = None) -> list[PartitionData]:
    """The partitions of a request whose body arrives in pieces of these sizes."""
    walk = ProducePartitionsWalk(version, len(body), 0)
    found, shown, at = [], 0, 0
    sizes = iter(cuts or [])
    while not walk.is_over:
        shown = min(len(body), max(shown + next(sizes, len(body)), at + 1))
        buf = bytearray(body[at:shown])
        at += walk.advance(buf, 0, len(buf))
        found += walk.take_partitions()
    return found


records = st.none() | st.binary(max_size=90) | st.integers(0, 2**31 - 1).map(idempotent)


@given(
    version=VERSIONS,
    topics=st.lists(st.lists(records, max_size=4), max_size=4),
    cuts=st.lists(st.integers(1, 60), max_size=20),
)
def test_all_partitions_are_found_at_any_split(version: int, topics: list[list[bytes | None]], cuts: list[int]) -> None:
    body = produce_body(version, ((topic_of(version, at), each) for at, each in enumerate(topics)))
    found = [(each.topic, each.partition, each.record_bytes) for each in read(version, body, cuts)]
    assert found == [
        (topic_of(version, at), index, len(each or b""))
        for at, partitions in enumerate(topics)
        for index, each in enumerate(partitions)
    ]


@given(version=VERSIONS, sequence=st.integers(0, 2**31 - 1))
@example(version=9, sequence=2**31 - 3)
def test_what_each_partition_contains(version: int, sequence: int) -> None:
    one, none = idempotent(sequence), ((-1, -1), -1, -1)
    batches = {
        one: (4, ((7, 2), sequence, (sequence + 4) % 2**31)),
        idempotent(sequence, attributes=TRANSACTIONAL): (4, none),
        idempotent(sequence, attributes=CONTROL): (4, none),
        idempotent(-1, producer_id=-1): (4, none),
        one + one: (0, none),
        one[:-1]: (0, none),
        record_batch(4, b"\x01" * 40, magic=1): (0, none),
        b"": (0, none),
    }
    topic = topic_of(version, 0)
    found = read(version, produce_body(version, [(topic, list(batches))]))
    for each, (records, (messages, producer)) in zip(found, batches.items(), strict=True):
        assert (each.topic, each.record_bytes, each.messages) == (topic, len(records), messages)
        assert (each.producer, each.sequence, each.next_sequence) == producer


def test_a_partition_is_found_before_its_records_arrive() -> None:
    body = produce_body(9, [("t", [idempotent(3, payload=bytes(1_000)), idempotent(7)])])
    walk = ProducePartitionsWalk(9, len(body), 0)
    walk.advance(bytearray(body), 0, 200)
    assert [each.sequence for each in walk.take_partitions()] == [3]
    assert (walk.topics_left, walk.topic) == (0, "t")


@pytest.mark.parametrize("shown", [30, 60, 200, 10_000])
def test_partitions_that_are_left_are_known_in_advance(shown: int) -> None:
    body = produce_body(9, [("t", [idempotent(number) for number in range(20)])])
    walk = ProducePartitionsWalk(9, len(body), 0)
    walk.advance(bytearray(body), 0, min(shown, len(body)))
    found = len(walk.take_partitions())
    assert walk.is_over or 20 - found <= walk.partitions_left <= 21 - found


# ---- responses


def topics_of(version: int, refused: list[tuple[Topic, int]], message: str = "wait") -> tuple[Any, ...]:
    by_topic: dict[Topic, list[Any]] = {}
    for topic, index in refused:
        partition = of_response(
            PRODUCE,
            version,
            "PartitionProduceResponse",
            index=index,
            error_code=ErrorCode.throttling_quota_exceeded,
            base_offset=-1,
            log_append_time=None,
            log_start_offset=-1,
            error_message=message,
        )
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        of_response(
            PRODUCE,
            version,
            "TopicProduceResponse",
            **({"topic_id": UUID(bytes=topic)} if isinstance(topic, bytes) else {"name": topic}),
            partition_responses=tuple(partitions),
        )
        for topic, partitions in by_topic.items()
    )


partition_numbers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, unique=True)


def refusal(version: int, partitions: list[tuple[Topic, int]], message: str = "wait") -> Any:
    correlation_id = int.from_bytes(CORRELATION_ID)
    return parsed(PRODUCE, version, refused_produce_response(version, correlation_id, partitions, 89, message))


@given(version=st.integers(3, 13), numbers=partition_numbers)
def test_all_partitions_are_refused(version: int, numbers: list[tuple[int, int]]) -> None:
    partitions = [(topic_of(version, topic), index) for topic, index in sorted(numbers)]
    response = refusal(version, partitions)
    assert response.responses == topics_of(version, partitions)
    assert response.throttle_time == datetime.timedelta(0)


@given(version=st.integers(3, 13), message=st.text())
@example(version=9, message="\u00e9" * MAX_MESSAGE)
def test_a_message_is_at_most_500_bytes_in_100_partitions(version: int, message: str) -> None:
    topic = topic_of(version, 0)
    found = refusal(version, [(topic, index) for index in range(MAX_MESSAGES + 1)], message).responses[0]
    *_, last_with, without = found.partition_responses
    if version < 8:
        assert not hasattr(without, "error_message")
    else:
        assert message.startswith(last_with.error_message)
        assert min(len(message.encode()), MAX_MESSAGE - 1) <= len(last_with.error_message.encode()) <= MAX_MESSAGE
        assert not without.error_message
