"""`throttle_time_ms` at its fixed place, against kio's reading of every API and version."""

import dataclasses
import datetime
from struct import pack
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader

from protocol.apis import API_VERSIONS, APIS, FETCH, PRODUCE, Api
from protocol.throttle_time import raise_throttle, throttle_needs
from protocol.wire import encode_varint
from tests.protocol.kafka_messages import header, made, response_bytes

MILLISECOND = datetime.timedelta(milliseconds=1)


def kio_has(api: Api, version: int) -> bool:
    try:
        load_response_schema(api.key, version)
    except RuntimeError:
        return False
    return True


VERSIONS = [
    (api, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    if kio_has(api, version)
]
RAISED = [(api, version) for api, version in VERSIONS if throttle_needs(api, version)]


def check_raised(api: Api, version: int, body: Any, throttle_time_ms: int) -> None:
    """Within a larger buffer; only the field changes, and only the bytes that are needed are read."""
    response = response_bytes(api.key, version, body)
    needed = throttle_needs(api, version)
    buf = bytearray(b"\xa5" * 3 + response[:needed])

    raise_throttle(buf, 3, len(buf), api, version, throttle_time_ms)

    assert buf[:3] == b"\xa5" * 3
    own = body.throttle_time // MILLISECOND
    expected = dataclasses.replace(body, throttle_time=max(own, throttle_time_ms) * MILLISECOND)
    schema = load_response_schema(api.key, version)
    assert entity_reader(schema)(bytes(buf[3:]) + response[needed:], len(header(api.key, version)))[0] == expected


def body_of(api: Api, version: int, throttle_time_ms: int) -> Any:
    return made(load_response_schema(api.key, version), throttle_time=throttle_time_ms * MILLISECOND)


THROTTLES = st.integers(0, 2**31 - 1)


@given(brokers=THROTTLES, proxys=THROTTLES)
@settings(max_examples=5)
@example(77, 1_234)
@example(77, 50)
def test_the_larger_one_is_written_in_every_api_and_version(brokers: int, proxys: int) -> None:
    for api, version in RAISED:
        check_raised(api, version, body_of(api, version, brokers), proxys)
    assert len(RAISED) > 200


@pytest.mark.parametrize(("key", "version"), [(FETCH, 0), (PRODUCE, 13), (API_VERSIONS, 4), (17, 1)])
def test_nothing_is_changed_there(key: int, version: int) -> None:
    buf = bytearray(60)
    assert throttle_needs(APIS[key], version) == 0
    raise_throttle(buf, 0, len(buf), APIS[key], version, 1_000)
    assert buf == bytes(60)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_fetch_versions_that_kio_does_not_have(version: int) -> None:
    buf = bytearray(b"\x00\x00\x00\x07" + pack(">ii", 40, 0))
    assert throttle_needs(APIS[FETCH], version) == 8
    raise_throttle(buf, 0, len(buf), APIS[FETCH], version, 30)
    assert buf == b"\x00\x00\x00\x07" + pack(">ii", 40, 0)
    raise_throttle(buf, 0, len(buf), APIS[FETCH], version, 50)
    assert buf == b"\x00\x00\x00\x07" + pack(">ii", 50, 0)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.sampled_from(RAISED), st.data())
def test_tags_in_the_response_header(values: list[bytes], raised: tuple[Api, int], data: st.DataObject) -> None:
    """They are skipped; where they have not arrived whole, the broker's value stays."""
    api, version = raised
    if not api.response_header_is_flexible(version):
        return
    tags = bytes([len(values)])
    for tag, value in enumerate(values):
        tags += bytes([tag]) + encode_varint(len(value)) + value
    plain = response_bytes(api.key, version, body_of(api, version, 40))
    response = plain[:4] + tags + plain[5:]
    field = len(tags) - 1 + throttle_needs(api, version)
    end = data.draw(st.integers(5, len(response)))
    buf = bytearray(response)
    raise_throttle(buf, 0, end, api, version, 50)
    assert buf == response[: field - 4] + pack(">i", 50 if end >= field else 40) + response[field:]
