"""Primitives of Kafka's encoding that the walks share: each reads at `pos`, never at `end` or beyond.

Sources: the protocol guide's "Protocol Primitive Types", and KIP-482 for unsigned varints and tag buffers.
"""

from protocol.errors import MalformedFrame, TruncatedFrame

BytesLike = bytes | bytearray | memoryview

MAX_VARINT_SIZE = 5
"""Bytes that an unsigned varint of 32 bits takes at most."""
MAX_VARINT = 2**31 - 1
"""Kafka's lengths, counts and tags are signed 32 bit integers on its own side."""
MAX_STRING = 2**15 - 1
"""Bytes of a string, in flexible versions as well."""


def unsigned_varint(buf: BytesLike, pos: int, end: int, origin: int, what: str) -> tuple[int, int]:
    """Returns the value and the position behind it. `origin` is where the frame starts, for error offsets.

    An encoding longer than it need be is refused: no implementation writes one, and one value must have one form where
    single bytes are replaced.
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


def skip_compact_string(buf: BytesLike, pos: int, end: int, origin: int, what: str) -> int:
    """Also for nullable ones: the length is written plus one, and 0 is null."""
    size, pos = unsigned_varint(buf, pos, end, origin, what)
    return skip(pos, size - 1, end, origin, what) if size else pos


def skip_tags(buf: BytesLike, pos: int, end: int, origin: int) -> int:
    """Over a tag buffer: a count, then tag, size and bytes of each."""
    count, pos = unsigned_varint(buf, pos, end, origin, "tag count")
    for _ in range(count):  # each takes two bytes or more, so a false count ends at `end`
        _, pos = unsigned_varint(buf, pos, end, origin, "tag")
        size, pos = unsigned_varint(buf, pos, end, origin, "tag size")
        pos = skip(pos, size, end, origin, "tagged field")
    return pos
