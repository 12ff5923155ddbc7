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
from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.messages import decode
from protocol.produce import (
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    MAX_COUNTED,
    ProduceResponseWalk,
    accepted_produce_run,
    finish_accepted_produce_response,
    finish_usual_produce_response,
    usual_produce_run,
)
from protocol.topics import NO_TOPIC_ID, Topic
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import (
    CORRELATION_ID,
    REAL_HOST,
    REAL_HOSTS,
    Resting,
    chunk_sizes,
    header,
    of_response,
    parsed,
    response_bytes,
    responses,
    streamed,
)

VERSIONS = range(APIS[PRODUCE].max_version + 1)
KIO_VERSIONS = range(3, 14)
FLEXIBLE_VERSIONS = range(9, 14)
THROTTLES = st.integers(0, 2**31 - 1)
MILLISECOND = datetime.timedelta(milliseconds=1)
TOO_LARGE = ErrorCode.message_too_large.value


def finish_usual(response: bytes, version: int, throttle_time_ms: int) -> bytes | None:
    """By the fast path, within a larger buffer, whose other bytes must stay. None: it does not apply."""
    buf = bytearray(b"\xa5" * 3 + response + b"\x00\x02" * 8)
    finished = finish_usual_produce_response(buf, 3, 3 + len(response), version, throttle_time_ms)
    assert buf[:3] == b"\xa5" * 3
    assert buf[3 + len(response) :] == b"\x00\x02" * 8
    after = bytes(buf[3 : 3 + len(response)])
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


def response_of(version: int, partitions: list[Any], *, topics: int = 1, name: str = "flights") -> bytes:
    one = of_response(PRODUCE, version, "TopicProduceResponse", name=name, partition_responses=tuple(partitions))
    return response_bytes(PRODUCE, version, of_response(PRODUCE, version, "ProduceResponse", responses=(one,) * topics))


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
    if counts_errors:
        topics: list[tuple[Topic, list[int]]] = []
        for each in body.responses:
            by_id = version >= FIRST_WITH_TOPIC_IDS
            topic = each.name if not by_id else NO_TOPIC_ID if each.topic_id is None else each.topic_id.bytes
            topics.append((topic, [partition.error_code.value for partition in each.partition_responses]))
        assert walk.refused_shares() == shares(topics)


@given(
    version=st.sampled_from(FLEXIBLE_VERSIONS),
    shape=st.lists(st.integers(0, 4) | st.integers(120, 130), max_size=18),
    change=st.none() | st.tuples(st.integers(0), st.sampled_from([0, 1, 2, 127, 128, 255])),
    throttle_time_ms=THROTTLES,
)
def test_several_topics_and_partitions(
    version: int, shape: list[int], change: tuple[int, int] | None, throttle_time_ms: int
) -> None:
    """Partitions of each topic; one byte may be any other."""
    one = {count: response_of(version, [succeeded(version, 3)] * count) for count in set(shape)}
    topics = [one[count][6:-5] for count in shape]
    response = bytearray(b"\x00\x00\x00\x07\x00" + bytes([len(shape) + 1]) + b"".join(topics) + bytes(5))
    if change is not None:
        response[change[0] % len(response)] = change[1]
    fast = finish_usual(bytes(response), version, throttle_time_ms)
    if change is None and len(shape) <= 16 and max(shape, default=0) <= 126:
        assert fast is not None
    if fast is not None:
        assert fast == walk_over(bytes(response), version, throttle_time_ms)


@pytest.mark.parametrize("version", KIO_VERSIONS)
@pytest.mark.parametrize("name", ["f", "flights", "n" * 126, "n" * 127, "n" * 249])
def test_usual_response(version: int, name: str) -> None:
    response = one_partition(version, name=name)

    assert finish(response, version, 0) == response
    throttled = finish(response, version, 1_800)
    if version < 9 or version >= 13 or len(name) <= 126:
        assert finish_usual(response, version, 1_800) == throttled
    assert parsed(PRODUCE, version, throttled).throttle_time == datetime.timedelta(milliseconds=1_800)
    assert finish(throttled, version, 5) == throttled


