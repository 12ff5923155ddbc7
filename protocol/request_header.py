"""What stands in the first tens of bytes of a request: enough for every quota that needs no look at the records.

A request on the wire is ``length int32, api_key int16, api_version int16, correlation_id int32, client_id nullable
string``, in flexible versions a tag buffer (request header v2), then the body. A Produce body opens with the
transactional id and ``acks``. Nothing behind that is looked at. Sources: KIP-482, ``RequestHeader.json``,
``ProduceRequest.json``.

``client_id`` has a two-byte length in every header version; a null client id reads as ``""``, as in the broker.
"""

from dataclasses import dataclass
from struct import Struct

from protocol.apis import API_VERSIONS, APIS, PRODUCE, Api, Treatment
from protocol.errors import (
    FrameTooLarge,
    MalformedFrame,
    NegativeFrameLength,
    NotKafka,
    UnknownApi,
    UnsupportedVersion,
)

#: ``length, api_key, api_version, correlation_id`` of a request: the first 12 bytes of its frame.
REQUEST_PREFIX = Struct(">ihhi")
#: Bytes of a frame before the client id's length.
PREFIX_SIZE = 12
#: They as three numbers: length, API key and version as one, correlation id.
unpack_prefix = Struct(">iii").unpack_from
#: A header (client id, tags, transactional id) longer than this is refused: two 32 KiB names and some tags fit.
MAX_HEADER_SIZE = 131_072
#: Kafka defines no tag for the request header; one that arrives byte by byte is read again each time, so few may come.
MAX_HEADER_TAGS = 16

_INT16 = Struct(">h")
_FOREIGN_PROTOCOLS = (
    (b"\x16\x03", "tls"),
    (b"GET ", "http"),
    (b"POST", "http"),
    (b"HEAD", "http"),
    (b"PUT ", "http"),
    (b"PRI ", "http"),
    (b"SSH-", "ssh"),
)


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """What the first bytes of one request say.

    ``size`` counts the bytes from the frame's start that were looked at, ``body_offset`` those before the body; both
    include the four bytes of the length. ``acks`` is None for anything but Produce.
    """

    api: Api
    version: int
    client_id: str
    size: int
    body_offset: int
    acks: int | None


def check_frame_length(buf: bytearray, pos: int, length: int, limit: int) -> None:
    """Refuse a length that no Kafka frame has, before anything is allocated for it.

    Raises NotKafka (with the protocol it looks like), NegativeFrameLength or FrameTooLarge.
    """
    if 0 <= length <= limit:
        return
    start = bytes(buf[pos : pos + 4])
    for signature, name in _FOREIGN_PROTOCOLS:
        if start.startswith(signature):
            raise NotKafka(name)
    if length < 0:
        raise NegativeFrameLength(length)
    raise FrameTooLarge(length, limit)


def find_api(api_key: int, version: int, *, pass_unknown_apis: bool = False) -> Api:
    """The table's row for a request, or the error that closes its connection: UnknownApi, UnsupportedVersion.

    ApiVersions passes in any version: its unknown versions have an answer of their own (KIP-511).
    """
    api = APIS.get(api_key)
    if api is None:
        if not pass_unknown_apis:
            raise UnknownApi(api_key)
        return Api(
            key=api_key,
            name=f"Unknown{api_key}",
            min_version=0,
            max_version=32767,
            flexible_from=None,
            treatment=Treatment.OPAQUE,
            throttle_from=None,
            throttle_first=False,
        )
    if not api.covers(version) and api_key != API_VERSIONS:
        raise UnsupportedVersion(api.name, version)
    return api


def peek_request(
    buf: bytearray, pos: int, end: int, max_length: int, *, pass_unknown_apis: bool = False
) -> RequestHeader | None:
    """Read the header of the request whose frame begins at ``pos``; ``buf[pos:end]`` is what has arrived of it.

    None: more bytes are needed. Raises a ProtocolError for what can be no request.
    """
    have = end - pos
    if have < PREFIX_SIZE + 2:
        if have >= 4:
            length = int.from_bytes(buf[pos : pos + 4], "big", signed=True)
            check_frame_length(buf, pos, length, max_length)
            if length < PREFIX_SIZE + 2 - 4:
                raise MalformedFrame("the request header", length)
        return None
    length, api_key, version, _ = REQUEST_PREFIX.unpack_from(buf, pos)
    check_frame_length(buf, pos, length, max_length)
    if length < PREFIX_SIZE + 2 - 4:
        raise MalformedFrame("the request header", length)
    api = find_api(api_key, version, pass_unknown_apis=pass_unknown_apis)
    frame_end = pos + 4 + length
    reader = _HeaderReader(buf, pos + PREFIX_SIZE, min(end, frame_end), frame_end <= end, pos)
    try:
        client_id = reader.nullable_string()
        flexible = api.is_flexible(version)
        if flexible:
            reader.skip_tags()
        body_offset = reader.pos - pos
        acks = None
        if api_key == PRODUCE:
            if version >= 3:
                reader.skip_transactional_id(compact=flexible)
            acks = reader.int16()
    except _NeedMore:
        if have > MAX_HEADER_SIZE:
            raise MalformedFrame("a request header of sane size", MAX_HEADER_SIZE) from None
        return None
    return RequestHeader(api, version, client_id, reader.pos - pos, body_offset, acks)


class _NeedMore(Exception):
    """The bytes at hand end inside the header."""


class _HeaderReader:
    """Reads header fields from ``buf[pos:end]``; ``whole`` says that the frame itself ends at ``end``."""

    __slots__ = ("buf", "end", "frame_start", "pos", "whole")

    def __init__(self, buf: bytearray, pos: int, end: int, whole: bool, frame_start: int) -> None:
        self.buf, self.pos, self.end, self.whole, self.frame_start = buf, pos, end, whole, frame_start

    def _advance(self, size: int) -> int:
        pos = self.pos
        if pos + size > self.end:
            if self.whole:
                raise MalformedFrame("the request header", pos - self.frame_start - 4)
            if pos + size - self.frame_start > MAX_HEADER_SIZE:
                raise MalformedFrame("a request header of sane size", MAX_HEADER_SIZE)
            raise _NeedMore
        self.pos = pos + size
        return pos

    def int16(self) -> int:
        value: int = _INT16.unpack_from(self.buf, self._advance(2))[0]
        return value

    def nullable_string(self) -> str:
        size = self.int16()
        if size < -1:
            raise MalformedFrame("the client id's length", self.pos - self.frame_start - 6)
        if size <= 0:
            return ""
        pos = self._advance(size)
        try:
            return self.buf[pos : pos + size].decode()
        except UnicodeDecodeError:
            raise MalformedFrame("the client id as UTF-8", pos - self.frame_start - 4) from None

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.buf[self._advance(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedFrame("a varint", self.pos - self.frame_start - 4)

    def skip_tags(self) -> None:
        count = self.unsigned_varint()
        if count > MAX_HEADER_TAGS:
            raise MalformedFrame("the header tags", self.pos - self.frame_start - 4)
        for _ in range(count):
            self.unsigned_varint()
            self._advance(self.unsigned_varint())

    def skip_transactional_id(self, *, compact: bool) -> None:
        size = self.unsigned_varint() - 1 if compact else self.int16()
        if size < -1 or size > 32767:
            raise MalformedFrame("the transactional id's length", self.pos - self.frame_start - 4)
        self._advance(max(size, 0))
