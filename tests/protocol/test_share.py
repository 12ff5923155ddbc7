"""ShareFetch and ShareAcknowledge responses that stream by."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader

from protocol.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH
from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.node_endpoints import SWALLOWING_MIN, swallowing
from protocol.share import ShareAcknowledgeResponseWalk, ShareFetchResponseWalk
from protocol.wire import encode_varint, skip_tags
from tests.protocol.fetch_responses import TOPICS, Counting, Partitions, record_bytes, share_response
from tests.protocol.kafka_messages import (
    REAL_HOST,
    REAL_HOSTS,
    BoundedWalk,
    Resting,
    chunk_sizes,
    of_response,
    parsed,
    response_bytes,
    responses,
    streamed,
)

MILLISECOND = timedelta(milliseconds=1)
LOCK_TIMEOUTS = st.integers(1, 2**31 - 1).map(lambda ms: ms * MILLISECOND)
APIS_AND_VERSIONS = [(SHARE_FETCH, 1), (SHARE_FETCH, 2), (SHARE_ACKNOWLEDGE, 1), (SHARE_ACKNOWLEDGE, 2)]


def walk_over(api_key: int, version: int, frame_length: int) -> BoundedWalk:
    walk = ShareFetchResponseWalk if api_key == SHARE_FETCH else ShareAcknowledgeResponseWalk
    return walk(version, frame_length)


@given(data=st.data(), api_and_version=st.sampled_from(APIS_AND_VERSIONS), sizes=chunk_sizes, work=st.integers(1, 5))
def test_any_response_in_any_splits_a_few_pieces_at_a_time(
    data: st.DataObject, api_and_version: tuple[int, int], sizes: list[int], work: int
) -> None:
    api_key, version = api_and_version
    body = data.draw(responses(api_key, version, host=REAL_HOSTS))
    response = response_bytes(api_key, version, body)

    passed = streamed(Resting(walk_over(api_key, version, len(response)), work), response, sizes)

    assert len(passed) == len(response)
    assert REAL_HOST.encode() not in passed
    if not body.node_endpoints:
        assert passed == response
    assert parsed(api_key, version, passed) == replace(body, node_endpoints=())


def response_of(api_key: int, version: int, *, partitions: int, endpoints: int) -> bytes:
    kind = "ShareFetch" if api_key == SHARE_FETCH else "ShareAcknowledge"
    partition = of_response(
        api_key,
        version,
        "PartitionData",
        partition_index=3,
        current_leader=of_response(api_key, version, "LeaderIdAndEpoch", leader_id=1, leader_epoch=5),
        records=b"r" * 300,
        acquired_records=(of_response(SHARE_FETCH, version, "AcquiredRecords", last_offset=9, delivery_count=1),),
    )
    name = "ShareFetchableTopicResponse" if api_key == SHARE_FETCH else "ShareAcknowledgeTopicResponse"
    topic = of_response(api_key, version, name, partitions=(partition,) * partitions)
    endpoint = of_response(api_key, version, "NodeEndpoint", node_id=1, host=REAL_HOST, port=9092)
    body = of_response(api_key, version, f"{kind}Response", responses=(topic,), node_endpoints=(endpoint,) * endpoints)
    return response_bytes(api_key, version, body)


@pytest.mark.parametrize(("api_key", "version"), APIS_AND_VERSIONS)
@pytest.mark.parametrize("endpoints", [1, 2, 3, 4, 126, 127, 128, 1_000])
def test_many_endpoints(api_key: int, version: int, endpoints: int) -> None:
    """kio itself reads the array as empty, and then one tag that takes the rest."""
    response = response_of(api_key, version, partitions=2, endpoints=endpoints)

    passed = streamed(walk_over(api_key, version, len(response)), response, [4, 5, 6])

    assert REAL_HOST.encode() not in passed
    assert len(passed) == len(response)
    empty = response_of(api_key, version, partitions=2, endpoints=0)
    assert passed.startswith(empty[:-1])  # all but the count of tags, which was 0
    assert skip_tags(passed, len(empty) - 1, len(passed), 0) == len(passed)
    with pytest.raises(KeyError, match="Unknown tagged field tag"):
        entity_reader(load_response_schema(api_key, version))(passed, 5)


@given(data=st.data(), api_and_version=st.sampled_from(APIS_AND_VERSIONS), sizes=chunk_sizes)
def test_for_how_long_the_acquired_records_are_locked(
    data: st.DataObject, api_and_version: tuple[int, int], sizes: list[int]
) -> None:
    api_key, version = api_and_version
    body = data.draw(responses(api_key, version, acquisition_lock_timeout=LOCK_TIMEOUTS))
    response = response_bytes(api_key, version, body)
    walk = ShareFetchResponseWalk if api_key == SHARE_FETCH else ShareAcknowledgeResponseWalk
    walked = walk(version, len(response))
    assert walked.lock_timeout_ms == 0

    streamed(walked, response, sizes)

    says = (api_key, version) != (SHARE_ACKNOWLEDGE, 1)
    assert walked.lock_timeout_ms == (body.acquisition_lock_timeout / MILLISECOND if says else 0)


@given(version=st.sampled_from([1, 2]), topics=TOPICS, sizes=chunk_sizes, work=st.integers(1, 7))
def test_record_bytes_of_each_topic(version: int, topics: list[Partitions], sizes: list[int], work: int) -> None:
    response = share_response(version, topics)
    taking = Counting(ShareFetchResponseWalk(version, len(response), counts_records=True))

    assert streamed(Resting(taking, work), response, sizes) == response

    assert taking.totals == record_bytes(13, topics)


@pytest.mark.parametrize(("api_key", "version"), APIS_AND_VERSIONS)
def test_cut_short_and_too_long(api_key: int, version: int) -> None:
    response = response_of(api_key, version, partitions=2, endpoints=0)
    for length in range(len(response)):
        with pytest.raises(TruncatedFrame):
            walk_over(api_key, version, length).advance(bytearray(response), 0, length)
    longer = bytearray(response + b"\x00")
    with pytest.raises(MalformedFrame):
        walk_over(api_key, version, len(longer)).advance(longer, 0, len(longer))


def test_endpoints_that_no_tag_can_swallow() -> None:
    response = bytearray(response_of(SHARE_FETCH, 1, partitions=1, endpoints=0)[:-1])
    response[-1] = 2  # one endpoint, and nothing follows
    with pytest.raises(TruncatedFrame):
        ShareFetchResponseWalk(1, len(response)).advance(response, 0, len(response))


def test_no_array_of_endpoints_at_all() -> None:
    """Null where none may be: nothing to hide, and the client's business."""
    response = response_of(SHARE_FETCH, 1, partitions=1, endpoints=0)[:-2] + b"\x00\x00"
    assert streamed(ShareFetchResponseWalk(1, len(response)), response, []) == response


