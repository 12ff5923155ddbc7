"""Creating and deleting partitions: what is counted, what is refused, and how the answers are put together."""

import datetime
from dataclasses import replace
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, PRODUCE
from protocol.errors import MalformedFrame, UnknownApi, UnsupportedVersion
from protocol.messages import decode, encode
from protocol.mutation_responses import MAX_HEAD, MutationResponseHead, refused_response
from protocol.topic_mutations import MAX_TOPICS, Mutation, MutationRequest, is_strict
from protocol.topics import Topic
from tests.protocol.kafka_messages import CORRELATION_ID, header, parsed, requests, response_bytes, responses

HEADER = b"h" * 21
"""The bytes before a body: they are not read."""
MESSAGE = "The throttling quota has been exceeded."
TOPIC_ID = UUID(int=77)

ALL = [
    (key, version)
    for key in (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS)
    for version in range(APIS[key].max_version + 1)
]
STRICT = [(CREATE_TOPICS, 6), (CREATE_TOPICS, 7), (DELETE_TOPICS, 5), (DELETE_TOPICS, 6), (CREATE_PARTITIONS, 3)]
OF_KIO = [one for one in ALL if one not in {(CREATE_TOPICS, 0), (CREATE_TOPICS, 1), (DELETE_TOPICS, 0)}]
RESULTS = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}


def nothing_known(topic: Topic) -> int | None:
    return None


def ms(milliseconds: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


def request_module(api_key: int, version: int) -> Any:
    """For the versions that kio lacks, the next one's."""
    first = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}[api_key]
    return load_payload_module(api_key, max(version, first), EntityType.request)


def read(api_key: int, version: int, body: bytes) -> MutationRequest:
    return read_whole(MutationRequest(api_key, version, HEADER + body, len(HEADER)))


def read_whole(request: MutationRequest, work: int = 500) -> MutationRequest:
    while not request.read(work):
        pass
    return request


def create_topics(version: int, *topics: tuple[str, int, int]) -> bytes:
    """A body: topics by name, number of partitions, manual assignments."""
    module = request_module(CREATE_TOPICS, version)
    made = tuple(
        module.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            assignments=tuple(
                module.CreatableReplicaAssignment(partition_index=index, broker_ids=(1, 2)) for index in range(assigned)
            ),
            configs=(module.CreatableTopicConfig(name="cleanup.policy", value=None),),
        )
        for name, partitions, assigned in topics
    )
    body = encode(module.CreateTopicsRequest(topics=made, timeout=ms(5_000), validate_only=False))
    return body if version else body[:-1]


def create_partitions(version: int, *topics: tuple[str, int, int | None]) -> bytes:
    """A body: topics by name, new number of partitions, manual assignments."""
    module = request_module(CREATE_PARTITIONS, version)
    made = tuple(
        module.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None if assigned is None else (module.CreatePartitionsAssignment(broker_ids=(1,)),) * assigned,
        )
        for name, count, assigned in topics
    )
    return encode(module.CreatePartitionsRequest(topics=made, timeout=ms(5_000), validate_only=True))


def delete_topics(version: int, *topics: str | UUID | tuple[str | None, UUID | None]) -> bytes:
    module = request_module(DELETE_TOPICS, version)
    if version < 6:
        return encode(module.DeleteTopicsRequest(topic_names=topics, timeout=ms(5_000)))
    made = []
    for topic in topics:
        if isinstance(topic, tuple):
            name, topic_id = topic
        else:
            name, topic_id = (topic, None) if isinstance(topic, str) else (None, topic)
        made.append(module.DeleteTopicState(name=name, topic_id=topic_id))
    return encode(module.DeleteTopicsRequest(topics=tuple(made), timeout=ms(5_000)))


def one_topic(api_key: int, version: int) -> bytes:
    if api_key == CREATE_TOPICS:
        return create_topics(version, ("t", 3, 2))
    if api_key == CREATE_PARTITIONS:
        return create_partitions(version, ("t", 3, 2))
    return delete_topics(version, "t")


