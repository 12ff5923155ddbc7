"""The first bytes of a request: all that a quota needs unless it depends on topics or records.

A request on the wire is

    length int32, api key int16, api version int16, correlation id int32, client id nullable string,
    tag buffer (flexible versions: request header v2), body

A Produce body begins with the transactional id (3+) and acks. A ShareFetch body begins with group id and member id, a
share session epoch and the fields of the budget:

    max wait int32, min bytes int32, max bytes int32, max records int32, batch size int32,
    acquire mode int8, renews boolean (both 2+)

For Fetch see `fetch`. What follows is not read here. Sources: KIP-482, KIP-1222, `RequestHeader.json`,
`ProduceRequest.json`, `FetchRequest.json`, `ShareFetchRequest.json`.

The client id has a length of two bytes in every header version. A null client id is read as `""`, as in the broker, and
a long one as its `short_name`: quotas, counters and connections keep client ids, which anyone can invent.
"""

from dataclasses import dataclass
from struct import Struct

from protocol import errors
from protocol.apis import API_VERSIONS, APIS, FETCH, PRODUCE, SHARE_FETCH, Api
from protocol.wire import INT16, read_text, short_name, skip, skip_tags, string_bounds, unpack_int16

REQUEST_PREFIX = Struct(">ihhi")
"""Length, API key, API version and correlation id of a request: the first 12 bytes of its frame."""
PREFIX_SIZE = 12
"""Bytes of a frame before the client id's length."""
unpack_prefix = Struct(">iii").unpack_from
"""The same bytes as three numbers: length, API key and version as one, correlation id."""
MAX_HEADER_SIZE = 131_072
"""A longer header (client id, tags, transactional id, or group id and member id) is refused. There is room for three
names of 32 KiB and some tags."""
MAX_HEADER_TAGS = 16
"""Kafka defines no tag for the request header. One that arrives byte by byte is parsed again each time, so the number
is small."""

FIRST_FETCH_WITH_MAX_BYTES = 3
"""Versions 0 to 2 have no `max_bytes` for the whole response (KIP-74)."""
FIRST_FETCH_WITHOUT_REPLICA_ID = 15
"""In later versions the replica id is in a tagged field (KIP-903)."""

FIRST_SHARE_FETCH_WITH_RENEWALS = 2
"""From this version on a flag marks a request that only renews acquisition locks (`IsRenewAck`, KIP-1222)."""

_REPLICA_ID_SIZE = 4
_MAX_WAIT_SIZE = 4
_SHARE_SESSION_EPOCH_SIZE = 4
_BUDGET_SIZE = 8
_MAX_RECORDS_SIZE = 4
_AFTER_MAX_RECORDS_SIZE = 4 + 1
"""Batch size, acquire mode."""

_FOREIGN_PROTOCOLS = {
    "tls": (b"\x16\x03", b"\x15\x03"),
    "http": (b"GET ", b"POST", b"HEAD", b"PUT ", b"PRI ", b"HTTP"),
    "ssh": (b"SSH-",),
    "proxy": (b"PROX", b"\r\n\r\n"),
}
TLS_ALERT_LENGTH = 0x15030000
"""The first four bytes of a TLS alert are this frame length (353 MB) or slightly more, which a limit may permit. Pass
each length from here on to `check_frame_length`, also if it is within the limit."""
_TLS_ALERT_LENGTHS = frozenset(TLS_ALERT_LENGTH + (minor << 8) for minor in range(5))
"""SSL 3.0 to TLS 1.3. An alert is shorter than 256 bytes, so the first byte of its own length is 0."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The first bytes of one request. All sizes and offsets are bytes from the start of the frame, with its length."""

    api: Api
    version: int
    client_id: str
    size: int
    """Bytes that are equal in requests of the same kind, except for length and correlation id: up to the body, for
    Produce up to and with `acks`, for ShareFetch up to and with the member id."""
    body_offset: int
    """Bytes before the body."""
    acks: int | None
    """Of a Produce request."""
    budget_offset: int | None
    """Of a Fetch (3+) or ShareFetch request: offset of `min_bytes`, followed by `max_bytes`, and for ShareFetch
    `max_records`: int32 each."""
    renewal_offset: int | None
    """Of a ShareFetch (2+) request: offset of the flag, one byte, that it only renews acquisition locks (KIP-1222)."""
    needed: int
    """Bytes that must be in the buffer before the request is handled; `size` or more. A shorter frame is malformed."""


def check_frame_length(buf: bytearray, pos: int, length: int, limit: int) -> None:
    """Refuses a length that no Kafka frame has, before memory is allocated for it. For requests and responses.

    Args:
        pos: index of the length prefix; its four bytes are in `buf`.
        length: its value.
        limit: the largest length that is accepted, in bytes.

    Raises:
        NotKafka: the bytes begin as TLS (a handshake, or an alert in response to a plain request), HTTP, SSH or
            a PROXY header.
        NegativeFrameLength, FrameTooLarge
    """
    if 0 <= length <= limit and length not in _TLS_ALERT_LENGTHS:
        return
    start = bytes(buf[pos : pos + 4])
    for name, signatures in _FOREIGN_PROTOCOLS.items():
        if start.startswith(signatures):
            raise errors.NotKafka(name)
    if length < 0:
        raise errors.NegativeFrameLength(length)
    raise errors.FrameTooLarge(length, limit)


