"""Fetch: the budget in requests, the throttle time and hidden node endpoints in responses.

A response, from version 16 on (all flexible, topics by id):

    correlation id int32, tag buffer,
    throttle time int32, error code int16, session id int32,
    responses array: topic id, partitions array:
        index int32, error code int16, high watermark int64, last stable offset int64, log start offset int64,
        aborted transactions nullable array: producer id int64, first offset int64, tag buffer
        preferred read replica int32, records nullable bytes, tag buffer
      tag buffer
    tag buffer (tag 0 is NodeEndpoints)

The throttle time stands in the first bytes in every version from 1 on. NodeEndpoints come last, so the whole response
is walked for them; see `node_endpoints` for how they are hidden.
"""

from struct import Struct

from protocol.errors import MalformedFrame, UnsupportedVersion
from protocol.node_endpoints import HIDDEN_TAG, NODE_ENDPOINTS_TAG
from protocol.walk import FrameWalk, Steps

FIRST_WITH_THROTTLE = 1
FIRST_FLEXIBLE = 12
FIRST_WITH_NODE_ENDPOINTS = 16
LAST_WALKED = 18

FETCH_THROTTLE_BYTES = 9
"""Bytes of a response, from its correlation id on, that `patch_fetch_throttle` needs."""

FIRST_WITH_MAX_BYTES = 3
FIRST_WITHOUT_REPLICA_ID = 15
FETCH_BUDGET_BYTES = 16
"""Bytes of a request's body that `lower_fetch_budget` needs."""

_INT32 = Struct(">i")
_MIN_AND_MAX_BYTES = Struct(">ii")


def fetch_budget_offset(version: int) -> int | None:
    """Where `max_wait_ms`, `min_bytes` and `max_bytes` (three int32) stand, from the start of a Fetch request's body.

    `None` for versions 0 to 2, which have no `max_bytes` for the whole response (KIP-74).
    """
    if version < FIRST_WITH_MAX_BYTES:
        return None
    # Up to 14 the body starts with the replica id; then it became a tagged field (KIP-903).
    return 4 if version < FIRST_WITHOUT_REPLICA_ID else 0


def lower_fetch_budget(buf: bytearray, body_start: int, version: int, max_bytes: int) -> None:
    """Lowers what a Fetch request asks for to `max_bytes`, in place, and `min_bytes` to no more than that.

    The floor is one byte: brokers return the first batch whole even so. Versions 0 to 2 are left as they are.

    Raises:
        MalformedFrame: `buf` ends before `FETCH_BUDGET_BYTES` of the body.
    """
    offset = fetch_budget_offset(version)
    if offset is None:
        return
    at = body_start + offset + 4
    if at + 8 > len(buf):
        raise MalformedFrame("max_bytes of a Fetch request", at)
    own_min, own_max = _MIN_AND_MAX_BYTES.unpack_from(buf, at)
    lowered = max(1, min(own_max, max_bytes))
    _MIN_AND_MAX_BYTES.pack_into(buf, at, min(own_min, lowered), lowered)


def patch_fetch_throttle(buf: bytearray, start: int, version: int, throttle_time_ms: int) -> int:
    """Writes the larger of the broker's throttle time and `throttle_time_ms` into a response's first bytes, in place.

    Args:
        start: where the correlation id is; `FETCH_THROTTLE_BYTES` must have come from there on.

    Returns:
        The throttle time that the response holds now, in milliseconds; 0 for version 0, which has no such field.

    Raises:
        MalformedFrame: the response header has tags, of which Kafka defines none: the field's place is unknown.
    """
    if version < FIRST_WITH_THROTTLE:
        return 0
    at = start + 4
    if version >= FIRST_FLEXIBLE:
        if buf[at]:
            raise MalformedFrame("tags of the response header", 4)
        at += 1
    throttle: int = _INT32.unpack_from(buf, at)[0]
    if throttle_time_ms > throttle:
        _INT32.pack_into(buf, at, throttle_time_ms)
        return throttle_time_ms
    return throttle


_BEFORE_HEAD = -1  # for topics: their count has not been read
_BEFORE_TOPIC = -1  # for partitions: their topic's id and their count have not been read
_HEAD = 4 + 1 + 10 + 1  # correlation id to topic count, without tags and with fewer than 127 topics
_TOPIC_ID = 16
_PARTITION_HEAD = 30  # index to log start offset
_PARTITION_MIN = _PARTITION_HEAD + 1 + 4 + 1 + 1
_PARTITION_LOOK = _PARTITION_HEAD + 1 + 4 + 3  # up to a records length of three bytes, which is 2 MiB


