"""The topics of Metadata responses that stream by, against kio's reading of the whole."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.apis import METADATA
from protocol.metadata_topics import MetadataTopicsWalk
from protocol.rewriting import rewriting_walk
from protocol.topics import TopicPartitions
from tests.protocol.kafka_messages import (
    Addresses,
    Resting,
    Taking,
    chunk_sizes,
    of_response,
    response_bytes,
    responses,
    streamed,
)
from tests.protocol.rewriting import run

VERSIONS = range(14)
ERRORS = st.just(ErrorCode.none) | st.sampled_from(ErrorCode)


def topics_in(version: int, response: bytes, sizes: list[int], work: int = 1 << 40) -> list[TopicPartitions]:
    """As the proxy does it: the prefix first, and the walk over what follows. Nothing of that is changed."""
    start = run(rewriting_walk(METADATA, version, len(response), Addresses()), response)
    taking = Taking(MetadataTopicsWalk(version, len(response), start))
    assert streamed(Resting(taking, work), response[start:], sizes) == response[start:]
    assert taking.walk.is_over
    return taking.found


def expected(body: Any) -> list[TopicPartitions]:
    topics = []
    for topic in body.topics:
        if topic.error_code is ErrorCode.none and topic.name is not None:
            topic_id: UUID | None = getattr(topic, "topic_id", None)
            topics.append(TopicPartitions(topic.name, topic_id.bytes if topic_id else None, len(topic.partitions)))
    return topics


@given(data=st.data(), version=st.sampled_from(VERSIONS), sizes=chunk_sizes, work=st.integers(1, 5))
def test_any_response_in_any_splits_a_few_pieces_at_a_time(
    data: st.DataObject, version: int, sizes: list[int], work: int
) -> None:
    body: Any = data.draw(responses(METADATA, version, error_code=ERRORS))
    assert topics_in(version, response_bytes(METADATA, version, body), sizes, work) == expected(body)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("partitions", [0, 1, 3, 20])
def test_the_densest_responses_rest(version: int, partitions: int) -> None:
    made = [partition(version, replicas=0, in_sync=index % 2) for index in range(partitions)]
    response = response_of(version, *[("", made)] * 300)
    start = run(rewriting_walk(METADATA, version, len(response), Addresses()), response)
    resting = Resting(Taking(MetadataTopicsWalk(version, len(response), start)), 10)
    assert streamed(resting, response[start:], []) == response[start:]
    assert resting.rests >= 300 * (1 + partitions) // 13


def partition(version: int, *, replicas: int = 3, in_sync: int = 3) -> Any:
    known = {"partition_index": 0x01020304, "leader_id": 1, "replica_nodes": tuple(range(replicas))}
    return of_response(METADATA, version, "MetadataResponsePartition", **known, isr_nodes=tuple(range(in_sync)))


def response_of(version: int, *topics: tuple[str, list[Any]]) -> bytes:
    made = tuple(
        of_response(
            METADATA,
            version,
            "MetadataResponseTopic",
            name=name,
            partitions=tuple(partitions),
            topic_id=UUID(int=7),
        )
        for name, partitions in topics
    )
    return response_bytes(METADATA, version, of_response(METADATA, version, "MetadataResponse", topics=made))


def topic(version: int, name: str, partitions: int) -> TopicPartitions:
    return TopicPartitions(name, UUID(int=7).bytes if version >= 10 else None, partitions)


@pytest.mark.parametrize("version", [0, 5, 7, 8, 9, 10, 13])
@pytest.mark.parametrize("count", [0, 126, 127, 2_000])
@pytest.mark.parametrize("chunk", [60, 10_000_000])
def test_partitions_that_are_alike(version: int, count: int, chunk: int) -> None:
    response = response_of(
        version, ("a", [partition(version)] * count), ("b", [partition(version, replicas=1)] * count)
    )
    found = topics_in(version, response, [chunk] * (len(response) // chunk))
    assert found == [topic(version, "a", count), topic(version, "b", count)]
