"""Responses to Produce requests that were refused: an error for each partition. For the layout see `produce`."""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from protocol.produce import (
    FIRST_FLEXIBLE,
    FIRST_WITH_APPEND_TIME,
    FIRST_WITH_LOG_START,
    FIRST_WITH_RECORD_ERRORS,
    FIRST_WITH_THROTTLE,
)
from protocol.topics import Topic
from protocol.wire import encode_string, encode_varint

THROTTLING_QUOTA_EXCEEDED: Final = 89
NOT_ENOUGH_REPLICAS: Final = 19
MAX_MESSAGE: Final = 500
"""Bytes of an error message; a longer one is cut."""

_NO_OFFSET: Final = (-1).to_bytes(8, "big", signed=True)
_INT32 = Struct(">i")
_INDEX_AND_ERROR = Struct(">ih")


class Refused(NamedTuple):
    """A partition of a refused request. `message`: for the client's log, from version 8 on."""

    topic: Topic
    partition: int
    error_code: int
    message: str


def refused_produce_response(
    version: int, correlation_id: int, refused: Sequence[Refused], throttle_time_ms: int
) -> bytes:
    """The response to a refused request, from its correlation id on.

    Args:
        refused: in the order of the request.
        throttle_time_ms: of other limits; 0 where there are none.
    """
    compact = version >= FIRST_FLEXIBLE
    count, topics = _topics(version, refused)
    head = _INT32.pack(correlation_id) + (b"\x00" if compact else b"")
    throttle = _INT32.pack(throttle_time_ms) if version >= FIRST_WITH_THROTTLE else b""
    return head + _count(count, compact) + topics + throttle + (b"\x00" if compact else b"")


def _topics(version: int, refused: Sequence[Refused]) -> tuple[int, bytes]:
    """The number of topics of these partitions, and their entries."""
    compact = version >= FIRST_FLEXIBLE
    by_topic: dict[Topic, list[Refused]] = {}
    for each in refused:
        by_topic.setdefault(each.topic, []).append(each)
    parts: list[bytes] = []
    for topic, partitions in by_topic.items():
        parts.append(topic if isinstance(topic, bytes) else encode_string(topic.encode(), compact))
        parts.append(_count(len(partitions), compact))
        for each in partitions:
            parts.append(_INDEX_AND_ERROR.pack(each.partition, each.error_code))
            parts.append(_after_error(version, each.message))
        if compact:
            parts.append(b"\x00")
    return len(by_topic), b"".join(parts)


def _after_error(version: int, message: str) -> bytes:
    """A partition's fields after its error code: as Kafka writes them for a partition with an error."""
    compact = version >= FIRST_FLEXIBLE
    offsets = 1 + (version >= FIRST_WITH_APPEND_TIME) + (version >= FIRST_WITH_LOG_START)
    if version < FIRST_WITH_RECORD_ERRORS:
        return _NO_OFFSET * offsets
    text = message.encode()[:MAX_MESSAGE].decode(errors="ignore").encode()
    tags = b"\x00" if compact else b""
    return _NO_OFFSET * offsets + _count(0, compact) + encode_string(text, compact) + tags


def _count(count: int, compact: bool) -> bytes:
    return encode_varint(count + 1) if compact else _INT32.pack(count)
