"""Small messages and structs decoded and encoded whole, with kio, after a check of their bytes by kio's own schema.

kio's native reader expects valid bytes. It allocates an array by its count before it reads an item, so a count of two
billion aborts the process, and it refuses unknown tags and error codes, which a broker may send in an old version
(KIP-482). So every message is first copied field by field: each count and length must fit into the bytes, unknown tags
are removed (they might contain an address), and unknown error codes become UNKNOWN_SERVER_ERROR, as in clients.
"""

import io
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from struct import Struct
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.protocol import Entity

from protocol.errors import MalformedFrame, TooManyItems, TruncatedFrame
from protocol.wire import encode_varint, skip, unsigned_varint

E = TypeVar("E", bound=Entity)


class ItemCount:
    """How many more items of arrays, and tags, a message may have."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int, pos: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooManyItems(pos)


Copier = Callable[[bytes, int, bytearray, ItemCount], int]
"""Checks the value at a position, appends it in the form that kio reads, and returns the position after it."""

_SIZES = {
    "bool": 1, "int8": 1, "uint8": 1,
    "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8,
    "uuid": 16,
}  # fmt: skip
_UNBOUNDED = 1 << 62
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_KNOWN_ERROR_CODES = frozenset(int(code) for code in ErrorCode)
_UNKNOWN_ERROR = _INT16.pack(ErrorCode.unknown_server_error)


def read(entity: type[E], data: bytes, start: int, most_items: int = _UNBOUNDED) -> tuple[E, int]:
    """Decodes the message or struct that starts at `data[start]`; returns it and the position after it.

    Args:
        most_items: items of arrays, and tags, that it may have. Each takes up to 4 us.

    Raises:
        TooManyItems: it has more.
        TruncatedFrame: `data` ends within it.
        MalformedFrame: it is not of this type. The offset is an index of `data`.
    """
    readable = bytearray()
    after = _copier_of(entity)(data, start, readable, ItemCount(most_items))
    try:
        decoded, size = entity_reader(entity)(bytes(readable), 0)
    except (SerialError, ValueError, OverflowError) as error:  # null where it is not allowed, text that is not UTF-8
        raise MalformedFrame(f"{entity.__name__} ({error})", start) from error
    if size != len(readable):
        raise MalformedFrame(f"{entity.__name__}: its own length", start)
    return decoded, after


def decode(entity: type[E], data: bytes, start: int, most_items: int = _UNBOUNDED) -> E:
    """Decodes `data[start:]`, all of it, as `read` does."""
    decoded, after = read(entity, data, start, most_items)
    if after != len(data):
        raise MalformedFrame(f"{entity.__name__}: bytes after its last field", after)
    return decoded


def encode(message: Entity) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


@cache
def _copier_of(entity: type[Entity]) -> Copier:
    """For a type of kio: its fields in order, then its tag buffer."""
    flexible = entity.__flexible__
    untagged = [_field_copier(field, flexible) for field in fields(entity) if "tag" not in field.metadata]
    tagged = {
        int(field.metadata["tag"]): _field_copier(field, flexible)
        for field in fields(entity)
        if "tag" in field.metadata
    }

    def copy_entity(data: bytes, pos: int, out: bytearray, items: ItemCount) -> int:
        for copy_field in untagged:
            pos = copy_field(data, pos, out, items)
        return _copy_tags(data, pos, out, items, tagged) if flexible else pos

    return copy_entity


def _copy_tags(data: bytes, pos: int, out: bytearray, items: ItemCount, tagged: dict[int, Copier]) -> int:
    end = len(data)
    known = 0
    entries = bytearray()
    count, pos = unsigned_varint(data, pos, end, 0, "tag count")
    items.take(count, pos)
    for _ in range(count):  # each takes two bytes or more, so a false count ends at `end`
        tag, pos = unsigned_varint(data, pos, end, 0, "tag")
        size, pos = unsigned_varint(data, pos, end, 0, "tag size")
        after = skip(pos, size, end, 0, "tagged field")
        if tag in tagged:
            content = bytearray()
            if tagged[tag](data, pos, content, items) != after:
                raise MalformedFrame(f"tag {tag}: its size is not its content's", pos)
            entries += encode_varint(tag) + encode_varint(len(content)) + content
            known += 1
        pos = after
    out += encode_varint(known) + entries
    return pos


def _field_copier(field: Field[Any], flexible: bool) -> Copier:
    annotation: Any = field.type
    nullable = get_origin(annotation) is UnionType
    if nullable:
        annotation = next(argument for argument in get_args(annotation) if argument is not type(None))
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        return _copy_array(_item_copier(item, field, flexible), flexible, nullable)
    if nullable and is_dataclass(annotation):
        raise TypeError(f"{field.name}: a nullable struct, which no message read here has")
    return _item_copier(annotation, field, flexible)


def _item_copier(item: Any, field: Field[Any], flexible: bool) -> Copier:
    if is_dataclass(item):
        entity: Any = item
        return _copier_of(entity)
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _SIZES:
        return _copy_fixed(_SIZES[kafka_type])
    if kafka_type == "error_code":
        return _copy_error_code
    if flexible:
        return _copy_compact
    return _copy_prefixed(_INT16 if kafka_type == "string" else _INT32)


def _copy_fixed(size: int) -> Copier:
    def copy_fixed(data: bytes, pos: int, out: bytearray, items: ItemCount) -> int:
        after = skip(pos, size, len(data), 0, "field")
        out += data[pos:after]
        return after

    return copy_fixed


def _copy_error_code(data: bytes, pos: int, out: bytearray, items: ItemCount) -> int:
    after = skip(pos, 2, len(data), 0, "error code")
    known = _INT16.unpack_from(data, pos)[0] in _KNOWN_ERROR_CODES
    out += data[pos:after] if known else _UNKNOWN_ERROR
    return after


def _copy_compact(data: bytes, pos: int, out: bytearray, items: ItemCount) -> int:
    """A string or bytes of a flexible version."""
    at = pos
    size, pos = unsigned_varint(data, pos, len(data), 0, "length")
    after = skip(pos, max(0, size - 1), len(data), 0, "string")
    out += data[at:after]
    return after


def _copy_prefixed(length: Struct) -> Copier:
    """A string or bytes of other versions."""

    def copy_prefixed(data: bytes, pos: int, out: bytearray, items: ItemCount) -> int:
        after = skip(pos, length.size, len(data), 0, "length")
        after = skip(after, max(0, length.unpack_from(data, pos)[0]), len(data), 0, "string")
        out += data[pos:after]
        return after

    return copy_prefixed


def _copy_array(copy_item: Copier, flexible: bool, nullable: bool) -> Copier:
    fewest = -1 if nullable else 0  # -1: null, which kio would return for any array

    def copy_array(data: bytes, pos: int, out: bytearray, items: ItemCount) -> int:
        at, end = pos, len(data)
        if flexible:
            count, pos = unsigned_varint(data, pos, end, 0, "count")
            count -= 1
        else:
            pos = skip(pos, 4, end, 0, "count")
            count = _INT32.unpack_from(data, at)[0]
        if count < fewest:
            raise MalformedFrame("array", at)
        if count > end - pos:  # an item takes a byte or more
            raise TruncatedFrame("array", at)
        items.take(max(0, count), at)
        out += data[at:pos]
        for _ in range(count):
            pos = copy_item(data, pos, out, items)
        return pos

    return copy_array