def versions(api_key: int) -> range:
    return range(APIS[api_key].max_version + 1)


# ---- what is counted


@pytest.mark.parametrize("version", versions(CREATE_TOPICS))
def test_topics_created(version: int) -> None:
    body = create_topics(version, ("ten", 10, 0), ("assigned", -1, 3), ("default", -1, 0), ("none", 0, 0))
    assert read(CREATE_TOPICS, version, body).mutations(nothing_known) == [
        Mutation("ten", 10),
        Mutation("assigned", 3),
        Mutation("default", 1),
        Mutation("none", 1),
    ]


@pytest.mark.parametrize("version", versions(CREATE_PARTITIONS))
def test_partitions_created(version: int) -> None:
    body = create_partitions(
        version, ("known", 10, None), ("assigned", 9, 3), ("unknown", 9, None), ("fewer", 2, None), ("both", 8, 1)
    )
    present = {"known": 4, "fewer": 6, "both": 6}
    assert read(CREATE_PARTITIONS, version, body).mutations(present.get) == [  # type: ignore[arg-type]
        Mutation("known", 6),
        Mutation("assigned", 3),
        Mutation("unknown", 1),
        Mutation("fewer", 1),
        Mutation("both", 2),
    ]


@pytest.mark.parametrize("version", versions(DELETE_TOPICS))
def test_topics_deleted(version: int) -> None:
    body = delete_topics(version, "known", "unknown")
    assert read(DELETE_TOPICS, version, body).mutations({"known": 12}.get) == [  # type: ignore[arg-type]
        Mutation("known", 12),
        Mutation("unknown", 1),
    ]


def test_topics_deleted_by_id() -> None:
    other = UUID(int=78)
    body = delete_topics(6, TOPIC_ID, "named", other)
    known: dict[Topic, int] = {TOPIC_ID.bytes: 5, "named": 2}
    assert read(DELETE_TOPICS, 6, body).mutations(known.get) == [
        Mutation(TOPIC_ID.bytes, 5),
        Mutation("named", 2),
        Mutation(other.bytes, 1),
    ]


def test_a_topic_with_name_and_id_or_with_neither_is_the_brokers_to_refuse() -> None:
    body = delete_topics(6, ("named", TOPIC_ID), (None, None), "good")
    request = read(DELETE_TOPICS, 6, body)
    assert request.mutations(nothing_known) == [Mutation("good", 1)]
    assert request.without({"good"}) == HEADER + delete_topics(6, ("named", TOPIC_ID), (None, None))


def test_a_topic_that_is_listed_twice_is_counted_once() -> None:
    body = create_topics(7, ("a", 3, 0), ("b", 1, 0), ("a", 5, 0))
    assert read(CREATE_TOPICS, 7, body).mutations(nothing_known) == [Mutation("a", 3), Mutation("b", 1)]


def test_create_topics_0_by_hand() -> None:
    """It ends with the timeout. kio, which has no such version, did not write this."""
    topic = pack(">h1sih", 1, b"t", 4, 1) + pack(">i", 0) + pack(">ih1sh", 1, 1, b"k", -1)
    body = pack(">i", 1) + topic + pack(">i", 5_000)
    assert read(CREATE_TOPICS, 0, body).mutations(nothing_known) == [Mutation("t", 4)]
    assert read(CREATE_TOPICS, 1, body + b"\x01").mutations(nothing_known) == [Mutation("t", 4)]
    for version, wrong in ((0, body + b"\x01"), (1, body)):
        with pytest.raises(MalformedFrame):
            read(CREATE_TOPICS, version, wrong)


# ---- what is refused


def test_strict_versions() -> None:
    assert [one for one in ALL if is_strict(*one)] == STRICT
    assert not is_strict(PRODUCE, 13)


