"""The requests that create and delete partitions, and their responses, by kio's schemas."""

import datetime
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.messages import decode, encode
from tests.proxy.frames import answer, request

Topic = str | bytes
Answered = tuple[int, str | None]
REFUSED: Answered = (89, "The throttling quota has been exceeded.")
PASSED: Answered = (0, None)
_SECOND = datetime.timedelta(seconds=1)
_MODULES = {CREATE_TOPICS: "create_topics", DELETE_TOPICS: "delete_topics", CREATE_PARTITIONS: "create_partitions"}
_OLDEST_KNOWN = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}
_RESULTS = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}


def mutation(api: int, version: int, correlation: int, topics: Mapping[str, int], client_id: str = "etl") -> bytes:
    """A request for these topics, with the number of partitions that is to be created, or to be reached.

    Below the versions that kio knows the layout is that of its oldest, but for CreateTopics 0.
    """
    module = _module(api, version, "request")
    if api == CREATE_TOPICS:
        body = module.CreateTopicsRequest(
            topics=tuple(
                module.CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=(), configs=())
                for name, count in topics.items()
            ),
            timeout=_SECOND,
            validate_only=False,
        )
    elif api == CREATE_PARTITIONS:
        body = module.CreatePartitionsRequest(
            topics=tuple(
                module.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in topics.items()
            ),
            timeout=_SECOND,
            validate_only=False,
        )
    else:
        body = _deletion(module, version, topics)
    return request(api, version, correlation, encode(body), client_id)


def deletion(version: int, correlation: int, topics: Iterable[Topic]) -> bytes:
    """DeleteTopics, from version 6 on also by id."""
    body = _deletion(_module(DELETE_TOPICS, version, "request"), version, topics)
    return request(DELETE_TOPICS, version, correlation, encode(body))


def done(
    api: int, version: int, correlation: int, topics: Iterable[Topic], throttle_ms: int = 0, error: int = 0
) -> bytes:
    """A broker's response: the same error for each of the topics."""
    module = _module(api, version, "response")
    one = {
        CREATE_TOPICS: "CreatableTopicResult",
        DELETE_TOPICS: "DeletableTopicResult",
        CREATE_PARTITIONS: "CreatePartitionsTopicResult",
    }[api]
    schema: Any = load_response_schema(api, version)
    body = schema(
        throttle_time=datetime.timedelta(milliseconds=throttle_ms),
        **{_RESULTS[api]: tuple(_result(getattr(module, one), topic, ErrorCode(error)) for topic in topics)},
    )
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


def _deletion(module: Any, version: int, topics: Iterable[Topic]) -> Any:
    if version < 6:
        return module.DeleteTopicsRequest(topic_names=tuple(topics), timeout=_SECOND)
    states = tuple(
        module.DeleteTopicState(name=topic, topic_id=None)
        if isinstance(topic, str)
        else module.DeleteTopicState(name=None, topic_id=UUID(bytes=topic))
        for topic in topics
    )
    return module.DeleteTopicsRequest(topics=states, timeout=_SECOND)


def _result(schema: Any, topic: Topic, error: ErrorCode) -> Any:
    values: dict[str, Any] = {"name": topic, "error_code": error, "error_message": None, "topic_id": None}
    values |= {"num_partitions": 1, "replication_factor": 1, "configs": ()}
    if isinstance(topic, bytes):
        values |= {"name": None, "topic_id": UUID(bytes=topic)}
    return schema(**{name: value for name, value in values.items() if name in schema.__dataclass_fields__})


def _module(api: int, version: int, kind: str) -> Any:
    return import_module(f"kio.schema.{_MODULES[api]}.v{max(version, _OLDEST_KNOWN[api])}.{kind}")
