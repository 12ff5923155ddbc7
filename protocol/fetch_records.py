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
from functools import lru_cache
from struct import Struct
from typing import Any

from protocol.apis import APIS, FETCH
from protocol.errors import UnsupportedVersion
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
FIRST_WITH_NODE_ENDPOINTS = 16

_ABORTED = 16
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


class FetchRecordsWalk(RecordsWalk):
    """Walks a Fetch response of any version, counts the records of each topic, and hides its node endpoints."""

    def __init__(self, version: int, frame_length: int) -> None:
        api = APIS[FETCH]
        if not api.covers(version):
            raise UnsupportedVersion(api.name, version)
        super().__init__(frame_length)
        self._version = version
        self._compact = version >= FIRST_FLEXIBLE
        self._by_id = version >= FIRST_WITH_TOPIC_IDS
        self._before_aborted = 14 + 8 * ((version >= FIRST_WITH_ABORTED) + (version >= FIRST_WITH_LOG_START))
        has_aborted, has_replica = version >= FIRST_WITH_ABORTED, version >= FIRST_WITH_REPLICAS
        lengths = has_aborted + 1 + 1 if self._compact else 4 * has_aborted + 4
        #: Bytes of the length of the records in the latest partition.
        self._width = 2
        self._smallest_partition = self._before_aborted + 4 * has_replica + lengths

    def _walk(self) -> Steps:
        version, compact = self._version, self._compact
        yield from self._skip(4, "correlation id")
        if compact:
            yield from self._skip_tags()
        fixed = 4 * (version >= FIRST_WITH_THROTTLE) + 6 * (version >= FIRST_WITH_SESSIONS)
        yield from self._skip(fixed, "throttle time, error code, session id")
        smallest = TOPIC_ID_SIZE + 2 if self._by_id else 3 if compact else 6
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
            self._topic = yield from self._topic_of(self._compact, self._by_id)
            partitions = yield from self._items(self._compact, self._smallest_partition, "partition count")
        while partitions:
            partitions = self._count_plain_partitions(partitions)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif partitions:
                yield from self._walk_partition()
                partitions -= 1
        self._close_topic()
        if self._compact:
            yield from self._skip_tags()
        yield from self._pause()

    def _read_plain_topic(self) -> int:
        """The number of a topic's partitions, if its head is complete and short. Else -1, and nothing was read."""
        head = read_topic_head(self._buf, self._pos, self._end, self._by_id) if self._compact else None
        if head is None:
            return -1
        topic, partitions, pos = head
        if partitions * self._smallest_partition > self._limit - pos:
            return -1
        self._topic, self._pos = topic, pos
        return partitions

    def _count_plain_partitions(self, left: int) -> int:
        """Counts those that have arrived whole, without aborted transactions and tags. Returns how many are left.

        Almost all of a walk's time is spent here. One `unpack` reads a partition of one batch, the most common kind.
        """
        if not self._compact:
            return left
        buf, pos, end, work_left = self._buf, self._pos, self._end, self.work_left
        width = record_bytes = messages = 0
        known = field = most = -1
        while left and work_left > 0:
            if width != self._width:
                width, unpack = self._width, _one_batch(self._width)
                mask, before = (1 << 8 * width) - 1, _BEFORE_SIZE + width + BEFORE_SIZE
                known, last = -1, end - before - BATCH_HEADER
            if pos > last:
                break
            aborted, written, size, magic, attributes, claimed = unpack(buf, pos)
            if size != known:
                known, field, most = size, length_field(size + BEFORE_SIZE, width), size - _HEADER_IN_SIZE >> 3
            after = pos + before + size
            if written & mask == field and aborted <= 1 and magic == 2 and after < end and not buf[after]:
                record_bytes += size + BEFORE_SIZE
                if not attributes & CONTROL:
                    fits = 0 <= claimed <= most
                    messages += claimed if fits else claimed_messages(claimed, attributes, size + BEFORE_SIZE)
            else:
                after = self._count_partition(pos, work_left)
                if after < 0:
                    break
            pos = after + 1
            left -= 1
            work_left -= 2
        self._record_bytes += record_bytes
        self._messages += messages
        self._pos = pos
        self.work_left = min(work_left, self.work_left)
        return left

    def _count_partition(self, pos: int, most: int) -> int:
        """Counts the partition at `pos`. Returns the index of its tags; -1: it is not plain, or has more than `most`
        batches.
        """
        buf, end = self._buf, self._end
        aborted, low, middle, high = _partition(buf, pos)
        if low < 0x80:
            width, size = 1, (low or 1) - 1  # 0: null
        elif 0 < middle < 0x80:
            width, size = 2, (low & 0x7F | middle << 7) - 1
        elif 0 < high * (middle >> 7) < 0x80:
            width, size = 3, (low & 0x7F | (middle & 0x7F) << 7 | high << 14) - 1
        else:
            return -1
        at = pos + _BEFORE_SIZE + width
        after = at + size
        if aborted > 1 or after >= end or buf[after]:
            return -1
        batches_end, messages, count = read_batches(buf, at, after, after, most)
        if batches_end != after:
            return -1
        self._width = width
        self._record_bytes += size
        self._messages += messages
        self.work_left -= count
        return after

    def _walk_partition(self) -> Steps:
        self.work_left -= 1
        yield from self._skip(self._before_aborted, "partition")
        if self._compact:
            yield from self._skip_structs(_ABORTED, "aborted transactions")
        elif self._version >= FIRST_WITH_ABORTED:
            aborted = yield from self._items(False, _ABORTED, "aborted transactions")
            yield from self._skip(_ABORTED * aborted, "aborted transactions")
        if self._version >= FIRST_WITH_REPLICAS:
            yield from self._skip(4, "preferred read replica")
        size = yield from self._bytes_size(self._compact, "records")
        yield from self._walk_records(max(0, size))
        if self._compact:
            yield from self._skip_tags()
