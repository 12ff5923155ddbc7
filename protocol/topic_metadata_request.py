"""Encodes a request for the names of topic ids, and decodes the response: Metadata 12 (KIP-516)."""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import METADATA
from protocol.errors import CorrelationMismatch
from protocol.messages import decode, request_frame
from protocol.topics import TopicPartitions
from protocol.wire import skip, skip_tags, unpack_int32

VERSION = 12
"""The first version with ids without names; brokers from 3.1 to 4.3 support it."""


def topics_by_id_request(correlation_id: int, topic_ids: Collection[bytes]) -> bytes:
    """The request, with its length, for topics of these ids, 16 bytes each. No topic is created by it."""
    module: Any = load_payload_module(METADATA, VERSION, EntityType.request)
    topics = tuple(module.MetadataRequestTopic(topic_id=UUID(bytes=topic_id), name=None) for topic_id in topic_ids)
    body = module.MetadataRequest(
        topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return request_frame(body, correlation_id)


def topics_by_id(correlation_id: int, response: bytes) -> list[TopicPartitions]:
    """The topics without error: unknown or unauthorised ones are omitted.

    Args:
        response: the answer to `topics_by_id_request`, from its correlation id on.

    Raises:
        CorrelationMismatch: it answers another request.
        MalformedFrame: the bytes are no such response.
    """
    body_start = skip(0, 4, len(response), 0, "correlation id")
    found: int = unpack_int32(response)[0]
    if found != correlation_id:
        raise CorrelationMismatch(correlation_id, found)
    body_start = skip_tags(response, body_start, len(response), 0)
    body: Any = decode(load_response_schema(METADATA, VERSION), response, body_start)
    return [
        TopicPartitions(topic.name, topic.topic_id and topic.topic_id.bytes, len(topic.partitions))
        for topic in body.topics
        if topic.error_code is ErrorCode.none and topic.name is not None
    ]
