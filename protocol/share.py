"""ShareFetch and ShareAcknowledge responses (KIP-932), versions 1 and 2: node endpoints hidden while bytes stream by.

Both are flexible throughout and end alike:

    correlation id int32, tag buffer,
    throttle time int32, error code int16, error message nullable string,
    acquisition lock timeout int32 (ShareFetch: 1+, ShareAcknowledge: 2+),
    responses array: topic id, partitions array: ..., tag buffer
      tag buffer
    node endpoints array, tag buffer

A ShareFetch partition is

    index int32, error code int16, error message nullable string,
    acknowledge error code int16, acknowledge error message nullable string,
    current leader: id int32, epoch int32, tag buffer
    records bytes, acquired records array: first offset int64, last offset int64, delivery count int16, tag buffer
    tag buffer

and a ShareAcknowledge partition the same without the three lines of acknowledge error, records, acquired records.
Where there are endpoints, what follows their array is swallowed with them (Kafka has no tags there); see
`node_endpoints`.
"""

from typing import ClassVar

from protocol.errors import TruncatedFrame, UnsupportedVersion
from protocol.fetch import FIRST_FLEXIBLE, patch_fetch_throttle
from protocol.node_endpoints import SWALLOWING_MIN, swallowing
from protocol.walk import FrameWalk, Steps

FIRST_VERSION = 1
LAST_VERSION = 2

_TOPIC_ID = 16
_NO_ENDPOINTS = (0, 1)  # a null array, which no broker sends, and an empty one


def patch_share_fetch_throttle(buf: bytearray, start: int, throttle_time_ms: int) -> int:
    """As `fetch.patch_fetch_throttle`, for a ShareFetch response of any version: all have the layout of Fetch 12+."""
    return patch_fetch_throttle(buf, start, FIRST_FLEXIBLE, throttle_time_ms)


class _ShareResponseWalk(FrameWalk):
    """What the two have in common."""

    _name: ClassVar[str]
    _lock_timeout_from: ClassVar[int]
    _partition_min: ClassVar[int]

    def __init__(self, version: int, frame_length: int) -> None:
        if not FIRST_VERSION <= version <= LAST_VERSION:
            raise UnsupportedVersion(self._name, version)
        super().__init__(frame_length)
        self._version = version

    def _walk(self) -> Steps:
        yield from self._skip(4, "correlation id")
        yield from self._skip_tags()
        yield from self._skip(6, "throttle time, error code")
        yield from self._skip_compact("error message")
        if self._version >= self._lock_timeout_from:
            yield from self._skip(4, "acquisition lock timeout")
        topics = yield from self._count(_TOPIC_ID + 2, "topic count")
        for _ in range(topics):
            yield from self._skip(_TOPIC_ID, "topic id")
            partitions = yield from self._count(self._partition_min, "partition count")
            for _ in range(partitions):
                yield from self._walk_partition()
                yield from self._skip_tags()
            yield from self._skip_tags()
        yield from self._hide_node_endpoints()

    def _walk_partition(self) -> Steps:
        raise NotImplementedError

    def _hide_node_endpoints(self) -> Steps:
        yield from self._need(1, "node endpoints")
        if self._buf[self._pos] in _NO_ENDPOINTS:
            yield from self._skip(1, "node endpoints")
            yield from self._skip_tags()
            return
        size = self._limit - self._pos
        if size < SWALLOWING_MIN:
            raise TruncatedFrame("node endpoints", self._offset())
        first = swallowing(size)
        yield from self._need(len(first), "node endpoints")
        self._buf[self._pos : self._pos + len(first)] = first
        yield from self._skip(len(first), "node endpoints")
        yield from self._blank(size - len(first), "node endpoints")


class ShareFetchResponseWalk(_ShareResponseWalk):
    """Walks a ShareFetch response and hides its node endpoints. The length stays the same."""

    _name = "ShareFetch"
    _lock_timeout_from = 1
    _partition_min = 4 + 2 + 1 + 2 + 1 + 9 + 1 + 1 + 1

    def _walk_partition(self) -> Steps:
        yield from self._skip(6, "partition index, error code")
        yield from self._skip_compact("partition error message")
        yield from self._skip(2, "acknowledge error code")
        yield from self._skip_compact("acknowledge error message")
        yield from self._skip(8, "current leader")
        yield from self._skip_tags()
        yield from self._skip_compact("records")
        yield from self._skip_structs(18, "acquired records")


class ShareAcknowledgeResponseWalk(_ShareResponseWalk):
    """Walks a ShareAcknowledge response and hides its node endpoints. The length stays the same."""

    _name = "ShareAcknowledge"
    _lock_timeout_from = 2
    _partition_min = 4 + 2 + 1 + 9 + 1

    def _walk_partition(self) -> Steps:
        yield from self._skip(6, "partition index, error code")
        yield from self._skip_compact("partition error message")
        yield from self._skip(8, "current leader")
        yield from self._skip_tags()
