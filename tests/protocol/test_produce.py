"""Produce responses, versions 3 to 13 as kio writes them and 0 to 2 built by hand: fast path and walk."""

import datetime
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from struct import pack, unpack_from
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from protocol.apis import APIS, PRODUCE
from protocol.errors import MalformedFrame
from protocol.messages import decode
from protocol.produce import (
    FIRST_FLEXIBLE,
    MAX_COUNTED,
    ProduceResponseWalk,
    accepted_produce_run,
    finish_accepted_produce_response,
    finish_usual_produce_response,
    usual_produce_run,
)
from protocol.topics import Topic
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import (
    CORRELATION_ID,
    REAL_HOST,
    REAL_HOSTS,
    Resting,
    chunk_sizes,
    of_response,
    parsed,
    response_bytes,
    responses,
    streamed,
    topic_of,
)

VERSIONS = range(APIS[PRODUCE].max_version + 1)
KIO_VERSIONS = range(3, 14)
FLEXIBLE_VERSIONS = range(9, 14)
THROTTLES = st.integers(0, 2**31 - 1)
MILLISECOND = datetime.timedelta(milliseconds=1)
TOO_LARGE = ErrorCode.message_too_large.value
#: Up to 126 bytes the length takes one byte.
NAMES = ["f", "flights", "n" * 126, "n" * 127]


def finish_usual(response: bytes, version: int, throttle_time_ms: int) -> bytes | None:
    """By the fast path, within a larger buffer, whose other bytes must stay. None: it does not apply."""
    buf = bytearray(b"\xa5" * 5 + response + b"\x00\x02" * 8)
    finished = finish_usual_produce_response(buf, 5, 5 + len(response), version, throttle_time_ms)
    assert buf[:5] == b"\xa5" * 5
    assert buf[5 + len(response) :] == b"\x00\x02" * 8
    after = bytes(buf[5 : 5 + len(response)])
    assert finished or after == response
    return after if finished else None


def walk_over(response: bytes, version: int, throttle_time_ms: int, sizes: Sequence[int] = ()) -> bytes:
    walk = ProduceResponseWalk(version, len(response), throttle_time_ms, False)
    finished = streamed(walk, response, list(sizes))
    assert walk.is_over
    return finished


def finish(response: bytes, version: int, throttle_time_ms: int) -> bytes:
    """By the walk, and by the fast path where it applies: with the same result."""
    finished = walk_over(response, version, throttle_time_ms)
    assert finish_usual(response, version, throttle_time_ms) in (None, finished)
    return finished


def refused_shares(
    version: int, response: bytes, sizes: Sequence[int] = (), work: int = 1 << 40
) -> dict[Topic, Fraction]:
    walk = ProduceResponseWalk(version, len(response), 0, True)
    assert streamed(Resting(walk, work), response, list(sizes)) == response
    assert walk.is_over
    return walk.refused_shares()


def succeeded(version: int, index: int, **changes: Any) -> Any:
    """One partition of a response, kio's."""
    fields = {"index": index, "base_offset": 4711, "log_append_time": None, "log_start_offset": -1} | changes
    return of_response(PRODUCE, version, "PartitionProduceResponse", **fields)


def response_of(version: int, *topics: Sequence[Any], name: str | None = None) -> bytes:
    """A response with these partitions of each topic. `name`: of all of them."""
    made = tuple(
        of_response(
            PRODUCE,
            version,
            "TopicProduceResponse",
            name=f"topic-{index}" if name is None else name,
            topic_id=UUID(int=index + 1),
            partition_responses=tuple(partitions),
        )
        for index, partitions in enumerate(topics)
    )
    return response_bytes(PRODUCE, version, of_response(PRODUCE, version, "ProduceResponse", responses=made))


def one_partition(version: int, name: str = "flights") -> bytes:
    """The usual response: one topic, one partition, no error."""
    return response_of(version, [succeeded(version, 3)], name=name)


