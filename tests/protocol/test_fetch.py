"""Responses with records that stream by: Fetch, ShareFetch and ShareAcknowledge."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.apis import FETCH, SHARE_ACKNOWLEDGE, SHARE_FETCH
from protocol.errors import MalformedFrame
from protocol.fetch import FetchResponseWalk
from protocol.node_endpoints import SWALLOWING_MIN, swallowing
from protocol.share import ShareAcknowledgeResponseWalk, ShareFetchResponseWalk
from protocol.walk import FrameWalk
from protocol.wire import encode_varint, skip_tags
from tests.protocol.fetch_responses import (
    TOPICS,
    Counting,
    Partitions,
    fetch_response,
    partition,
    record_bytes,
    response_of,
    share_response,
)
from tests.protocol.kafka_messages import (
    CORRELATION_ID,
    REAL_HOST,
    REAL_HOSTS,
    Resting,
    chunk_sizes,
    parsed,
    response_bytes,
    responses,
    streamed,
)

SHARE_VERSIONS = [(SHARE_FETCH, 1), (SHARE_FETCH, 2), (SHARE_ACKNOWLEDGE, 1), (SHARE_ACKNOWLEDGE, 2)]
KNOWN_TO_KIO = [*((FETCH, version) for version in range(4, 19)), *SHARE_VERSIONS]
WITH_RECORDS = [*((FETCH, version) for version in range(19)), (SHARE_FETCH, 1), (SHARE_FETCH, 2)]
MILLISECOND = timedelta(milliseconds=1)
LOCK_TIMEOUTS = st.integers(1, 2**31 - 1).map(lambda ms: ms * MILLISECOND)


def walk_over(api_key: int, version: int, frame_length: int) -> Any:
    if api_key == SHARE_ACKNOWLEDGE:
        return ShareAcknowledgeResponseWalk(version, frame_length)
    walk = FetchResponseWalk if api_key == FETCH else ShareFetchResponseWalk
    return walk(version, frame_length, counts_records=True)


def taking(version: int, response: bytes | bytearray) -> Counting:
    return Counting(walk_over(FETCH, version, len(response)))


@given(data=st.data(), api_and_version=st.sampled_from(KNOWN_TO_KIO), sizes=chunk_sizes, work=st.integers(1, 6))
def test_any_response_in_any_splits_a_few_pieces_at_a_time(
    data: st.DataObject, api_and_version: tuple[int, int], sizes: list[int], work: int
) -> None:
    body: Any = data.draw(responses(*api_and_version, host=REAL_HOSTS))
    response = response_bytes(*api_and_version, body)
    walk = walk_over(*api_and_version, len(response))

    passed = streamed(Resting(walk, work), response, sizes)

    assert walk.is_over
    assert len(passed) == len(response)
    assert REAL_HOST.encode() not in passed
    has_endpoints = bool(getattr(body, "node_endpoints", ()))
    assert parsed(*api_and_version, passed) == (replace(body, node_endpoints=()) if has_endpoints else body)
    assert has_endpoints or passed == response


@given(
    api_and_version=st.sampled_from(WITH_RECORDS),
    topics=TOPICS,
    sizes=chunk_sizes | st.lists(st.integers(0, 700), max_size=200),
    work=st.integers(1, 7) | st.just(1 << 40),
)
def test_record_bytes_of_each_topic(
    api_and_version: tuple[int, int], topics: list[Partitions], sizes: list[int], work: int
) -> None:
    api_key, version = api_and_version
    response = fetch_response(version, topics) if api_key == FETCH else share_response(version, topics)
    walk = Counting(walk_over(api_key, version, len(response)))

    streamed(Resting(walk, work), response, sizes)

    assert walk.totals == record_bytes(version if api_key == FETCH else 13, topics)


class SlowWalk(FetchResponseWalk):
    """Without the fast path: every field is read by the generator."""

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        return FrameWalk.advance(self, buf, pos, end)

    def _skip_plain(self) -> None:
        self._skip_records()


@st.composite
def partitions(draw: st.DrawFn) -> Any:
    """Most are plain; the length of the records takes one to three bytes."""
    module: Any = load_payload_module(FETCH, 18, EntityType.response)
    changes: dict[str, Any] = {"records": draw(st.none() | st.sampled_from([0, 30, 126, 127, 300, 17_000]).map(bytes))}
    what = draw(st.sampled_from(["plain"] * 6 + ["aborted", "tags"]))
    if what == "aborted":
        changes["aborted_transactions"] = (module.AbortedTransaction(producer_id=1, first_offset=2),)
    elif what == "tags":
        changes["current_leader"] = module.LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
    return partition(18, **changes)


def outcome(
    walk: type[FetchResponseWalk], version: int, response: bytes, sizes: list[int], work: int = 1 << 40
) -> tuple[object, object]:
    """What passes, and record bytes by topic; or the error, and its place."""
    counting = Counting(walk(version, len(response), counts_records=True))
    try:
        return streamed(Resting(counting, work), response, sizes), counting.totals
    except MalformedFrame as error:
        return type(error).__name__, error.offset


@pytest.mark.pure
@given(
    topics=st.lists(st.lists(partitions(), max_size=4), max_size=4),
    endpoints=st.integers(0, 1),
    change=st.none() | st.tuples(st.integers(0, 300), st.integers(0, 255)),
    sizes=st.lists(st.integers(0, 20) | st.integers(0, 600), max_size=200),
    work=st.integers(1, 6),
)
def test_the_fast_path_does_what_the_generator_does(
    topics: list[list[Any]], endpoints: int, change: tuple[int, int] | None, sizes: list[int], work: int
) -> None:
    response = bytearray(response_of(18, *topics, endpoints=endpoints))
    if change is not None:
        response[change[0] % len(response)] = change[1]
    frame = bytes(response)

    expected = outcome(SlowWalk, 18, frame, [])

    assert outcome(FetchResponseWalk, 18, frame, []) == expected
    assert outcome(FetchResponseWalk, 18, frame, sizes, work) == expected


@pytest.mark.parametrize("size", [0, 1, 2, 126, 127, 128, 129, 16_382, 16_383, 16_384, 2_097_150, 2_097_151, 2_097_152])
@pytest.mark.parametrize("chunk", [5_000_000, 262_144, 16_000])
def test_records_of_every_length_of_length(size: int, chunk: int) -> None:
    """Their length plus one is a varint of one to four bytes; larger ones do not come whole."""
    topics: list[Partitions] = [[None, bytes(size), bytes(50)]]
    response = fetch_response(18, topics)
    walk = taking(18, response)

    passed = streamed(walk, response, [chunk] * (len(response) // chunk))

    assert passed[:-80] == response[:-80]
    assert REAL_HOST.encode() not in passed
    assert walk.totals == record_bytes(18, topics)
    parsed(FETCH, 18, passed)


@pytest.mark.parametrize("tag", ["80 00", "ff ff ff ff 0f"])
def test_a_tag_that_is_0_in_disguise(tag: str) -> None:
    """Some decoders read two bytes as tag 0, too: NodeEndpoints under such a name are refused."""
    endpoints = b"\x01\x00"
    response = response_of(18, [partition(18)])[:-1] + b"\x01" + bytes.fromhex(tag) + b"\x02" + endpoints
    for sizes in ([], [1] * len(response)):
        with pytest.raises(MalformedFrame):
            streamed(FetchResponseWalk(18, len(response)), response, sizes)


def test_bytes_are_final_up_to_where_the_response_is_wrong() -> None:
    """Nothing passes then, in later calls neither."""
    walk = FetchResponseWalk(18, 1_000)
    broken = bytearray(response_of(18, [partition(18)])[:-1] + b"\xff" * 40)
    with pytest.raises(MalformedFrame) as caught:
        walk.advance(broken, 0, len(broken))
    assert caught.value.offset == len(broken) - 40
    assert walk.advance(broken, 0, len(broken)) == 0


def test_records_that_span_reads_are_skipped_without_the_generator() -> None:
    """The generator costs 2 us more for each read."""
    response = response_of(18, [partition(18, records=bytes(10_000)), partition(18, records=bytes(500))])
    walk = FetchResponseWalk(18, len(response))
    buf = bytearray(response)
    at = 0
    for end in (200, 5_000, 10_000, 10_300):
        assert walk.advance(buf, at, end) == end, "all that was shown is final"
        at = end
        assert not walk.is_over
        assert walk._steps is None
    assert walk.advance(buf, at, len(buf)) == len(buf)
    assert walk.is_over


# ---- share groups


@given(data=st.data(), api_and_version=st.sampled_from(SHARE_VERSIONS), sizes=chunk_sizes)
def test_for_how_long_the_acquired_records_are_locked(
    data: st.DataObject, api_and_version: tuple[int, int], sizes: list[int]
) -> None:
    body = data.draw(responses(*api_and_version, acquisition_lock_timeout=LOCK_TIMEOUTS))
    response = response_bytes(*api_and_version, body)
    walked = walk_over(*api_and_version, len(response))
    assert walked.lock_timeout_ms == 0

    streamed(walked, response, sizes)

    says = api_and_version != (SHARE_ACKNOWLEDGE, 1)
    assert walked.lock_timeout_ms == (body.acquisition_lock_timeout / MILLISECOND if says else 0)


def test_no_array_of_endpoints_at_all() -> None:
    """Null where none may be: nothing to hide, and the client's business."""
    response = share_response(1, [[None]])[:-2] + b"\x00\x00"
    assert streamed(ShareFetchResponseWalk(1, len(response)), response, []) == response