class FetchResponseWalk(FrameWalk):
    """Walks a Fetch response of version 16 to 18 and hides its node endpoints. The length stays the same."""

    def __init__(self, version: int, frame_length: int) -> None:
        if not FIRST_WITH_NODE_ENDPOINTS <= version <= LAST_WALKED:
            raise UnsupportedVersion("Fetch", version)
        super().__init__(frame_length)
        self._topics = _BEFORE_HEAD  # not behind us yet
        self._partitions = _BEFORE_TOPIC  # of the first of them

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        # Only for the first bytes: once there are steps, `pos` is somewhere inside of the head or behind it.
        if (
            self._steps is None
            and end - pos > _HEAD
            and buf[pos + 4] == 0
            and 0 < buf[pos + 15] < 0x80
            and (buf[pos + 15] - 1) * (_TOPIC_ID + 2) <= self._left - (_HEAD - 1)
        ):
            self._topics = buf[pos + 15] - 1
            self._limit = pos + self._left
            self._buf = buf
            self._pos = pos + _HEAD
            self._end = end
            self._pass_usual()
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
            self._topics = yield from self._count(_TOPIC_ID + 2, "topic count")
        while self._topics:
            self._pass_usual()
            if not self._topics:
                break
            if self._partitions == _BEFORE_TOPIC:
                yield from self._skip(_TOPIC_ID, "topic id")
                self._partitions = yield from self._count(_PARTITION_MIN, "partition count")
            elif self._partitions:
                yield from self._walk_partition()
                self._partitions -= 1
            else:
                yield from self._skip_tags()
                self._topics -= 1
                self._partitions = _BEFORE_TOPIC
        yield from self._hide_node_endpoints()

    def _pass_usual(self) -> None:
        """Passes what came whole and is as it usually is: no aborted transactions, no tags. Stops at anything else.

        All of the time that a walk takes goes here, so this is one loop over local names.
        """
        buf, pos, end, limit = self._buf, self._pos, self._end, self._limit
        topics, partitions = self._topics, self._partitions
        while topics:
            if partitions == _BEFORE_TOPIC:
                if end - pos < _TOPIC_ID + 1 or not 0 < buf[pos + _TOPIC_ID] < 0x80:
                    break
                partitions = buf[pos + _TOPIC_ID] - 1
                if partitions * _PARTITION_MIN > limit - pos - _TOPIC_ID:
                    partitions = _BEFORE_TOPIC
                    break  # more than the frame can hold: the slow way says where
                pos += _TOPIC_ID + 1
            while partitions:
                if end - pos < _PARTITION_LOOK or buf[pos + 30] > 1:
                    break
                size = buf[pos + 35]
                behind = pos + 35 + size  # the length is written plus one
                if size >= 0x80:
                    middle = buf[pos + 36]
                    if middle < 0x80:
                        if not middle:
                            break
                        behind = pos + 36 + (size & 0x7F | middle << 7)
                    else:
                        high = buf[pos + 37]
                        if not 0 < high < 0x80:
                            break
                        behind = pos + 37 + (size & 0x7F | (middle & 0x7F) << 7 | high << 14)
                elif not size:
                    behind = pos + 36
                if behind >= end or buf[behind]:
                    break
                pos = behind + 1
                partitions -= 1
            if partitions or pos >= end or buf[pos]:
                break
            pos += 1
            topics -= 1
            partitions = _BEFORE_TOPIC
        self._pos = pos
        self._topics, self._partitions = topics, partitions

    def _walk_partition(self) -> Steps:
        yield from self._skip(_PARTITION_HEAD, "partition")
        yield from self._skip_structs(16, "aborted transactions")
        yield from self._skip(4, "preferred read replica")
        yield from self._skip_compact("records")
        yield from self._skip_tags()

    def _hide_node_endpoints(self) -> Steps:
        count = yield from self._varint("tag count")
        for _ in range(count):
            yield from self._need(1, "tag")
            hidden = self._buf[self._pos] == NODE_ENDPOINTS_TAG
            if hidden:
                self._buf[self._pos] = HIDDEN_TAG
            yield from self._varint("tag")
            size = yield from self._varint("tag size")
            if hidden:
                yield from self._blank(size, "NodeEndpoints")
            else:
                yield from self._skip(size, "tagged field")