@given(
    data=st.data(),
    version=st.sampled_from(KIO_VERSIONS),
    throttle_time_ms=THROTTLES,
    sizes=chunk_sizes,
    work=st.integers(1, 5),
    counts_errors=st.booleans(),
)
def test_any_response_in_any_splits_a_few_pieces_at_a_time(
    data: st.DataObject, version: int, throttle_time_ms: int, sizes: list[int], work: int, counts_errors: bool
) -> None:
    body: Any = data.draw(responses(PRODUCE, version, host=REAL_HOSTS))
    response = response_bytes(PRODUCE, version, body)
    walk = ProduceResponseWalk(version, len(response), throttle_time_ms, counts_errors)

    finished = streamed(Resting(walk, work), response, sizes)

    assert walk.is_over
    assert len(finished) == len(response)
    assert REAL_HOST.encode() not in finished
    after = parsed(PRODUCE, version, finished)
    assert after.throttle_time == max(throttle_time_ms * MILLISECOND, body.throttle_time)
    assert after.responses == body.responses
    if version >= 10:
        assert after.node_endpoints == ()


@given(
    version=st.sampled_from(FLEXIBLE_VERSIONS),
    name=st.sampled_from(NAMES),
    shape=st.lists(st.integers(0, 4) | st.integers(120, 130), max_size=18),
    change=st.none() | st.tuples(st.integers(0), st.sampled_from([0, 1, 2, 127, 128, 255])),
    throttle_time_ms=THROTTLES,
)
def test_several_topics_and_partitions(
    version: int, name: str, shape: list[int], change: tuple[int, int] | None, throttle_time_ms: int
) -> None:
    """Partitions of each topic; one byte may be any other."""
    one = {count: response_of(version, [succeeded(version, 3)] * count, name=name) for count in set(shape)}
    topics = [one[count][6:-5] for count in shape]
    response = bytearray(b"\x00\x00\x00\x07\x00" + bytes([len(shape) + 1]) + b"".join(topics) + bytes(5))
    if change is not None:
        response[change[0] % len(response)] = change[1]
    fast = finish_usual(bytes(response), version, throttle_time_ms)
    if change is None and len(shape) <= 16 and max(shape, default=0) <= 126 and (len(name) <= 126 or version >= 13):
        assert fast is not None
        assert finish_usual(bytes(response[:-1]), version, throttle_time_ms) is None
    if fast is not None:
        assert fast == walk_over(bytes(response), version, throttle_time_ms)


@given(
    version=st.sampled_from(KIO_VERSIONS),
    name=st.sampled_from(NAMES),
    errors=st.lists(st.sampled_from([ErrorCode.none] * 6 + [ErrorCode.message_too_large]), min_size=1, max_size=6),
    change=st.none() | st.tuples(st.integers(0, 2_000), st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF])),
    last=st.sampled_from(["whole", "cut", "longer name"]),
)
def test_a_run_ends_at_the_first_response_that_is_not_usual_or_not_accepted(
    version: int, name: str, errors: list[ErrorCode], change: tuple[int, int] | None, last: str
) -> None:
    frames = bytearray()
    for correlation_id, error in enumerate(errors, 1):
        one = response_of(version, [succeeded(version, 3, error_code=error)], name=name)
        frames += pack(">ii", len(one), correlation_id) + one[4:]
    size = len(frames) // len(errors)
    if change is not None:
        frames[change[0] % len(frames)] = change[1]
    if last == "cut":
        del frames[-1:]
    elif last == "longer name":
        frames += pack(">i", size - 3) + response_of(version, [succeeded(version, 3)], name=name + "x")

    usual: list[int] = []
    accepted: list[int] = []
    for at in range(0, len(frames) - size + 1, size):
        length, correlation_id = unpack_from(">ii", frames, at)
        response = frames[at + 4 : at + size]
        if version < FIRST_FLEXIBLE or length != size - 4 or finish_usual(bytes(response), version, 0) is None:
            break
        if len(accepted) == len(usual) and finish_accepted_produce_response(response, 0, size - 4, version, 0):
            accepted.append(correlation_id)
        usual.append(correlation_id)
    assert usual_produce_run(memoryview(frames), size, version) == usual
    assert accepted_produce_run(memoryview(frames), size, version) == accepted


