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

from struct import Struct

from protocol.apis import APIS, FETCH
from protocol.errors import UnsupportedVersion
from protocol.produce_walk import read_topic_head
from protocol.record_batch import read_batches
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
        """Counts those that have arrived whole, without aborted transactions and tags. Returns how many are left."""
        if not self._compact:
            return left
        buf, pos, end, unpack = self._buf, self._pos, self._end, _partition
        last = end - _PARTITION.size
        while left and pos <= last and self.work_left > 0:
            aborted, low, middle, high = unpack(buf, pos)
            at = pos + _BEFORE_SIZE + 1
            if low < 0x80:
                size = (low or 1) - 1  # 0: null
            elif 0 < middle < 0x80:
                size = (low & 0x7F | middle << 7) - 1
                at += 1
            elif 0 < high * (middle >> 7) < 0x80:
                size = (low & 0x7F | (middle & 0x7F) << 7 | high << 14) - 1
                at += 2
            else:
                break
            after = at + size
            if aborted > 1 or after >= end or buf[after]:
                break
            batches_end, messages, count = read_batches(buf, at, after, after, self.work_left)
            if batches_end != after:
                break
            self._record_bytes += size
            self._messages += messages
            self.work_left -= 1 + count
            pos = after + 1
            left -= 1
        self._pos = pos
        return left

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
