"""The header of the PROXY protocol, versions 1 and 2: the address of the client of a load balancer.

The load balancer sends it before the client's first byte. Source: HAProxy's doc/proxy-protocol.txt, sections 2.1 and
2.2.

    version 1   PROXY TCP4 192.0.2.1 198.51.100.7 51344 19092\\r\\n     at most 107 bytes
    version 2   signature (12 bytes), version and command, family and transport, length of the rest (uint16), addresses,
                TLVs

Own code, not PyPI's `proxy-protocol` 0.11: for a parser of one function that would be 2,500 lines with a checksum, DNS
and TLS part, and it raises `struct.error` for a short address block, accepts `+1` as a port, and bounds no length.
"""

from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import InvalidProxyHeader

#: Longest header that is accepted. HAProxy recommends 536 bytes; TLVs with a client's certificate take more.
MAX_PROXY_HEADER_SIZE: Final = 4_096

_START_OF_LINE: Final = b"PROXY "
_LONGEST_LINE: Final = 107
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED_SIZE: Final = 16
_unpack_fixed = Struct(">BBH").unpack_from
_unpack_port = Struct(">H").unpack_from
_VERSION_AND_COMMAND_AT: Final = 12
_LOCAL, _PROXY = 0x20, 0x21
#: Family and transport, as high and low half of a byte: at most AF_UNIX, and at most DGRAM.
_LAST_FAMILY, _LAST_TRANSPORT = 3, 2
#: Size of one address by family and transport: TCP over IPv4, TCP over IPv6.
_ADDRESS_SIZES: Final = {0x11: 4, 0x21: 16}


class ProxyHeader(NamedTuple):
    """A complete header.

    size    its bytes
    source  IP address and port of the client; None: use the socket's (LOCAL, UNKNOWN, or no TCP over IP)
    """

    size: int
    source: tuple[str, int] | None


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`, which may contain more; None: it is not complete.

    The destination and TLVs (a CRC32C among them) are not read.

    Raises:
        InvalidProxyHeader: `data` is not the beginning of a header, or its header is above `MAX_PROXY_HEADER_SIZE`.
    """
    if _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        return _parse_binary(data)
    if _START_OF_LINE.startswith(data[: len(_START_OF_LINE)]):
        return _parse_line(data)
    raise InvalidProxyHeader("signature", 0)


def _parse_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED_SIZE:
        return None
    command, family, length = _unpack_fixed(data, _VERSION_AND_COMMAND_AT)
    if command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader("version and command", _VERSION_AND_COMMAND_AT)
    if family >> 4 > _LAST_FAMILY or family & 0x0F > _LAST_TRANSPORT:
        raise InvalidProxyHeader("family and transport", _VERSION_AND_COMMAND_AT + 1)
    size = _FIXED_SIZE + length
    address_size = _ADDRESS_SIZES.get(family, 0) if command == _PROXY else 0
    if size > MAX_PROXY_HEADER_SIZE or length < 2 * (address_size + 2 * bool(address_size)):
        raise InvalidProxyHeader("length", _VERSION_AND_COMMAND_AT + 2)
    if len(data) < size:
        return None
    if not address_size:
        return ProxyHeader(size, None)
    packed = bytes(data[_FIXED_SIZE : _FIXED_SIZE + address_size])
    address = IPv4Address(packed) if address_size == 4 else IPv6Address(packed)
    (port,) = _unpack_port(data, _FIXED_SIZE + 2 * address_size)
    return ProxyHeader(size, (_text(address), port))


def _parse_line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _LONGEST_LINE)
    if end < 0:
        if len(data) >= _LONGEST_LINE:
            raise InvalidProxyHeader("line", _LONGEST_LINE)
        return None
    size = end + 2
    family, *fields = bytes(data[len(_START_OF_LINE) : end]).split(b" ")
    if family == b"UNKNOWN":
        return ProxyHeader(size, None)
    if family not in (b"TCP4", b"TCP6") or len(fields) != 4 or b"%" in data[:end]:  # a zone has no meaning here
        raise InvalidProxyHeader("line", len(_START_OF_LINE))
    make = IPv4Address if family == b"TCP4" else IPv6Address
    try:
        source, _ = [make(field.decode("ascii")) for field in fields[:2]]
        port, _ = [_port(field) for field in fields[2:]]
    except ValueError as error:  # of an address too
        raise InvalidProxyHeader("address", len(_START_OF_LINE)) from error
    return ProxyHeader(size, (_text(source), port))


def _text(address: IPv4Address | IPv6Address) -> str:
    """The address as a socket returns it."""
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or address)
    return str(address)


def _port(digits: bytes) -> int:
    """Raises ValueError."""
    if not digits.isdigit() or len(digits) > 5 or int(digits) > 65_535:
        raise ValueError(digits)
    return int(digits)
