"""Fetch: the budget and the sender of requests, hidden node endpoints in responses.

A request, up to version 14, begins with

    replica id int32, max wait int32, min bytes int32, max bytes int32 (3+), ...

and from version 15 on (all flexible, topics by id) it is

    max wait int32, min bytes int32, max bytes int32, isolation level int8, session id int32, session epoch int32,
    topics array: topic id, partitions array:
        index int32, leader epoch int32, fetch offset int64, last fetched epoch int32, log start offset int64,
        max bytes int32, tag buffer
      tag buffer
    forgotten topics array: topic id, array of int32, tag buffer
    rack id string, tag buffer (tag 1 is ReplicaState: replica id int32, replica epoch int64, tag buffer; KIP-903)

A response, from version 16 on (all flexible, topics by id):

    correlation id int32, tag buffer,
    throttle time int32, error code int16, session id int32,
    responses array: topic id, partitions array:
        index int32, error code int16, high watermark int64, last stable offset int64, log start offset int64,
        aborted transactions nullable array: producer id int64, first offset int64, tag buffer
        preferred read replica int32, records nullable bytes, tag buffer
      tag buffer
    tag buffer (tag 0 is NodeEndpoints)

NodeEndpoints come last, so the whole response is walked for them; see `node_endpoints` for how they are hidden.
"""

from struct import Struct

from protocol.errors import MalformedFrame, ReplicaFetch, UnsupportedVersion
from protocol.node_endpoints import EndpointsWalk
from protocol.structs_walk import StructsWalk
from protocol.topics import TOPIC_ID_SIZE
from protocol.walk import Steps

FIRST_WITH_NODE_ENDPOINTS = 16
FIRST_WITH_REPLICA_STATE = 15
LAST_WALKED = 18

_INT32 = Struct(">i")
_MIN_AND_MAX_BYTES = Struct(">ii")

_CONSUMERS = (-1, -2)  # -2: a consumer for debugging
_REPLICA_STATE_TAG = 1


def lower_fetch_budget(buf: bytearray, budget_at: int, max_bytes: int) -> int:
    """Lowers `max_bytes` of a Fetch or ShareFetch request in place, and `min_bytes` to no more than that.

    The minimum is one byte: brokers return the first batch whole even so. No value is raised. A ShareFetch request that
    only renews acquisition locks (version 2, KIP-1222) has 0 in both fields, and brokers refuse any other value.

    Args:
        budget_at: index of `min_bytes`, which precedes `max_bytes`: that of the frame plus
            `RequestHeader.budget_offset`. `RequestHeader.needed` bytes of the frame must be in `buf`.

    Returns:
        The request's `max_bytes` after that. 0 or less: it asks for no records.
    """
    own_min: int
    own_max: int
    own_min, own_max = _MIN_AND_MAX_BYTES.unpack_from(buf, budget_at)
    lowered = min(own_max, max(1, max_bytes))
    if lowered < own_max:
        _MIN_AND_MAX_BYTES.pack_into(buf, budget_at, min(own_min, lowered), lowered)
    return lowered


def check_consumer_fetch(buf: bytearray, body_start: int, version: int) -> None:
    """Refuses a Fetch request of a broker, for versions 0 to 14. For others, `FetchRequestWalk` does that.

    Args:
        body_start: index of the body; its first four bytes must be in `buf`.

    Raises:
        ReplicaFetch: the request comes from a broker. `offset` is 0: the header's length is not known here.
    """
    if version < FIRST_WITH_REPLICA_STATE:
        replica_id: int = _INT32.unpack_from(buf, body_start)[0]
        if replica_id not in _CONSUMERS:
            raise ReplicaFetch(replica_id, 0)


_FIXED = 21  # max wait to session epoch
_SMALLEST_REQUEST = _FIXED + 4  # no topics, no forgotten topics, no rack, no tags
_SMALLEST_TOPIC = TOPIC_ID_SIZE + 2
_REQUEST_PARTITION = 32


