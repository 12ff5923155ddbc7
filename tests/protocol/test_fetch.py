"""Fetch: responses while they arrive, and the budget of requests."""

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.apis import FETCH
from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.fetch import (
    FetchResponseWalk,
)
from protocol.walk import FrameWalk
from protocol.wire import encode_varint
from tests.protocol.fetch_responses import (
    TOPICS,
    Counting,
    Partitions,
    fetch_response,
    partition,
    record_bytes,
    response_of,
)
from tests.protocol.kafka_messages import (
    REAL_HOST,
    REAL_HOSTS,
    Resting,
    chunk_sizes,
    parsed,
    response_bytes,
    responses,
    streamed,
)

ALL = range(19)
KIOS = range(4, 19)  # those that kio knows
WITH_ENDPOINTS = [16, 17, 18]


def taking(version: int, response: bytes | bytearray) -> Counting:
    return Counting(FetchResponseWalk(version, len(response), counts_records=True))


@given(data=st.data(), version=st.sampled_from(KIOS), sizes=chunk_sizes, work=st.integers(1, 6))
def test_any_response_in_any_splits_a_few_pieces_at_a_time(
    data: st.DataObject, version: int, sizes: list[int], work: int
) -> None:
    body = data.draw(responses(FETCH, version, host=REAL_HOSTS))
    response = response_bytes(FETCH, version, body)
    walk = taking(version, response)

    passed = streamed(Resting(walk, work), response, sizes)

    assert walk.walk.is_over
    assert len(passed) == len(response)
    assert REAL_HOST.encode() not in passed
    assert parsed(FETCH, version, passed).responses == body.responses
    assert walk.totals.total() == sum(len(part.records or b"") for topic in body.responses for part in topic.partitions)
    if version < 16 or not body.node_endpoints:
        assert passed == response


@given(
    version=st.sampled_from(ALL),
    topics=TOPICS,
    sizes=chunk_sizes | st.lists(st.integers(0, 700), max_size=200),
    work=st.integers(1, 7) | st.just(1 << 40),
)
def test_record_bytes_of_each_topic(version: int, topics: list[Partitions], sizes: list[int], work: int) -> None:
    response = fetch_response(version, topics)
    walk = taking(version, response)

    streamed(Resting(walk, work), response, sizes)

    assert walk.totals == record_bytes(version, topics)


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


@pytest.mark.parametrize("version", WITH_ENDPOINTS)
@pytest.mark.parametrize("endpoints", [0, 1, 30])
@pytest.mark.parametrize(
    "topics",
    [
        pytest.param([], id="none"),
        pytest.param([{}], id="an empty topic"),
        pytest.param([{0: 1}], id="one partition"),
        pytest.param([{0: 126}, {0: 127}, {0: 128}, {0: 500}], id="many partitions"),
        pytest.param([{0: 1}] * 130, id="many topics"),
    ],
)
@pytest.mark.parametrize("sizes", [[], [100_000], [1] * 200, [7] * 3_000])
def test_shapes(version: int, endpoints: int, topics: list[dict[int, int]], sizes: list[int]) -> None:
    made = [[partition(version)] * sum(topic.values()) for topic in topics]
    response = response_of(version, *made, endpoints=endpoints)

    passed = streamed(FetchResponseWalk(version, len(response)), response, sizes)

    assert REAL_HOST.encode() not in passed
    assert parsed(FETCH, version, passed).responses == parsed(FETCH, version, response).responses


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


def test_unknown_tags_stay_and_the_name_of_node_endpoints_is_gone() -> None:
    response = response_of(18, [partition(18)])
    endpoints = (
        b"\x02" + pack(">i", 1) + bytes([len(REAL_HOST) + 1]) + REAL_HOST.encode() + pack(">i", 9092) + b"\x00\x00"
    )
    tags = b"\x00" + bytes([len(endpoints)]) + endpoints + b"\x05\x03abc" + b"\x80\x01\x01z"
    response = response[:-1] + b"\x03" + tags

    passed = streamed(FetchResponseWalk(18, len(response)), response, [1] * len(response))

    hidden = b"\x7f" + bytes([len(endpoints)]) + bytes(len(endpoints)) + b"\x05\x03abc" + b"\x80\x01\x01z"
    assert passed == response[: -len(tags)] + hidden


def test_cut_short_and_too_long() -> None:
    response = response_of(18, [partition(18)] * 3, endpoints=1)
    for length in range(len(response)):
        walk = FetchResponseWalk(18, length)
        with pytest.raises(TruncatedFrame):
            walk.advance(bytearray(response[:length]), 0, length)
    longer = bytearray(response + b"\x00")
    with pytest.raises(MalformedFrame):
        FetchResponseWalk(18, len(longer)).advance(longer, 0, len(longer))


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


@pytest.mark.parametrize("version", [2, 11, 18])
def test_records_longer_than_the_frame(version: int) -> None:
    response = bytearray(fetch_response(version, [[bytes(100)]]))
    response[response.index(bytes(100)) - (1 if version == 18 else 4)] = 0x7F
    for sizes in ([], [len(response) // 2]):
        with pytest.raises(TruncatedFrame):
            streamed(taking(version, response), bytes(response), sizes)


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


def dense(what: str, count: int) -> bytes:
    """Of version 18: as many pieces as fit into so many bytes."""
    tags = b"\x01\x05\x00"
    head = bytes(30)
    plain = head + b"\x01" + bytes(4) + b"\x01" + b"\x00"
    start = b"\x00\xc0\xff\xee" + bytes(11)
    many = encode_varint(count + 1)
    one_topic = b"\x02" + bytes(16)
    return {
        "topics": start + many + (bytes(16) + b"\x01\x00") * count + b"\x00",
        "topics with tags": start + many + (bytes(16) + b"\x01" + tags) * count + b"\x00",
        "partitions": start + one_topic + many + plain * count + b"\x00" + b"\x00",
        "partitions with tags": start + one_topic + many + (plain[:-1] + tags) * count + b"\x00" + b"\x00",
        "aborted transactions": start
        + one_topic
        + b"\x02"
        + head
        + many
        + (bytes(17) * 3 + bytes(16) + tags) * (count // 4)
        + bytes(4)
        + b"\x01\x00\x00\x00",
        "tagged fields": start + b"\x01" + encode_varint(count) + b"\x05\x00" * count,
    }[what]


@pytest.mark.parametrize(
    "what",
    ["topics", "topics with tags", "partitions", "partitions with tags", "aborted transactions", "tagged fields"],
)
def test_the_densest_responses_rest(what: str) -> None:
    count = 4_000
    response = dense(what, count)
    resting = Resting(FetchResponseWalk(18, len(response)), 50)

    assert streamed(resting, response, []) == response
    assert resting.rests >= count // 4 // 53


# The budget of requests
