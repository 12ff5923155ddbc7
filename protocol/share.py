"""ShareFetch and ShareAcknowledge responses (KIP-932), versions 1 and 2: node endpoints hidden while bytes arrive, and
record bytes counted.

Both are flexible in all versions, and have the same layout:

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

and a ShareAcknowledge partition the same without acknowledge error code and message, records and acquired records.
If there are endpoints, one tag covers them and what follows their array (Kafka has no tags there): see
`node_endpoints`.
"""

from typing import ClassVar

from protocol.records_walk import RecordsWalk
from protocol.topics import TOPIC_ID_SIZE
from protocol.walk import Steps
from protocol.wire import INT32, unpack_int32


class _ShareResponseWalk(RecordsWalk):
    """The layout of both responses."""

    _is_fetch: ClassVar[bool]
    _lock_timeout_from: ClassVar[int]
    _partition_min: ClassVar[int]
    lock_timeout_ms = 0
    """For how long the acquired records are locked; 0: it has not been read, or the response does not say."""

    def _walk(self) -> Steps:
        yield from self._skip(4, "correlation id")
        yield from self._skip_tags()
        yield from self._skip(6, "throttle time, error code")
        yield from self._skip_string(True, "error message")
        if self._version >= self._lock_timeout_from:
            yield from self._need(4, "acquisition lock timeout")
            self.lock_timeout_ms = unpack_int32(self._buf, self._pos)[0]
            self._pos += 4
        topics = yield from self._items(True, TOPIC_ID_SIZE + 2, "topic count")
        for _ in range(topics):
            self._topic = yield from self._collect(TOPIC_ID_SIZE, "topic id")
            partitions = yield from self._items(True, self._partition_min, "partition count")
            for _ in range(partitions):
                yield from self._walk_partition()
                yield from self._end_piece()
            yield from self._end_piece()
        yield from self._hide_endpoint_array()

    def _end_piece(self) -> Steps:
        """The tag buffer of a topic or a partition."""
        yield from self._skip_tags()
        yield from self._pause()

    def _walk_partition(self) -> Steps:
        yield from self._skip(6, "partition index, error code")
        yield from self._skip_string(True, "partition error message")
        if self._is_fetch:
            yield from self._skip(2, "acknowledge error code")
            yield from self._skip_string(True, "acknowledge error message")
        yield from self._skip(8, "current leader")
        yield from self._skip_tags()
        if self._is_fetch:
            size = yield from self._size(True, INT32, "records")
            self._check_left(size, "records")
            self._count_records(size)
            yield from self._skip(max(0, size), "records")
            yield from self._skip_structs(18, "acquired records")


class ShareFetchResponseWalk(_ShareResponseWalk):
    """Walks a ShareFetch response and hides its node endpoints. The length stays the same.

    All records of a response are counted as fetched. The client may acquire only some of them.
    """

    _is_fetch = True
    _lock_timeout_from = 1
    _partition_min = 4 + 2 + 1 + 2 + 1 + 9 + 1 + 1 + 1


class ShareAcknowledgeResponseWalk(_ShareResponseWalk):
    """Walks a ShareAcknowledge response and hides its node endpoints. The length stays the same."""

    _is_fetch = False
    _lock_timeout_from = 2
    _partition_min = 4 + 2 + 1 + 9 + 1
