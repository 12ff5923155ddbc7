"""The requests that create and delete partitions, and their responses, by kio's schemas."""

import datetime
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.messages import decode, encode
from tests.protocol.kafka_messages import made, of_request, of_response
from tests.proxy.frames import answer, request

Topic = str | bytes
Answered = tuple[int, str | None]
REFUSED: Answered = (89, "The throttling quota has been exceeded.")
PASSED: Answered = (0, None)
_SECOND = datetime.timedelta(seconds=1)
_OLDEST_KNOWN = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}
_RESULTS = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}


def mutation(api: int, version: int, correlation: int, topics: Mapping[str, int], client_id: str = "etl") -> bytes:
    """A request for these topics, with the number of partitions that is to be created, or to be reached.

    Below the versions that kio knows the layout is that of its oldest, but for CreateTopics 0.
    """
    known = max(version, _OLDEST_KNOWN[api])
    values: dict[str, Any] = {"timeout": _SECOND}
    if api == CREATE_TOPICS:
        values["topics"] = tuple(
            of_request(api, known, "CreatableTopic", name=name, num_partitions=count, replication_factor=1)
            for name, count in topics.items()
        )
        body = of_request(api, known, "CreateTopicsRequest", **values)
    elif api == CREATE_PARTITIONS:
        values["topics"] = tuple(
            of_request(api, known, "CreatePartitionsTopic", name=name, count=count) for name, count in topics.items()
        )
        body = of_request(api, known, "CreatePartitionsRequest", **values)
    else:
        body = _deletion(known, topics)
    return request(api, version, correlation, encode(body), client_id)


def deletion(version: int, correlation: int, topics: Iterable[Topic]) -> bytes:
    """DeleteTopics, from version 6 on also by id."""
    return request(DELETE_TOPICS, version, correlation, encode(_deletion(version, topics)))


def done(
    api: int, version: int, correlation: int, topics: Iterable[Topic], throttle_ms: int = 0, error: int = 0
) -> bytes:
    """A broker's response: the same error for each of the topics."""
    one = {CREATE_TOPICS: "CreatableTopic", DELETE_TOPICS: "DeletableTopic", CREATE_PARTITIONS: "CreatePartitionsTopic"}
    error_code = ErrorCode(error)
    of = partial(of_response, api, version, f"{one[api]}Result", num_partitions=1, replication_factor=1)
    named = [(None, UUID(bytes=topic)) if isinstance(topic, bytes) else (topic, None) for topic in topics]
    results = tuple(of(name=name, topic_id=topic_id, error_code=error_code) for name, topic_id in named)
    throttle_time = datetime.timedelta(milliseconds=throttle_ms)
    body = made(load_response_schema(api, version), throttle_time=throttle_time, **{_RESULTS[api]: results})
    return answer(api, version, correlation, body)


def create(correlation: int, topics: dict[str, int], client_id: str = "etl") -> bytes:
    return mutation(CREATE_TOPICS, 7, correlation, topics, client_id)


def created(correlation: int, topics: Iterable[str], throttle_ms: int = 0) -> bytes:
    return done(CREATE_TOPICS, 7, correlation, topics, throttle_ms)


class Told(NamedTuple):
    """What a response says."""

    correlation: int
    throttle_ms: int
    errors: Mapping[Any, Answered]
    """Code and message of each topic, in the order of the response."""


def told(api: int, version: int, received: bytes) -> Told:
    """A whole response frame as a client reads it."""
    assert int.from_bytes(received[:4], "big") == len(received) - 4
    start = 9 if APIS[api].response_header_is_flexible(version) else 8
    body: Any = decode(load_response_schema(api, version), received, start)
    results = getattr(body, _RESULTS[api])
    errors: dict[Topic, Answered] = {}
    for result in results:
        topic = result.topic_id.bytes if result.name is None else result.name
        errors[topic] = (int(result.error_code), getattr(result, "error_message", None))
    assert len(errors) == len(results), "each topic is told of once"
    return Told(int.from_bytes(received[4:8], "big"), round(body.throttle_time.total_seconds() * 1000), errors)


def _deletion(version: int, topics: Iterable[Topic]) -> Any:
    named = tuple(topics)
    states = tuple(
        of_request(DELETE_TOPICS, version, "DeleteTopicState", name=topic)
        if isinstance(topic, str)
        else of_request(DELETE_TOPICS, version, "DeleteTopicState", topic_id=UUID(bytes=topic))
        for topic in (named if version >= 6 else ())
    )
    values = {"topic_names": named, "topics": states, "timeout": _SECOND}
    return of_request(DELETE_TOPICS, version, "DeleteTopicsRequest", **values)
