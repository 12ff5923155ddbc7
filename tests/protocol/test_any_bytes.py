"""Arbitrary bytes in arbitrary splits: success, or one of the package's own errors, and nothing else.

Half of the bytes are arbitrary from the start; half are a real message with something changed, which gets further in.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from protocol.api_versions import negotiate, with_telemetry
from protocol.apis import (
    API_VERSIONS,
    APIS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    METADATA,
    PRODUCE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)
from protocol.describe_configs import DescribeConfigsRequestWalk
from protocol.errors import MalformedFrame, ProtocolError, TruncatedFrame
from protocol.fetch import FetchResponseWalk
from protocol.messages import encode
from protocol.metadata_topics import MetadataTopicsWalk
from protocol.produce import ProduceResponseWalk, finish_usual_produce_response
from protocol.produce_walk import ProduceRequestWalk, one_partition
from protocol.share import ShareAcknowledgeResponseWalk, ShareFetchResponseWalk
from protocol.throttle_time import raise_throttle, throttle_needs
from protocol.topic_metadata_request import VERSION as TOPIC_METADATA
from protocol.topic_metadata_request import topics_by_id
from protocol.topic_mutations import MutationRequest, is_strict
from tests.protocol.kafka_messages import (
    BYTES,
    CORRELATION_ID,
    Resting,
    chunk_sizes,
    header,
    parsed,
    record_batch,
    requests,
    response_bytes,
    responses,
    set_entry,
    streamed,
    versions,
    with_changes,
)


@st.composite
def changed(draw: st.DrawFn, frames: st.SearchStrategy[bytes]) -> bytes:
    return with_changes(draw, draw(frames))


def response_strategy(api_key: int, version: int, **fixed: Any) -> st.SearchStrategy[bytes]:
    return responses(api_key, version, **fixed).map(lambda body: response_bytes(api_key, version, body))


def any_bytes(data: st.DataObject, api_key: int, version: int) -> bytes:
    try:
        load_response_schema(api_key, version)
    except RuntimeError:  # a version that kio does not have
        return data.draw(BYTES)
    return data.draw(_changed(api_key, version) if data.draw(st.booleans()) else BYTES)


_CHANGED: dict[tuple[int, int], st.SearchStrategy[bytes]] = {}


def _changed(api_key: int, version: int) -> st.SearchStrategy[bytes]:
    return _CHANGED.setdefault((api_key, version), changed(response_strategy(api_key, version)))


def attempt(call: Callable[[], Any]) -> None:
    with contextlib.suppress(ProtocolError):
        call()


# ---- walks over frames that stream by


class Streaming(NamedTuple):
    """frames   as Kafka sends them, from where the walk begins
    walk     over a frame of some length
    """

    frames: st.SearchStrategy[bytes]
    walk: Callable[[int], Any]


def of_response(api_key: int, version: int, walk: Callable[[int, int], Any], **fixed: Any) -> Streaming:
    return Streaming(response_strategy(api_key, version, **fixed), partial(walk, version))


def streaming_request(bodies: st.SearchStrategy[bytes], version: int, walk: Callable[..., Any]) -> Streaming:
    return Streaming(bodies, lambda size: walk(version, size, 0))


def of_request(api_key: int, version: int, walk: Callable[..., Any], **fixed: Any) -> Streaming:
    return streaming_request(requests(api_key, version, **fixed).map(encode), version, walk)


def of_metadata(version: int) -> Streaming:
    """The fields after the brokers, of which there are none."""
    start = len(header(METADATA, version)) + (4 if version >= 3 else 0) + (1 if version >= 9 else 4)
    frames = response_strategy(METADATA, version, brokers=EMPTY, error_code=NO_ERROR).map(lambda frame: frame[start:])
    return Streaming(frames, lambda size: MetadataTopicsWalk(version, start + size, start))


def produce_walk(version: int, size: int) -> ProduceResponseWalk:
    return ProduceResponseWalk(version, size, 100, counts_errors=True)


RECORDS = st.none() | st.lists(
    st.builds(record_batch, st.integers(0, 9), st.binary(max_size=90), codec=st.integers(0, 4))
    | st.builds(set_entry, st.integers(0, 1), st.binary(max_size=90), codec=st.integers(0, 4)),
    max_size=3,
).map(b"".join)
EMPTY: st.SearchStrategy[Any] = st.just(())
NO_ERROR = st.just(ErrorCode.none)
#: Produce requests before 3 are 3 without its transactional id, which is two bytes when it is null.
BEFORE_3 = requests(PRODUCE, 3, records=RECORDS, transactional_id=st.none()).map(lambda body: encode(body)[2:])
STREAMING = [
    *(streaming_request(BEFORE_3, version, ProduceRequestWalk) for version in range(3)),
    *(of_request(PRODUCE, version, ProduceRequestWalk, records=RECORDS) for version in range(3, 14)),
    *(of_request(DESCRIBE_CONFIGS, version, DescribeConfigsRequestWalk) for version in range(1, 5)),
    *(of_response(PRODUCE, version, produce_walk) for version in range(3, 14)),
    *map(of_metadata, versions(METADATA)),
    *(of_response(FETCH, version, FetchResponseWalk) for version in range(4, 19)),
    *(of_response(SHARE_FETCH, version, ShareFetchResponseWalk, node_endpoints=EMPTY) for version in (1, 2)),
    *(
        of_response(SHARE_ACKNOWLEDGE, version, ShareAcknowledgeResponseWalk, node_endpoints=EMPTY)
        for version in (1, 2)
    ),
]
ONE_OF_THEM = st.sampled_from(range(len(STREAMING)))


def outcome(walk: Any, frame: bytes, sizes: list[int], work: int = 1 << 40) -> tuple[bytes | str, object]:
    """The bytes that result, or the error, and what was found by then."""
    result: bytes | str
    try:
        result = streamed(Resting(walk, work, beyond=8), frame, sizes)
    except ProtocolError as error:
        result = f"{type(error).__name__} at {error.offset}"
    return result, walk.take() if hasattr(walk, "take") else None


@given(which=ONE_OF_THEM, data=st.data(), sizes=chunk_sizes, work=st.integers(1, 5))
def test_how_the_bytes_arrive_makes_no_difference(which: int, data: st.DataObject, sizes: list[int], work: int) -> None:
    """Whole or not, and with rests or not."""
    frames, walk = STREAMING[which]
    frame = data.draw(BYTES | changed(frames))
    assert outcome(walk(len(frame)), frame, []) == outcome(walk(len(frame)), frame, sizes, work)


@given(which=ONE_OF_THEM, data=st.data(), sizes=chunk_sizes)
def test_cut_short_or_too_long(which: int, data: st.DataObject, sizes: list[int]) -> None:
    frames, walk = STREAMING[which]
    frame = data.draw(frames)
    for cut in range(1, len(frame), 1 + len(frame) // 100):
        with pytest.raises(TruncatedFrame):
            streamed(walk(cut), frame[:cut], sizes)
    with pytest.raises(MalformedFrame):
        streamed(walk(len(frame) + 1), frame + b"\x00", sizes)


@given(
    data=st.data(),
    version=st.sampled_from(versions(PRODUCE)),
    throttle_time_ms=st.integers(0, 2**31 - 1),
    sizes=chunk_sizes,
    work=st.integers(1, 5),
    counts_errors=st.booleans(),
)
def test_produce(
    data: st.DataObject, version: int, throttle_time_ms: int, sizes: list[int], work: int, counts_errors: bool
) -> None:
    response = any_bytes(data, PRODUCE, version)
    walks = [ProduceResponseWalk(version, len(response), throttle_time_ms, counts_errors) for _ in range(2)]
    whole = outcome(walks[0], response, [])
    assert whole == outcome(walks[1], response, sizes, work)
    buf = bytearray(bytes(4) + response)
    if finish_usual_produce_response(buf, 4, len(buf), version, throttle_time_ms):
        assert version < 9 or counts_errors or bytes(buf[4:]) == whole[0]
    else:
        assert buf[4:] == response


# ---- frames that are read whole


@given(data=st.data(), version=st.sampled_from(versions(PRODUCE)))
def test_the_head_of_a_produce_request(data: st.DataObject, version: int) -> None:
    body = data.draw(BYTES | changed(STREAMING[version].frames))
    one_partition(bytearray(body), 0, len(body), version)


MUTATIONS = [(key, version) for key in (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS) for version in versions(key)]


@given(data=st.data(), one=st.sampled_from(MUTATIONS))
def test_topic_mutations(one: tuple[int, int], data: st.DataObject) -> None:
    api_key, version = one
    schema = max(version, {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}[api_key])
    body = data.draw(BYTES | changed(requests(api_key, schema).map(encode)))
    try:
        request = MutationRequest(api_key, version, body, 0)
    except ProtocolError:
        return
    assert request.partitions(lambda topic: None) >= 0
    if is_strict(api_key, version):
        parsed(api_key, version, request.refusal(int.from_bytes(CORRELATION_ID), 0))


@given(data=st.data())
def test_topic_metadata(data: st.DataObject) -> None:
    response = any_bytes(data, METADATA, TOPIC_METADATA)
    attempt(lambda: topics_by_id(int.from_bytes(response[:4], "big", signed=True), response))


@given(data=st.data(), version=st.sampled_from(versions(API_VERSIONS)), pass_unknown_apis=st.booleans())
def test_api_versions(version: int, data: st.DataObject, pass_unknown_apis: bool) -> None:
    response = any_bytes(data, API_VERSIONS, version)
    try:
        cut = negotiate(response, version, pass_unknown_apis=pass_unknown_apis, throttle_time_ms=1_000)
    except ProtocolError:
        return
    assert with_telemetry(cut, version).startswith(cut[:4])


@given(first=st.binary(min_size=20), version=st.integers(0, 18), throttle_time_ms=st.integers(0, 2**31 - 1))
def test_fetch_fields(first: bytes, version: int, throttle_time_ms: int) -> None:
    api = APIS[FETCH]
    assert throttle_needs(api, version) <= len(first)
    buf = bytearray(first)
    attempt(lambda: raise_throttle(buf, 0, len(buf), api, version, throttle_time_ms))
    assert len(buf) == len(first)