class FetchRequestWalk(StructsWalk):
    """Walks the body of a Fetch request of version 15 to 18 for the sender. It changes no byte."""

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        """body_start: bytes of the frame before its body: `RequestHeader.body_offset` less the four of the length."""
        if not FIRST_WITH_REPLICA_STATE <= version <= LAST_WALKED:
            raise UnsupportedVersion("Fetch", version)
        super().__init__(frame_length, body_start)

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        if self._steps is None and end - pos == self._left >= _SMALLEST_REQUEST and self._is_usual(buf, pos, end):
            self._left = 0
            self._steps = iter(())
            return end
        return super().advance(buf, pos, end)

    def _is_usual(self, buf: bytearray, pos: int, end: int) -> bool:
        """Whether `buf[pos:end]` is a whole body without forgotten topics and tags, as most are: no broker's.

        1.2 us, where the steps of `_walk` take 6.
        """
        self._buf, self._pos, self._end = buf, pos + _FIXED + 1, end
        topics = buf[pos + _FIXED] - 1
        if not 0 <= topics < 0x7F or self._skip_plain_topics(topics):
            return False
        forgotten = self._pos
        if end - forgotten < 3 or buf[forgotten] != 1:
            return False
        rack_size = buf[forgotten + 1]  # plus one
        return 0 < rack_size < 0x80 and forgotten + 2 + rack_size == end and not buf[end - 1]

    def _walk(self) -> Steps:
        yield from self._skip(_FIXED, "max wait to session epoch")
        topics = yield from self._count(_SMALLEST_TOPIC, "topic count")
        while topics:
            topics = self._skip_plain_topics(topics)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif topics:
                yield from self._skip(TOPIC_ID_SIZE, "topic id")
                yield from self._skip_structs(_REQUEST_PARTITION, "partition count")
                yield from self._skip_tags()
                topics -= 1
                self.work_left -= 1
        yield from self._walk_forgotten_topics()
        yield from self._skip_compact("rack id")
        yield from self._check_replica_state()

    def _skip_plain_topics(self, left: int) -> int:
        """Skips complete topics with fewer than 127 partitions and without tags. Returns how many are left."""
        buf, pos, end, work_left = self._buf, self._pos, self._end, self.work_left
        while left and work_left > 0 and end - pos >= _SMALLEST_TOPIC:
            partitions = buf[pos + TOPIC_ID_SIZE] - 1
            first = pos + TOPIC_ID_SIZE + 1
            after = first + partitions * (_REQUEST_PARTITION + 1)
            if not 0 <= partitions < 0x7F or after >= end or buf[after]:
                break
            tag_counts = buf[first + _REQUEST_PARTITION : after : _REQUEST_PARTITION + 1]
            if tag_counts.count(0) != partitions:
                break
            pos = after + 1
            left -= 1
            work_left -= 1
        self._pos = pos
        self.work_left = work_left
        return left

    def _walk_forgotten_topics(self) -> Steps:
        topics = yield from self._count(_SMALLEST_TOPIC, "forgotten topic count")
        for _ in range(topics):
            yield from self._skip(TOPIC_ID_SIZE, "forgotten topic id")
            partitions = yield from self._count(4, "forgotten partition count")
            yield from self._skip(4 * partitions, "forgotten partitions")
            yield from self._skip_tags()
            yield from self._pause()

    def _check_replica_state(self) -> Steps:
        """The tag buffer of the body."""
        count = yield from self._varint("tag count")
        for _ in range(count):  # each takes two bytes or more, so a false count ends with the frame
            tag = yield from self._varint("tag")
            size = yield from self._varint("tag size")
            if tag == _REPLICA_STATE_TAG:
                if size < _INT32.size:
                    raise MalformedFrame("ReplicaState", self._offset())
                yield from self._need(_INT32.size, "replica id")
                replica_id: int = _INT32.unpack_from(self._buf, self._pos)[0]
                if replica_id not in _CONSUMERS:
                    raise ReplicaFetch(replica_id, self._offset())
            yield from self._skip(size, "tagged field")
            yield from self._pause()


_BEFORE_HEAD = -1  # topics left: their count has not been read
_BEFORE_TOPIC = -1  # partitions left: the topic's id and its partition count have not been read
_HEAD = 4 + 1 + 10 + 1  # correlation id to topic count, without tags and with fewer than 127 topics
_PARTITION_HEAD = 30  # index to log start offset
_PARTITION_MIN = _PARTITION_HEAD + 1 + 4 + 1 + 1
_PARTITION_LOOK = _PARTITION_HEAD + 1 + 4 + 3  # up to a records length of three bytes, which is 2 MiB


