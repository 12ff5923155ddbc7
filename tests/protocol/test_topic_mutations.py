"""Creating and deleting partitions: how many a request counts, and the response that refuses all its topics."""

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.errors import TooManyItems
from protocol.messages import encode
from protocol.topic_mutations import MAX_ITEMS, MutationRequest, is_strict
from protocol.topics import Topic
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import CORRELATION_ID, of_request, parsed

HEADER = b"h" * 21
"""The bytes before a body: they are not read."""
MINUTE = datetime.timedelta(minutes=1)
TOPIC_ID = UUID(int=77)
OLDEST_OF_KIO = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}

ALL = [(key, version) for key in OLDEST_OF_KIO for version in range(APIS[key].max_version + 1)]
STRICT = [(CREATE_TOPICS, 6), (CREATE_TOPICS, 7), (DELETE_TOPICS, 5), (DELETE_TOPICS, 6), (CREATE_PARTITIONS, 3)]


def read(api_key: int, version: int, body: bytes) -> MutationRequest:
    return MutationRequest(api_key, version, HEADER + body, len(HEADER))


def counted(api_key: int, version: int, body: bytes, present: dict[Topic, int] | None = None) -> int:
    """`present`: the known topics."""
    return read(api_key, version, body).partitions((present or {}).get)


def made(api_key: int, version: int, struct: str, **values: Any) -> Any:
    """Of a version that kio knows."""
    return of_request(api_key, max(version, OLDEST_OF_KIO[api_key]), struct, **values)


def create_topics(version: int, *topics: tuple[str, int, int]) -> bytes:
    """A body: topics by name, number of partitions, manual assignments."""
    of = partial(made, CREATE_TOPICS, version)
    one, configs = of("CreatableReplicaAssignment", broker_ids=(1, 2)), (of("CreatableTopicConfig", name="cleanup"),)
    found = tuple(
        of("CreatableTopic", name=name, num_partitions=count, assignments=(one,) * assigned, configs=configs)
        for name, count, assigned in topics
    )
    body = encode(of("CreateTopicsRequest", topics=found, timeout=MINUTE))
    return body if version else body[:-1]


def create_partitions(version: int, *topics: tuple[str, int, int | None]) -> bytes:
    """A body: topics by name, new number of partitions, manual assignments."""
    of = partial(made, CREATE_PARTITIONS, version)
    one = of("CreatePartitionsAssignment", broker_ids=(1,))
    found = tuple(
        of("CreatePartitionsTopic", name=name, count=count, assignments=None if each is None else (one,) * each)
        for name, count, each in topics
    )
    return encode(of("CreatePartitionsRequest", topics=found, timeout=MINUTE, validate_only=True))


def delete_topics(version: int, *topics: tuple[str | None, UUID | None]) -> bytes:
    """A body: topics by name or id; by name alone before version 6."""
    of = partial(made, DELETE_TOPICS, version)
    states = (of("DeleteTopicState", name=name, topic_id=each) for name, each in (topics if version >= 6 else ()))
    names = tuple(name for name, _ in topics)
    return encode(of("DeleteTopicsRequest", topic_names=names, topics=tuple(states), timeout=MINUTE))


def body_of(api_key: int, version: int, *names: str) -> bytes:
    if api_key == DELETE_TOPICS:
        return delete_topics(version, *((name, None) for name in names))
    create = create_topics if api_key == CREATE_TOPICS else create_partitions
    return create(version, *((name, 3, 2) for name in names))


def versions(api_key: int) -> range:
    return range(APIS[api_key].max_version + 1)


# ---- what is counted


@pytest.mark.parametrize("version", versions(CREATE_TOPICS))
def test_topics_created(version: int) -> None:
    for topic, count in ((("ten", 10, 0), 10), (("assigned", -1, 3), 3), (("default", -1, 0), 1), (("none", 0, 0), 1)):
        assert counted(CREATE_TOPICS, version, create_topics(version, topic)) == count
    assert counted(CREATE_TOPICS, version, create_topics(version, ("a", 4, 0), ("b", -1, 0), ("c", -1, 2))) == 7
    assert counted(CREATE_TOPICS, version, create_topics(version)) == 0


