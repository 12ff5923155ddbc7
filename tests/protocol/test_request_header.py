"""Request headers against kio's own encoder: every API and version, whole and byte by byte."""

import io
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32

from protocol.apis import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE, SHARE_FETCH
from protocol.errors import (
    FrameTooLarge,
    MalformedFrame,
    NegativeFrameLength,
    NotKafka,
    ProtocolError,
    UnknownApi,
    UnsupportedVersion,
)
from protocol.fetch import lower_fetch_budget, lower_share_budget
from protocol.messages import encode
from protocol.request_header import (
    MAX_HEADER_SIZE,
    MAX_HEADER_TAGS,
    TLS_ALERT_LENGTH,
    check_frame_length,
    peek_request,
)
from tests.protocol.kafka_messages import of_request, produce_body, requests

MAX_LENGTH = 1_000_000
KEYS_AND_VERSIONS = [(api.key, v) for api in APIS.values() for v in range(api.min_version, api.max_version + 1)]


def request(key: int, version: int, client_id: str | None, body: bytes = b"", *, correlation_id: int = 7) -> bytearray:
    """One frame, with its length."""
    flexible = key in APIS and APIS[key].is_flexible(version)
    header_type = HeaderV2 if flexible else HeaderV1
    out = io.BytesIO()
    header = header_type(
        request_api_key=i16(key),
        request_api_version=i16(version),
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    entity_writer(header_type)(out, header)
    content = out.getvalue() + body
    return bytearray(struct.pack(">i", len(content)) + content)


def body_of(key: int, version: int) -> bytes:
    """As much as is read of a body, then bytes that are not."""
    if key == PRODUCE:
        return produce_body(version, [], "tx-1" if version >= 3 else None) + b"\xff" * 20
    if key == SHARE_FETCH:
        known = {"group_id": "group", "member_id": "member", "share_session_epoch": 1, "max_bytes": 1_000_000}
        return encode(of_request(SHARE_FETCH, version, "ShareFetchRequest", **known)) + b"\xff" * 20
    return b"\xff" * 20


def test_every_api_and_version_is_read_as_kio_writes_it() -> None:
    for key, version in KEYS_AND_VERSIONS:
        body = body_of(key, version)
        frame = request(key, version, "etl", body)
        header = peek_request(frame, 0, len(frame), MAX_LENGTH)
        assert header is not None
        assert (header.api.key, header.version, header.client_id) == (key, version, "etl")
        assert header.body_offset == len(frame) - len(body)
        assert header.acks == (-1 if key == PRODUCE else None)
        if key not in (FETCH, SHARE_FETCH):
            assert header.budget_offset is None
            assert header.needed == header.size


def test_of_a_long_client_id_little_is_kept() -> None:
    """Anyone can invent client ids. Those with the same beginning stay apart."""
    names = set()
    for client_id in ["c" * 256, "c" * 257, "c" * 32_763 + "\U0001f600", "c" * 32_767]:
        frame = request(METADATA, 1, client_id, bytes(4))
        header = peek_request(frame, 0, len(frame), MAX_LENGTH)
        assert header is not None
        assert header.body_offset == len(frame) - 4
        assert len(header.client_id) == 256
        assert (header.client_id == client_id) == (len(client_id) == 256)
        names.add(header.client_id)
    assert len(names) == 4


@given(
    version=st.integers(0, 13),
    client_id=st.none() | st.text(max_size=200),
    transactional_id=st.none() | st.text(max_size=200),
    acks=st.sampled_from([-1, 0, 1]),
    garbage=st.binary(max_size=20),
)
def test_produce_byte_by_byte_gives_the_same_answer_as_whole(
    version: int, client_id: str | None, transactional_id: str | None, acks: int, garbage: bytes
) -> None:
    transactional_id = transactional_id if version >= 3 else None
    frame = request(PRODUCE, version, client_id, produce_body(version, [], transactional_id, acks))
    pos = len(garbage)
    buf = bytearray(garbage + frame + garbage)
    whole = peek_request(buf, pos, pos + len(frame), MAX_LENGTH)
    assert whole is not None
    assert (whole.client_id, whole.acks) == (client_id or "", acks)
    for size in range(len(frame)):
        assert peek_request(buf, pos, pos + size, MAX_LENGTH) == (whole if size >= whole.size else None), size


STARTS = st.builds(struct.pack, st.just(">hhi"), st.sampled_from(sorted(APIS)), st.integers(0, 20), st.just(1))


@given(start=st.none() | STARTS, data=st.binary(max_size=300))
def test_any_bytes_give_a_header_a_wait_or_a_protocol_error(start: bytes | None, data: bytes) -> None:
    """Arbitrary ones, or arbitrary ones after a valid start: then no more are waited for."""
    buf = bytearray(data if start is None else struct.pack(">i", len(start + data)) + start + data)
    try:
        header = peek_request(buf, 0, len(buf), MAX_LENGTH)
    except ProtocolError:
        return
    assert header is None or header.size <= len(buf)
    assert header is not None or start is None


@pytest.mark.parametrize(
    ("start", "protocol"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "tls"),
        (b"GET / HTTP/1.1\r\n", "http"),
        (b"SSH-2.0-x", "ssh"),
        (b"PROXY TCP4 192.0.2.1", "proxy"),
        (b"\r\n\r\n\0\r\nQUIT\n", "proxy"),
    ],
)
def test_other_protocols_are_named(start: bytes, protocol: str) -> None:
    for size in range(4, len(start) + 1):
        with pytest.raises(NotKafka) as caught:
            peek_request(bytearray(start), 0, size, MAX_LENGTH)
        assert caught.value.protocol == protocol


