"""Requests that create or delete partitions: how many, of which topics, and how some of them are refused (KIP-599).

CreateTopics, CreatePartitions and DeleteTopics are rare and small, so they are held and decoded whole. What counts is
what a request asks for, `validate_only` or not, as in Kafka; but Kafka's controller knows which topics there are, and
the proxy only what it has seen:

- CreateTopics: the manual assignments, else the number of partitions, else (-1: the broker's default) 1;
- CreatePartitions: the new number less the present one where that is known, else the manual assignments, else 1;
- DeleteTopics: the topic's partitions where their number is known, else 1.

Each topic counts 1 at least, and at most what a controller would create. A topic that is listed twice is told of once:
brokers refuse it.

From the versions in `STRICT_FROM` on clients take a topic refused with error 89 for what it is, and ask again when the
throttle time is over. In older ones every request is let through, and only the throttle time is told.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.errors import UnknownApi, UnsupportedVersion
from protocol.messages import decode, encode
from protocol.topics import Topic
from protocol.wire import skip, skip_tags

STRICT_FROM = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
REFUSAL_MESSAGE = "The throttling quota has been exceeded."
"""Kafka's own for THROTTLING_QUOTA_EXCEEDED."""

MAX_PARTITIONS_PER_BATCH = 10_000
"""More partitions in one request than this Kafka's controller refuses (ReplicationControlManager), so no topic counts
more: a request for 2,147,483,647 partitions creates none, and must not spend a shared limit for years."""

FIRST_DELETE_TOPICS_WITH_IDS = 6
FIRST_CREATE_TOPICS_WITH_IDS = 7
FIRST_CREATE_TOPICS_WITH_VALIDATE_ONLY = 1

# Versions that Kafka 4.0 dropped, and kio with them, by the next one: its requests have the same layout, but for
# `validate_only` at the end of CreateTopics, which 0 has not.
_FIRST_SCHEMA = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}
_RESULTS = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}

_INT32 = Struct(">i")


class Mutation(NamedTuple):
    topic: Topic
    """By id only in DeleteTopics 6+."""
    partitions: int
    """How many are created or deleted."""


def is_strict(api_key: int, version: int) -> bool:
    """Whether clients of this version understand that single topics are refused."""
    return api_key in STRICT_FROM and version >= STRICT_FROM[api_key]


class MutationRequest:
    """One request of CreateTopics, DeleteTopics or CreatePartitions."""

    def __init__(self, api_key: int, version: int, request: bytes, body_start: int) -> None:
        """Decodes it.

        Args:
            request: the whole of it, from its API key on.
            body_start: where in it the body begins: `RequestHeader.body_offset` less the four bytes of the length.

        Raises:
            UnknownApi: another API.
            UnsupportedVersion: the table does not let this version pass.
            MalformedFrame: the bytes are no such request.
        """
        _check(api_key, version)
        self._api_key = api_key
        self._version = version
        self._header = request[:body_start]
        if api_key == CREATE_TOPICS and version < FIRST_CREATE_TOPICS_WITH_VALIDATE_ONLY:
            request += b"\x00"
        # kio has one class for each version of a message, all alike in what is used here: hence `Any`.
        schema: Any = load_request_schema(api_key, max(version, _FIRST_SCHEMA[api_key]))
        self._body: Any = decode(schema, request, body_start)

    def mutations(self, partitions_of: Callable[[Topic], int | None]) -> list[Mutation]:
        """What the request asks for, topic by topic.

        Args:
            partitions_of: how many partitions a topic has, `None` where that is not known.
        """
        by_topic = {}
        for state in self._states():
            topic = self._topic_of(state)
            if topic is not None and topic not in by_topic:
                partitions = self._partitions(state, partitions_of(topic))
                by_topic[topic] = Mutation(topic, min(max(1, partitions), MAX_PARTITIONS_PER_BATCH))
        return list(by_topic.values())

    def without(self, refused: Collection[Topic]) -> bytes:
        """The request, from its API key on, that asks for all but these topics. It may ask for nothing.

        Raises:
            UnsupportedVersion: nothing is refused in this version.
        """
        _check_strict(self._api_key, self._version)
        kept = tuple(state for state in self._states() if self._topic_of(state) not in refused)
        field = "topics" if hasattr(self._body, "topics") else "topic_names"
        return self._header + encode(replace(self._body, **{field: kept}))

    def _states(self) -> tuple[Any, ...]:
        """What the request says of each topic; in DeleteTopics up to 5 that is its name."""
        states: tuple[Any, ...] = self._body.topics if hasattr(self._body, "topics") else self._body.topic_names
        return states

    def _topic_of(self, state: Any) -> Topic | None:
        if isinstance(state, str):
            return state
        name: str | None = state.name
        topic_id: UUID | None = getattr(state, "topic_id", None)
        if (name is None) == (topic_id is None):
            return None  # both or neither: the broker answers the whole request with INVALID_REQUEST
        return topic_id.bytes if topic_id is not None else name

    def _partitions(self, state: Any, present: int | None) -> int:
        if self._api_key == CREATE_TOPICS:
            return len(state.assignments) or int(state.num_partitions)
        if self._api_key == DELETE_TOPICS:
            return present or 0
        if present is not None:
            return int(state.count) - present
        return len(state.assignments or ())


