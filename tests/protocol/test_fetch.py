"""Fetch: responses that stream by, and the budget in requests."""

import datetime
from struct import pack, unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.static.constants import EntityType

from protocol.apis import FETCH
from protocol.errors import MalformedFrame, TruncatedFrame, UnsupportedVersion
from protocol.fetch import (
    FETCH_BUDGET_BYTES,
    FETCH_THROTTLE_BYTES,
    FetchResponseWalk,
    fetch_budget_offset,
    lower_fetch_budget,
    patch_fetch_throttle,
)
from protocol.messages import encode
from tests.protocol.kafka_messages import (
    REAL_HOST,
    REAL_HOSTS,
    chunk_sizes,
    messages,
    parsed,
    response_bytes,
    responses,
    streamed,
)

WALKED = [16, 17, 18]


def partition(version: int, **changes: Any) -> Any:
    module: Any = load_payload_module(FETCH, version, EntityType.response)
    fields = {
        "partition_index": 3,
        "error_code": ErrorCode.none,
        "high_watermark": 4711,
        "last_stable_offset": 4711,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": b"r" * 50,
    }
    return module.PartitionData(**(fields | changes))


def response_of(version: int, *topics: list[Any], error: ErrorCode = ErrorCode.none, endpoints: int = 0) -> bytes:
    module: Any = load_payload_module(FETCH, version, EntityType.response)
    body = module.FetchResponse(
        throttle_time=datetime.timedelta(0),
        error_code=error,
        session_id=1,
        responses=tuple(
            module.FetchableTopicResponse(topic_id=None, partitions=tuple(partitions)) for partitions in topics
        ),
        node_endpoints=tuple(
            module.NodeEndpoint(node_id=index, host=REAL_HOST, port=9092, rack="r") for index in range(endpoints)
        ),
    )
    return response_bytes(FETCH, version, body)


@pytest.mark.parametrize("version", WALKED)
@given(data=st.data(), sizes=chunk_sizes)
def test_any_response_in_any_splits(version: int, data: st.DataObject, sizes: list[int]) -> None:
    body = data.draw(responses(FETCH, version, host=REAL_HOSTS))
    response = response_bytes(FETCH, version, body)

    passed = streamed(FetchResponseWalk(version, len(response)), response, sizes)

    assert len(passed) == len(response)
    assert REAL_HOST.encode() not in passed
    after = parsed(FETCH, version, passed)
    assert after.node_endpoints == ()
    assert after.responses == body.responses
    if not body.node_endpoints:
        assert passed == response


@pytest.mark.parametrize("version", WALKED)
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


@pytest.mark.parametrize("version", WALKED)
def test_every_split_in_two_and_in_three(version: int) -> None:
    """The first read may end anywhere, the head included, and the second may bring the rest or not."""
    long = partition(version, records=b"r" * 200)  # whose length takes two bytes
    response = response_of(version, [partition(version), long], [partition(version, records=None)], endpoints=1)
    whole = streamed(FetchResponseWalk(version, len(response)), response, [])
    for first in range(len(response)):
        for second in (*range(1, 40), len(response)):
            assert streamed(FetchResponseWalk(version, len(response)), response, [first, second]) == whole


