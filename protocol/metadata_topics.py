"""The topics of a Metadata response, read while it arrives: names, ids, numbers of partitions.

The walk begins where `broker_addresses.MetadataWalk` ends, after the brokers:

    cluster id nullable string (2+), controller id int32 (1+),
    topics array: error code int16, name string (nullable 12+), topic id (10+), is internal bool (1+), partitions array:
        error code int16, index int32, leader id int32, leader epoch int32 (7+),
        replicas array of int32, in-sync replicas array of int32, offline replicas array of int32 (5+), tag buffer (9+)
      authorized operations int32 (8+), tag buffer (9+)
    cluster authorized operations int32 (8-10), error code int16 (13+), tag buffer (9+)

A cluster may have 100,000 partitions, and clients often ask for all of them: those that have arrived whole are skipped
without the generator.
"""

from protocol.apis import APIS, METADATA
from protocol.topics import NO_TOPIC_ID, TOPIC_ID_SIZE, TopicPartitions
from protocol.walk import FrameWalk, Reading, Steps
from protocol.wire import read_text, unpack_int16, unpack_int32

FIRST_WITH_CONTROLLER = 1
FIRST_WITH_INTERNAL = 1
FIRST_WITH_CLUSTER_ID = 2
FIRST_WITH_OFFLINE_REPLICAS = 5
FIRST_WITH_LEADER_EPOCH = 7
FIRST_WITH_TOPIC_OPERATIONS = 8
LAST_WITH_CLUSTER_OPERATIONS = 10
FIRST_WITH_TOPIC_IDS = 10
FIRST_WITH_ERROR_CODE = 13

_SMALLEST_TOPIC = 8


class MetadataTopicsWalk(FrameWalk):
    """Walks a Metadata response from the end of its brokers on. It changes no byte."""

    def __init__(self, version: int, frame_length: int, start: int) -> None:
        """The walk of one response.

        Args:
            version: of the request that is answered.
            frame_length: bytes of the response from its correlation id on, as the broker sent it.
            start: how many of them `MetadataWalk` replaced: the walk begins after them.
        """
        super().__init__(frame_length, start)
        self._version = version
        self._compact = APIS[METADATA].is_flexible(version)
        self._fixed = 14 if version >= FIRST_WITH_LEADER_EPOCH else 10  # bytes of a partition before its arrays
        self._arrays = 3 if version >= FIRST_WITH_OFFLINE_REPLICAS else 2
        self._smallest_partition = self._fixed + (self._arrays + 1 if self._compact else 4 * self._arrays)
        self._after_name_size = (TOPIC_ID_SIZE if version >= FIRST_WITH_TOPIC_IDS else 0) + (
            version >= FIRST_WITH_INTERNAL
        )
        self._operations = 4 if version >= FIRST_WITH_TOPIC_OPERATIONS else 0
        self._topics: list[TopicPartitions] = []

    def take(self) -> list[TopicPartitions]:
        """The topics without error with heads read since the last call, in the order of the response.

        The list grows with each topic: take it after each `advance`.
        """
        topics = self._topics
        self._topics = []
        return topics

    def _walk(self) -> Steps:
        version, compact = self._version, self._compact
        if version >= FIRST_WITH_CLUSTER_ID:
            yield from self._skip_string(compact, "cluster id")
        if version >= FIRST_WITH_CONTROLLER:
            yield from self._skip(4, "controller id")
        topics = yield from self._items(compact, _SMALLEST_TOPIC, "topic count")
        for _ in range(topics):
            yield from self._walk_topic()
        if FIRST_WITH_TOPIC_OPERATIONS <= version <= LAST_WITH_CLUSTER_OPERATIONS:
            yield from self._skip(4, "authorized operations of the cluster")
        if version >= FIRST_WITH_ERROR_CODE:
            yield from self._skip(2, "error code")
        if compact:
            yield from self._skip_tags()

    def _walk_topic(self) -> Steps:
        left = yield from self._read_topic()
        while left:
            left = self._skip_partitions_at_hand(left)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif left:
                yield from self._walk_partition()
                left -= 1
        yield from self._skip(self._operations, "authorized operations of a topic")
        if self._compact:
            yield from self._skip_tags()
        yield from self._pause()

    def _read_topic(self) -> Reading:
        yield from self._need(2, "error code of a topic")
        error: int = unpack_int16(self._buf, self._pos)[0]
        self._pos += 2
        size = yield from self._string_size(self._compact, "topic name")
        text = read_text((yield from self._collect(max(0, size), "topic name")))
        after_name = yield from self._collect(self._after_name_size, "topic id, is internal")
        partitions = yield from self._items(self._compact, self._smallest_partition, "partition count")
        if size >= 0 and not error:  # null: there is no topic of that id
            topic_id = after_name[:TOPIC_ID_SIZE]
            has_id = self._version >= FIRST_WITH_TOPIC_IDS and topic_id != NO_TOPIC_ID
            self._topics.append(TopicPartitions(text, topic_id if has_id else None, partitions))
        return partitions

    def _skip_partitions_at_hand(self, left: int) -> int:
        """Skips partitions that are complete. Returns how many are left."""
        while left and self.work_left > 0:
            size = self._partition_at_hand(self._pos)
            if not size:
                break
            self._pos += size
            left -= 1
            self.work_left -= 1
        return left

    def _partition_at_hand(self, pos: int) -> int:
        """Bytes of the partition at `pos`; 0 if it is not complete, or has tags or long arrays."""
        buf, end = self._buf, self._end
        at = pos + self._fixed
        if self._compact:
            for _ in range(self._arrays):
                if at >= end or not 0 < buf[at] < 0x80:
                    return 0
                at += 4 * buf[at] - 3
            return 0 if at >= end or buf[at] else at + 1 - pos
        for _ in range(self._arrays):
            if at + 4 > end:
                return 0
            count = unpack_int32(buf, at)[0]
            if count < 0:
                return 0
            at += 4 + 4 * count
        return at - pos if at <= end else 0

    def _walk_partition(self) -> Steps:
        self.work_left -= 1
        yield from self._skip(self._fixed, "partition")
        for _ in range(self._arrays):
            count = yield from self._items(self._compact, 4, "replicas")
            yield from self._skip(4 * count, "replicas")
        if self._compact:
            yield from self._skip_tags()
