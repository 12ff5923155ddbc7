"""How far a consumer is behind, read from the head of one Fetch response: its first partition has a high watermark, and
the offsets of its first batch. See `protocol.fetch` for the layout.
"""

import struct
from struct import Struct
from typing import Final, NamedTuple

from protocol.errors import MalformedFrame
from protocol.fetch import (
    FIRST_FLEXIBLE,
    FIRST_WITH_ABORTED,
    FIRST_WITH_LOG_START,
    FIRST_WITH_REPLICAS,
    FIRST_WITH_SESSIONS,
    FIRST_WITH_THROTTLE,
    FIRST_WITH_TOPIC_IDS,
)
from protocol.topics import TOPIC_ID_SIZE
from protocol.wire import unpack_int32, unsigned_varint

_MAGIC: Final = 2
_ABORTED: Final = 16
_partition = Struct(">ihq").unpack_from
_BATCH_SIZE: Final = 27
_batch = Struct(">q8xB6xi").unpack_from


class Position(NamedTuple):
    """Of one partition: how many records follow the first batch of a response.

    `partition`: its topic's name or id, and its index; empty for a response without partitions, since nothing is new in
    any of its session.
    """

    partition: bytes
    behind: int


def first_position(buf: bytearray, pos: int, end: int, version: int) -> Position | None:
    """Of the response whose correlation id is at `pos`, as far as it has arrived. None: it does not say, or not yet."""
    try:
        return _read(buf, pos, end, version)
    except (struct.error, IndexError, MalformedFrame):
        return None


def _read(buf: bytearray, pos: int, end: int, version: int) -> Position | None:
    compact = version >= FIRST_FLEXIBLE
    at = pos + 4
    if compact:
        if buf[at]:
            return None
        at += 1
    at += 4 * (version >= FIRST_WITH_THROTTLE) + 6 * (version >= FIRST_WITH_SESSIONS)
    topics, at = _count(buf, at, end, compact)
    if not topics:
        return Position(b"", 0) if version >= FIRST_WITH_SESSIONS and at <= end else None
    topic, at = _topic(buf, at, end, version)
    partitions, at = _count(buf, at, end, compact)
    index, error, high_watermark = _partition(buf, at)
    at += 14 + 8 * (version >= FIRST_WITH_ABORTED) + 8 * (version >= FIRST_WITH_LOG_START)
    if version >= FIRST_WITH_ABORTED:
        aborted, at = _count(buf, at, end, compact)
        at += max(0, aborted) * (_ABORTED + compact)
    at += 4 * (version >= FIRST_WITH_REPLICAS)
    size, at = _count(buf, at, end, compact)
    if not partitions or error or at > end:
        return None
    partition = topic + index.to_bytes(4, "big", signed=True)
    behind = 0 if size <= 0 else _behind(buf, at, end, high_watermark)
    return None if behind is None else Position(partition, behind)


def _behind(buf: bytearray, at: int, end: int, high_watermark: int) -> int | None:
    """The records behind the batch at `at`."""
    base, magic, last = _batch(buf, at)
    is_known = at + _BATCH_SIZE <= end and magic == _MAGIC
    return max(0, high_watermark - base - last - 1) if is_known else None


def _topic(buf: bytearray, at: int, end: int, version: int) -> tuple[bytes, int]:
    """The bytes of a topic's name or id, and the position behind them."""
    begin = at
    if version >= FIRST_WITH_TOPIC_IDS:
        at += TOPIC_ID_SIZE
    elif version >= FIRST_FLEXIBLE:
        size, at = _count(buf, at, end, compact=True)
        at += size
    else:
        at += 2 + int.from_bytes(buf[at : at + 2], "big")
    return bytes(buf[begin:at]), at


def _count(buf: bytearray, at: int, end: int, compact: bool) -> tuple[int, int]:
    """A length or a number of items, and the position behind it. Compact ones are one higher on the wire."""
    if not compact:
        return unpack_int32(buf, at)[0], at + 4
    value, at = unsigned_varint(buf, at, end, at, "count")
    return value - 1, at
