"""The header of a record batch (magic 2), and the length in front of it: what can be counted without reading records.

The header has the number of messages and the producer id, whatever the compression.
"""

from array import array
from struct import Struct
from typing import Final

from protocol.wire import unpack_int32

BATCH_HEADER: Final = 61
"""Bytes of the header of a batch: the smallest batch."""
BEFORE_SIZE: Final = 12
"""Bytes that the size in the header does not count: the base offset, and the size itself."""
CODEC: Final = 0b111
"""Of the attributes: 0 is no compression."""
CONTROL: Final = 0b100000
"""Of the attributes: the batch is the marker of a transaction's end."""
unpack_batch = Struct(">8xi4xb4xh20xq6xi").unpack_from
"""Size, magic, attributes, producer id, records count."""

PLAIN_WIDTH: Final = 4
"""Bytes of the length of records in versions that are not flexible."""
TOO_WIDE: Final = 5
PARTITION_LOOK: Final = 4 + 4 + BATCH_HEADER
"""Bytes of a partition up to and with the batch header: index, length of the records, header."""

#: Of a partition whose records have a length of two bytes: these, size and magic of the batch, producer id, records
#: count.
_short_partition = Struct(">4xH8xi4xb26xq6xI").unpack_from
#: The size of a batch by the two bytes of that length: it counts `BEFORE_SIZE` bytes less. -1: not such a length.
_BATCH_SIZES = array("h", [-1]) * 65_536
for _field in range(0x8000, 0x10000):
    if 0 < _field & 0xFF < 0x80:
        _BATCH_SIZES[_field] = (_field >> 8 & 0x7F | (_field & 0x7F) << 7) - 1 - BEFORE_SIZE
#: Bytes of such a partition that the size of its batch does not count: index, length, base offset and size, tags.
_AROUND_BATCH = 4 + 2 + BEFORE_SIZE + 1
_SMALLEST_RECORD = 7  # length, attributes, timestamp delta, offset delta, key length, value length, header count
_MOST_PER_BYTE = 8  # compressed records: their offset deltas differ, and no codec writes a difference in under a bit


def claimed_messages(count: int, attributes: int, size: int) -> int:
    """Messages of a batch of `size` bytes whose header contains `count`, which may be any number.

    Brokers refuse a batch with a wrong count, so no accepted batch reaches the bound. Without it one small frame could
    use up a topic's messages of a year.
    """
    payload = size - BATCH_HEADER
    most = payload * _MOST_PER_BYTE if attributes & CODEC else payload // _SMALLEST_RECORD
    if 0 <= count <= most:
        return count
    return most if count > 0 else 0


def read_size(buf: bytearray, pos: int) -> tuple[int, int]:
    """Size of records in a flexible version, and the index of their first byte. The next four bytes are in `buf`.

    The size is 0 or less where the fast path does not apply: null or empty records, more than three bytes of length.
    """
    low = buf[pos]
    if low < 0x80:
        return low - 1, pos + 1
    middle = buf[pos + 1]
    if middle < 0x80:
        return ((low & 0x7F | middle << 7) - 1, pos + 2) if middle else (0, pos)
    high = buf[pos + 2]
    return ((low & 0x7F | (middle & 0x7F) << 7 | high << 14) - 1, pos + 3) if 0 < high < 0x80 else (0, pos)


def width_of(size: int) -> int:
    """Bytes of the length of records in a flexible version, where length and records are `size` bytes together.

    `TOO_WIDE` for more than three bytes.
    """
    return 1 if size <= 1 + 126 else 2 if size <= 2 + 16_382 else 3 if size <= 3 + 2_097_150 else TOO_WIDE


def length_field(size: int, width: int, longest: int) -> int:
    """The length of records of `size` bytes, as the number that its `width` bytes are: `PLAIN_WIDTH` for an int32.

    -1 where the length has another width, or the records are too short for a batch or longer than `longest`.
    """
    if not BATCH_HEADER <= size <= longest:
        return -1
    value = size + 1
    if width == 2 and 1 << 7 <= value < 1 << 14:
        return value << 8 & 0x7F00 | 0x8000 | value >> 7
    if width == 3 and 1 << 14 <= value < 1 << 21:
        return value << 16 & 0x7F0000 | 0x808000 | value << 1 & 0x7F00 | value >> 14
    if width == 1 and value < 1 << 7:
        return value
    return size if width == PLAIN_WIDTH else -1


def read_short_partitions(buf: bytearray, pos: int, end: int, most: int) -> tuple[int, int, int, int, int]:
    """As `read_partitions` with tags, in half of the time, for lengths of two bytes: the most common ones."""
    unpack, sizes, last, first = _short_partition, _BATCH_SIZES, end - PARTITION_LOOK, pos
    count = messages = 0
    producer_id: int | None = None  # none has been read
    while count < most and pos <= last:
        field, size, magic, seen_id, claimed = unpack(buf, pos)
        if size != sizes[field] or magic != 2 or claimed > size + BEFORE_SIZE - BATCH_HEADER >> 3:
            break
        if seen_id != producer_id:
            if count:
                break
            producer_id = seen_id
        after = pos + size + _AROUND_BATCH
        if after > end or buf[after - 1]:
            break
        messages += claimed
        count += 1
        pos = after
    return count, pos, pos - first - 7 * count, messages, -1 if producer_id is None else producer_id


def read_partitions(buf: bytearray, pos: int, end: int, most: int, *, tags: bool) -> tuple[int, int, int, int, int]:
    """Skip partitions that have arrived whole and contain one batch of magic 2, with the producer id of the first one.

    Args:
        pos: index of the first partition's index.
        most: the largest number of partitions to read.
        tags: whether a tag buffer follows each one; only empty ones are skipped.

    Returns:
        The number of partitions skipped, the position after them, bytes and messages of their records, and their
        producer id.
    """
    unpack, last = unpack_batch, end - PARTITION_LOOK
    count = record_bytes = messages = 0
    producer_id = -1
    while count < most and pos <= last:
        size, batch = read_size(buf, pos + 4) if tags else (unpack_int32(buf, pos + 4)[0], pos + 8)
        batch_size, magic, attributes, seen_id, claimed = unpack(buf, batch)
        after = batch + size + tags
        if not BATCH_HEADER <= size == batch_size + BEFORE_SIZE or magic != 2 or after > end:
            break
        if (tags and buf[after - 1]) or (seen_id != producer_id and count):
            break
        producer_id = seen_id
        count += 1
        record_bytes += size
        messages += claimed_messages(claimed, attributes, size)
        pos = after
    return count, pos, record_bytes, messages, producer_id
