"""What of a Produce request a broker refused, from its response."""

from fractions import Fraction
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from protocol.apis import APIS, PRODUCE
from protocol.messages import decode
from protocol.produce_walk import FIRST_WITH_TOPIC_IDS
from protocol.topics import NO_TOPIC_ID, Topic

FIRST_WITH_SCHEMA = 3


def refused_share(version: int, response: bytes) -> dict[Topic, Fraction]:
    """Topics (names, from version 13 on the 16 bytes of ids) of which partitions met an error, and the share of those.

    Args:
        response: from its correlation id on, whole.

    Nothing for versions 0 to 2, which Kafka 4.0 and later refuse and kio has no schema for.

    Raises:
        MalformedFrame: the response is not what its version says.
    """
    if version < FIRST_WITH_SCHEMA:
        return {}
    start = 5 if APIS[PRODUCE].response_header_is_flexible(version) else 4
    body: Any = decode(load_response_schema(PRODUCE, version), response, start)
    by_id = version >= FIRST_WITH_TOPIC_IDS
    refused: dict[Topic, Fraction] = {}
    for topic in body.responses:
        partitions = topic.partition_responses
        failed = sum(partition.error_code is not ErrorCode.none for partition in partitions)
        if failed:
            name = topic.topic_id.bytes if by_id and topic.topic_id else NO_TOPIC_ID if by_id else str(topic.name)
            refused[name] = Fraction(failed, len(partitions))
    return refused
