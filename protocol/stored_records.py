"""The records of a partition, from the bytes of a Fetch response: the values of batches that are not compressed.

This is for a log of small records that the proxy reads for its own use, and that others may write to. Nothing is
decompressed, because 24 kB can become 800 MB: compressed batches are skipped, and so are transaction markers and
batches of older formats.
Records are parsed one at a time, so the caller decides how many it takes at once.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import MalformedFrame
from protocol.record_batch import BATCH_HEADER, BEFORE_SIZE, CODEC, CONTROL

VOID: Final = b""
"""Stands for a value that is null, or longer than the caller reads."""
_CRC_FROM: Final = 21
_LONGEST_VARINT: Final = 10
_unpack_header: Final = Struct(">qi4xbIhi8xq14xi").unpack_from


class Found(NamedTuple):
    """What is at `offset`, and the offset that follows. `value` is None for what is skipped.

    key      None: the record has none, or one that is longer than the caller reads values
    is_null  the value is null, which removes the key from a compacted topic
    time_ms  the latest timestamp of its batch: when it was appended, if the topic has LogAppendTime
    """

    offset: int
    next_offset: int
    value: bytes | None
    key: bytes | None = None
    is_null: bool = False
    time_ms: int = 0


def stored_records(data: bytes, longest: int, crc_of: Callable[[bytes], int]) -> Iterator[Found]:
    """Everything in the complete batches of `data`. Brokers may cut the last one off: it is left out.

    Args:
        longest: bytes of the longest value to copy; a longer one is `VOID`.
        crc_of: CRC-32C.

    Raises MalformedFrame for a header that no broker stores, and for a wrong checksum.
    """
    pos = 0
    while pos + BATCH_HEADER <= len(data):
        base, size, magic, crc, attributes, last_delta, time_ms, count = _unpack_header(data, pos)
        end = pos + BEFORE_SIZE + size
        if end > len(data):
            break
        if magic < 2:
            last_delta = 0
        if size < BATCH_HEADER - BEFORE_SIZE or last_delta < 0:
            raise MalformedFrame("the header of a record batch", pos)
        batch = Found(base, base + last_delta + 1, None)
        if magic != 2 or attributes & (CODEC | CONTROL):
            yield batch
        elif crc_of(data[pos + _CRC_FROM : end]) != crc:
            raise MalformedFrame("a record batch with this checksum", pos)
        else:
            next_offset = base
            try:
                for each in _values(data, pos + BATCH_HEADER, end, base, count, longest):
                    yield each._replace(time_ms=time_ms)
                    next_offset = each.next_offset
            except MalformedFrame:  # for all who read it, the rest of the batch is void
                yield batch
            else:
                if next_offset < batch.next_offset:  # compaction removed its last records, perhaps all
                    yield Found(next_offset, batch.next_offset, None)
        pos = end


def _values(data: bytes, pos: int, end: int, base: int, count: int, longest: int) -> Iterator[Found]:
    for _ in range(count):
        length, pos = _varint(data, pos, end)
        after = pos + length
        if length <= 0 or after > end:
            raise MalformedFrame("the length of a record", pos)
        _, at = _varint(data, pos + 1, after)  # after the attributes: the timestamp
        delta, at = _varint(data, at, after)
        key_length, at = _varint(data, at, after)
        key = data[at : at + key_length] if 0 <= key_length <= longest else None
        value_length, at = _varint(data, at + max(0, key_length), after)
        if at + value_length > after:
            raise MalformedFrame("the value of a record", at)
        value = data[at : at + value_length] if 0 <= value_length <= longest else VOID
        yield Found(base + delta, base + delta + 1, value, key, value_length < 0)
        pos = after  # headers, of which there may be any number, are not read


def _varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A signed varint, and the position after it."""
    value = shift = 0
    for at in range(pos, min(end, pos + _LONGEST_VARINT)):
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value >> 1 ^ -(value & 1), at + 1
        shift += 7
    raise MalformedFrame("a varint", pos)
