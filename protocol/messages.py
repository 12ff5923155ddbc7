"""Small messages and structs decoded and encoded whole, with kio, after a check of their bytes by kio's own schema.

kio's native reader expects valid bytes. It allocates an array by its count before it reads an item, so a count of two
billion aborts the process, and it refuses unknown tags and error codes, which a broker may send in an old version
(KIP-482), and text that is not UTF-8. So every message is first copied field by field: each count and length must fit
into the bytes, unknown tags are removed, unknown error codes become UNKNOWN_SERVER_ERROR, as in clients, and text is
written the way brokers read it (`wire.read_text`).
"""

import io
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i32
from kio.static.protocol import Entity

from protocol.errors import MalformedFrame
from protocol.layouts import Field, layout_of
from protocol.rewriting_walk import CopyingWalk
from protocol.walk import UNBOUNDED, Steps
from protocol.wire import INT16, MAX_STRING, encode_string, read_text, unpack_int16

E = TypeVar("E", bound=Entity)

CLIENT_ID: Final = "kafka-quota-proxy"
"""Of the proxy's own requests."""

_KNOWN_ERROR_CODES = frozenset(int(code) for code in ErrorCode)
_NULL, _COMPACT_NULL = INT16.pack(-1), b"\x00"
_UNKNOWN_ERROR = INT16.pack(ErrorCode.unknown_server_error)


class _CheckingWalk(CopyingWalk):
    """Copies a message in the form that kio reads. Bytes may follow it."""

    def _check_end(self) -> None:
        pass

    def _copy_value(self, field: Field) -> Steps:
        if field.length is INT16:
            yield from self._copy_text(field.name)
            return
        yield from super()._copy_value(field)
        if field.is_error_code and unpack_int16(self.out, len(self.out) - 2)[0] not in _KNOWN_ERROR_CODES:
            self.out[-2:] = _UNKNOWN_ERROR

    def _copy_text(self, what: str) -> Steps:
        """A string. One that is too long for its type, with its replacements or without, is cut."""
        size = yield from self._size(self._compact, INT16, what)
        if size < 0:
            self.out += _COMPACT_NULL if self._compact else _NULL
            return
        text = read_text((yield from self._collect(size, what))).encode()
        if len(text) > MAX_STRING:
            text = text[:MAX_STRING].decode(errors="ignore").encode()
        self.out += encode_string(text, self._compact)


def read(entity: type[E], data: bytes, start: int, most_items: int = UNBOUNDED) -> tuple[E, int]:
    """Decodes the message or struct that starts at `data[start]`; returns it and the position after it.

    Args:
        most_items: items of arrays, and tags, that it may have. Each takes up to 6 us.

    Raises:
        TooManyItems: it has more.
        TruncatedFrame: `data` ends within it.
        MalformedFrame: it is not of this type. The offset is an index of `data`.
    """
    walk = _CheckingWalk(layout_of(entity), len(data), start)
    walk.items_left = most_items
    after = walk.advance(bytearray(data), start, len(data))
    try:
        decoded, size = entity_reader(entity)(bytes(walk.out), 0)
    except (SerialError, ValueError, OverflowError) as error:  # null where it is not allowed
        raise MalformedFrame(f"{entity.__name__} ({error})", start) from error
    if size != len(walk.out):
        raise MalformedFrame(f"{entity.__name__}: its own length", start)
    return decoded, after


def decode(entity: type[E], data: bytes, start: int, most_items: int = UNBOUNDED) -> E:
    """Decodes `data[start:]`, all of it, as `read` does."""
    decoded, after = read(entity, data, start, most_items)
    if after != len(data):
        raise MalformedFrame(f"{entity.__name__}: bytes after its last field", after)
    return decoded


def encode(message: Entity) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def request_frame(body: Any, correlation_id: int) -> bytes:
    """A request of the proxy's own, with its length. `body`: of a class of kio's for requests."""
    header = body.__header_schema__(
        request_api_key=body.__api_key__,
        request_api_version=body.__version__,
        correlation_id=i32(correlation_id),
        client_id=CLIENT_ID,
    )
    request = encode(header) + encode(body)
    return len(request).to_bytes(4, "big") + request
