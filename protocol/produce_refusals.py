"""Responses to Produce requests that were refused: an error for each partition. For the layout see `produce`."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from protocol.produce import FIRST_FLEXIBLE, FIRST_WITH_LOG_START, FIRST_WITH_RECORD_ERRORS
from protocol.topics import Topic
from protocol.wire import INT32, encode_count, encode_string

THROTTLING_QUOTA_EXCEEDED: Final = 89
NOT_ENOUGH_REPLICAS: Final = 19
UNKNOWN_TOPIC_ID: Final = 100
KAFKA_STORAGE_ERROR: Final = 56
FIRST_WITH_STORAGE_ERROR: Final = 4
"""Clients that send earlier versions of Produce do not know KAFKA_STORAGE_ERROR, and so do not try again."""
MAX_MESSAGE: Final = 500
"""Bytes of an error message; a longer one is cut."""
MAX_MESSAGES: Final = 100
"""Partitions of one response that have the message: with more it could be longer than the request."""

_NO_OFFSET: Final = (-1).to_bytes(8, "big", signed=True)
_INDEX_AND_ERROR = Struct(">ih")


def refused_produce_response(
    version: int, correlation_id: int, partitions: Sequence[tuple[Topic, int]], error_code: int, message: str
) -> bytes:
    """The response that refuses these partitions, from its correlation id on, without a throttle time.

    Args:
        version: 3 or later, as requests with batches of idempotent producers have it.
        partitions: of the request, in its order: topic and index.
        message: for the client's log, from version 8 on.
    """
    compact = version >= FIRST_FLEXIBLE
    tags = b"\x00" if compact else b""
    by_topic: dict[Topic, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    parts = [INT32.pack(correlation_id), tags, encode_count(len(by_topic), compact)]
    messages_left = MAX_MESSAGES
    after_error = _after_error(version, message)
    for topic, indexes in by_topic.items():
        parts.append(topic if isinstance(topic, bytes) else encode_string(topic.encode(), compact))
        parts.append(encode_count(len(indexes), compact))
        for index in indexes:
            if not messages_left:
                after_error = _after_error(version, "")
            messages_left -= 1
            parts += [_INDEX_AND_ERROR.pack(index, error_code), after_error]
        parts.append(tags)
    return b"".join([*parts, bytes(4), tags])


def _after_error(version: int, message: str) -> bytes:
    """A partition's fields after its error code: as Kafka writes them for a partition with an error."""
    compact = version >= FIRST_FLEXIBLE
    offsets = _NO_OFFSET * (3 if version >= FIRST_WITH_LOG_START else 2)
    if version < FIRST_WITH_RECORD_ERRORS:
        return offsets
    text = message.encode()[:MAX_MESSAGE].decode(errors="ignore").encode()
    return offsets + encode_count(0, compact) + encode_string(text, compact) + (b"\x00" if compact else b"")