@pytest.mark.parametrize("version", FLEXIBLE_VERSIONS)
def test_any_other_byte_in_a_usual_response_is_read_as_kio_reads_it(version: int) -> None:
    """So the fast path is taken only where it is right."""
    response = one_partition(version)
    topic_end = 6 + (16 if version >= 13 else response[6])
    # Where kio may refuse what no length depends on: a name that is no UTF-8, a time beyond all calendars, and an array
    # that is null, which is as long as an empty one.
    record_errors = topic_end + 31
    contents = {*range(7, topic_end), *range(topic_end + 1, topic_end + 31)}
    for index in range(5, len(response)):  # after the header, which kio does not read
        for value in {0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, response[index] ^ 1} - {response[index]}:
            other = bytearray(response)
            other[index] = value
            try:
                before: Any = decode(load_response_schema(PRODUCE, version), bytes(other), 5)
            except MalformedFrame:
                before = None
            try:
                finished = finish(bytes(other), version, 100)
            except MalformedFrame:
                assert before is None
                assert finish_usual(bytes(other), version, 100) is None
                continue
            assert before is not None or index in contents or (index == record_errors and value == 0)
            if before is not None:
                throttle = max(100 * MILLISECOND, before.throttle_time)
                after = decode(load_response_schema(PRODUCE, version), finished, 5)
                assert after == replace(before, throttle_time=throttle)


@given(unknown=st.lists(st.tuples(st.integers(1, 300), st.binary(max_size=200)), min_size=1, max_size=3))
def test_unknown_tags_stay(unknown: list[tuple[int, bytes]]) -> None:
    """Beside NodeEndpoints, which comes first: tags are written in their order."""
    tags = [(0, b"\x02" + pack(">i", 5) + b"\x1a" + REAL_HOST.encode() + pack(">i", 9092) + b"\x00\x00"), *unknown]
    encoded = b"".join(encode_varint(tag) + encode_varint(len(content)) + content for tag, content in tags)
    response = one_partition(13)[:-1] + encode_varint(len(tags)) + encoded

    finished = finish(response, 13, 0)

    hidden = [(127, bytes(len(tags[0][1]))), *unknown]
    expected = b"".join(encode_varint(tag) + encode_varint(len(content)) + content for tag, content in hidden)
    assert finished == one_partition(13)[:-1] + encode_varint(len(tags)) + expected


# Errors

ERRORS = st.sampled_from([ErrorCode.none] * 6 + [ErrorCode.concurrent_transactions, ErrorCode.unknown_server_error])


