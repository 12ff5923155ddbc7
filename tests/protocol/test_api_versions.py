"""ApiVersions, checked by kio and by a second, independent decoder."""

import datetime
from dataclasses import replace
from typing import Any

import kafkaprotocol
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32

from protocol.api_versions import (
    ANY_NODE,
    MAX_RESPONSE,
    client_software,
    for_any_node,
    negotiate,
    node_id_of,
    unsupported_version_answer,
    with_telemetry,
)
from protocol.apis import API_VERSIONS, APIS, TELEMETRY
from protocol.errors import MalformedFrame, TooManyItems
from protocol.messages import encode
from tests.protocol.kafka_messages import (
    CORRELATION_ID,
    LAST_OF_KIO,
    ApiVersionsRequest5,
    messages,
    parsed,
    response_bytes,
    responses,
)

NO_TIME = datetime.timedelta(0)
VERSIONS = range(6)
LAST_OF_SECOND_DECODER = 3
API_KEYS = st.integers(-1, 100)
API_VERSIONS_OFFERED = st.integers(0, 30)
NOT_UNSUPPORTED = st.sampled_from([code for code in ErrorCode if code != ErrorCode.unsupported_version])


def ranges(body: Any) -> list[tuple[int, int, int]]:
    return [(api.api_key, api.min_version, api.max_version) for api in body.api_keys]


def offer(version: int, *offered: tuple[int, int, int], error: ErrorCode = ErrorCode.none) -> bytes:
    known = min(version, LAST_OF_KIO[API_VERSIONS])
    module: Any = load_payload_module(API_VERSIONS, known, EntityType.response)
    keys = tuple(module.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in offered)
    throttle = {"throttle_time": NO_TIME} if version >= 1 else {}
    return response_bytes(
        API_VERSIONS, version, module.ApiVersionsResponse(error_code=error, api_keys=keys, **throttle)
    )


@given(data=st.data(), version=st.sampled_from(VERSIONS), pass_unknown_apis=st.booleans())
def test_ranges_keep_the_brokers_minimum_and_end_at_the_tables_maximum(
    version: int, data: st.DataObject, pass_unknown_apis: bool
) -> None:
    body = data.draw(
        responses(
            API_VERSIONS,
            version,
            api_key=API_KEYS,
            min_version=API_VERSIONS_OFFERED,
            max_version=API_VERSIONS_OFFERED,
            error_code=NOT_UNSUPPORTED,
        )
    )
    expected = []
    for key, low, high in ranges(body):
        if key not in APIS:
            if pass_unknown_apis:
                expected.append((key, low, high))
            continue
        allowed = set(range(low, high + 1)) & set(range(APIS[key].min_version, APIS[key].max_version + 1))
        if allowed:
            expected.append((key, low, max(allowed)))

    cut = negotiate(response_bytes(API_VERSIONS, version, body), version, pass_unknown_apis=pass_unknown_apis)

    after = parsed(API_VERSIONS, version, cut)
    assert ranges(after) == expected
    assert replace(after, api_keys=()) == replace(body, api_keys=())  # features, throttle, error
    if version <= LAST_OF_SECOND_DECODER:
        _, message = kafkaprotocol.read_network_response(API_VERSIONS, version, bytes(4) + cut)
        assert [(api.api_key, api.min_version, api.max_version) for api in message.api_keys] == expected


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_broker_that_does_not_know_the_version_answers_in_version_0(version: int) -> None:
    answer = offer(0, (18, 0, 9), error=ErrorCode.unsupported_version)

    cut = parsed(API_VERSIONS, 0, negotiate(answer, version, pass_unknown_apis=False))

    assert cut.error_code == ErrorCode.unsupported_version
    assert ranges(cut) == [(18, 0, 5)]


def test_the_proxys_own_answer() -> None:
    answer = unsupported_version_answer(int.from_bytes(CORRELATION_ID, "big"))

    body = parsed(API_VERSIONS, 0, answer)
    assert body.error_code == ErrorCode.unsupported_version
    assert ranges(body) == [(18, 0, 5)]
    _, message = kafkaprotocol.read_network_response(API_VERSIONS, 0, bytes(4) + answer)
    assert message.error_code == 35
    assert unsupported_version_answer(-1)[:4] == b"\xff\xff\xff\xff"
    assert unsupported_version_answer(-(2**31))[:4] == b"\x80\x00\x00\x00"


@given(data=st.data(), version=st.sampled_from(VERSIONS), throttle_time_ms=st.integers(0, 2**31 - 1))
def test_throttle_is_the_larger_one(version: int, data: st.DataObject, throttle_time_ms: int) -> None:
    body = data.draw(responses(API_VERSIONS, version, error_code=NOT_UNSUPPORTED))
    cut = negotiate(response_bytes(API_VERSIONS, version, body), version, pass_unknown_apis=True)

    raised = negotiate(cut, version, pass_unknown_apis=True, throttle_time_ms=throttle_time_ms)

    after = parsed(API_VERSIONS, version, raised)
    before = parsed(API_VERSIONS, version, cut)
    if version >= 1:
        throttle_time = max(before.throttle_time, datetime.timedelta(milliseconds=throttle_time_ms))
        before = replace(before, throttle_time=throttle_time)
    assert after == before