def refused_response(
    api_key: int, version: int, correlation_id: int, refused: Collection[Topic], throttle_time_ms: int
) -> bytes:
    """The answer to a request none of whose topics may pass, from its correlation id on.

    Args:
        refused: as `MutationRequest.mutations` named them.
        throttle_time_ms: after which the client shall ask again.

    Raises:
        UnknownApi: another API.
        UnsupportedVersion: nothing is refused in this version.
    """
    _check_strict(api_key, version)
    schema: Any = load_response_schema(api_key, version)
    body = schema(
        throttle_time=timedelta(milliseconds=throttle_time_ms),
        **{_RESULTS[api_key]: tuple(_refusal(api_key, version, topic) for topic in refused)},
    )
    header = _INT32.pack(correlation_id) + (b"\x00" if APIS[api_key].response_header_is_flexible(version) else b"")
    return header + encode(body)


def merged_response(
    api_key: int, version: int, response: bytes, refused: Collection[Topic], throttle_time_ms: int
) -> bytes:
    """The broker's answer to `MutationRequest.without`, with the refused topics added.

    Args:
        response: the whole of it, from its correlation id on.
        refused: as `MutationRequest.mutations` named them.
        throttle_time_ms: the answer says the larger of this and the broker's own.

    Raises:
        UnknownApi: another API.
        UnsupportedVersion: nothing is refused in this version.
        MalformedFrame: the bytes are no such response.
    """
    _check_strict(api_key, version)
    body_start = _response_body_start(api_key, version, response)
    body: Any = decode(load_response_schema(api_key, version), response, body_start)
    results = getattr(body, _RESULTS[api_key]) + tuple(_refusal(api_key, version, topic) for topic in refused)
    throttle_time = max(body.throttle_time, timedelta(milliseconds=throttle_time_ms))
    merged = replace(body, throttle_time=throttle_time, **{_RESULTS[api_key]: results})
    return response[:body_start] + encode(merged)


def throttled_response(api_key: int, version: int, response: bytes, throttle_time_ms: int) -> bytes:
    """The broker's answer with the larger of its own throttle time and `throttle_time_ms`, and nothing else changed.

    Args:
        response: from its correlation id on. It stays as it is in versions that have no throttle time.

    Raises:
        UnknownApi: another API.
        UnsupportedVersion: the table does not let this version pass.
        TruncatedFrame: the response ends before its throttle time does.
    """
    _check(api_key, version)
    throttle_from = APIS[api_key].throttle_from
    if throttle_from is None or version < throttle_from:
        return response
    at = _response_body_start(api_key, version, response)
    behind = skip(at, 4, len(response), 0, "throttle time")
    if _INT32.unpack_from(response, at)[0] >= throttle_time_ms:
        return response
    return response[:at] + _INT32.pack(throttle_time_ms) + response[behind:]


def _check(api_key: int, version: int) -> None:
    if api_key not in STRICT_FROM:
        raise UnknownApi(api_key)
    api = APIS[api_key]
    if not api.covers(version):
        raise UnsupportedVersion(api.name, version)


def _check_strict(api_key: int, version: int) -> None:
    _check(api_key, version)
    if not is_strict(api_key, version):
        raise UnsupportedVersion(APIS[api_key].name, version)


def _response_body_start(api_key: int, version: int, response: bytes) -> int:
    body_start = skip(0, 4, len(response), 0, "correlation id")
    if APIS[api_key].response_header_is_flexible(version):
        body_start = skip_tags(response, body_start, len(response), 0)
    return body_start


def _refusal(api_key: int, version: int, topic: Topic) -> Any:
    """The result of one topic, with all else as Kafka's own results leave it that bear an error."""
    module: Any = load_payload_module(api_key, version, EntityType.response)
    error = {"error_code": ErrorCode.throttling_quota_exceeded, "error_message": REFUSAL_MESSAGE}
    if api_key == CREATE_PARTITIONS:
        return module.CreatePartitionsTopicResult(name=topic, **error)
    if api_key == CREATE_TOPICS:
        no_id = {"topic_id": None} if version >= FIRST_CREATE_TOPICS_WITH_IDS else {}
        return module.CreatableTopicResult(name=topic, configs=(), **no_id, **error)
    if version < FIRST_DELETE_TOPICS_WITH_IDS:
        return module.DeletableTopicResult(name=topic, **error)
    name, topic_id = (topic, None) if isinstance(topic, str) else (None, UUID(bytes=topic))
    return module.DeletableTopicResult(name=name, topic_id=topic_id, **error)