@pytest.mark.parametrize(("api_key", "version"), STRICT)
@given(data=st.data())
def test_a_request_without_the_refused_topics(api_key: int, version: int, data: st.DataObject) -> None:
    body: Any = data.draw(requests(api_key, version))
    request = MutationRequest(api_key, version, HEADER + encode(body), len(HEADER))
    read_whole(request, data.draw(st.sampled_from([1, 3, 500])))
    mutations = request.mutations(nothing_known)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(mutations), max_size=len(mutations)))
    refused = {one.topic for one, is_refused in zip(mutations, chosen, strict=True) if is_refused}

    after = request.without(refused)

    assert after[: len(HEADER)] == HEADER
    left = read_whole(MutationRequest(api_key, version, after, len(HEADER)))
    assert left.mutations(nothing_known) == [one for one in mutations if one.topic not in refused]
    field = "topic_names" if (api_key, version) == (DELETE_TOPICS, 5) else "topics"
    rest: Any = decode(load_request_schema(api_key, version), after, len(HEADER))
    assert replace(rest, **{field: ()}) == replace(body, **{field: ()})
    assert set(getattr(rest, field)) <= set(getattr(body, field))
    assert request.without(()) == HEADER + encode(body)


def key_of(result: Any) -> Topic:
    """A topic as a response names it."""
    if result.name is None:
        topic_id: bytes = result.topic_id.bytes
        return topic_id
    assert getattr(result, "topic_id", None) is None
    return str(result.name)


def refusals(api_key: int, version: int) -> list[Topic]:
    topics: list[Topic] = ["flights", "weather"]
    return [*topics, TOPIC_ID.bytes] if (api_key, version) == (DELETE_TOPICS, 6) else topics


@pytest.mark.parametrize(("api_key", "version"), STRICT)
def test_all_refused(api_key: int, version: int) -> None:
    topics = refusals(api_key, version)
    correlation_id = int.from_bytes(CORRELATION_ID, "big")

    body = parsed(api_key, version, refused_response(api_key, version, correlation_id, topics, 1_234))

    results = getattr(body, RESULTS[api_key])
    assert [key_of(result) for result in results] == topics
    for result in results:
        assert result.error_code is ErrorCode.throttling_quota_exceeded
        assert int(result.error_code) == 89
        assert result.error_message == MESSAGE
        if api_key == CREATE_TOPICS:
            assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, ())
    assert body.throttle_time == ms(1_234)


@pytest.mark.parametrize(("api_key", "version"), STRICT)
@given(data=st.data(), throttle_time_ms=st.integers(0, 2**31 - 1))
def test_some_refused(api_key: int, version: int, data: st.DataObject, throttle_time_ms: int) -> None:
    body: Any = data.draw(responses(api_key, version))
    topics = refusals(api_key, version)
    response = response_bytes(api_key, version, body)

    new, replaced = rewritten_head(api_key, version, response, topics, throttle_time_ms)

    merged = parsed(api_key, version, new + response[replaced:])
    results = RESULTS[api_key]
    all_refused = refused_response(api_key, version, int.from_bytes(CORRELATION_ID, "big"), topics, 0)
    refusals_first = getattr(parsed(api_key, version, all_refused), results) + getattr(body, results)
    throttle_time = max(body.throttle_time, ms(throttle_time_ms))
    assert merged == replace(body, throttle_time=throttle_time, **{results: refusals_first})


def rewritten_head(
    api_key: int, version: int, response: bytes, refused: list[Topic], throttle_time_ms: int
) -> tuple[bytes, int]:
    """Of a response that arrives byte by byte: it is enough when the bytes that are replaced have come, not before."""
    head = MutationResponseHead(api_key, version, refused, throttle_time_ms)
    for size in range(len(response) + 1):
        done = head.rewrite(response[:size])
        if done is not None:
            assert done[1] == size
            assert head.rewrite(response) == done
            return done
    raise AssertionError("more bytes are needed than the response has")


