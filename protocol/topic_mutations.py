"""Requests that create or delete partitions (KIP-599): how many, and the response that refuses the whole of one.

The request counts, with or without `validate_only`, as in Kafka. But Kafka's controller knows all topics, and the proxy
only those in the Metadata responses that it has forwarded:

- CreateTopics: the manual assignments, or else the number of partitions, or else (-1: the broker's default) 1;
- CreatePartitions: the new number less the present one if that is known, or else the manual assignments, or else 1;
- DeleteTopics: the topic's partitions if their number is known, otherwise 1.

Each topic counts 1 at least, and at most what a controller would create.

Clients of the versions in `STRICT_FROM` and newer accept error 89 for a topic, and request it again after the throttle
time. A response that refuses all topics, in these versions (all flexible):

    correlation id int32, tag buffer, throttle time int32, results array:
        name string, null for one by id, topic id (CreateTopics 7, DeleteTopics 6), error code int16, message string
        number of partitions int32, replication factor int16, configs array (CreateTopics)
        tag buffer
    tag buffer
"""

from collections.abc import Callable
from typing import Any, Final, final

from kio.index import load_request_schema

from protocol.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.messages import decode
from protocol.topics import NO_TOPIC_ID, Topic
from protocol.wire import INT32, encode_string, encode_varint

STRICT_FROM: Final = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}

MAX_ITEMS: Final = 2_000
"""Topics, configs, manual assignments, replicas and unknown tags of one request. It takes up to 6 us for each."""
MAX_PARTITIONS_PER_BATCH: Final = 10_000
"""Kafka's controller refuses a request for more partitions (ReplicationControlManager), so no topic counts more: a
request for 2,147,483,647 partitions creates none, and must not spend a shared limit for years."""
REFUSAL_MESSAGE: Final = "The throttling quota has been exceeded."
"""Kafka's own for THROTTLING_QUOTA_EXCEEDED."""

_OLDEST_OF_KIO: Final = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}
"""Older requests have the same layout, but CreateTopics 0 has no `validate_only` at its end."""
_FIRST_WITH_IDS: Final = {CREATE_TOPICS: 7, DELETE_TOPICS: 6}

_ERROR: Final = (89).to_bytes(2, "big") + encode_string(REFUSAL_MESSAGE.encode(), True)
_END_OF_RESULT: Final = {
    CREATE_TOPICS: _ERROR + b"\xff\xff\xff\xff" + b"\xff\xff" + b"\x01" + b"\x00",
    DELETE_TOPICS: _ERROR + b"\x00",
    CREATE_PARTITIONS: _ERROR + b"\x00",
}


def is_strict(api_key: int, version: int) -> bool:
    """Whether clients of this version accept that topics are refused."""
    return version >= STRICT_FROM[api_key]


@final
class MutationRequest:
    """One request of CreateTopics, DeleteTopics or CreatePartitions."""

    __slots__ = ("_api_key", "_topics", "_version")

    def __init__(self, api_key: int, version: int, request: bytes, body_start: int) -> None:
        """Args:
            version: one that the table lets pass.
            request: the whole of it, from its API key on.
            body_start: offset in it of the body: `RequestHeader.body_offset` less the four bytes of the length.

        Raises:
            TooManyItems: it has more than `MAX_ITEMS`.
            MalformedFrame: the bytes are no such request.
        """
        if api_key == CREATE_TOPICS and not version:
            request += b"\x00"
        schema = load_request_schema(api_key, max(version, _OLDEST_OF_KIO[api_key]))
        # kio has one class for each version of a message, all of the same shape in what is used here: hence `Any`.
        body: Any = decode(schema, request, body_start, MAX_ITEMS)
        self._api_key = api_key
        self._version = version
        self._topics = body.topics if hasattr(body, "topics") else body.topic_names

    def partitions(self, partitions_of: Callable[[Topic], int | None]) -> int:
        """How many partitions are created or deleted.

        Args:
            partitions_of: how many partitions a topic has, `None` where that is not known.
        """
        return sum(min(max(1, self._count(each, partitions_of)), MAX_PARTITIONS_PER_BATCH) for each in self._topics)

    def refusal(self, correlation_id: int, throttle_time_ms: int) -> bytes:
        """The response that refuses all topics with error 89, from its correlation id on; of strict versions only.

        Args:
            throttle_time_ms: after which the client may retry.
        """
        has_ids = self._version >= _FIRST_WITH_IDS.get(self._api_key, self._version + 1)
        end = _END_OF_RESULT[self._api_key]
        parts = [INT32.pack(correlation_id), b"\x00", INT32.pack(throttle_time_ms)]
        parts.append(encode_varint(len(self._topics) + 1))
        for each in self._topics:  # not by kio, which takes 8 us for each
            topic = _topic_of(each)
            parts.append(encode_string(topic.encode(), True) if isinstance(topic, str) else b"\x00")
            if has_ids:
                parts.append(NO_TOPIC_ID if isinstance(topic, str) else topic)
            parts.append(end)
        parts.append(b"\x00")
        return b"".join(parts)

    def _count(self, each: Any, partitions_of: Callable[[Topic], int | None]) -> int:
        if self._api_key == CREATE_TOPICS:
            return len(each.assignments) or int(each.num_partitions)
        present = partitions_of(_topic_of(each))
        if self._api_key == DELETE_TOPICS:
            return present or 0
        return len(each.assignments or ()) if present is None else each.count - present


def _topic_of(each: Any) -> Topic:
    """A topic of a request: its name, or else its id, or `NO_TOPIC_ID`."""
    if isinstance(each, str):
        return each
    if each.name is not None:
        return str(each.name)
    return bytes(each.topic_id.bytes) if each.topic_id else NO_TOPIC_ID