@pytest.mark.parametrize("size", [*range(SWALLOWING_MIN, 300), *range(16_380, 16_400), *range(2_097_150, 2_097_165)])
def test_swallowing_takes_exactly_the_rest(size: int) -> None:
    """Around the lengths at which the size of the tag takes one byte more, too."""
    first = swallowing(size)
    assert first[0] == 1
    assert skip_tags(first + bytes(size - len(first)), 1, size, 0) == size


# ---- bounded work

COUNT = 4_000
TAGS = b"\x01\x05\x00"


def many(item: bytes, count: int = COUNT) -> bytes:
    return encode_varint(count + 1) + item * count


def array_of(items: bytes, size: int) -> bytes:
    """An array of so many items in a row."""
    return encode_varint(COUNT + 1) + items * (COUNT // size)


def one_topic(partitions: bytes) -> bytes:
    return many(bytes(16) + partitions + b"\x00", 1)


#: Up to the topics: correlation id, tags, throttle time and so on.
FETCH_18, SHARE_FETCH_1, ACKNOWLEDGE_1 = (CORRELATION_ID + bytes(size) for size in (11, 12, 8))
FETCHED = bytes(30) + b"\x01" + bytes(4) + b"\x01"
ABORTED = bytes(17) * 3 + bytes(16) + TAGS
SHARED = bytes(18) + b"\x00\x01"
ACKNOWLEDGED = bytes(16)
#: API, version and response: as many pieces as fit into so many bytes.
DENSE = {
    "topics": (FETCH, 18, FETCH_18 + many(bytes(16) + b"\x01\x00") + b"\x00"),
    "topics with tags": (FETCH, 18, FETCH_18 + many(bytes(16) + b"\x01" + TAGS) + b"\x00"),
    "partitions": (FETCH, 18, FETCH_18 + one_topic(many(FETCHED + b"\x00")) + b"\x00"),
    "partitions with tags": (FETCH, 18, FETCH_18 + one_topic(many(FETCHED + TAGS)) + b"\x00"),
    "aborted transactions": (
        FETCH,
        18,
        FETCH_18 + one_topic(many(bytes(30) + array_of(ABORTED, 4) + bytes(4) + b"\x01\x00", 1)) + b"\x00",
    ),
    "tagged fields": (FETCH, 18, FETCH_18 + b"\x01" + encode_varint(COUNT) + b"\x05\x00" * COUNT),
    "shared topics": (SHARE_FETCH, 1, SHARE_FETCH_1 + many(bytes(16) + b"\x01\x00") + b"\x01\x00"),
    "shared partitions": (SHARE_FETCH, 1, SHARE_FETCH_1 + one_topic(many(SHARED + b"\x01\x00")) + b"\x01\x00"),
    "acknowledged partitions": (
        SHARE_ACKNOWLEDGE,
        1,
        ACKNOWLEDGE_1 + one_topic(many(ACKNOWLEDGED + b"\x00")) + b"\x01\x00",
    ),
    "acknowledged partitions with tags": (
        SHARE_ACKNOWLEDGE,
        1,
        ACKNOWLEDGE_1 + one_topic(many(ACKNOWLEDGED + TAGS)) + b"\x01\x00",
    ),
    "acquired records": (
        SHARE_FETCH,
        1,
        SHARE_FETCH_1 + one_topic(many(SHARED + array_of(bytes(19) + bytes(18) + TAGS, 2) + b"\x00", 1)) + b"\x01\x00",
    ),
    "plain acquired records": (
        SHARE_FETCH,
        1,
        SHARE_FETCH_1 + one_topic(many(SHARED + many(bytes(19)) + b"\x00", 1)) + b"\x01\x00",
    ),
    "tagged fields after endpoints": (
        SHARE_FETCH,
        1,
        SHARE_FETCH_1 + b"\x01\x01" + encode_varint(COUNT) + b"\x05\x00" * COUNT,
    ),
}


@pytest.mark.parametrize("what", DENSE)
def test_the_densest_responses_rest(what: str) -> None:
    api_key, version, response = DENSE[what]
    compared_at_once = what == "plain acquired records"
    resting = Resting(walk_over(api_key, version, len(response)), 1 if compared_at_once else 50)

    assert streamed(resting, response, []) == response
    assert resting.rests >= (COUNT // 512 if compared_at_once else COUNT // 4 // 53)