@given(
    data=st.data(),
    version=st.sampled_from(KIO_VERSIONS),
    sizes=chunk_sizes,
    work=st.integers(1, 5),
    errors=st.lists(st.lists(ERRORS, min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_refused_partitions(
    data: st.DataObject, version: int, sizes: list[int], work: int, errors: list[list[ErrorCode]]
) -> None:
    """As kio writes them: the walk names each, and the fast path is for responses without any."""
    made = [[succeeded(version, 7 * index, error_code=error) for index, error in enumerate(codes)] for codes in errors]
    response = response_of(version, *made)
    walk = ProduceResponseWalk(version, len(response), 0, True)
    assert streamed(Resting(walk, work), response, sizes) == response
    refused = {
        topic_of(version, number): [7 * index for index, error in enumerate(codes) if error is not ErrorCode.none]
        for number, codes in enumerate(errors)
    }
    assert walk.refused == refused
    named = [(topic_of(version, number), [int(each.value) for each in codes]) for number, codes in enumerate(errors)]
    assert walk.refused_shares() == shares(named)
    buf = bytearray(b"\xa5" * 3 + response + b"\x00\x02" * 8)
    is_accepted = finish_accepted_produce_response(buf, 3, 3 + len(response), version, 9)
    assert is_accepted == (not any(refused.values()) and version >= FIRST_FLEXIBLE)
    assert (bytes(buf[3 : 3 + len(response)]) != response) == is_accepted
    cut = data.draw(st.integers(4, len(response) - 1))
    assert not finish_accepted_produce_response(bytearray(response[:cut]), 0, cut, version, 0)


# Errors counted

Named = list[tuple[str, list[int]]]
"""Topics by name, and the error code of each partition."""


def shares(topics: Sequence[tuple[Topic, list[int]]]) -> dict[Topic, Fraction]:
    """As `refused_shares`, computed slowly; of a topic that occurs twice, the last one counts."""
    found: dict[Topic, Fraction] = {}
    for topic, errors in topics:
        found.pop(topic, None)
        if errors:
            found[topic] = Fraction(len([error for error in errors if error]), len(errors))
    return found


def old_response(version: int, topics: Named, throttle_time_ms: int) -> bytes:
    """Of versions 0 to 2, for which kio has no schema."""
    response = CORRELATION_ID + pack(">i", len(topics))
    for name, errors in topics:
        response += pack(">h", len(name.encode())) + name.encode() + pack(">i", len(errors))
        for index, error in enumerate(errors):
            response += pack(">ihq", index, error, 4_711) + (pack(">q", -1) if version >= 2 else b"")
    return response + (pack(">i", throttle_time_ms) if version >= 1 else b"")


@given(
    version=st.sampled_from([0, 1, 2]),
    topics=st.lists(st.tuples(st.text(max_size=20), st.lists(st.sampled_from([0, 0, -1, TOO_LARGE]), max_size=5))),
    throttles=st.tuples(st.just(0) | THROTTLES, st.just(0) | THROTTLES),
    sizes=chunk_sizes,
    work=st.integers(1, 5),
)
def test_old_versions(version: int, topics: Named, throttles: tuple[int, int], sizes: list[int], work: int) -> None:
    """The throttle time is in their last bytes, but for version 0, which has none."""
    brokers, proxys = throttles
    response, finished = (old_response(version, topics, each) for each in (brokers, max(throttles)))
    assert walk_over(response, version, proxys) == finished
    assert finish_usual(response, version, proxys) == (None if version and brokers else finished)
    assert refused_shares(version, response, sizes, work) == shares(topics)


NEW_VERSIONS = [8, 9, 13]


@pytest.mark.parametrize("version", NEW_VERSIONS)
def test_errors_of_the_first_topics_are_counted(version: int) -> None:
    accepted, failed = succeeded(version, 3), succeeded(version, 3, error_code=ErrorCode.message_too_large)
    topics = [[accepted, failed], *[[failed if index % 2 else accepted] for index in range(1, MAX_COUNTED + 1)]]
    found = refused_shares(version, response_of(version, *topics))
    rest = {topic_of(version, index): Fraction(index % 2) for index in range(1, MAX_COUNTED)}
    assert found == {topic_of(version, 0): Fraction(1, 2), **rest}


MANY = 2_000


@pytest.mark.parametrize("version", NEW_VERSIONS)
@pytest.mark.parametrize("what", ["topics", "topics without partitions", "partitions", "record errors"])
@pytest.mark.parametrize("counts_errors", [False, True])
def test_the_densest_responses_rest(version: int, what: str, counts_errors: bool) -> None:
    """The result is the same."""
    record_error = of_response(PRODUCE, version, "BatchIndexAndErrorMessage")
    record_errors = {"record_errors": (record_error,) * MANY} if what == "record errors" else {}
    failed = succeeded(version, 3, error_code=ErrorCode.message_too_large, **record_errors)
    topics: dict[str, list[list[Any]]] = {
        "topics": [[failed]] * MANY,
        "topics without partitions": [[failed], *[[]] * MANY],
        "partitions": [[failed] * MANY],
        "record errors": [[failed]],
    }
    response = response_of(version, *topics[what])
    resting = Resting(ProduceResponseWalk(version, len(response), 7, counts_errors), 10)
    assert streamed(resting, response, []) == walk_over(response, version, 7)
    if version >= FIRST_FLEXIBLE or counts_errors:
        assert resting.rests >= MANY // 13
    if counts_errors:
        found = refused_shares(version, response)
        assert found == refused_shares(version, response, [100] * 1_000, work=3)
        assert found[topic_of(version, 0)] == 1
