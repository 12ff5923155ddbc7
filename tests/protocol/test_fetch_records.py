"""Fetch and ShareFetch responses that stream by: the records of each topic, against a slow reading of the whole."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from struct import pack, unpack_from
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import FETCH, SHARE_FETCH
from protocol.errors import MalformedFrame, TruncatedFrame, UnsupportedVersion
from protocol.fetch_records import FetchRecordsWalk
from protocol.produce_walk import TopicUsage
from protocol.records_walk import RecordsWalk
from protocol.share import ShareFetchResponseWalk
from protocol.topics import Topic
from tests.protocol.kafka_messages import (
    CORRELATION_ID,
    REAL_HOST,
    REAL_HOSTS,
    Resting,
    chunk_sizes,
    parsed,
    record_batch,
    response_bytes,
    responses,
    set_entry,
    streamed,
)

VERSIONS = range(4, 19)  # of kio; `OLD` are written here
OLD = range(4)
CONTROL = 0x20

Totals = dict[Topic, tuple[int, int]]
"""Bytes and messages."""
Partitions = list[bytes | None]


def read_slowly(records: bytes) -> int:
    """The messages in records, as the docstring of `records_walk` has it."""
    messages = 0
    while len(records) >= 26:
        _, size, magic = unpack_from(">qi4xb", records)
        if size < 14 or 12 + size > len(records):
            break
        batch, records = records[: 12 + size], records[12 + size :]
        if magic == 2 and len(batch) >= 61:
            attributes, count = unpack_from(">h34xi", batch, 21)
            payload = len(batch) - 61
            most = 8 * payload if attributes % 8 else payload // 7
            messages += 0 if attributes & CONTROL else sorted((0, count, most))[1]
        elif magic in (0, 1):
            messages += 1
        else:
            break
    return messages


def expected(topics: list[tuple[Topic, Partitions]]) -> Totals:
    totals: Totals = {}
    for topic, partitions in topics:
        for records in partitions:
            if records:
                add(totals, TopicUsage(topic, len(records), read_slowly(records), ()))
    return totals


def add(totals: Totals, usage: TopicUsage) -> None:
    record_bytes, messages = totals.get(usage.topic, (0, 0))
    totals[usage.topic] = record_bytes + usage.record_bytes, messages + usage.messages


class Taking:
    """A walk whose findings are taken after each call."""

    def __init__(self, walk: RecordsWalk) -> None:
        self.walk = walk
        self.totals: Totals = {}
        self.work_left = 1 << 40

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        self.walk.work_left = self.work_left
        try:
            return self.walk.advance(buf, pos, end)
        finally:
            self.work_left = self.walk.work_left
            for usage in self.walk.take():
                add(self.totals, usage)


def topic_of(version: int, index: int) -> Topic:
    return UUID(int=index + 1).bytes if version >= 13 else f"topic-{index}"


def fetch_response(
    version: int, topics: list[tuple[Topic, Partitions]], *, aborted: int | None = None, tags: bool = False
) -> bytes:
    """With this number of aborted transactions in each partition; None: null. `tags`: of the partitions, from 12 on."""
    if version < 4:
        return old_response(version, topics)
    module: Any = load_payload_module(FETCH, version, EntityType.response)
    more: dict[str, Any] = {"log_start_offset": 0} if version >= 5 else {}
    if version >= 11:
        more["preferred_read_replica"] = -1
    if version >= 12 and tags:
        more["current_leader"] = module.LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
    transactions = None
    if aborted is not None:
        transactions = tuple(module.AbortedTransaction(producer_id=n, first_offset=n) for n in range(aborted))
    made = []
    for topic, partitions in topics:
        key: Any = {"topic_id": UUID(bytes=topic)} if isinstance(topic, bytes) else {"topic": topic}
        data = tuple(
            module.PartitionData(
                partition_index=n,
                error_code=ErrorCode.none,
                high_watermark=9,
                last_stable_offset=9,
                aborted_transactions=transactions,
                records=records,
                **more,
            )
            for n, records in enumerate(partitions)
        )
        made.append(module.FetchableTopicResponse(**key, partitions=data))
    session = {"error_code": ErrorCode.none, "session_id": 1} if version >= 7 else {}
    endpoints = {}
    if version >= 16:
        endpoints["node_endpoints"] = (module.NodeEndpoint(node_id=1, host=REAL_HOST, port=9092, rack=None),)
    body = module.FetchResponse(throttle_time=datetime.timedelta(0), responses=tuple(made), **session, **endpoints)
    return response_bytes(FETCH, version, body)


def old_response(version: int, topics: list[tuple[Topic, Partitions]]) -> bytes:
    """Versions 0 to 3, which kio does not know."""
    out = CORRELATION_ID + (pack(">i", 0) if version >= 1 else b"") + pack(">i", len(topics))
    for topic, partitions in topics:
        assert isinstance(topic, str)
        out += pack(">h", len(topic)) + topic.encode() + pack(">i", len(partitions))
        for number, records in enumerate(partitions):
            size = -1 if records is None else len(records)
            out += pack(">ihqi", number, 0, 9, size) + (records or b"")
    return out


def share_response(version: int, topics: list[tuple[Topic, Partitions]]) -> bytes:
    module: Any = load_payload_module(SHARE_FETCH, version, EntityType.response)
    made = []
    for topic, partitions in topics:
        assert isinstance(topic, bytes)
        data = tuple(
            module.PartitionData(
                partition_index=n,
                error_code=ErrorCode.none,
                acknowledge_error_code=ErrorCode.none,
                current_leader=module.LeaderIdAndEpoch(leader_id=1, leader_epoch=5),
                records=records,
                acquired_records=(module.AcquiredRecords(first_offset=0, last_offset=9, delivery_count=1),),
            )
            for n, records in enumerate(partitions)
        )
        made.append(module.ShareFetchableTopicResponse(topic_id=UUID(bytes=topic), partitions=data))
    body = module.ShareFetchResponse(
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode.none,
        acquisition_lock_timeout=datetime.timedelta(seconds=30),
        responses=tuple(made),
        node_endpoints=(),
    )
    return response_bytes(SHARE_FETCH, version, body)


def batch(
    count: int, size: int = 90, *, codec: int = 0, is_control: bool = False, is_transactional: bool = False
) -> bytes:
    attributes = codec | is_control * CONTROL | is_transactional * 0x10
    return record_batch(count, b"\x01" * (size - 61), codec=attributes, producer_id=7 if is_transactional else -1)


BATCHES = st.builds(
    batch,
    st.sampled_from([1, 1, 3, 5, 40, 2**31 - 1, -1]),
    st.sampled_from([61, 62, 90, 127, 300, 17_000]),
    codec=st.sampled_from([0, 0, 1, 4]),
    is_control=st.sampled_from([False] * 5 + [True]),
    is_transactional=st.booleans(),
)
ENTRIES = st.builds(
    set_entry,
    st.sampled_from([0, 1]),
    st.sampled_from([b"", b"v" * 30]),
    offset=st.sampled_from([0, 9, 2**40]),
    codec=st.sampled_from([0, 1]),
)
#: What a broker's log may contain; the last batch may be cut, and what is no batch ends what is read.
RECORDS = st.none() | st.tuples(
    st.lists(st.sampled_from([BATCHES] * 7 + [ENTRIES]).flatmap(lambda drawn: drawn), max_size=4).map(b"".join),
    st.sampled_from([0] * 4 + [1, 20, 45, 70]),
    st.sampled_from([b""] * 9 + [b"\x00" * 20, b"no batch" * 12]),
).map(lambda drawn: drawn[0][: len(drawn[0]) - drawn[1]] + drawn[2])
TOPICS = st.lists(st.lists(RECORDS, max_size=6), max_size=4)
SIZES = chunk_sizes | st.lists(st.integers(0, 700), max_size=200)


def named(version: int, topics: list[Partitions]) -> list[tuple[Topic, Partitions]]:
    return [(topic_of(version, index), partitions) for index, partitions in enumerate(topics)]


@given(
    version=st.sampled_from([*OLD, *VERSIONS]),
    topics=TOPICS,
    aborted=st.sampled_from([None, None, 0, 2]),
    tags=st.sampled_from([False, False, True]),
    sizes=SIZES,
    work=st.integers(1, 7) | st.just(1 << 40),
)
@example(18, [[batch(1, 100)] * 3 + [batch(2, 200)] * 3 + [batch(3, 40_000)] * 2], None, False, [], 1 << 40)
@example(18, [[batch(1, 100)] * 3], 2, False, [], 1 << 40)
@example(12, [[batch(1, 100)] * 3], 1, True, [200], 3)
def test_any_fetch_response_in_any_splits(
    version: int, topics: list[Partitions], aborted: int | None, tags: bool, sizes: list[int], work: int
) -> None:
    """A few pieces at a time; nothing is changed but the node endpoints."""
    made = named(version, topics)
    response = fetch_response(version, made, aborted=aborted, tags=tags)
    taking = Taking(FetchRecordsWalk(version, len(response)))

    passed = streamed(Resting(taking, work), response, sizes)

    assert taking.walk.is_over
    assert taking.totals == expected(made)
    if version < 16:
        assert passed == response
    else:
        assert REAL_HOST.encode() not in passed
        assert parsed(FETCH, version, passed).responses == parsed(FETCH, version, response).responses


@given(version=st.sampled_from([1, 2]), topics=TOPICS, sizes=SIZES, work=st.integers(1, 7) | st.just(1 << 40))
def test_any_share_fetch_response_in_any_splits(
    version: int, topics: list[Partitions], sizes: list[int], work: int
) -> None:
    made = named(13, [[records or b"" for records in partitions] for partitions in topics])
    response = share_response(version, made)
    taking = Taking(ShareFetchResponseWalk(version, len(response), counts_records=True))

    passed = streamed(Resting(taking, work), response, sizes)

    assert passed == response
    assert taking.totals == expected(made)


@given(data=st.data(), version=st.sampled_from(VERSIONS), sizes=chunk_sizes, work=st.integers(1, 6))
def test_any_message_of_the_schema_is_a_response(
    data: st.DataObject, version: int, sizes: list[int], work: int
) -> None:
    """With records that are noise."""
    body = data.draw(responses(FETCH, version, host=REAL_HOSTS))
    response = response_bytes(FETCH, version, body)
    taking = Taking(FetchRecordsWalk(version, len(response)))

    passed = streamed(Resting(taking, work), response, sizes)

    assert taking.walk.is_over
    assert len(passed) == len(response)
    assert REAL_HOST.encode() not in passed
    record_bytes = sum(len(part.records or b"") for topic in body.responses for part in topic.partitions)
    assert sum(size for size, _ in taking.totals.values()) == record_bytes


@pytest.mark.parametrize("version", [3, 11, 12, 18])
def test_every_split_in_two_and_in_three(version: int) -> None:
    made = named(version, [[batch(3), batch(2) + batch(4, 200), None], [b"", batch(5)[:-1], batch(1, 300)]])
    response = fetch_response(version, made)
    for first in range(0, len(response), 1 + version % 3):
        for second in (1, 60, 61, len(response)):
            taking = Taking(FetchRecordsWalk(version, len(response)))
            streamed(taking, response, [first, second])
            assert taking.totals == expected(made)


@pytest.mark.parametrize("size", [61, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151, 2_097_152])
@pytest.mark.parametrize("chunk", [5_000_000, 262_144])
def test_records_of_every_length_of_length(size: int, chunk: int) -> None:
    made = named(18, [[batch(1, 100), batch(1, size), batch(1, size), batch(1, 100)]])
    response = fetch_response(18, made)
    taking = Taking(FetchRecordsWalk(18, len(response)))

    streamed(taking, response, [chunk] * (len(response) // chunk))

    assert taking.totals == expected(made)


@pytest.mark.parametrize(
    ("records", "messages"),
    [
        pytest.param(batch(4), 4, id="a batch"),
        pytest.param(batch(40, 100, codec=3), 40, id="compressed: the header's count"),
        pytest.param(batch(1, 78, is_control=True, is_transactional=True), 0, id="a control batch"),
        pytest.param(batch(4) + batch(5)[:-1], 4, id="the last batch is cut"),
        pytest.param(batch(4) + batch(5)[:30], 4, id="its header is cut"),
        pytest.param(batch(0, 61), 0, id="compacted until nothing is left"),
        pytest.param(set_entry(1, b"v") + set_entry(0, b"v"), 2, id="entries of a message set"),
        pytest.param(set_entry(1, b"v" * 90, offset=2**40, codec=1), 1, id="a compressed entry"),
        pytest.param(batch(2**31 - 1, 131), 10, id="a count that cannot be"),
    ],
)
@pytest.mark.parametrize("partitions", [1, 2])
def test_what_is_a_message(records: bytes, messages: int, partitions: int) -> None:
    made = named(17, [[records] * partitions])
    response = fetch_response(17, made)
    taking = Taking(FetchRecordsWalk(17, len(response)))
    streamed(taking, response, [])
    assert taking.totals == {topic_of(17, 0): (partitions * len(records), partitions * messages)}


@pytest.mark.parametrize("walk", [FetchRecordsWalk, ShareFetchResponseWalk])
@pytest.mark.parametrize("version", [-1, 19])
def test_other_versions(walk: Callable[[int, int], RecordsWalk], version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        walk(version, 100)


@pytest.mark.parametrize("version", [2, 11, 18])
def test_records_longer_than_the_frame(version: int) -> None:
    made = named(version, [[batch(1)]])
    response = bytearray(fetch_response(version, made))
    at = response.index(batch(1))
    response[at - (1 if version == 18 else 4)] = 0x7F
    taking = Taking(FetchRecordsWalk(version, len(response)))
    with pytest.raises((TruncatedFrame, MalformedFrame)):
        streamed(taking, bytes(response), [])
    assert sum(size for size, _ in taking.totals.values()) <= len(response)


@given(
    version=st.sampled_from([4, 11, 12, 18]),
    topics=TOPICS,
    change=st.tuples(st.integers(0, 400), st.integers(0, 255)),
    sizes=SIZES,
)
def test_any_other_byte_in_any_splits(
    version: int, topics: list[Partitions], change: tuple[int, int], sizes: list[int]
) -> None:
    """The same error at the same place, or the same counts, however the bytes arrive."""
    response = bytearray(fetch_response(version, named(version, topics)))
    response[change[0] % len(response)] = change[1]

    def outcome(sizes: list[int], work: int) -> tuple[object, Totals]:
        taking = Taking(FetchRecordsWalk(version, len(response)))
        error = None
        try:
            streamed(Resting(taking, work), bytes(response), sizes)
        except MalformedFrame as raised:
            error = type(raised).__name__, raised.offset
        return error, {} if error else taking.totals

    assert outcome(sizes, 3) == outcome([], 1 << 40)