def test_lengths_are_checked_before_anything_else() -> None:
    with pytest.raises(NegativeFrameLength):
        peek_request(bytearray(struct.pack(">i", -1)), 0, 4, MAX_LENGTH)
    with pytest.raises(FrameTooLarge) as caught:
        peek_request(bytearray(struct.pack(">i", MAX_LENGTH + 1)), 0, 4, MAX_LENGTH)
    assert str(caught.value) == f"frame length {MAX_LENGTH + 1} is above the limit of {MAX_LENGTH} bytes"
    with pytest.raises(MalformedFrame):
        peek_request(bytearray(struct.pack(">i", 9)), 0, 4, MAX_LENGTH)


def test_apis_and_versions_outside_of_the_table_are_refused() -> None:
    with pytest.raises(UnknownApi):
        peek_request(request(9999, 0, "x"), 0, 100, MAX_LENGTH)
    with pytest.raises(UnsupportedVersion):
        peek_request(request(PRODUCE, 14, "x", b"\x00" * 100), 0, 100, MAX_LENGTH)
    passed = peek_request(request(9999, 0, "x"), 0, 15, MAX_LENGTH, pass_unknown_apis=True)
    assert passed is not None
    assert passed.client_id == "x"
    asked = peek_request(request(API_VERSIONS, 99, "x", b"\x00" * 10), 0, 26, MAX_LENGTH)
    assert asked is not None
    assert asked.version == 99, "clients ask for any version of this one"


def test_a_header_without_end_is_refused_before_it_is_collected() -> None:
    frame = bytearray(struct.pack(">ihhi", 900_000, 3, 12, 1) + struct.pack(">h", 1) + b"x" + b"\x01\x01" + b"\xff" * 3)
    frame += b"\x7f"  # one tag of some 260 MB
    with pytest.raises(MalformedFrame):
        peek_request(frame, 0, len(frame), MAX_LENGTH)
    assert MAX_HEADER_SIZE < 262_144


def test_a_header_has_few_tags() -> None:
    for count in (MAX_HEADER_TAGS, MAX_HEADER_TAGS + 1):
        body = struct.pack(">hhih", 3, 12, 1, 0) + bytes([count]) + b"\x09\x00" * count
        frame = bytearray(struct.pack(">i", len(body)) + body)
        if count <= MAX_HEADER_TAGS:
            assert peek_request(frame, 0, len(frame), MAX_LENGTH) is not None
        else:
            with pytest.raises(MalformedFrame):
                peek_request(frame, 0, len(frame), MAX_LENGTH)


# Budgets of Fetch and ShareFetch

BUDGET_VERSIONS = [*((FETCH, version) for version in range(3, 19)), (SHARE_FETCH, 1), (SHARE_FETCH, 2)]
KIO_BUDGET_VERSIONS = [(key, version) for key, version in BUDGET_VERSIONS if (key, version) != (FETCH, 3)]


