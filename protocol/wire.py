"""Primitives of Kafka's encoding: each reads at `pos`, never at `end` or after it.

Sources: the protocol guide's "Protocol Primitive Types", and KIP-482 for unsigned varints and tag buffers.
"""

import re
import zlib
from struct import Struct

from protocol.errors import MalformedFrame, TruncatedFrame

BytesLike = bytes | bytearray | memoryview

MAX_VARINT_SIZE = 5
"""Maximum bytes of an unsigned varint of 32 bits."""
MAX_VARINT = 2**31 - 1
"""Kafka stores lengths, counts and tags in signed 32 bit integers."""
MAX_STRING = 2**15 - 1
"""Bytes of a string, in flexible versions as well."""
MAX_NAME = 256
"""Characters of a name that is kept."""
NOT_AT_HAND = 1 << 60
"""A position after any end, returned by `compact_string_end` and `plain_string_end` for strings they do not read."""

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")

INT16 = Struct(">h")
INT32 = Struct(">i")
unpack_int16 = INT16.unpack_from
unpack_int32 = INT32.unpack_from


def unsigned_varint(buf: BytesLike, pos: int, end: int, origin: int, what: str) -> tuple[int, int]:
    """Returns the value and the position after it. `origin` is the start of the frame, for error offsets.

    An encoding longer than necessary is refused: no implementation writes one, and where single bytes are replaced,
    each value must have one form.
    """
    value = 0
    for size in range(1, MAX_VARINT_SIZE + 1):
        at = pos + size - 1
        if at >= end:
            raise TruncatedFrame(what, pos - origin)
        byte = buf[at]
        value |= (byte & 0x7F) << (7 * size - 7)
        if byte < 0x80:
            if value > MAX_VARINT or (byte == 0 and size > 1):
                break
            return value, pos + size
    raise MalformedFrame(what, pos - origin)


def varint_size(value: int) -> int:
    """Bytes that `value` takes."""
    return max(1, (value.bit_length() + 6) // 7)


def encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip(pos: int, size: int, end: int, origin: int, what: str) -> int:
    if size > end - pos:
        raise TruncatedFrame(what, pos - origin)
    return pos + size


def string_bounds(
    buf: BytesLike, pos: int, end: int, origin: int, what: str, *, compact: bool = True
) -> tuple[int, int]:
    """Where the text of a nullable string begins and ends. Brokers read any negative length as null."""
    at = pos
    if compact:
        size, pos = unsigned_varint(buf, pos, end, origin, what)
        size -= 1
    else:
        pos = skip(pos, INT16.size, end, origin, what)
        size = unpack_int16(buf, at)[0]
    if size > MAX_STRING:
        raise MalformedFrame(f"the length of {what}", at - origin)
    return pos, skip(pos, max(0, size), end, origin, what)


def skip_tags(
    buf: BytesLike, pos: int, end: int, origin: int, most: int = MAX_VARINT, longest: int = MAX_VARINT
) -> int:
    """Skips a tag buffer: a count, which is `most` at most, then tag, size and bytes of each, `longest` at most."""
    count, pos = unsigned_varint(buf, pos, end, origin, "tag count")
    if count > most:
        raise MalformedFrame(f"at most {most} tags", pos - origin)
    for _ in range(count):  # each takes two bytes or more, so a false count ends at `end`
        _, pos = unsigned_varint(buf, pos, end, origin, "tag")
        size, pos = unsigned_varint(buf, pos, end, origin, "tag size")
        if size > longest:
            raise MalformedFrame(f"a tag of at most {longest} bytes", pos - origin)
        pos = skip(pos, size, end, origin, "tagged field")
    return pos


def encode_string(text: bytes, compact: bool) -> bytes:
    """A string of at most `MAX_STRING` bytes with its length: as flexible versions write it, or as others do."""
    return (encode_varint(len(text) + 1) if compact else INT16.pack(len(text))) + text


def encode_count(count: int, compact: bool) -> bytes:
    """The number of items of an array; -1: null."""
    return encode_varint(count + 1) if compact else INT32.pack(count)


def read_text(data: bytes | bytearray) -> str:
    """The text of a string, as Java's `new String(bytes, UTF_8)`, and so every broker, reads it: what is not UTF-8
    becomes U+FFFD. No bytes are an error here: which names are valid is for the broker to decide.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Java and Python agree on where a malformed sequence ends, except for an encoded surrogate: Java replaces the
        # whole of it. Both replace FF by itself.
        return _SURROGATE.sub(b"\xff", data).decode(errors="replace")


def short_name(name: str) -> str:
    """A longer name than `MAX_NAME` ends with `…` and the CRC-32 of the whole name, so that names with the same
    beginning stay apart.
    """
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}…{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"


def compact_string_end(buf: bytes | bytearray, pos: int, end: int) -> int:
    """Position after a compact string, nullable or not, of at most 16,382 bytes.

    For fast paths that read many fields and compare the last position with `end` once: above `end` the string has not
    arrived whole, is longer, or is malformed. So is every string that is read from such a position.
    """
    if pos >= end:
        return NOT_AT_HAND
    size = buf[pos]
    if size < 0x80:
        return pos + (size or 1)
    if pos + 1 >= end:
        return NOT_AT_HAND
    high = buf[pos + 1]
    return pos + 1 + (size & 0x7F | high << 7) if 0 < high < 0x80 else NOT_AT_HAND


def plain_string_end(buf: bytes | bytearray, pos: int, end: int) -> int:
    """As `compact_string_end`, in versions that are not flexible: of any size."""
    if pos + 2 > end:
        return NOT_AT_HAND
    size: int = unpack_int16(buf, pos)[0]
    if size > 0:
        return pos + 2 + size
    return pos + 2 if size >= -1 else NOT_AT_HAND
