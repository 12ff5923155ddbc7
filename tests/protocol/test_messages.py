"""What stands before kio: lengths that cannot be, tags and error codes that kio does not know."""

import datetime
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_response_schema
from kio.schema.api_versions.v4.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v0.response import FindCoordinatorResponse as FindCoordinatorResponse0
from kio.schema.find_coordinator.v6.response import FindCoordinatorResponse
from kio.static.constants import EntityType

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
from protocol.errors import TruncatedFrame
from protocol.messages import decode, encode, read
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import messages, response_schema

MILLISECOND = datetime.timedelta(milliseconds=1)
READ = [
    PRODUCE,
    FETCH,
    METADATA,
    FIND_COORDINATOR,
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    DESCRIBE_CLUSTER,
    SHARE_FETCH,
    SHARE_ACKNOWLEDGE,
]
"""What the package decodes, and what its tests decode."""


@pytest.mark.parametrize("api_key", READ)
@given(data=st.data())
def test_every_response_that_kio_writes_is_read(api_key: int, data: st.DataObject) -> None:
    api = APIS[api_key]
    dropped_by_kafka_4 = {PRODUCE: 3, FETCH: 4}.get(api_key, 0)
    version = data.draw(st.integers(max(api.min_version, dropped_by_kafka_4), api.max_version))
    schema = response_schema(api_key, version)
    body: Any = data.draw(messages(schema))
    encoded = encode(body)

    assert decode(schema, encoded, 0) == body
    assert read(schema, b"\xff" + encoded + b"\xff", 1) == (body, 1 + len(encoded))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(TruncatedFrame):
        decode(schema, encoded[:cut], 0)


@pytest.mark.parametrize("count", [2**31 - 1, 2**31 - 2, 10**6])
def test_a_count_that_cannot_be_does_not_reach_kio(count: int) -> None:
    """kio's native reader would take room for all of them and abort the process."""
    with pytest.raises(TruncatedFrame):
        decode(FindCoordinatorResponse, bytes(4) + encode_varint(count) + bytes(1_000), 0)
    legacy = load_response_schema(18, 2)
    with pytest.raises(TruncatedFrame):
        decode(legacy, pack(">hi", 0, count) + bytes(1_000), 0)


def coordinator(error_code: int, tags: bytes = b"\x00") -> bytes:
    return b"\x02g" + pack(">i", 1) + b"\x02h" + pack(">ih", 9092, error_code) + b"\x00" + tags


def test_error_codes_of_later_brokers_read_as_an_unknown_error() -> None:
    response = pack(">i", 7) + b"\x02" + coordinator(32_000) + b"\x00"
    assert decode(FindCoordinatorResponse, response, 0).coordinators[0].error_code == ErrorCode.unknown_server_error


def test_tags_of_later_brokers_are_left_out() -> None:
    """In the message, in its structs, and beside tags that are known."""
    response = pack(">i", 7) + b"\x02" + coordinator(0, b"\x01\x05\x03abc") + b"\x02\x00\x01x\x8f\x01\x00"
    decoded = decode(FindCoordinatorResponse, response, 0)
    assert decoded.throttle_time == 7 * MILLISECOND
    assert encode(decoded) == pack(">i", 7) + b"\x02" + coordinator(0) + b"\x00"

    feature = b"\x05name" + pack(">hh", 0, 3) + b"\x01\x00\x00"  # with a tag of its own
    known = b"\x01\x08" + pack(">q", 12)
    unknown = b"\x20\x02zz"
    body = pack(">h", 0) + b"\x01" + pack(">i", 0) + b"\x03"
    body += b"\x00" + encode_varint(len(feature) + 1) + b"\x02" + feature + known + unknown
    answer = decode(ApiVersionsResponse, body, 0)
    assert answer.supported_features[0].name == "name"
    assert answer.supported_features[0].max_version == 3
    assert answer.finalized_features_epoch == 12


@pytest.mark.parametrize(
    ("host", "read"), [(b"B\xfcro", "B\ufffdro"), (b"\xff" * 32_767, "\ufffd" * (32_767 // 3))], ids=["short", "long"]
)
def test_text_that_is_not_utf_8_is_read_as_brokers_read_it(host: bytes, read: str) -> None:
    """A replacement takes three bytes, and a string has at most 32,767."""
    answer = decode(FindCoordinatorResponse0, pack(">hih", 0, 1, len(host)) + host + pack(">i", 9092), 0)
    assert (answer.host, answer.port) == (read, 9092)


def test_a_nullable_struct_is_refused_before_anything_is_read() -> None:
    module: Any = load_payload_module(68, 1, EntityType.response)
    with pytest.raises(TypeError, match="nullable struct"):
        decode(module.ConsumerGroupHeartbeatResponse, b"", 0)