@pytest.mark.parametrize("size", [*range(SWALLOWING_MIN, 300), *range(16_380, 16_400), *range(2_097_150, 2_097_165)])
def test_swallowing_takes_exactly_the_rest(size: int) -> None:
    """Around the lengths at which the size of the tag takes one byte more, too."""
    first = swallowing(size)
    assert first[0] == 1
    frame = first + bytes(size - len(first))
    assert skip_tags(frame, 1, size, 0) == size


def dense(what: str, count: int) -> tuple[int, bytes]:
    """API and response of version 1: as many pieces as fit into so many bytes."""
    tags = b"\x01\x05\x00"
    start = b"\x00\xc0\xff\xee" + bytes(1 + 6 + 1)
    many = encode_varint(count + 1)
    share_fetch = start + bytes(4)
    one_topic = b"\x02" + bytes(16)
    partition = bytes(6 + 1 + 8)
    fetched = bytes(6 + 1 + 2 + 1 + 8) + b"\x00" + b"\x01"
    end = b"\x00\x01\x00"
    acquired = share_fetch + one_topic + b"\x02" + fetched + many
    return {
        "topics": (SHARE_FETCH, share_fetch + many + (bytes(16) + b"\x01\x00") * count + end[1:]),
        "partitions": (SHARE_ACKNOWLEDGE, start + one_topic + many + (partition + b"\x00\x00") * count + end),
        "fetched partitions": (SHARE_FETCH, share_fetch + one_topic + many + (fetched + b"\x01\x00") * count + end),
        "partitions with tags": (
            SHARE_ACKNOWLEDGE,
            start + one_topic + many + (partition + b"\x00" + tags) * count + end,
        ),
        "acquired records": (SHARE_FETCH, acquired + (bytes(19) + bytes(18) + tags) * (count // 2) + b"\x00" + end),
        "plain acquired records": (SHARE_FETCH, acquired + bytes(19) * count + b"\x00" + end),
        "tagged fields": (SHARE_FETCH, share_fetch + b"\x01\x01" + encode_varint(count) + b"\x05\x00" * count),
    }[what]


@pytest.mark.parametrize(
    ("what", "work", "least"),
    [
        *((what, 50, 4_000 // 2 // 53) for what in ("topics", "partitions", "fetched partitions")),
        *((what, 50, 4_000 // 2 // 53) for what in ("partitions with tags", "acquired records", "tagged fields")),
        ("plain acquired records", 1, 4_000 // 512),
    ],
)
def test_the_densest_responses_rest(what: str, work: int, least: int) -> None:
    api_key, response = dense(what, 4_000)
    resting = Resting(walk_over(api_key, 1, len(response)), work)

    assert streamed(resting, response, []) == response
    assert resting.rests >= least
