"""What a Fetch response contains of each topic: bytes and messages, read while the response arrives.

    correlation id int32, tag buffer (12+),
    throttle time int32 (1+), error code int16, session id int32 (both 7+),
    responses array: name string (0-12) or topic id (13+), partitions array:
        index int32, error code int16, high watermark int64, last stable offset int64 (4+), log start offset int64 (5+),
        aborted transactions nullable array (4+): producer id int64, first offset int64, tag buffer (12+)
        preferred read replica int32 (11+), records nullable bytes, tag buffer (12+)
      tag buffer (12+)
    tag buffer (12+; tag 0 is NodeEndpoints, 16+)

`records_walk` defines what is counted; `fetch` has the walk that only hides node endpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any

from protocol.apis import APIS, FETCH
from protocol.errors import UnsupportedVersion
from protocol.fetch import FIRST_WITH_NODE_ENDPOINTS
from protocol.produce_walk import read_topic_head
from protocol.record_batch import (
    BATCH_HEADER,
    BEFORE_SIZE,
    CONTROL,
    claimed_messages,
    length_field,
    read_batches,
)
from protocol.records_walk import RecordsWalk
from protocol.topics import TOPIC_ID_SIZE
from protocol.walk import Steps

FIRST_WITH_THROTTLE = 1
FIRST_WITH_ABORTED = 4
FIRST_WITH_LOG_START = 5
FIRST_WITH_SESSIONS = 7
FIRST_WITH_REPLICAS = 11
FIRST_FLEXIBLE = 12
FIRST_WITH_TOPIC_IDS = 13

_API = APIS[FETCH]
_ABORTED = 16
_HEAD = 4 + 1 + 10 + 1  # of a flexible version without tags: correlation id to topic count
_SMALLEST_RESPONSE = _HEAD + 1
# Of a partition of a flexible version: the count of aborted transactions, and three bytes from the length of its
# records on: enough for a length below 2 MiB.
_PARTITION = Struct(">30xB4xBBB")
_BEFORE_SIZE = 35
_partition = _PARTITION.unpack_from
_HEADER_IN_SIZE = BATCH_HEADER - BEFORE_SIZE


@lru_cache
def _one_batch(width: int) -> Callable[[bytearray, int], tuple[Any, ...]]:
    """Reads a partition of a flexible version with one batch: the count of aborted transactions, the length of the
    records in the last `width` of four bytes; size, magic and attributes of the batch, records count.
    """
    return Struct(f">30xB{width}xI8xi4xb4xh34xi").unpack_from


@dataclass(frozen=True, slots=True)
class _Layout:
    """What differs between versions.

    by_id               topics have ids, no names
    before_aborted      bytes of a partition before its aborted transactions
    smallest_partition  bytes of the smallest partition
    """

    version: int
    compact: bool
    by_id: bool
    before_aborted: int
    smallest_partition: int


def _layout_of(version: int) -> _Layout:
    compact = version >= FIRST_FLEXIBLE
    has_aborted, has_replica = version >= FIRST_WITH_ABORTED, version >= FIRST_WITH_REPLICAS
    before_aborted = 14 + 8 * (has_aborted + (version >= FIRST_WITH_LOG_START))
    lengths = has_aborted + 1 + 1 if compact else 4 * has_aborted + 4
    smallest = before_aborted + 4 * has_replica + lengths
    return _Layout(version, compact, version >= FIRST_WITH_TOPIC_IDS, before_aborted, smallest)


_LAYOUTS = [_layout_of(version) for version in range(_API.min_version, _API.max_version + 1)]


class FetchRecordsWalk(RecordsWalk):
    """Walks a Fetch response of any version, counts the records of each topic, and hides its node endpoints."""

    def __init__(self, version: int, frame_length: int) -> None:
        if not _API.covers(version):
            raise UnsupportedVersion(_API.name, version)
        super().__init__(frame_length)
        self._layout = _LAYOUTS[version - _API.min_version]
        #: Of the latest partition: bytes of the length of its records, and whether these are one batch.
        self._width = 2
        self._is_single = True

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        if self._steps is None and self._layout.compact and self._left == end - pos >= _SMALLEST_RESPONSE:
            self._buf, self._pos, self._end, self._limit = buf, pos, end, end
            work_left = self.work_left
            if self._count_plain_response():
                self._left = 0
                self._steps = iter(())
                return end
            self.work_left = work_left
            self._forget()
        return super().advance(buf, pos, end)

    def _count_plain_response(self) -> bool:
        """Counts a response of a flexible version that has arrived whole, without the generator. False: it is not
        plain, or it is long.
        """
        buf, end = self._buf, self._end
        first = self._pos + _HEAD
        topics = buf[first - 1] - 1
        if buf[self._pos + 4] or not 0 <= topics < 0x7F:
            return False
        self._pos = first
        for _ in range(topics):
            partitions = self._read_plain_topic()
            if partitions < 0 or self._count_plain_partitions(partitions) or self._pos >= end or buf[self._pos]:
                return False
            self._close_topic()
            self._pos += 1
            self.work_left -= 1
        return self._pos == end - 1 and not buf[self._pos]

    def _walk(self) -> Steps:
        version, compact, by_id = self._layout.version, self._layout.compact, self._layout.by_id
        yield from self._skip(4, "correlation id")
        if compact:
            yield from self._skip_tags()
        fixed = 4 * (version >= FIRST_WITH_THROTTLE) + 6 * (version >= FIRST_WITH_SESSIONS)
        yield from self._skip(fixed, "throttle time, error code, session id")
        smallest = TOPIC_ID_SIZE + 2 if by_id else 3 if compact else 6
        topics = yield from self._items(compact, smallest, "topic count")
        for _ in range(topics):
            yield from self._walk_topic()
        if version >= FIRST_WITH_NODE_ENDPOINTS:
            yield from self._hide_tagged_endpoints()
        elif compact:
            yield from self._skip_tags()

    def _walk_topic(self) -> Steps:
        partitions = self._read_plain_topic()
        if partitions < 0:
            self._topic = yield from self._topic_of(self._layout.compact, self._layout.by_id)
            partitions = yield from self._items(
                self._layout.compact, self._layout.smallest_partition, "partition count"
            )
        while partitions:
            partitions = self._count_plain_partitions(partitions)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif partitions:
                yield from self._walk_partition()
                partitions -= 1
        self._close_topic()
        if self._layout.compact:
            yield from self._skip_tags()
        yield from self._pause()

    def _read_plain_topic(self) -> int:
        """The number of a topic's partitions, if its head is complete and short. Else -1, and nothing was read."""
        head = read_topic_head(self._buf, self._pos, self._end, self._layout.by_id) if self._layout.compact else None
        if head is None:
            return -1
        topic, partitions, pos = head
        if partitions * self._layout.smallest_partition > self._limit - pos:
            return -1
        self._topic, self._pos = topic, pos
        return partitions

    def _count_plain_partitions(self, left: int) -> int:
        """Counts those that have arrived whole, without aborted transactions and tags. Returns how many are left."""
        while left and self._layout.compact and self.work_left > 0:
            if self._is_single:
                left = self._count_single_batches(left)
            if left and not self._count_partition():
                break
            left -= left > 0
        return left

    def _count_single_batches(self, left: int) -> int:
        """Counts plain partitions of one batch, the most common kind, while the length of their records has as many
        bytes as that of the latest partition. Returns how many are left.

        Almost all of a walk's time is spent here: 0.45 us for a partition (CPython 3.11).
        """
        buf, pos, end, width = self._buf, self._pos, self._end, self._width
        unpack = _one_batch(width)
        mask, before = (1 << 8 * width) - 1, _BEFORE_SIZE + width + BEFORE_SIZE
        last = end - before - BATCH_HEADER
        sizes = messages = 0
        known = field = most = -1
        room = most_here = min(left, self.work_left)
        while room > 0 and pos <= last:
            aborted, written, size, magic, attributes, claimed = unpack(buf, pos)
            if size != known:
                known, field, most = size, length_field(size + BEFORE_SIZE, width), size - _HEADER_IN_SIZE >> 3
            after = pos + before + size
            if written & mask != field or magic != 2 or aborted > 1 or after >= end or buf[after]:
                break
            if attributes & CONTROL:
                pass
            elif 0 <= claimed <= most:
                messages += claimed
            else:
                messages += claimed_messages(claimed, attributes, size + BEFORE_SIZE)
            sizes += size
            room -= 1
            pos = after + 1
        count = most_here - room
        self._record_bytes += sizes + count * BEFORE_SIZE
        self._messages += messages
        self._pos = pos
        self.work_left -= count
        return left - count

    def _count_partition(self) -> bool:
        """Counts the partition at the position, and passes it. False: it is not plain, or has not arrived whole."""
        buf, pos, end = self._buf, self._pos, self._end
        if end - pos < _PARTITION.size:
            return False
        aborted, low, middle, high = _partition(buf, pos)
        if low < 0x80:
            width, size = 1, (low or 1) - 1  # 0: null
        elif 0 < middle < 0x80:
            width, size = 2, (low & 0x7F | middle << 7) - 1
        elif 0 < high * (middle >> 7) < 0x80:
            width, size = 3, (low & 0x7F | (middle & 0x7F) << 7 | high << 14) - 1
        else:
            return False
        at = pos + _BEFORE_SIZE + width
        after = at + size
        if aborted > 1 or after >= end or buf[after]:
            return False
        batches_end, messages, count = read_batches(buf, at, after, after, self.work_left)
        if batches_end != after:
            return False
        self._width, self._is_single = width, count == 1
        self._record_bytes += size
        self._messages += messages
        self._pos = after + 1
        self.work_left -= max(1, count)
        return True

    def _walk_partition(self) -> Steps:
        self.work_left -= 1
        yield from self._skip(self._layout.before_aborted, "partition")
        if self._layout.compact:
            yield from self._skip_structs(_ABORTED, "aborted transactions")
        elif self._layout.version >= FIRST_WITH_ABORTED:
            aborted = yield from self._items(False, _ABORTED, "aborted transactions")
            yield from self._skip(_ABORTED * aborted, "aborted transactions")
        if self._layout.version >= FIRST_WITH_REPLICAS:
            yield from self._skip(4, "preferred read replica")
        size = yield from self._bytes_size(self._layout.compact, "records")
        yield from self._walk_records(max(0, size))
        if self._layout.compact:
            yield from self._skip_tags()
