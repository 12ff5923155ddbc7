"""Responses to requests that create or delete partitions: topics refused with error 89, throttle time (KIP-599).

The first bytes of each, from the first version with a throttle time on:

    correlation id int32, tag buffer (flexible versions), throttle time int32, results array: ...

The results of refused topics go before the broker's own, so the rest of the response streams through unchanged. Clients
find a topic's result by its name or id: Java (`KafkaAdminClient`: a map of futures by name), librdkafka
(`rd_list_index` in the topics asked for; "the broker does not maintain ordering"), kafka-python (returns all results).
"""

from collections.abc import Collection
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS
from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.messages import encode
from protocol.topic_mutations import FIRST_DELETE_TOPICS_WITH_IDS, check_mutation, check_strict
from protocol.topics import TOPIC_ID_SIZE, Topic
from protocol.wire import MAX_VARINT, BytesLike, encode_string, encode_varint, skip, skip_tags, unsigned_varint

REFUSAL_MESSAGE = "The throttling quota has been exceeded."
"""Kafka's own for THROTTLING_QUOTA_EXCEEDED."""
MAX_HEAD = 1_024
"""Bytes of a response up to its first result. Kafka's has at most 14, since it writes no tags into the header."""

FIRST_CREATE_TOPICS_WITH_IDS = 7

_INT32 = Struct(">i")


def refused_response(
    api_key: int, version: int, correlation_id: int, refused: Collection[Topic], throttle_time_ms: int
) -> bytes:
    """The response to a request with all topics refused, from its correlation id on.

    Args:
        refused: as `MutationRequest.mutations` names them.
        throttle_time_ms: after which the client may retry.

    Raises:
        UnknownApi: another API.
        UnsupportedVersion: no topic can be refused in this version.
    """
    check_strict(api_key, version)
    # All of these versions are flexible: an empty tag buffer in the header and at the end.
    start = _INT32.pack(correlation_id) + b"\x00" + _INT32.pack(throttle_time_ms) + encode_varint(len(refused) + 1)
    return start + _refusals(api_key, version, refused) + b"\x00"


class MutationResponseHead:
    """Rewrites the first bytes of the broker's response to a mutation."""

    def __init__(self, api_key: int, version: int, refused: Collection[Topic], throttle_time_ms: int) -> None:
        """Args:
            refused: the topics that were cut out of the request, as `MutationRequest.mutations` names them.
            throttle_time_ms: the response reports the larger of this and the broker's own.

        Raises:
            UnknownApi: another API.
            UnsupportedVersion: the table does not let this version pass, or no topic can be refused in it.
        """
        check_mutation(api_key, version)
        if refused:
            check_strict(api_key, version)
        self._api_key = api_key
        self._version = version
        self._refused = refused
        self._throttle_time_ms = throttle_time_ms

    def rewrite(self, head: BytesLike) -> tuple[bytes, int] | None:
        """What the client receives in place of a response's first bytes.

        Args:
            head: the response from its correlation id on, as far as it has arrived.

        Returns:
            `None` when more bytes are needed. Else the new bytes, and how many bytes of `head` they replace: the
            frame's length changes by the difference. Nothing is replaced in versions without a throttle time.

        Raises:
            MalformedFrame: the bytes are no such response, or its results begin after `MAX_HEAD` bytes.
        """
        api = APIS[self._api_key]
        if api.throttle_from is None or self._version < api.throttle_from:
            return b"", 0
        end = min(len(head), MAX_HEAD)
        try:
            at = skip(0, 4, end, 0, "correlation id")
            if api.response_header_is_flexible(self._version):
                at = skip_tags(head, at, end, 0)
            after = skip(at, 4, end, 0, "throttle time")
            count, results_at = unsigned_varint(head, after, end, 0, "result count") if self._refused else (1, after)
        except TruncatedFrame as error:
            if end == MAX_HEAD:
                raise MalformedFrame(f"{error.what} within {MAX_HEAD} bytes", error.offset) from None
            return None
        throttle_time_ms = max(_INT32.unpack_from(head, at)[0], self._throttle_time_ms)
        new = bytes(head[:at]) + _INT32.pack(throttle_time_ms)
        if self._refused:
            if not 0 < count <= MAX_VARINT - len(self._refused):
                raise MalformedFrame("result count", after)
            new += encode_varint(count + len(self._refused))
            new += _refusals(self._api_key, self._version, self._refused)
        return new, results_at


class _Template(NamedTuple):
    """The result of a refused topic, as kio writes it."""

    after_name: bytes
    """What follows the name."""
    after_id: bytes
    """The bytes after the id, in versions that refuse by id; the name before it is null."""


def _refusals(api_key: int, version: int, refused: Collection[Topic]) -> bytes:
    """The results of refused topics, one after the other."""
    template = _template(api_key, version)
    parts = []
    for topic in refused:
        if isinstance(topic, str):
            parts.append(encode_string(topic.encode(), True))
            parts.append(template.after_name)
        else:
            parts.append(b"\x00")
            parts.append(topic)
            parts.append(template.after_id)
    return b"".join(parts)


@cache
def _template(api_key: int, version: int) -> _Template:
    """All but name and error as in Kafka's own results with an error. The name is the first field."""
    # kio has one class for each version of a message, all of the same shape in what is used here: hence `Any`.
    module: Any = load_payload_module(api_key, version, EntityType.response)
    error: dict[str, Any] = {
        "name": "",
        "error_code": ErrorCode.throttling_quota_exceeded,
        "error_message": REFUSAL_MESSAGE,
    }
    if api_key == CREATE_PARTITIONS:
        result = module.CreatePartitionsTopicResult(**error)
    elif api_key == CREATE_TOPICS:
        no_id = {"topic_id": None} if version >= FIRST_CREATE_TOPICS_WITH_IDS else {}
        result = module.CreatableTopicResult(configs=(), **no_id, **error)
    else:
        no_id = {"topic_id": None} if version >= FIRST_DELETE_TOPICS_WITH_IDS else {}
        result = module.DeletableTopicResult(**no_id, **error)
    after_name = encode(result)[1:]
    return _Template(after_name, after_name[TOPIC_ID_SIZE:])