@given(
    version=st.sampled_from(KIO_VERSIONS),
    name=st.sampled_from(["f", "flights", "n" * 126, "n" * 127]),
    count=st.integers(1, 6),
    change=st.none() | st.tuples(st.integers(0, 2_000), st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF])),
    last=st.sampled_from(["whole", "cut", "longer name"]),
)
def test_a_run_ends_at_the_first_response_that_is_not_usual(
    version: int, name: str, count: int, change: tuple[int, int] | None, last: str
) -> None:
    frames = bytearray()
    for correlation_id in range(1, count + 1):
        response = pack(">i", correlation_id) + one_partition(version, name)[4:]
        frames += pack(">i", len(response)) + response
    size = len(frames) // count
    if change is not None:
        frames[change[0] % len(frames)] = change[1]
    if last == "cut":
        del frames[-1:]
    elif last == "longer name":
        frames += pack(">i", size - 3) + one_partition(version, name + "x")

    expected = []
    for at in range(0, len(frames) - size + 1, size):
        length, correlation_id = unpack_from(">ii", frames, at)
        if length != size - 4 or finish_usual(bytes(frames[at + 4 : at + size]), version, 0) is None:
            break
        expected.append(correlation_id)
    assert usual_produce_run(memoryview(frames), size, version) == (expected if version >= FIRST_FLEXIBLE else [])


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


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("message", ["", "\x00", "\x00" * 33, "\x01\x00\x00"])
def test_a_message_that_looks_like_the_lengths_after_it(version: int, message: str) -> None:
    usual = succeeded(version, 1)
    response = response_of(version, [usual, succeeded(version, 2, error_message=message), usual], topics=2)

    finished = finish(response, version, 7)

    assert parsed(PRODUCE, version, finished).responses == parsed(PRODUCE, version, response).responses


@pytest.mark.parametrize("version", [1, 2])
def test_old_versions_have_the_throttle_time_in_their_last_bytes(version: int) -> None:
    partition = pack(">ihq", 3, 0, 4711) + (pack(">q", -1) if version == 2 else b"")
    body = pack(">ih7si", 1, 7, b"flights", 1) + partition + pack(">i", 40)
    response = header(PRODUCE, version) + body

    assert finish(response, version, 30) == response
    assert finish(response, version, 1_000) == response[:-4] + pack(">i", 1_000)


