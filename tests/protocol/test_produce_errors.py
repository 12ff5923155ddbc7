"""What brokers refused, read from Produce responses of every version, and no more of them than there is time for."""

import contextlib
from collections.abc import Sequence
from fractions import Fraction
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.apis import APIS, PRODUCE
from protocol.errors import MalformedFrame, ProtocolError, TruncatedFrame, UnsupportedVersion
from protocol.produce import FIRST_FLEXIBLE, FIRST_WITH_TOPIC_IDS
from protocol.produce_errors import MAX_PIECES, RefusedShares, refused_shares
from protocol.topics import NO_TOPIC_ID, Topic
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import CORRELATION_ID, response_bytes, responses

FIRST_WITH_SCHEMA = 3
VERSIONS = range(APIS[PRODUCE].max_version + 1)
TOO_LARGE = ErrorCode.message_too_large.value

Named = list[tuple[str, list[int]]]
"""Topics by name, and the error code of each partition."""


def shares(topics: Sequence[tuple[Topic, list[int]]]) -> dict[Topic, Fraction]:
    """As `refused_shares`, said slowly; of a topic told of twice the last counts."""
    found: dict[Topic, Fraction] = {}
    for topic, errors in topics:
        found.pop(topic, None)
        if errors:
            found[topic] = Fraction(len([error for error in errors if error]), len(errors))
    return found


@pytest.mark.parametrize("version", VERSIONS[FIRST_WITH_SCHEMA:])
@given(data=st.data())
def test_a_topic_counts_by_its_share_of_partitions_with_errors(version: int, data: st.DataObject) -> None:
    body: Any = data.draw(responses(PRODUCE, version))
    topics: list[tuple[Topic, list[int]]] = []
    for each in body.responses:
        by_id = version >= FIRST_WITH_TOPIC_IDS
        topic = each.name if not by_id else NO_TOPIC_ID if each.topic_id is None else each.topic_id.bytes
        topics.append((topic, [partition.error_code.value for partition in each.partition_responses]))
    response = response_bytes(PRODUCE, version, body)
    assert refused_shares(version, response) == RefusedShares(shares(topics), Fraction(0))


def old_response(version: int, topics: Named) -> bytes:
    """Of versions 0 to 2, for which kio has no schema."""
    response = CORRELATION_ID + pack(">i", len(topics))
    for name, errors in topics:
        response += pack(">h", len(name.encode())) + name.encode() + pack(">i", len(errors))
        for index, error in enumerate(errors):
            response += pack(">ihq", index, error, 4_711) + (pack(">q", -1) if version >= 2 else b"")
    return response + (pack(">i", 0) if version >= 1 else b"")


@pytest.mark.parametrize("version", VERSIONS[:FIRST_WITH_SCHEMA])
@given(
    topics=st.lists(st.tuples(st.text(max_size=20), st.lists(st.sampled_from([0, 0, -1, TOO_LARGE]), max_size=5))),
)
def test_in_old_versions_too(version: int, topics: Named) -> None:
    assert refused_shares(version, old_response(version, topics)) == RefusedShares(shares(topics), Fraction(0))


def test_a_version_that_nobody_speaks() -> None:
    with pytest.raises(UnsupportedVersion):
        refused_shares(VERSIONS[-1] + 1, bytes(40))


@pytest.mark.parametrize("version", VERSIONS)
@given(response=st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(version: int, response: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        refused_shares(version, response)


# How much of it is looked at


def partition(version: int, error: int = 0, record_errors: int = 0, tags: int = 0) -> bytes:
    """Of version 8 or later."""
    start = pack(">ihqqq", 0, error, -1, -1, -1)
    if version < FIRST_FLEXIBLE:
        return start + pack(">i", record_errors) + pack(">ih", 0, -1) * record_errors + pack(">h", -1)
    tag_buffer = encode_varint(tags) + b"\x05\x00" * tags
    return start + encode_varint(record_errors + 1) + bytes(6) * record_errors + b"\x00" + tag_buffer


def topic_of(version: int, index: int) -> Topic:
    return UUID(int=index + 1).bytes if version >= FIRST_WITH_TOPIC_IDS else f"topic-{index:06}"


def response_of(version: int, topics: list[list[bytes]]) -> bytes:
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
    response = response_of(version, [[partition(version, TOO_LARGE, record_errors=2)], [partition(version)]])
    for size in range(len(response)):
        with pytest.raises(TruncatedFrame):
            refused_shares(version, response[:size])
    with pytest.raises(MalformedFrame):
        refused_shares(version, response + bytes(1))


@pytest.mark.parametrize("version", NEW_VERSIONS)
def test_a_response_within_the_bound_is_looked_at_to_its_end(version: int) -> None:
    topics = [[partition(version, TOO_LARGE * (index % 2))] for index in range(MAX_PIECES // 2)]
    found = refused_shares(version, response_of(version, topics))
    assert found.seen == {topic_of(version, index): Fraction(index % 2) for index in range(len(topics))}
    assert found.unseen == 0
    assert found.of(topic_of(version, len(topics))) == 0, "it is not in the response"


@pytest.mark.parametrize("version", NEW_VERSIONS)
def test_what_stands_behind_the_bound_is_estimated_from_what_was_seen(version: int) -> None:
    refused, accepted = [partition(version, TOO_LARGE)], [partition(version)]
    topics = [refused, accepted, accepted, accepted] * (MAX_PIECES // 8) + [refused] * 44_000
    found = refused_shares(version, response_of(version, topics))
    assert [found.of(topic_of(version, index)) for index in range(4)] == [1, 0, 0, 0]
    assert len(found.seen) == MAX_PIECES // 2
    assert found.of(topic_of(version, 40_000)) == Fraction(1, 4)


@pytest.mark.parametrize("version", NEW_VERSIONS)
def test_a_topic_that_the_bound_cuts_counts_by_what_was_seen_of_it(version: int) -> None:
    halves = [partition(version), partition(version, TOO_LARGE)] * MAX_PIECES
    found = refused_shares(version, response_of(version, [halves, [partition(version)]]))
    cut = Fraction((MAX_PIECES - 1) // 2, MAX_PIECES - 1)
    assert found == RefusedShares({topic_of(version, 0): cut}, cut)


MANY = 2 * MAX_PIECES
DENSE = {
    "topics": lambda version: [[partition(version, TOO_LARGE)]] * MANY,
    "topics without partitions": lambda version: [[partition(version, TOO_LARGE)]] + [[]] * MANY,
    "partitions": lambda version: [[partition(version, TOO_LARGE)] * MANY],
    "record errors": lambda version: [[partition(version, TOO_LARGE, record_errors=MANY)]],
    "tagged fields": lambda version: [[partition(version, TOO_LARGE, tags=MANY)]],
}


@pytest.mark.parametrize(
    ("version", "what"),
    [
        (version, what)
        for version in NEW_VERSIONS
        for what in DENSE
        if version >= FIRST_FLEXIBLE or what != "tagged fields"
    ],
)
def test_nothing_behind_the_bound_is_looked_at(version: int, what: str) -> None:
    response = response_of(version, DENSE[what](version))
    garbage = response[: len(response) * 3 // 4] + b"\xff" * (len(response) - len(response) * 3 // 4)
    found = refused_shares(version, garbage)
    assert found.of(topic_of(version, 0)) == 1
    assert found == refused_shares(version, response)


def test_topics_without_partitions_tell_nothing() -> None:
    found = refused_shares(9, response_of(9, [[]] * MANY))
    assert found == RefusedShares({}, Fraction(0))