@pytest.mark.parametrize(("api_key", "version"), [one for one in ALL if one not in STRICT])
def test_nothing_is_refused_in_older_versions(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        refused_response(api_key, version, 1, ["t"], 0)
    with pytest.raises(UnsupportedVersion):
        MutationResponseHead(api_key, version, ["t"], 0)
    request = read(api_key, version, one_topic(api_key, version))
    with pytest.raises(UnsupportedVersion):
        request.without({"t"})


# ---- where only the throttle time is told


@given(data=st.data(), one=st.sampled_from(OF_KIO), throttle_time_ms=st.integers(0, 2**31 - 1))
def test_throttle_is_the_larger_one(one: tuple[int, int], data: st.DataObject, throttle_time_ms: int) -> None:
    api_key, version = one
    body: Any = data.draw(responses(api_key, version))
    response = response_bytes(api_key, version, body)

    new, replaced = rewritten_head(api_key, version, response, [], throttle_time_ms)
    throttled = new + response[replaced:]

    assert len(throttled) == len(response)
    expected = replace(body, throttle_time=max(body.throttle_time, ms(throttle_time_ms)))
    assert parsed(api_key, version, throttled) == expected


@pytest.mark.parametrize(("api_key", "version"), [(CREATE_TOPICS, 0), (CREATE_TOPICS, 1), (DELETE_TOPICS, 0)])
def test_versions_that_have_no_throttle_time(api_key: int, version: int) -> None:
    assert MutationResponseHead(api_key, version, [], 1_000).rewrite(b"") == (b"", 0)


def test_unknown_tags_in_a_response_header() -> None:
    response = CORRELATION_ID + b"\x01\x05\x01x" + bytes(4) + b"\x01\x00"
    throttled = CORRELATION_ID + b"\x01\x05\x01x" + pack(">i", 30)
    assert MutationResponseHead(CREATE_PARTITIONS, 3, [], 30).rewrite(response) == (throttled, len(throttled))


# ---- what cannot be


def test_heads_that_cannot_be() -> None:
    head = MutationResponseHead(CREATE_TOPICS, 7, ["t"], 1)
    start = header(CREATE_TOPICS, 7) + bytes(4)
    for count in (b"\x00", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff"):
        with pytest.raises(MalformedFrame, match="result count"):
            head.rewrite(start + count)
    tags = CORRELATION_ID + b"\x80\x08" + b"\x05\x00" * 1_024
    assert head.rewrite(tags[: MAX_HEAD - 1]) is None
    for size in (MAX_HEAD, len(tags)):
        with pytest.raises(MalformedFrame, match="within"):
            head.rewrite(tags[:size])


@pytest.mark.parametrize("refused", [0, 1, 126, 127, 128, 3_000])
def test_many_results(refused: int) -> None:
    names = ["n" * (1 + number % 200) for number in range(refused)]
    correlation_id = int.from_bytes(CORRELATION_ID, "big")
    body = parsed(CREATE_TOPICS, 7, refused_response(CREATE_TOPICS, 7, correlation_id, names, 9))
    assert [result.name for result in body.topics] == names


@pytest.mark.parametrize(("api_key", "version"), ALL)
def test_a_request_cut_short_and_too_long(api_key: int, version: int) -> None:
    body = one_topic(api_key, version)
    for size in range(len(body)):
        with pytest.raises(MalformedFrame) as caught:
            read(api_key, version, body[:size])
        assert caught.value.offset >= len(HEADER)
    with pytest.raises(MalformedFrame):
        read(api_key, version, body + b"\x00\x00")


def test_other_apis_and_versions() -> None:
    with pytest.raises(UnknownApi):
        MutationRequest(PRODUCE, 9, b"", 0)
    with pytest.raises(UnknownApi):
        refused_response(PRODUCE, 9, 1, [], 0)
    with pytest.raises(UnknownApi):
        MutationResponseHead(PRODUCE, 9, [], 0)
    with pytest.raises(UnsupportedVersion):
        MutationRequest(CREATE_TOPICS, 8, b"", 0)
    with pytest.raises(UnsupportedVersion):
        MutationResponseHead(DELETE_TOPICS, 7, [], 0)


@pytest.mark.parametrize(("asked", "counted"), [(10_000, 10_000), (10_001, 10_000), (2**31 - 1, 10_000)])
def test_no_topic_counts_more_than_a_controller_would_create(asked: int, counted: int) -> None:
    created = read(CREATE_TOPICS, 7, create_topics(7, ("orders", asked, 0)))
    assert created.mutations(nothing_known) == [Mutation("orders", counted)]
    grown = read(CREATE_PARTITIONS, 3, create_partitions(3, ("orders", asked, None)))
    assert grown.mutations(lambda _: 0) == [Mutation("orders", counted)]


# ---- bounded work


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("api_key", [CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS])
def test_a_request_is_read_in_pieces(api_key: int, tagged: bool) -> None:
    """In 50 or more steps: 1,000 topics, or 1,000 tags, which no version defines and the broker receives."""
    version = APIS[api_key].max_version
    names = [f"topic-{number}" for number in range(1_000)]
    if tagged:
        body = one_topic(api_key, version)[:-1] + b"\xe8\x07" + b"\x05\x00" * 1_000
        names = ["t"]
    elif api_key == CREATE_TOPICS:
        body = create_topics(version, *((name, 3, 1) for name in names))
    elif api_key == CREATE_PARTITIONS:
        body = create_partitions(version, *((name, 3, 1) for name in names))
    else:
        body = delete_topics(version, *names)
    request = MutationRequest(api_key, version, HEADER + body, len(HEADER))
    steps = 1
    while not request.read(20):
        steps += 1
    assert steps >= 50
    assert request.topics == len(names)
    assert [mutation.topic for mutation in request.mutations(nothing_known)] == names
    pieces = [one for first in range(0, 1_200, 300) for one in request.mutations(nothing_known, first, 300)]
    assert pieces == request.mutations(nothing_known)
    assert request.without(["t"] if tagged else names[:-1]).endswith(body[-10:])


def test_many_assignments_of_one_topic_are_read_in_pieces() -> None:
    request = MutationRequest(CREATE_TOPICS, 7, create_topics(7, ("t", -1, 2_000)), 0)
    steps = 1
    while not request.read(20):
        steps += 1
    assert steps >= 100
    assert request.mutations(nothing_known) == [Mutation("t", 2_000)]


def test_too_many_topics() -> None:
    def named(topics: int) -> bytes:
        return pack(">i", topics) + b"\x00\x01t" * topics + bytes(4)

    assert read(DELETE_TOPICS, 3, named(MAX_TOPICS)).topics == 1
    with pytest.raises(MalformedFrame, match="topic count"):
        read(DELETE_TOPICS, 3, named(MAX_TOPICS + 1))


@given(
    data=st.data(), one=st.sampled_from(ALL), changes=st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=3)))
)
def test_what_kio_can_read(one: tuple[int, int], data: st.DataObject, changes: list[tuple[int, bytes]]) -> None:
    """A changed request is read or malformed, and where kio can read it the topics are kio's."""
    api_key, version = one
    first = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}[api_key]
    body = bytearray(encode(data.draw(requests(api_key, max(version, first)))))
    for at, new in changes:
        body[at % len(body) : at % len(body) + len(new)] = new
    try:
        mutations = read(api_key, version, bytes(body)).mutations(nothing_known)
    except MalformedFrame:
        mutations = None
    if (api_key, version) == (CREATE_TOPICS, 0):
        body += b"\x00"  # as in version 2
    try:
        decoded: Any = decode(load_request_schema(api_key, max(version, first)), bytes(body), 0)
    except MalformedFrame:
        return
    states = decoded.topics if hasattr(decoded, "topics") else decoded.topic_names
    topics: dict[Topic, None] = {}
    for state in states:
        name = state if isinstance(state, str) else state.name
        topic_id = getattr(state, "topic_id", None)
        if (name is None) != (topic_id is None):
            topics[topic_id.bytes if topic_id else name] = None
    assert mutations is not None
    assert [mutation.topic for mutation in mutations] == list(topics)