@given(
    data=st.data(),
    key_and_version=st.sampled_from(KIO_BUDGET_VERSIONS),
    budget=st.integers(-5, 2**31 - 1),
    client_id=st.none() | st.text(max_size=20),
)
def test_the_budget_is_where_kio_writes_it(
    data: st.DataObject, key_and_version: tuple[int, int], budget: int, client_id: str | None
) -> None:
    key, version = key_and_version
    body: Any = data.draw(requests(key, version))
    frame = request(key, version, client_id, encode(body))
    header = peek_request(frame, 0, len(frame), MAX_LENGTH)
    assert header is not None
    assert header.budget_offset is not None
    assert header.needed == header.budget_offset + {(SHARE_FETCH, 1): 12, (SHARE_FETCH, 2): 18}.get((key, version), 8)
    assert (header.renewal_offset is not None) == hasattr(body, "is_renew_ack")
    if header.renewal_offset is not None:
        assert frame[header.renewal_offset] == body.is_renew_ack

    lowered = lower_fetch_budget(frame, header.budget_offset, budget)

    after: Any = entity_reader(load_request_schema(key, version))(bytes(frame), header.body_offset)[0]
    assert after.max_bytes == lowered == min(body.max_bytes, max(1, budget))
    assert after.topics == body.topics
    assert after.min_bytes == (min(body.min_bytes, lowered) if lowered < body.max_bytes else body.min_bytes)


@given(data=st.data(), version=st.sampled_from([1, 2]), budget=st.integers(-5, 2**31 - 1))
def test_the_records_of_a_share_fetch_are_lowered_as_its_bytes(data: st.DataObject, version: int, budget: int) -> None:
    body: Any = data.draw(requests(SHARE_FETCH, version))
    frame, expected = (request(SHARE_FETCH, version, "c", encode(body)) for _ in range(2))
    header = peek_request(frame, 0, len(frame), MAX_LENGTH)
    assert header is not None
    assert header.budget_offset is not None

    lower_share_budget(frame, header.budget_offset, budget)

    lowered = lower_fetch_budget(expected, header.budget_offset, budget)
    reader = entity_reader(load_request_schema(SHARE_FETCH, version))
    after, otherwise = (reader(bytes(each), header.body_offset)[0] for each in (frame, expected))
    max_records = body.max_records
    if 0 < lowered < body.max_bytes:
        max_records = min(max_records, max(1, max_records * lowered // body.max_bytes))
    assert after == replace(otherwise, max_records=max_records)


@given(epoch=st.integers(0, 2**31 - 1), group_id=st.text("gü", max_size=90), version=st.sampled_from([1, 2]))
def test_share_fetch_requests_of_a_member_are_equal_up_to_its_id(epoch: int, group_id: str, version: int) -> None:
    frames = []
    for session_epoch, max_bytes in ((0, 52_428_800), (epoch, 1)):
        known = {"group_id": group_id, "member_id": "9f1d", "share_session_epoch": session_epoch}
        body = of_request(SHARE_FETCH, version, "ShareFetchRequest", **known, max_bytes=max_bytes)
        frames.append(request(SHARE_FETCH, version, "c", encode(body)))
    headers = [peek_request(frame, 0, len(frame), MAX_LENGTH) for frame in frames]
    assert headers[0] == headers[1]
    assert headers[0] is not None
    size = headers[0].size
    assert frames[0][12:size] == frames[1][12:size]
    assert frames[0][size - 4 : size] == b"9f1d"
    for end in range(len(frames[0])):
        assert peek_request(frames[0], 0, end, MAX_LENGTH) == (headers[0] if end >= size else None)


# Other protocols in responses


@pytest.mark.parametrize("minor", range(5))
@pytest.mark.parametrize("limit", [1 << 20, 1 << 30, 2**31 - 1])
def test_a_tls_alert_is_recognised_with_any_limit(minor: int, limit: int) -> None:
    """The response of a TLS listener to a plain request: 7 bytes, which as a frame length are 353 MB."""
    alert = bytearray(b"\x15\x03" + bytes([minor]) + b"\x00\x02\x02\x28")
    length = int.from_bytes(alert[:4], "big")
    assert length >= TLS_ALERT_LENGTH
    with pytest.raises(NotKafka) as caught:
        check_frame_length(alert, 0, length, limit)
    assert caught.value.protocol == "tls"


def test_an_http_response_is_recognised() -> None:
    start = bytearray(b"xHTTP/1.1 400 Bad Request")
    with pytest.raises(NotKafka) as caught:
        check_frame_length(start, 1, int.from_bytes(b"HTTP", "big"), 1 << 30)
    assert caught.value.protocol == "http"
