"""Headers of the PROXY protocol: both versions, cut anywhere, followed by anything, and wrong in any place."""

import contextlib
import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidProxyHeader
from protocol.proxy_header import MAX_PROXY_HEADER_SIZE, ProxyHeader, parse_proxy_header

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
LOCAL, PROXY = 0x20, 0x21
UNSPEC, TCP4, UDP4, TCP6, UNIX = 0x00, 0x11, 0x12, 0x21, 0x31

PORTS = st.integers(0, 65_535)
IPV4 = st.ip_addresses(v=4)
IPV6 = st.ip_addresses(v=6) | IPV4.map(lambda address: IPv6Address(f"::ffff:{address}"))
TLVS = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=100)), max_size=8).map(
    lambda tlvs: b"".join(struct.pack(">BH", kind, len(value)) + value for kind, value in tlvs)
)


def binary(command: int, family: int, rest: bytes, length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(rest) if length is None else length) + rest


def plain(address: IPv4Address | IPv6Address) -> str:
    return str(getattr(address, "ipv4_mapped", None) or address)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, tuple[str, int] | None]:
    """A valid header, and the source that it gives."""
    addresses = draw(st.tuples(IPV4, IPV4) | st.tuples(IPV6, IPV6))
    ports = draw(st.tuples(PORTS, PORTS))
    source = (plain(addresses[0]), ports[0])
    version = 4 if isinstance(addresses[0], IPv4Address) else 6
    match draw(st.sampled_from(["line", "unknown line", "binary", "local", "other family"])):
        case "line":
            return f"PROXY TCP{version} {addresses[0]} {addresses[1]} {ports[0]} {ports[1]}\r\n".encode(), source
        case "unknown line":
            rest = draw(st.sampled_from(["", f" {addresses[0]} {addresses[1]} {ports[0]} {ports[1]}", " ?"]))
            return f"PROXY UNKNOWN{rest}\r\n".encode(), None
    block = b"".join(address.packed for address in addresses) + struct.pack(">HH", *ports) + draw(TLVS)
    match draw(st.sampled_from(["binary", "local", "other family"])):
        case "binary":
            return binary(PROXY, TCP4 if version == 4 else TCP6, block), source
        case "local":
            return binary(LOCAL, draw(st.sampled_from([UNSPEC, TCP4])), draw(st.sampled_from([b"", block]))), None
    return binary(PROXY, draw(st.sampled_from([UNSPEC, UDP4, UNIX])), block), None


@given(headers(), st.binary(max_size=50))
def test_a_header_is_complete_at_its_last_byte_and_no_sooner(
    header: tuple[bytes, tuple[str, int] | None], after: bytes
) -> None:
    data, source = header
    for size in range(len(data)):
        assert parse_proxy_header(data[:size]) is None
    assert parse_proxy_header(data) == ProxyHeader(len(data), source)
    assert parse_proxy_header(data + after) == ProxyHeader(len(data), source)


@given(headers(), st.lists(st.tuples(st.integers(0, 60), st.binary(min_size=1, max_size=4)), min_size=1, max_size=3))
def test_any_change_gives_a_header_within_the_bytes_or_the_error(
    header: tuple[bytes, object], changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(header[0])
    for at, change in changes:
        data[at : at + len(change)] = change
    with contextlib.suppress(InvalidProxyHeader):
        found = parse_proxy_header(bytes(data))
        assert found is None or found.size <= len(data)


@given(st.binary(max_size=300))
def test_any_bytes_that_are_no_header_are_found_out_within_its_largest_size(data: bytes) -> None:
    """The reader keeps what is incomplete, so that must be bounded."""
    for start in (b"", b"PROXY ", binary(PROXY, TCP4, b"", MAX_PROXY_HEADER_SIZE - 16)):
        longest = (start + data).ljust(MAX_PROXY_HEADER_SIZE, b"x")
        with contextlib.suppress(InvalidProxyHeader):
            assert parse_proxy_header(longest) is not None


WRONG = [
    pytest.param(b"\x00\x00\x00\x0a\x00\x12", id="a Kafka request"),
    pytest.param(b"\x16\x03\x01", id="tls"),
    pytest.param(b"PROXYTCP4 1.2.3.4 1.2.3.4 1 1\r\n", id="no space"),
    pytest.param(b"PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n", id="family"),
    pytest.param(b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", id="too few"),
    pytest.param(b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n", id="too many"),
    pytest.param(b"PROXY TCP4 1.2.3.4  1.2.3.4 1 1\r\n", id="two spaces"),
    pytest.param(b"PROXY TCP4 1.2.3.256 1.2.3.4 1 1\r\n", id="address"),
    pytest.param(b"PROXY TCP4 ::1 ::1 1 1\r\n", id="address of the other family"),
    pytest.param(b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n", id="zone"),
    pytest.param(b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n", id="port"),
    pytest.param(b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 1\r\n", id="sign"),
    pytest.param(b"PROXY TCP4 1.2.3.4 1.2.3.4 1_0 1\r\n", id="underscore"),
    pytest.param(b"PROXY TCP4 1.2.3.4 1.2.3.4 \xb2 1\r\n", id="a digit of another script"),
    pytest.param(b"PROXY UNKNOWN".ljust(107, b" "), id="no end of line"),
    pytest.param(binary(0x11, TCP4, bytes(12)), id="version 1 in a binary header"),
    pytest.param(binary(0x22, TCP4, bytes(12)), id="command"),
    pytest.param(binary(PROXY, 0x41, bytes(12)), id="unknown family"),
    pytest.param(binary(PROXY, 0x13, bytes(12)), id="unknown transport"),
    pytest.param(binary(PROXY, TCP4, bytes(11)), id="an address cut off"),
    pytest.param(binary(PROXY, TCP6, bytes(35)), id="an IPv6 address cut off"),
    pytest.param(binary(PROXY, TCP4, b"", MAX_PROXY_HEADER_SIZE - 15), id="one byte above the largest size"),
    pytest.param(binary(LOCAL, UNSPEC, b"", 65_535), id="the largest length"),
]


@pytest.mark.parametrize("data", WRONG)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidProxyHeader):
        parse_proxy_header(data)
