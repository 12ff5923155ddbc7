"""Arbitrary bytes in arbitrary splits: success, or one of the package's own errors, and nothing else.

Half of the bytes are arbitrary from the start; half are a real response with something changed, which gets further in.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema

from protocol.api_versions import client_software, negotiate
from protocol.apis import (
    API_VERSIONS,
    APIS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)
from protocol.errors import ProtocolError
from protocol.fetch import (
    FETCH_BUDGET_BYTES,
    FETCH_THROTTLE_BYTES,
    FetchResponseWalk,
    lower_fetch_budget,
    patch_fetch_throttle,
)
from protocol.metadata import MetadataPrefix
from protocol.produce import finish_produce_response
from protocol.share import ShareAcknowledgeResponseWalk, ShareFetchResponseWalk
from protocol.whole_responses import rewrite_response
from tests.protocol.kafka_messages import Addresses, Walk, chunk_sizes, response_bytes, responses, streamed

BYTES = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", b"\x00\x00\x00\x01", b"listeners"]),
    max_size=80,
).map(b"".join)
CHANGES = st.lists(st.tuples(st.integers(0, 2_000), st.binary(min_size=1, max_size=5)), min_size=1, max_size=3)


@st.composite
def changed_responses(draw: st.DrawFn, api_key: int, version: int) -> bytes:
    response = bytearray(response_bytes(api_key, version, draw(responses(api_key, version))))
    for at, new in draw(CHANGES):
        response[at % len(response) : at % len(response) + len(new)] = new
    return bytes(response)


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


def versions(api_key: int) -> range:
    return range(APIS[api_key].min_version, APIS[api_key].max_version + 1)


@pytest.mark.parametrize("version", versions(PRODUCE))
@given(data=st.data(), throttle_time_ms=st.integers(0, 2**31 - 1))
def test_produce(version: int, data: st.DataObject, throttle_time_ms: int) -> None:
    response = any_bytes(data, PRODUCE, version)
    buf = bytearray(response)
    attempt(lambda: finish_produce_response(buf, 0, len(buf), version, throttle_time_ms))
    assert len(buf) == len(response)


WALKS: list[tuple[int, int, Callable[[int, int], Walk]]] = [
    *((FETCH, version, FetchResponseWalk) for version in (16, 17, 18)),
    *((SHARE_FETCH, version, ShareFetchResponseWalk) for version in (1, 2)),
    *((SHARE_ACKNOWLEDGE, version, ShareAcknowledgeResponseWalk) for version in (1, 2)),
]


@pytest.mark.parametrize(("api_key", "version", "walk"), WALKS)
@given(data=st.data(), sizes=chunk_sizes)
def test_walks(
    api_key: int, version: int, walk: Callable[[int, int], Walk], data: st.DataObject, sizes: list[int]
) -> None:
    response = any_bytes(data, api_key, version)
    outcomes = []
    for splits in ([], sizes):
        try:
            outcomes.append(streamed(walk(version, len(response)), response, splits))
        except ProtocolError as error:
            outcomes.append(type(error).__name__.encode() + str(error.offset).encode())
    assert outcomes[0] == outcomes[1], "how the bytes arrive makes no difference"


@pytest.mark.parametrize("version", versions(METADATA))
@given(data=st.data(), cut=st.integers(0, 100))
def test_metadata(version: int, data: st.DataObject, cut: int) -> None:
    response = any_bytes(data, METADATA, version)
    prefix = MetadataPrefix(version, Addresses())
    attempt(lambda: prefix.rewrite(response[:cut]) or prefix.rewrite(response))


@pytest.mark.parametrize("api_key", [FIND_COORDINATOR, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM])
@given(data=st.data())
def test_whole_responses(api_key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(api_key)))
    response = any_bytes(data, api_key, version)
    attempt(lambda: rewrite_response(api_key, version, response, Addresses()))


@pytest.mark.parametrize("version", versions(API_VERSIONS))
@given(data=st.data(), pass_unknown_apis=st.booleans())
def test_api_versions(version: int, data: st.DataObject, pass_unknown_apis: bool) -> None:
    response = any_bytes(data, API_VERSIONS, version)
    attempt(lambda: negotiate(response, version, pass_unknown_apis=pass_unknown_apis))
    attempt(lambda: client_software(response[4:], version))


@given(first=st.binary(min_size=FETCH_BUDGET_BYTES), version=st.integers(0, 18), number=st.integers(0, 2**31 - 1))
def test_fetch_fields(first: bytes, version: int, number: int) -> None:
    assert len(first) >= FETCH_THROTTLE_BYTES
    buf = bytearray(first)
    attempt(lambda: patch_fetch_throttle(buf, 0, version, number))
    attempt(lambda: lower_fetch_budget(buf, 0, version, number))
    assert len(buf) == len(first)