@pytest.mark.parametrize("size", [0, 1, 2, 126, 127, 128, 129, 16_382, 16_383, 16_384, 2_097_150, 2_097_151, 2_097_152])
@pytest.mark.parametrize("chunk", [5_000_000, 262_144, 16_000])
def test_records_of_every_length_of_length(size: int, chunk: int) -> None:
    """Their length plus one is a varint of one to four bytes; larger ones do not come whole."""
    partitions = [partition(18, records=None), partition(18, records=bytes(size)), partition(18)]
    response = response_of(18, partitions, endpoints=1)

    passed = streamed(FetchResponseWalk(18, len(response)), response, [chunk] * (len(response) // chunk))

    assert passed[:-80] == response[:-80]
    assert REAL_HOST.encode() not in passed
    parsed(FETCH, 18, passed)


@pytest.mark.parametrize("count", [0, 1, 126, 127, 600])
@pytest.mark.parametrize("chunk", [1, 1_000, 100_000])
def test_aborted_transactions(count: int, chunk: int) -> None:
    module: Any = load_payload_module(FETCH, 18, EntityType.response)
    aborted = tuple(module.AbortedTransaction(producer_id=index, first_offset=index) for index in range(count))
    response = response_of(18, [partition(18, aborted_transactions=aborted), partition(18)], endpoints=1)

    passed = streamed(FetchResponseWalk(18, len(response)), response, [chunk] * (len(response) // chunk))

    assert REAL_HOST.encode() not in passed
    assert parsed(FETCH, 18, passed).responses == parsed(FETCH, 18, response).responses


@pytest.mark.parametrize("version", WALKED)
def test_partitions_that_say_more(version: int) -> None:
    """Errors come with tags: the diverging epoch, the current leader, the snapshot."""
    module: Any = load_payload_module(FETCH, version, EntityType.response)
    leader = module.LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
    failed = partition(version, error_code=ErrorCode.not_leader_or_follower, current_leader=leader, records=None)
    response = response_of(version, [partition(version), failed, partition(version)], [failed], endpoints=2)

    passed = streamed(FetchResponseWalk(version, len(response)), response, [60])

    assert REAL_HOST.encode() not in passed
    assert parsed(FETCH, version, passed).responses[1].partitions[0].current_leader == leader


@pytest.mark.parametrize("version", WALKED)
def test_error_of_the_whole_response(version: int) -> None:
    response = response_of(version, error=ErrorCode.fetch_session_id_not_found)

    assert streamed(FetchResponseWalk(version, len(response)), response, [3, 4]) == response


@pytest.mark.parametrize("first", [5, 1_000])
def test_a_walk_that_is_over_may_be_asked_again(first: int) -> None:
    response = bytearray(response_of(18, [partition(18)], endpoints=0))
    walk = FetchResponseWalk(18, len(response))
    at = walk.advance(response, 0, min(first, len(response)))
    assert walk.advance(response, at, len(response)) == len(response)
    assert walk.advance(response, len(response), len(response)) == len(response)


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


@pytest.mark.parametrize("version", [0, 4, 15, 19])
def test_other_versions_have_no_walk(version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        FetchResponseWalk(version, 100)


@pytest.mark.parametrize("version", range(4, 19))
@given(data=st.data(), throttle_time_ms=st.integers(0, 2**31 - 1))
def test_throttle_in_the_first_bytes(version: int, data: st.DataObject, throttle_time_ms: int) -> None:
    body = data.draw(responses(FETCH, version))
    response = bytearray(b"\xa5" + response_bytes(FETCH, version, body)[:FETCH_THROTTLE_BYTES])
    before = bytes(response)

    throttle = patch_fetch_throttle(response, 1, version, throttle_time_ms)

    assert throttle == max(throttle_time_ms, body.throttle_time // datetime.timedelta(milliseconds=1))
    at = 6 if version >= 12 else 5
    assert response == before[:at] + pack(">i", throttle) + before[at + 4 :]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_throttle_of_old_versions(version: int) -> None:
    response = bytearray(b"\x00\x00\x00\x07" + pack(">ii", 40, 0))
    assert patch_fetch_throttle(response, 0, version, 30) == 40
    assert patch_fetch_throttle(response, 0, version, 50) == 50
    assert response == b"\x00\x00\x00\x07" + pack(">ii", 50, 0)


def test_version_0_has_no_throttle() -> None:
    response = bytearray(b"\x00\x00\x00\x07" + bytes(8))
    assert patch_fetch_throttle(response, 0, 0, 30) == 0
    assert response == b"\x00\x00\x00\x07" + bytes(8)


def test_tags_in_the_response_header() -> None:
    with pytest.raises(MalformedFrame):
        patch_fetch_throttle(bytearray(b"\x00\x00\x00\x07\x01\x05\x00" + bytes(8)), 0, 12, 30)


@pytest.mark.parametrize("version", range(4, 19))
@given(data=st.data(), budget=st.integers(-5, 2**31 - 1))
def test_budget(version: int, data: st.DataObject, budget: int) -> None:
    schema: Any = load_request_schema(FETCH, version)
    body = data.draw(messages(schema))
    buf = bytearray(b"\xa5" * 5 + encode(body))
    offset = fetch_budget_offset(version)
    assert offset is not None
    wait = body.max_wait // datetime.timedelta(milliseconds=1) if hasattr(body, "max_wait") else body.max_wait_ms
    assert unpack_from(">iii", buf, 5 + offset) == (wait, body.min_bytes, body.max_bytes)

    lower_fetch_budget(buf, 5, version, budget)

    after: Any = entity_reader(schema)(bytes(buf), 5)[0]
    assert after.max_bytes == max(1, min(budget, body.max_bytes))
    assert after.min_bytes == min(body.min_bytes, after.max_bytes)
    assert after.topics == body.topics
    assert len(buf) == 5 + len(encode(body))


def test_budget_of_version_3() -> None:
    buf = bytearray(pack(">iiiii", -1, 500, 1, 50_000_000, 0))
    lower_fetch_budget(buf, 0, 3, 1_000)
    assert buf == pack(">iiiii", -1, 500, 1, 1_000, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_budget_before_version_3(version: int) -> None:
    buf = bytearray(pack(">iiii", -1, 500, 1, 0))
    assert fetch_budget_offset(version) is None
    lower_fetch_budget(buf, 0, version, 10)
    assert buf == pack(">iiii", -1, 500, 1, 0)


def test_a_budget_that_has_not_come() -> None:
    buf = bytearray(FETCH_BUDGET_BYTES)
    lower_fetch_budget(buf, 0, 14, 10)
    with pytest.raises(MalformedFrame):
        lower_fetch_budget(buf[:-1], 0, 14, 10)
