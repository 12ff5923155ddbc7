"""Metadata by topic id: what is asked, and what is read of the answer."""

from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from protocol.apis import METADATA
from protocol.errors import CorrelationMismatch
from protocol.messages import decode
from protocol.request_header import peek_request
from protocol.topic_metadata_request import VERSION, topics_by_id, topics_by_id_request
from protocol.topics import TopicPartitions
from tests.protocol.kafka_messages import CORRELATION_ID, of_response, response_bytes

IDS = [UUID(int=index + 1).bytes for index in range(3)]
ASKED = int.from_bytes(CORRELATION_ID, "big")


@pytest.mark.parametrize("ids", [[], IDS, IDS * 50])
def test_request(ids: list[bytes]) -> None:
    request = topics_by_id_request(ASKED, ids)

    frame = bytearray(request)
    header = peek_request(frame, 0, len(frame), 1_000_000)
    assert header is not None
    assert (header.api.key, header.version, header.client_id) == (METADATA, VERSION, "kafka-quota-proxy")
    assert request[8:12] == CORRELATION_ID
    body: Any = decode(load_request_schema(METADATA, VERSION), bytes(frame), header.body_offset)
    assert [(topic.topic_id.bytes, topic.name) for topic in body.topics] == [(topic_id, None) for topic_id in ids]
    assert not body.allow_auto_topic_creation


def answer(*topics: tuple[str | None, UUID | None, int, ErrorCode]) -> bytes:
    partition = of_response(METADATA, VERSION, "MetadataResponsePartition", leader_id=1)
    made = tuple(
        of_response(
            METADATA,
            VERSION,
            "MetadataResponseTopic",
            error_code=error,
            name=name,
            topic_id=topic_id,
            partitions=(partition,) * count,
        )
        for name, topic_id, count, error in topics
    )
    return response_bytes(METADATA, VERSION, of_response(METADATA, VERSION, "MetadataResponse", topics=made))


def test_answer() -> None:
    known, unknown, hidden = (UUID(bytes=topic_id) for topic_id in IDS)
    response = answer(
        ("flights", known, 6, ErrorCode.none),
        (None, unknown, 0, ErrorCode.unknown_topic_id),
        ("secret", hidden, 0, ErrorCode.topic_authorization_failed),
        (None, unknown, 0, ErrorCode.none),
        ("old", None, 2, ErrorCode.none),
    )
    assert topics_by_id(ASKED, response) == [
        TopicPartitions("flights", IDS[0], 6),
        TopicPartitions("old", None, 2),
    ]


def test_the_answer_to_something_else() -> None:
    with pytest.raises(CorrelationMismatch) as caught:
        topics_by_id(ASKED + 1, answer())
    assert str(caught.value).startswith(f"response has correlation id {ASKED}, ")
