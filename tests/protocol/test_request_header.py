"""The request peek against kio's own encoder: every API and version, whole and byte by byte."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from protocol.apis import API_VERSIONS, APIS, PRODUCE
from protocol.errors import (
    FrameTooLarge,
    MalformedFrame,
    NegativeFrameLength,
    NotKafka,
    ProtocolError,
    UnknownApi,
    UnsupportedVersion,
)
from protocol.request_header import MAX_HEADER_SIZE, peek_request

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


def produce_body(version: int, transactional_id: str | None, acks: int) -> bytes:
    """A Produce body's first fields, then bytes that nobody may look at."""
    raw = None if transactional_id is None else transactional_id.encode()
    if version < 3:
        head = b""
    elif version < 9:
        head = struct.pack(">h", -1) if raw is None else struct.pack(">h", len(raw)) + raw
    else:
        head = b"\x00" if raw is None else _varint(len(raw) + 1) + raw
    return head + struct.pack(">h", acks) + b"\xff" * 40


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@pytest.mark.parametrize(("key", "version"), KEYS_AND_VERSIONS)
def test_every_api_and_version_is_read_as_kio_writes_it(key: int, version: int) -> None:
    body = produce_body(version, "tx-1", -1) if key == PRODUCE else b"\xff" * 20
    frame = request(key, version, "etl", body)
    header = peek_request(frame, 0, len(frame), MAX_LENGTH)
    assert header is not None
    assert (header.api.key, header.version, header.client_id) == (key, version, "etl")
    assert header.body_offset == len(frame) - len(body)
    assert header.acks == (-1 if key == PRODUCE else None)


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
    frame = request(PRODUCE, version, client_id, produce_body(version, transactional_id, acks))
    pos = len(garbage)
    buf = bytearray(garbage + frame + garbage)
    whole = peek_request(buf, pos, pos + len(frame), MAX_LENGTH)
    assert whole is not None
    assert (whole.client_id, whole.acks) == (client_id or "", acks)
    for size in range(len(frame)):
        header = peek_request(buf, pos, pos + size, MAX_LENGTH)
        assert header == (whole if size >= whole.size else None), size


@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_a_header_a_wait_or_a_protocol_error(data: bytes) -> None:
    buf = bytearray(data)
    try:
        header = peek_request(buf, 0, len(buf), MAX_LENGTH)
    except ProtocolError:
        return
    assert header is None or header.size <= len(buf)


@given(key=st.sampled_from(sorted(APIS)), version=st.integers(0, 20), tail=st.binary(max_size=100))
def test_arbitrary_bytes_behind_a_valid_start(key: int, version: int, tail: bytes) -> None:
    content = struct.pack(">hhi", key, version, 1) + tail
    buf = bytearray(struct.pack(">i", len(content)) + content)
    try:
        header = peek_request(buf, 0, len(buf), MAX_LENGTH)
    except ProtocolError:
        return
    assert header is not None
    assert header.size <= len(buf)


@pytest.mark.parametrize(
    ("start", "protocol"),
    [(b"\x16\x03\x01\x02\x00\x01", "tls"), (b"GET / HTTP/1.1\r\n", "http"), (b"SSH-2.0-x", "ssh")],
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
    assert (caught.value.length, caught.value.limit) == (MAX_LENGTH + 1, MAX_LENGTH)
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


def test_api_versions_passes_in_any_version() -> None:
    header = peek_request(request(API_VERSIONS, 99, "x", b"\x00" * 10), 0, 26, MAX_LENGTH)
    assert header is not None
    assert header.version == 99


def test_a_frame_that_ends_inside_its_header_is_malformed() -> None:
    frame = request(PRODUCE, 9, "client", produce_body(9, "t", 1))
    frame[:4] = struct.pack(">i", 14)
    with pytest.raises(MalformedFrame):
        peek_request(frame, 0, len(frame), MAX_LENGTH)


def test_a_header_without_end_is_refused_before_it_is_collected() -> None:
    frame = bytearray(struct.pack(">ihhi", 900_000, 3, 12, 1) + struct.pack(">h", 1) + b"x" + b"\x01\x01" + b"\xff" * 3)
    frame += b"\x7f"  # one tag of some 260 MB
    with pytest.raises(MalformedFrame):
        peek_request(frame, 0, len(frame), MAX_LENGTH)
    assert MAX_HEADER_SIZE < 262_144