def find_api(api_key: int, version: int, *, pass_unknown_apis: bool = False) -> Api:
    """The table's row for a request. ApiVersions is accepted in any version: unknown ones have a response (KIP-511).

    Raises:
        UnknownApi: the API is not in the table.
        UnsupportedVersion: the version is outside of the table's range.
    """
    api = APIS.get(api_key)
    if api is None:
        if not pass_unknown_apis:
            raise errors.UnknownApi(api_key)
        return Api(api_key, f"Unknown{api_key}", min_version=0, max_version=32_767)
    if not api.covers(version) and api_key != API_VERSIONS:
        raise errors.UnsupportedVersion(api.name, version)
    return api


def peek_request(
    buf: bytearray, pos: int, end: int, max_length: int, *, pass_unknown_apis: bool = False
) -> RequestHeader | None:
    """Parses the header of the request that begins at `pos`; `buf[pos:end]` is what has arrived of it, or more.

    Returns:
        None if more bytes are needed.

    Raises:
        ProtocolError: the bytes are no request that the proxy forwards.
    """
    have = end - pos
    if have < PREFIX_SIZE + 2:
        if have >= 4:
            _check_request_length(buf, pos, int.from_bytes(buf[pos : pos + 4], "big", signed=True), max_length)
        return None
    length, api_key, version, _ = REQUEST_PREFIX.unpack_from(buf, pos)
    _check_request_length(buf, pos, length, max_length)
    api = find_api(api_key, version, pass_unknown_apis=pass_unknown_apis)
    frame_end = pos + 4 + length
    try:
        header = _read_header(buf, pos, min(end, frame_end), api, version)
    except errors.TruncatedFrame as error:
        if frame_end <= end:
            raise errors.MalformedFrame("the request header", error.offset) from None
        if have > MAX_HEADER_SIZE:
            raise errors.MalformedFrame("a request header of sane size", MAX_HEADER_SIZE) from None
        return None
    if header.needed > 4 + length:
        raise errors.MalformedFrame("the request's first fields", length)
    return header


def _check_request_length(buf: bytearray, pos: int, length: int, max_length: int) -> None:
    check_frame_length(buf, pos, length, max_length)
    if length < PREFIX_SIZE + 2 - 4:
        raise errors.MalformedFrame("the request header", length)


def _read_header(buf: bytearray, start: int, end: int, api: Api, version: int) -> RequestHeader:
    """The header of the frame at `start`. Raises TruncatedFrame if it does not end before `end`."""
    origin = start + 4
    flexible = api.is_flexible(version)
    at, pos = string_bounds(buf, start + PREFIX_SIZE, end, origin, "the client id", compact=False)
    client_id = short_name(read_text(buf[at:pos]))
    if flexible:
        pos = skip_tags(buf, pos, end, origin, MAX_HEADER_TAGS, MAX_HEADER_SIZE)
    body_offset = pos - start
    acks: int | None = None
    if api.key == PRODUCE:
        if version >= 3:
            _, pos = string_bounds(buf, pos, end, origin, "the transactional id", compact=flexible)
        at, pos = pos, skip(pos, INT16.size, end, origin, "acks")
        acks = unpack_int16(buf, at)[0]
    elif api.key == SHARE_FETCH:
        _, pos = string_bounds(buf, pos, end, origin, "the group id", compact=flexible)
        _, pos = string_bounds(buf, pos, end, origin, "the member id", compact=flexible)
    size = pos - start
    budget_offset = _budget_offset(api.key, version, size)
    needed = size if budget_offset is None else budget_offset + _BUDGET_SIZE
    renewal_offset = None
    if api.key == SHARE_FETCH:
        needed += _MAX_RECORDS_SIZE
        if version >= FIRST_SHARE_FETCH_WITH_RENEWALS:
            renewal_offset = needed + _AFTER_MAX_RECORDS_SIZE
            needed = renewal_offset + 1
    return RequestHeader(api, version, client_id, size, body_offset, acks, budget_offset, renewal_offset, needed)


def transactional_id(header: RequestHeader, buf: bytearray, pos: int, end: int) -> bytes:
    """That of a Produce or EndTxn request at `pos`, whose body begins with it; empty without one, or if it has not
    arrived.
    """
    if header.api.key == PRODUCE and header.version < 3:
        return b""
    compact = header.api.is_flexible(header.version)
    try:
        at, to = string_bounds(buf, pos + header.body_offset, end, pos + 4, "the transactional id", compact=compact)
    except errors.TruncatedFrame:
        return b""
    return bytes(buf[at:to])


def _budget_offset(api_key: int, version: int, size: int) -> int | None:
    if api_key == SHARE_FETCH:
        return size + _SHARE_SESSION_EPOCH_SIZE + _MAX_WAIT_SIZE
    if api_key == FETCH and version >= FIRST_FETCH_WITH_MAX_BYTES:
        replica_id = _REPLICA_ID_SIZE if version < FIRST_FETCH_WITHOUT_REPLICA_ID else 0
        return size + replica_id + _MAX_WAIT_SIZE
    return None