class FetchResponseWalk(EndpointsWalk):
    """Walks a Fetch response of version 16 to 18 and hides its node endpoints. The length stays the same."""

    def __init__(self, version: int, frame_length: int) -> None:
        if not FIRST_WITH_NODE_ENDPOINTS <= version <= LAST_WALKED:
            raise UnsupportedVersion("Fetch", version)
        super().__init__(frame_length)
        self._topics = _BEFORE_HEAD  # left, with the current one
        self._partitions = _BEFORE_TOPIC  # left of the current topic

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        # Only for the first bytes: once there are steps, `pos` is somewhere inside of the head or after it.
        if (
            self._steps is None
            and end - pos > _HEAD
            and buf[pos + 4] == 0
            and 0 < buf[pos + 15] < 0x80
            and (buf[pos + 15] - 1) * _SMALLEST_TOPIC <= self._left - (_HEAD - 1)
        ):
            self._topics = buf[pos + 15] - 1
            self._limit = pos + self._left
            self._buf = buf
            self._pos = pos + _HEAD
            self._end = end
            self._skip_plain()
            if not self._topics and self._pos + 1 == end == pos + self._left and not buf[self._pos]:
                self._left = 0
                self._steps = iter(())
                return end  # for most responses this is all of the walk
            self._left -= self._pos - pos
            pos = self._pos
        return super().advance(buf, pos, end)

    def _walk(self) -> Steps:
        if self._topics == _BEFORE_HEAD:
            yield from self._skip(4, "correlation id")
            yield from self._skip_tags()
            yield from self._skip(10, "throttle time, error code, session id")
            self._topics = yield from self._count(_SMALLEST_TOPIC, "topic count")
        while self._topics:
            self._skip_plain()
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif self._topics:
                yield from self._walk_piece()
                self.work_left -= 1
        yield from self._hide_tagged_endpoints()

    def _walk_piece(self) -> Steps:
        """The head of a topic, one partition, or the tags of a topic."""
        if self._partitions == _BEFORE_TOPIC:
            yield from self._skip(TOPIC_ID_SIZE, "topic id")
            self._partitions = yield from self._count(_PARTITION_MIN, "partition count")
        elif self._partitions:
            yield from self._skip(_PARTITION_HEAD, "partition")
            yield from self._skip_structs(16, "aborted transactions")
            yield from self._skip(4, "preferred read replica")
            yield from self._skip_compact("records")
            yield from self._skip_tags()
            self._partitions -= 1
        else:
            yield from self._skip_tags()
            self._topics -= 1
            self._partitions = _BEFORE_TOPIC

    def _skip_plain(self) -> None:
        """Skips topics and partitions that are complete, without aborted transactions and tags. Stops at any other.

        Almost all of a walk's time is spent here, so this is one loop over local names. It takes 0.27 us for a
        partition, and 0.32 us if a function reads the size of the records (500 partitions, CPython 3.11).
        """
        buf, pos, end, limit, work_left = self._buf, self._pos, self._end, self._limit, self.work_left
        topics, partitions = self._topics, self._partitions
        while topics and work_left > 0:
            if partitions == _BEFORE_TOPIC:
                most = (limit - pos - TOPIC_ID_SIZE - 1) // _PARTITION_MIN  # more cannot fit: `_walk_piece` raises
                if end - pos < TOPIC_ID_SIZE + 1 or not 0 < buf[pos + TOPIC_ID_SIZE] < min(0x80, most + 2):
                    break
                partitions = buf[pos + TOPIC_ID_SIZE] - 1
                pos += TOPIC_ID_SIZE + 1
            while partitions and work_left > 0:
                if end - pos < _PARTITION_LOOK or buf[pos + 30] > 1:
                    break
                size = buf[pos + 35]  # of the records, plus one
                after = pos + 35 + size
                if size >= 0x80:
                    middle = buf[pos + 36]
                    if 0 < middle < 0x80:
                        after = pos + 36 + (size & 0x7F | middle << 7)
                    else:
                        high = buf[pos + 37]
                        if not 0 < high * (middle >> 7) < 0x80:
                            break
                        after = pos + 37 + (size & 0x7F | (middle & 0x7F) << 7 | high << 14)
                elif not size:
                    after = pos + 36
                if after >= end or buf[after]:
                    break
                pos = after + 1
                partitions -= 1
                work_left -= 1
            if partitions or pos >= end or buf[pos]:
                break
            pos += 1
            topics -= 1
            work_left -= 1
            partitions = _BEFORE_TOPIC
        self._pos = pos
        self._topics, self._partitions = topics, partitions
        self.work_left = work_left
