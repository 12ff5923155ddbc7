"""The frames of the benchmarks are what they claim, by kio's word."""

import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from bench import frames


def decode(frame: bytes, entity_type: Any) -> tuple[Any, Any]:
    """(header, body) of a whole frame, every byte of which must be used."""
    header, header_bytes = entity_reader(entity_type.__header_schema__)(frame, 4)
    body, body_bytes = entity_reader(entity_type)(frame, 4 + header_bytes)
    assert 4 + header_bytes + body_bytes == len(frame) == 4 + struct.unpack_from(">i", frame)[0]
    return header, body


@pytest.mark.parametrize("size", [256, 1024, 16 * 1024, 1 << 20])
def test_a_produce_request_has_exactly_the_size_asked_for(size: int) -> None:
    frame = frames.produce_request(size, "some-client")
    header, body = decode(frame, frames.schema("produce", frames.PRODUCE_VERSION, "request").ProduceRequest)

    assert len(frame) == size
    assert header.client_id == "some-client"
    assert body.acks == -1
    (partition,) = body.topic_data[0].partition_data
    (batch_length,) = struct.unpack_from(">i", partition.records, 8)
    assert batch_length + 12 == len(partition.records)


@pytest.mark.parametrize(("version", "name_of"), [(12, "name"), (13, "topic_id")])
def test_a_produce_request_as_real_producers_send_it(version: int, name_of: str) -> None:
    spread = {"version": version, "topics": 3, "partitions": 6, "first_partition": 4}
    frame = frames.produce_request(16_000, "some-client", producer_id=7, codec=3, **spread)
    _, body = decode(frame, frames.schema("produce", version, "request").ProduceRequest)

    assert len(frame) == 16_000
    named = list(frames.TOPICS.values() if name_of == "topic_id" else frames.TOPICS)
    assert [getattr(topic, name_of) for topic in body.topic_data] == named
    assert [[each.index for each in topic.partition_data] for topic in body.topic_data] == [[4, 5], [6, 7], [8, 9]]
    for topic in body.topic_data:
        for each in topic.partition_data:
            attributes, producer_id = struct.unpack_from(">h", each.records, 21) + struct.unpack_from(
                ">q", each.records, 43
            )
            assert (attributes, producer_id) == (3, 7)

    _, answer = decode(frames.produce_answer(**spread), frames.schema("produce", version, "response").ProduceResponse)
    assert [[each.index for each in topic.partition_responses] for topic in answer.responses] == [
        [4, 5],
        [6, 7],
        [8, 9],
    ]


@pytest.mark.parametrize("partitions", [1, 50, 500])
def test_a_fetch_answer_holds_the_records_in_equal_parts(partitions: int) -> None:
    frame = frames.fetch_answer(1 << 20, partitions)
    _, body = decode(frame, frames.schema("fetch", frames.FETCH_VERSION, "response").FetchResponse)

    sizes = [len(each.records) for each in body.responses[0].partitions]
    assert sizes == [(1 << 20) // partitions] * partitions


def test_a_metadata_answer_names_the_nodes_and_partitions() -> None:
    nodes = {0: ("127.0.0.1", 1234), 1: ("127.0.0.1", 2345)}
    frame = frames.metadata_answer(nodes, 1000, frames.METADATA_VERSION)
    _, body = decode(frame, frames.schema("metadata", frames.METADATA_VERSION, "response").MetadataResponse)

    assert len(body.topics[0].partitions) == 1000
    assert frames.nodes_in_metadata(frame) == nodes


@pytest.mark.parametrize("version", range(frames.API_VERSIONS_VERSION + 1))
def test_api_versions_offers_what_the_load_uses(version: int) -> None:
    _, body = decode(
        frames.api_versions_answer(version), frames.schema("api_versions", version, "response").ApiVersionsResponse
    )

    offered = {each.api_key: (each.min_version, each.max_version) for each in body.api_keys}
    assert offered[frames.PRODUCE] == (0, frames.PRODUCE_VERSION)
    assert offered[frames.FETCH][1] == frames.FETCH_VERSION
    assert offered[frames.METADATA] == frames.METADATA_VERSIONS


def test_an_unknown_api_versions_version_gets_the_v0_answer() -> None:
    frame = frames.api_versions_answer(frames.API_VERSIONS_VERSION + 1)
    _, body = decode(frame, frames.schema("api_versions", 0, "response").ApiVersionsResponse)

    assert body.error_code is ErrorCode.unsupported_version
    assert [each.api_key for each in body.api_keys] == [frames.API_VERSIONS]