def test_tags() -> None:
    """Those that no version defines are left out, wherever they are; features stay, but for an empty list of them."""
    start = CORRELATION_ID + bytes(2)
    epoch = b"\x01\x08" + bytes(8)
    unknown = b"\x63\x04host"
    response = (
        start + b"\x03"
        + b"\x00\x03\x00\x00\x00\x01" + b"\x01" + unknown
        + b"\x00\x12\x00\x00\x00\x04" + b"\x00"
        + bytes(4) + b"\x03" + b"\x00\x01\x01" + epoch + unknown
    )  # fmt: skip
    cut = negotiate(response, 3, pass_unknown_apis=False)
    assert cut == (
        start + b"\x03" + b"\x00\x03\x00\x00\x00\x01\x00" + b"\x00\x12\x00\x00\x00\x04\x00" + bytes(4) + b"\x01" + epoch
    )


@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_telemetry_is_added_where_the_broker_has_neither_request(version: int, data: st.DataObject) -> None:
    body = data.draw(responses(API_VERSIONS, version, api_key=API_KEYS, error_code=NOT_UNSUPPORTED))
    cut = negotiate(response_bytes(API_VERSIONS, version, body), version, pass_unknown_apis=True)
    before = parsed(API_VERSIONS, version, cut)

    added = with_telemetry(cut, version)

    after = parsed(API_VERSIONS, version, added)
    assert replace(after, api_keys=()) == replace(before, api_keys=())
    offered = {key for key, _, _ in ranges(before)}
    if before.error_code is not ErrorCode.none or not offered or not offered.isdisjoint(TELEMETRY):
        assert added == cut
    else:
        assert ranges(after) == [*ranges(before), (71, 0, 0), (72, 0, 0)]


@pytest.mark.parametrize("version", [0, 3])
def test_too_many_api_keys(version: int) -> None:
    most = negotiate(offer(version, *[(3, 0, 13)] * 1_000), version, pass_unknown_apis=False)
    assert len(parsed(API_VERSIONS, version, most).api_keys) == 1_000
    with pytest.raises(TooManyItems):
        negotiate(offer(version, *[(3, 0, 13)] * 1_001), version, pass_unknown_apis=False)


def test_too_many_tags_and_too_many_bytes() -> None:
    start = CORRELATION_ID + bytes(2) + b"\x01" + bytes(4)
    tags = b"\x80\x02" + b"\x63\x00" * 256
    assert negotiate(start + tags, 3, pass_unknown_apis=False) == start + b"\x00"
    with pytest.raises(TooManyItems):
        negotiate(start + b"\xe9\x07" + b"\x63\x00" * 1_001, 3, pass_unknown_apis=False)
    most = MAX_RESPONSE - len(start) - 4
    unknown = start + b"\x01\x63" + bytes([most & 0x7F | 0x80, most >> 7]) + bytes(most)
    assert len(unknown) == MAX_RESPONSE
    assert negotiate(unknown, 3, pass_unknown_apis=False) == start + b"\x00"
    with pytest.raises(MalformedFrame, match="16384"):
        negotiate(unknown + b"\x00", 3, pass_unknown_apis=False)


@given(name=st.text(max_size=300), version=st.text(max_size=20))
def test_the_clients_software(name: str, version: str) -> None:
    body = encode(ApiVersionsRequest(client_software_name=name, client_software_version=version))
    assert client_software(body, 3) == (name, version)
    assert client_software(body, 4) == (name, version)
    assert client_software(body, 2) == ("", "")
    assert client_software(body[: len(body) - 2 - len(version.encode())], 3) == ("", "")


BODIES_5 = messages(ApiVersionsRequest5)


@given(body=BODIES_5, more=st.binary(max_size=3))
def test_the_software_and_the_node_of_version_5(body: ApiVersionsRequest5, more: bytes) -> None:
    """`more`: a tag that nobody knows, or none."""
    tags = b"\x01\x63" + bytes([len(more)]) + more if more else b"\x00"
    encoded = encode(body)[:-1] + tags
    assert client_software(encoded, 5) == (body.client_software_name, body.client_software_version)
    assert node_id_of(encoded) == body.node_id
    for size in range(len(encoded) - len(tags)):
        assert node_id_of(encoded[:size]) == ANY_NODE, "cut short"
    assert for_any_node(encoded) == encode(replace(body, cluster_id=None, node_id=i32(-1)))[:-1] + tags
