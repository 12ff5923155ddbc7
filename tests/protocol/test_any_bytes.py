"""Arbitrary bytes in arbitrary splits: success, or one of the package's own errors, and nothing else.

Half of the bytes are arbitrary from the start; half are a real message with something changed, which gets further in.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

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
    FETCH,
    METADATA,
    PRODUCE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)
from protocol.errors import ProtocolError
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
    BoundedWalk,
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
def changed_responses(draw: st.DrawFn, api_key: int, version: int) -> bytes:
    return with_changes(draw, response_bytes(api_key, version, draw(responses(api_key, version))))


@st.composite
def changed_requests(draw: st.DrawFn, messages: st.SearchStrategy[Any]) -> bytes:
    return with_changes(draw, encode(draw(messages)))


def any_bytes(data: st.DataObject, api_key: int, version: int) -> bytes:
    try:
        load_response_schema(api_key, version)
    except RuntimeError:  # a version that kio does not have
        return data.draw(BYTES)
    changed = data.draw(st.booleans())
    return data.draw(_changed(api_key, version) if changed else BYTES)


_CHANGED: dict[tuple[int, int], st.SearchStrategy[bytes]] = {}


def _changed(api_key: int, version: int) -> st.SearchStrategy[bytes]:
    return _CHANGED.setdefault((api_key, version), changed_responses(api_key, version))


def attempt(call: Callable[[], Any]) -> None:
    with contextlib.suppress(ProtocolError):
        call()


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

    def walk() -> BoundedWalk:
        return ProduceResponseWalk(version, len(response), throttle_time_ms, counts_errors)

    outcome = walked(walk, response, sizes, work)
    buf = bytearray(response)
    if finish_usual_produce_response(buf, 0, len(buf), version, throttle_time_ms):
        assert version < 9 or counts_errors or bytes(buf) == outcome
    else:
        assert buf == response


def test_a_topic_whose_name_is_not_read_may_have_any_bytes() -> None:
    response = b"\x00\xc0\xff\xee\x00\x02\x02\x80\x01\x00\x00\x00\x00\x00\x00"
    assert walked(lambda: ProduceResponseWalk(9, len(response), 0, counts_errors=False), response, [6], 1) == response


def walked(walk: Callable[[], BoundedWalk], frame: bytes, sizes: list[int], work: int) -> bytes:
    """The bytes that result, or the error; the same whether the frame arrives whole or not, and with rests or not."""
    outcomes = []
    for splits, pieces in (([], 1 << 40), (sizes, work)):
        try:
            outcomes.append(streamed(Resting(walk(), pieces), frame, splits))
        except ProtocolError as error:
            outcomes.append(type(error).__name__.encode() + str(error.offset).encode())
    assert outcomes[0] == outcomes[1], "how the bytes arrive makes no difference"
    return outcomes[0]


WALKS: list[tuple[int, int, Callable[[int, int], BoundedWalk]]] = [
    *((FETCH, version, FetchResponseWalk) for version in (0, 4, 7, 11, 12, 13, 16, 17, 18)),
    *((SHARE_FETCH, version, ShareFetchResponseWalk) for version in (1, 2)),
    *((SHARE_ACKNOWLEDGE, version, ShareAcknowledgeResponseWalk) for version in (1, 2)),
]


@pytest.mark.parametrize(("api_key", "version", "walk"), WALKS)
@given(data=st.data(), sizes=chunk_sizes, work=st.integers(1, 5))
def test_walks(
    api_key: int,
    version: int,
    walk: Callable[[int, int], BoundedWalk],
    data: st.DataObject,
    sizes: list[int],
    work: int,
) -> None:
    response = any_bytes(data, api_key, version)
    walked(lambda: walk(version, len(response)), response, sizes, work)


def test_a_topic_that_does_not_fit_is_found_at_the_count() -> None:
    response = bytes(15) + b"\x02" + bytes(17)  # one topic, a byte too short
    assert walked(lambda: FetchResponseWalk(16, len(response)), response, [1] * 33, 1) == b"TruncatedFrame16"


class Metered(Protocol):
    """A walk that returns what it has found."""

    def advance(self, buf: bytearray, pos: int, end: int) -> int: ...
    def take(self) -> list[Any]: ...


def outcome(walk: Metered, frame: bytes, splits: list[int]) -> tuple[str, list[Any]]:
    """How it ends, and what was found by then."""
    try:
        assert streamed(walk, frame, splits) == frame, "nothing is changed"
    except ProtocolError as error:
        return f"{type(error).__name__} at {error.offset}", walk.take()
    return "", walk.take()


RECORDS = st.none() | st.lists(
    st.builds(record_batch, st.integers(0, 9), st.binary(max_size=90), codec=st.integers(0, 4))
    | st.builds(set_entry, st.integers(0, 1), st.binary(max_size=90), codec=st.integers(0, 4)),
    max_size=3,
).map(b"".join)
CHANGED_PRODUCE = {version: changed_requests(requests(PRODUCE, version, records=RECORDS)) for version in range(3, 14)}
# Those before 3 are 3 without its transactional id, which is two bytes when it is null.
BEFORE_3 = changed_requests(requests(PRODUCE, 3, records=RECORDS, transactional_id=st.none())).map(
    lambda body: body[2:]
)


@given(data=st.data(), version=st.sampled_from(versions(PRODUCE)), sizes=chunk_sizes)
def test_produce_requests(data: st.DataObject, version: int, sizes: list[int]) -> None:
    body = data.draw(BYTES | CHANGED_PRODUCE.get(version, BEFORE_3))
    outcomes = [outcome(ProduceRequestWalk(version, len(body), 0), body, splits) for splits in ([], sizes)]
    assert outcomes[0] == outcomes[1], "how the bytes arrive makes no difference"
    one_partition(bytearray(body), 0, len(body), version)


@st.composite
def changed_topics(draw: st.DrawFn, version: int) -> bytes:
    """A response that names no brokers."""
    body = draw(responses(METADATA, version, brokers=NO_BROKERS, error_code=NO_ERROR))
    return with_changes(draw, response_bytes(METADATA, version, body))


NO_ERROR = st.just(ErrorCode.none)
NO_BROKERS: st.SearchStrategy[Any] = st.just(())
CHANGED_TOPICS = {version: changed_topics(version) for version in versions(METADATA)}


@given(data=st.data(), version=st.sampled_from(versions(METADATA)), sizes=chunk_sizes)
def test_metadata_topics(data: st.DataObject, version: int, sizes: list[int]) -> None:
    response = data.draw(BYTES | CHANGED_TOPICS[version])
    start = min(len(response), len(header(METADATA, version)) + (4 if version >= 3 else 0) + (1 if version >= 9 else 4))
    walks = [MetadataTopicsWalk(version, len(response), start) for _ in range(2)]
    outcomes = [outcome(walk, response[start:], splits) for walk, splits in zip(walks, ([], sizes), strict=True)]
    assert outcomes[0] == outcomes[1], "how the bytes arrive makes no difference"


MUTATIONS = [(key, version) for key in (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS) for version in versions(key)]


@given(data=st.data(), one=st.sampled_from(MUTATIONS))
def test_topic_mutations(one: tuple[int, int], data: st.DataObject) -> None:
    api_key, version = one
    schema = max(version, {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}[api_key])
    body = data.draw(BYTES | changed_requests(requests(api_key, schema)))
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