@pytest.mark.parametrize("version", versions(CREATE_PARTITIONS))
def test_partitions_created(version: int) -> None:
    present: dict[Topic, int] = {"known": 4}
    for topic, count in (
        (("known", 10, None), 6),
        (("known", 6, 1), 2),
        (("known", 3, None), 1),
        (("unknown", 9, 3), 3),
        (("unknown", 9, None), 1),
    ):
        assert counted(CREATE_PARTITIONS, version, create_partitions(version, topic), present) == count
    both = create_partitions(version, ("known", 10, None), ("unknown", 9, 3))
    assert counted(CREATE_PARTITIONS, version, both, present) == 9


@pytest.mark.parametrize("version", versions(DELETE_TOPICS))
def test_topics_deleted(version: int) -> None:
    body = delete_topics(version, ("known", None), ("unknown", None))
    assert counted(DELETE_TOPICS, version, body, {"known": 12}) == 13


def test_topics_deleted_by_id() -> None:
    body = delete_topics(6, (None, TOPIC_ID), ("named", None), (None, UUID(int=78)), (None, None))
    assert counted(DELETE_TOPICS, 6, body, {TOPIC_ID.bytes: 5, "named": 2}) == 5 + 2 + 1 + 1


@pytest.mark.parametrize(("asked", "expected"), [(10_000, 10_000), (10_001, 10_000), (2**31 - 1, 10_000)])
def test_no_topic_counts_more_than_a_controller_would_create(asked: int, expected: int) -> None:
    assert counted(CREATE_TOPICS, 7, create_topics(7, ("orders", asked, 0), ("b", 1, 0))) == expected + 1
    assert counted(CREATE_PARTITIONS, 3, create_partitions(3, ("orders", asked, None)), {"orders": 0}) == expected


# ---- what is refused


def test_strict_versions() -> None:
    assert [one for one in ALL if is_strict(*one)] == STRICT


@pytest.mark.parametrize("names", [[], ["flights", "weather"], ["n" * (1 + n % 249) for n in range(127)]])
@pytest.mark.parametrize(("api_key", "version"), STRICT)
def test_all_refused(api_key: int, version: int, names: list[str]) -> None:
    request = read(api_key, version, body_of(api_key, version, *names))
    body = parsed(api_key, version, request.refusal(int.from_bytes(CORRELATION_ID), 1_234))
    assert body.throttle_time == datetime.timedelta(milliseconds=1_234)
    results = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}[api_key]
    assert [result.name for result in getattr(body, results)] == names
    for result in getattr(body, results):
        assert result.error_code is ErrorCode.throttling_quota_exceeded
        assert result.error_message == "The throttling quota has been exceeded."
        assert getattr(result, "topic_id", None) is None
        if api_key == CREATE_TOPICS:
            assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, ())


# ---- what cannot be read


@pytest.mark.parametrize(
    ("api_key", "version", "make", "items"),
    [
        pytest.param(CREATE_TOPICS, 7, lambda n: create_topics(7, *[("t", 1, 0)] * n), 2, id="topics with a config"),
        pytest.param(CREATE_TOPICS, 7, lambda n: create_topics(7, ("t", -1, n)), 3, id="assignments of two replicas"),
        pytest.param(
            CREATE_PARTITIONS,
            3,
            lambda n: create_partitions(3, *[("t", 1, None)] * 1_000, ("t", 1, (n - 1_001) // 2)),
            1,
            id="no assignments, then many",
        ),
        pytest.param(DELETE_TOPICS, 5, lambda n: delete_topics(5, *[("t", None)] * n), 1, id="deleted topics"),
        pytest.param(
            DELETE_TOPICS, 5, lambda n: delete_topics(5)[:-1] + encode_varint(n) + b"\x05\x00" * n, 1, id="tags"
        ),
    ],
)
def test_too_many_items(api_key: int, version: int, make: Callable[[int], bytes], items: int) -> None:
    """Each takes a few microseconds, in one step."""
    most = MAX_ITEMS // items - (items > 1)  # a topic with assignments and its config are items, too
    read(api_key, version, make(most))
    with pytest.raises(TooManyItems):
        read(api_key, version, make(most + 2))