def test_version_0_has_no_throttle() -> None:
    response = header(PRODUCE, 0) + pack(">ih7siihq", 1, 7, b"flights", 1, 3, 0, 4711)

    assert finish(response, 0, 1_000) == response


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_cut_short(version: int) -> None:
    response = one_partition(max(3, version))
    for size in range(1, len(response) if version >= 9 else 12):
        with pytest.raises(TruncatedFrame):
            walk_over(response[:size], version, 100)
        assert finish_usual(response[:size], version, 100) is None


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
    errors=st.lists(st.lists(ERRORS, min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_refused_partitions(data: st.DataObject, version: int, sizes: list[int], errors: list[list[ErrorCode]]) -> None:
    """As kio writes them: the walk names each, and the fast path is for responses without any."""
    made = [
        of_response(
            PRODUCE,
            version,
            "TopicProduceResponse",
            name=f"topic-{number:06}",
            topic_id=UUID(int=number + 1),
            partition_responses=tuple(
                succeeded(version, 7 * index, error_code=error) for index, error in enumerate(codes)
            ),
        )
        for number, codes in enumerate(errors)
    ]
    response = response_bytes(PRODUCE, version, of_response(PRODUCE, version, "ProduceResponse", responses=tuple(made)))
    refused = {
        (topic_of(version, number), 7 * index)
        for number, codes in enumerate(errors)
        for index, error in enumerate(codes)
        if error is not ErrorCode.none
    }
    walk = ProduceResponseWalk(version, len(response), 0, True)
    assert streamed(walk, response, sizes) == response
    assert {(topic, index) for topic, indexes in walk.refused.items() for index in indexes} == refused
    buf = bytearray(b"\xa5" * 3 + response + b"\x00\x02" * 8)
    is_accepted = finish_accepted_produce_response(buf, 3, 3 + len(response), version, 9)
    assert is_accepted == (not refused and version >= FIRST_FLEXIBLE)
    assert (bytes(buf[3 : 3 + len(response)]) != response) == is_accepted


@pytest.mark.parametrize("version", FLEXIBLE_VERSIONS)
def test_a_response_cut_anywhere_is_not_taken_for_one_without_errors(version: int) -> None:
    succeeds = response_of(version, [succeeded(version, 0), succeeded(version, 1)])
    assert finish_accepted_produce_response(bytearray(succeeds), 0, len(succeeds), version, 0)
    for size in range(4, len(succeeds)):
        assert not finish_accepted_produce_response(bytearray(succeeds[:size]), 0, size, version, 0)


@pytest.mark.parametrize("version", FLEXIBLE_VERSIONS)
def test_a_run_of_responses_ends_before_an_error(version: int) -> None:
    usual = one_partition(version)
    failed = response_of(version, [succeeded(version, 3, error_code=ErrorCode.message_too_large)])
    assert len(failed) == len(usual)
    size = 4 + len(usual)
    for at in range(5):
        frames = b"".join(
            pack(">ii", size - 4, number) + (failed if number == at else usual)[4:] for number in range(4)
        )
        assert usual_produce_run(memoryview(frames), size, version) == [0, 1, 2, 3]
        assert accepted_produce_run(memoryview(frames), size, version) == [0, 1, 2, 3][:at]


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


def old_response(version: int, topics: Named) -> bytes:
    """Of versions 0 to 2, for which kio has no schema."""
    response = CORRELATION_ID + pack(">i", len(topics))
    for name, errors in topics:
        response += pack(">h", len(name.encode())) + name.encode() + pack(">i", len(errors))
        for index, error in enumerate(errors):
            response += pack(">ihq", index, error, 4_711) + (pack(">q", -1) if version >= 2 else b"")
    return response + (pack(">i", 0) if version >= 1 else b"")


@given(
    version=st.sampled_from([0, 1, 2]),
    topics=st.lists(st.tuples(st.text(max_size=20), st.lists(st.sampled_from([0, 0, -1, TOO_LARGE]), max_size=5))),
    sizes=chunk_sizes,
    work=st.integers(1, 5),
)
def test_errors_in_old_versions(version: int, topics: Named, sizes: list[int], work: int) -> None:
    found = refused_shares(version, old_response(version, topics), sizes, work)
    assert found == shares(topics)


def packed_partition(version: int, error: int = 0, record_errors: int = 0, tags: int = 0) -> bytes:
    """Of version 8 or later."""
    start = pack(">ihqqq", 0, error, -1, -1, -1)
    if version < FIRST_FLEXIBLE:
        return start + pack(">i", record_errors) + pack(">ih", 0, -1) * record_errors + pack(">h", -1)
    tag_buffer = encode_varint(tags) + b"\x05\x00" * tags
    return start + encode_varint(record_errors + 1) + bytes(6) * record_errors + b"\x00" + tag_buffer


def topic_of(version: int, index: int) -> Topic:
    return UUID(int=index + 1).bytes if version >= FIRST_WITH_TOPIC_IDS else f"topic-{index:06}"


def packed_response(version: int, topics: list[list[bytes]]) -> bytes:
    """Of version 8 or later; one list of partitions for each topic."""
    compact = version >= FIRST_FLEXIBLE

    def count(items: int) -> bytes:
        return encode_varint(items + 1) if compact else pack(">i", items)

    tags = b"\x00" if compact else b""
    response = CORRELATION_ID + tags + count(len(topics))
    for index, partitions in enumerate(topics):
        topic = topic_of(version, index)
        name = topic if isinstance(topic, bytes) else (b"\x0d" if compact else b"\x00\x0c") + topic.encode()
        response += name + count(len(partitions)) + b"".join(partitions) + tags
    return response + bytes(4) + tags


NEW_VERSIONS = [8, 9, 13]


@pytest.mark.parametrize("version", NEW_VERSIONS)
def test_a_response_that_ends_too_early_or_too_late(version: int) -> None:
    response = packed_response(
        version, [[packed_partition(version, TOO_LARGE, record_errors=2)], [packed_partition(version)]]
    )
    for size in range(1, len(response)):
        with pytest.raises(TruncatedFrame):
            refused_shares(version, response[:size])
    with pytest.raises(MalformedFrame):
        refused_shares(version, response + bytes(1))


@pytest.mark.parametrize("version", NEW_VERSIONS)
def test_errors_of_the_first_topics_are_counted(version: int) -> None:
    halves = [packed_partition(version), packed_partition(version, TOO_LARGE)]
    topics = [halves, *[[packed_partition(version, TOO_LARGE * (index % 2))] for index in range(1, MAX_COUNTED + 1)]]
    found = refused_shares(version, packed_response(version, topics))
    rest = {topic_of(version, index): Fraction(index % 2) for index in range(1, MAX_COUNTED)}
    assert found == {topic_of(version, 0): Fraction(1, 2), **rest}


MANY = 2_000
DENSE = {
    "topics": lambda version: [[packed_partition(version, TOO_LARGE)]] * MANY,
    "topics without partitions": lambda version: [[packed_partition(version, TOO_LARGE)]] + [[]] * MANY,
    "partitions": lambda version: [[packed_partition(version, TOO_LARGE)] * MANY],
    "record errors": lambda version: [[packed_partition(version, TOO_LARGE, record_errors=MANY)]],
    "tagged fields": lambda version: [[packed_partition(version, TOO_LARGE, tags=MANY)]],
}


DENSE_VERSIONS = [
    (version, what)
    for version in NEW_VERSIONS
    for what in DENSE
    if version >= FIRST_FLEXIBLE or what != "tagged fields"
]


@pytest.mark.parametrize(("version", "what"), DENSE_VERSIONS)
@pytest.mark.parametrize("counts_errors", [False, True])
def test_the_densest_responses_rest(version: int, what: str, counts_errors: bool) -> None:
    """The result is the same."""
    response = packed_response(version, DENSE[what](version))
    resting = Resting(ProduceResponseWalk(version, len(response), 7, counts_errors), 10)
    finished = streamed(resting, response, [])
    assert finished == walk_over(response, version, 7)
    if version >= FIRST_FLEXIBLE or counts_errors:
        assert resting.rests >= MANY // 13
    if counts_errors:
        found = refused_shares(version, response)
        assert found == refused_shares(version, response, [100] * 1_000, work=3)
        assert found[topic_of(version, 0)] == 1
