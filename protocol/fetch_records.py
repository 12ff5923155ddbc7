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
#: Bytes of the smallest topic of a flexible version, by whether topics have ids.
_SMALLEST_TOPIC = (3, TOPIC_ID_SIZE + 2)
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
    """Walks a Fetch response of any version, counts the records of each topic, and hides its node endpoints.

    Most responses of flexible versions are plain: no tags, no aborted transactions, batches of magic 2, fewer than 127
    topics and partitions of a topic. As long as a response is plain, `_count_plain` is all of the walk. The generator
    begins at the first place that is not.
    """

    # Class attributes for the reason given in `FrameWalk`.
    _topics = -1
    """Topics that have not begun; -1 before their number is known."""
    _partitions = -1
    """Partitions of the current topic that have not begun; -1 between topics."""
    _passing = 0
    """Bytes of batches of the current partition that have been counted, and are not final yet."""
    _uncounted = -1
    """Bytes of the current partition's records after those; -1 between partitions."""
    _width = 0
    """Bytes of the length of records in the latest partition that had arrived whole; 0: these are not one batch."""

    def __init__(self, version: int, frame_length: int) -> None:
        if not _API.covers(version):
            raise UnsupportedVersion(_API.name, version)
        super().__init__(frame_length)
        self._layout = _LAYOUTS[version - _API.min_version]

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        if self._steps is None and self._layout.compact:
            self._buf, self._pos, self._end = buf, pos, end
            self._limit = limit = pos + self._left
            is_plain = self._count_plain()
            pos = self._pos
            self._left = limit - pos
            if is_plain:
                return pos
        return super().advance(buf, pos, end)

    def _count_plain(self) -> bool:
        """Counts what has arrived of a plain response, without the generator. False: the generator continues at the
        position, where something is not plain.
        """
        if self._topics < 0 and not self._read_plain_head():
            return False
        while self._count_plain_piece() and self.work_left > 0:
            pass
        if self.work_left <= 0 and self._pos < self._end:
            return True
        pos, end, limit = self._pos, self._end, self._limit
        if end < limit:
            return end - pos < BATCH_HEADER  # enough for all but long names
        if self._topics or self._partitions >= 0 or pos != limit - 1 or self._buf[pos]:
            return False
        self._finish()
        return True

    def _read_plain_head(self) -> bool:
        """Reads up to the number of topics. False: it has not arrived, or is not plain."""
        buf, first = self._buf, self._pos + _HEAD
        if self._end <= first or buf[self._pos + 4] or not 0 < buf[first - 1] < 0x80:
            return False
        topics = buf[first - 1] - 1
        if topics * _SMALLEST_TOPIC[self._layout.by_id] > self._limit - first:
            return False
        self._topics, self._pos = topics, first
        return True

    def _count_plain_piece(self) -> bool:
        """Counts a topic, or a part of one. False: the rest is not plain or has not arrived, or the response ends."""
        if self._uncounted >= 0 and not (self._count_plain_records() and self._skip_empty_tags()):
            return False
        if self._partitions < 0:
            partitions = self._read_plain_topic() if self._topics else -1
            if partitions < 0:
                return False
            self._topics -= 1
            self._partitions = partitions
        if self._partitions:
            self._partitions = self._count_plain_partitions(self._partitions)
            if self._partitions:
                return self.work_left <= 0 or self._begin_partition()
        return self._skip_empty_tags()

    def _skip_empty_tags(self) -> bool:
        """Ends the current partition, or else the current topic, if it has no tags."""
        if self._pos >= self._end or self._buf[self._pos]:
            return False
        self._pos += 1
        if self._uncounted >= 0:
            self._uncounted = -1
        else:
            self._close_topic()
            self._partitions = -1
            self.work_left -= 1
        return True

    def _begin_partition(self) -> bool:
        """Reads a partition up to its records, which have not arrived whole or are not plain."""
        at, size = self._plain_records()
        if size < 0 or size > self._limit - at:
            return False
        self._pos, self._uncounted = at, size
        self._partitions -= 1
        self._record_bytes += size
        self.work_left -= 1
        return True

    def _count_plain_records(self) -> bool:
        """Counts and passes what has arrived of the batches of a partition. Returns whether all have passed."""
        while True:
            pos, here = self._pos, min(self._passing, self._end - self._pos)
            self._pos = pos = pos + here
            self._passing -= here
            if self._passing or not self._uncounted or self.work_left <= 0:
                return not (self._passing or self._uncounted)
            after, messages, count = read_batches(self._buf, pos, self._end, pos + self._uncounted, self.work_left)
            if not count:
                return False
            self._passing = after - pos
            self._uncounted -= after - pos
            self._messages += messages
            self.work_left -= count

    def _walk(self) -> Steps:
        version, compact, by_id = self._layout.version, self._layout.compact, self._layout.by_id
        if self._topics < 0:
            yield from self._skip(4, "correlation id")
            if compact:
                yield from self._skip_tags()
            fixed = 4 * (version >= FIRST_WITH_THROTTLE) + 6 * (version >= FIRST_WITH_SESSIONS)
            yield from self._skip(fixed, "throttle time, error code, session id")
            smallest = _SMALLEST_TOPIC[by_id] if compact else 6
            self._topics = yield from self._items(compact, smallest, "topic count")
        if self._uncounted >= 0:
            yield from self._walk_batches(self._uncounted)
            yield from self._skip_tags()
        if self._partitions >= 0:
            yield from self._walk_partitions(self._partitions)
        for _ in range(self._topics):
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
        yield from self._walk_partitions(partitions)

    def _walk_partitions(self, left: int) -> Steps:
        """The partitions of a topic that are left, and its end."""
        while left:
            left = self._count_plain_partitions(left)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif left:
                yield from self._walk_partition()
                left -= 1
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
            if self._width:
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
        messages = 0
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
            room -= 1
            pos = after + 1
        count = most_here - room
        self._record_bytes += pos - self._pos - count * (_BEFORE_SIZE + width + 1)
        self._messages += messages
        self._pos = pos
        self.work_left -= count
        return left - count

    def _count_partition(self) -> bool:
        """Counts the partition at the position, and passes it. False: it is not plain, or has not arrived whole."""
        at, size = self._plain_records()
        after = at + size
        buf = self._buf
        if size < 0 or after >= self._end or buf[after]:
            return False
        batches_end, messages, count = read_batches(buf, at, after, after, self.work_left)
        if batches_end != after:
            return False
        self._width = at - self._pos - _BEFORE_SIZE if count == 1 else 0
        self._record_bytes += size
        self._messages += messages
        self._pos = after + 1
        self.work_left -= max(1, count)
        return True

    def _plain_records(self) -> tuple[int, int]:
        """Where the records of the partition at the position begin, and their size. -1: that has not arrived, or the
        partition is not plain up to there.
        """
        pos = self._pos
        if self._end - pos < _PARTITION.size:
            return pos, -1
        aborted, low, middle, high = _partition(self._buf, pos)
        if aborted > 1:
            return pos, -1
        if low < 0x80:
            return pos + _BEFORE_SIZE + 1, (low or 1) - 1  # 0: null
        if 0 < middle < 0x80:
            return pos + _BEFORE_SIZE + 2, (low & 0x7F | middle << 7) - 1
        if 0 < high * (middle >> 7) < 0x80:
            return pos + _BEFORE_SIZE + 3, (low & 0x7F | (middle & 0x7F) << 7 | high << 14) - 1
        return pos, -1

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
