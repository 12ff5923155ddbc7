"""Produce responses: throttle time raised, node endpoints hidden, errors counted.

    correlation id int32, tag buffer (9+),
    responses array: name string (0-12) or topic id (13), partitions array:
        index int32, error code int16, base offset int64, log append time int64 (2+), log start offset int64 (5+),
        record errors array (8+): batch index int32, message nullable string, tag buffer (9+),
        error message nullable string (8+), tag buffer (9+; tag 0 is the current leader, 10+)
      tag buffer (9+)
    throttle time int32 (1+), tag buffer (9+; tag 0 is NodeEndpoints, 10+)

Up to version 8 the throttle time is the last four bytes of the frame. From version 9 on a walk finds it, which reads
only lengths, and hides NodeEndpoints as described in `node_endpoints`. The length of the response stays the same.
"""

from fractions import Fraction
from struct import Struct

from protocol.node_endpoints import EndpointsWalk
from protocol.throttle_time import raise_int32
from protocol.topics import TOPIC_ID_SIZE, Topic
from protocol.walk import Steps
from protocol.wire import INT32, unpack_int32

FIRST_WITH_THROTTLE = 1
FIRST_WITH_APPEND_TIME = 2
FIRST_WITH_LOG_START = 5
FIRST_WITH_RECORD_ERRORS = 8
FIRST_FLEXIBLE = 9
FIRST_WITH_NODE_ENDPOINTS = 10
FIRST_WITH_TOPIC_IDS = 13

MAX_COUNTED = 1_000
"""Topics of one response whose errors are counted."""

_THROTTLE_SIZE = 4
_INDEX = 4
_ERROR_CODE = 2
_OFFSET = 8
_SMALLEST_OLD_RESPONSE = 12  # correlation id, topic count, throttle time

# The most common response has one topic, one partition and no error message:
# length; correlation id; no tags, 1 topic + 1, the size of its name plus one (up to version 12); name or id;
# 1 partition + 1; index to log start offset; no record errors, no message, no tags, no tags; throttle time; no tags.
# Its size gives the length of the name, up to 126, so that one call reads all that is compared. With what precedes the
# name or id.
_USUAL_WITH_ID = {
    layout.size: (layout.unpack_from, layout.iter_unpack, b"\x00\x02") for layout in (Struct(">ii2s16xB30xIiB"),)
}
_USUAL_WITH_NAME = {
    layout.size: (layout.unpack_from, layout.iter_unpack, bytes((0, 2, length + 1)))
    for length, layout in ((length, Struct(f">ii3s{length}xB30xIiB")) for length in range(1, 127))
}
_USUAL_LENGTHS = 0x01000000
_FROM_END_TO_THROTTLE = 5

# A partition of a flexible version without messages and tags; the fields before these.
_PLAIN_PARTITION = 33
_PLAIN = ((30, 1), (31, 0), (32, 0))  # no record errors, no error message, no tags
_ACCEPTED = ((4, 0), (5, 0), *_PLAIN)  # no error code either
_BEFORE_TOPICS = 4 + 1 + 1  # correlation id, tags, topic count
_MOST_PLAIN_TOPICS = 16
Wanted = tuple[tuple[int, int], ...]
"""Offsets in a partition, and the bytes there."""


def finish_usual_produce_response(buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int) -> bool:
    """Raises the throttle time of the response in `buf[start:end]`, in place, if the response has the common layout.

    From version 9 on that is up to 16 topics with up to 126 partitions each, without error messages and tags. Up to
    version 8 it is any response; its structure is not checked. Error codes are not read: to count them, use
    `ProduceResponseWalk`.

    Args:
        start: index of the correlation id, after the length of the response.
        end: where the response ends; all of it must be in `buf`.
        version: of the request, 0 to 13.
        throttle_time_ms: the proxy's; the response then contains the larger of this and the broker's.

    Returns:
        False if the response has another shape, or a throttle time of the broker. Nothing is changed then: use
        `ProduceResponseWalk`, which reads that.
    """
    if version < FIRST_FLEXIBLE:
        return _finish_old_response(buf, start, end, version, throttle_time_ms)
    usual = (_USUAL_WITH_ID if version >= FIRST_WITH_TOPIC_IDS else _USUAL_WITH_NAME).get(end - start + 4)
    if usual is None:
        return _finish_plain_response(buf, start, end, version, throttle_time_ms)
    unpack_from, _, before_topic = usual
    _, _, head, partitions, lengths, throttle, tags = unpack_from(buf, start - 4)
    if head != before_topic or partitions != 2 or lengths != _USUAL_LENGTHS or tags:
        return _finish_plain_response(buf, start, end, version, throttle_time_ms)
    if throttle_time_ms > throttle == 0:
        INT32.pack_into(buf, end - _FROM_END_TO_THROTTLE, throttle_time_ms)
    return not throttle


def usual_produce_run(frames: memoryview, size: int, version: int) -> list[int]:
    """Correlation ids of the first responses in `frames` that need no change where no throttle time is due.

    These are complete, have one size and the usual shape: see `finish_usual_produce_response`. 0.2 us for each, and
    0.7 us for all of them.

    Args:
        frames: begins with the length field of a response.
        size: of each response, with its length field.
        version: of the requests, 0 to 13; up to version 8 the result is empty.
    """
    usual = _USUAL_WITH_ID if version >= FIRST_WITH_TOPIC_IDS else _USUAL_WITH_NAME
    ids: list[int] = []
    if version < FIRST_FLEXIBLE or size not in usual:
        return ids
    _, iter_unpack, before_topic = usual[size]
    length = size - 4
    whole = frames[: len(frames) // size * size]
    for seen, correlation_id, head, partitions, lengths, throttle, tags in iter_unpack(whole):
        if seen != length or head != before_topic or partitions != 2 or lengths != _USUAL_LENGTHS or throttle or tags:
            break
        ids.append(correlation_id)
    return ids


def finish_accepted_produce_response(buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int) -> bool:
    """As `finish_usual_produce_response`; False also if a partition has an error, and up to version 8. 2 us."""
    return version >= FIRST_FLEXIBLE and _finish_plain_response(buf, start, end, version, throttle_time_ms, _ACCEPTED)


def accepted_produce_run(frames: memoryview, size: int, version: int) -> list[int]:
    """As `usual_produce_run`, up to the first error. 0.2 us more for each."""
    ids = usual_produce_run(frames, size, version)
    highs, lows = (frames[size - place : len(ids) * size : size].tobytes() for place in (35, 34))
    return ids[: next((number for number, code in enumerate(zip(highs, lows, strict=True)) if any(code)), len(ids))]


def _finish_plain_response(
    buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int, wanted: Wanted = _PLAIN
) -> bool:
    """As `finish_usual_produce_response`, for any number of topics and partitions."""
    id_size = TOPIC_ID_SIZE if version >= FIRST_WITH_TOPIC_IDS else 0
    last = end - _FROM_END_TO_THROTTLE
    pos = start + _BEFORE_TOPICS
    if pos > last or buf[end - 1] or buf[pos - 2] or not 0 < buf[pos - 1] <= _MOST_PLAIN_TOPICS + 1:
        return False
    for _ in range(buf[pos - 1] - 1):
        pos = _after_plain_topic(buf, pos, last, id_size, wanted)
        if not pos:
            return False
    if pos != last or unpack_int32(buf, last)[0]:
        return False
    raise_int32(buf, last, throttle_time_ms)
    return True


def _after_plain_topic(buf: bytearray, pos: int, last: int, id_size: int, wanted: Wanted = _PLAIN) -> int:
    """Where a topic ends that has no messages and no tags. 0: it has, or it ends after `last`."""
    if pos >= last:
        return 0
    size = id_size or buf[pos]
    pos += size + 1
    if not 0 < size < 0x80 or pos > last:
        return 0
    partitions = buf[pos - 1] - 1
    after = pos + partitions * _PLAIN_PARTITION
    if not 0 <= partitions < 0x7F or after >= last or buf[after] or not _all_have(buf, pos, partitions, wanted):
        return 0
    return after + 1


def _all_have(buf: bytearray, pos: int, partitions: int, wanted: Wanted) -> bool:
    """Whether the partitions from `pos` on have these bytes. With a plain end all have one size: their fields have one
    stride.
    """
    after = pos + partitions * _PLAIN_PARTITION
    return all(buf[pos + at : after : _PLAIN_PARTITION].count(value) == partitions for at, value in wanted)


def _finish_old_response(buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int) -> bool:
    if version < FIRST_WITH_THROTTLE:
        return True
    if end - start < _SMALLEST_OLD_RESPONSE or unpack_int32(buf, end - _THROTTLE_SIZE)[0]:
        return False
    raise_int32(buf, end - _THROTTLE_SIZE, throttle_time_ms)
    return True


_SMALLEST_TOPIC = 2
_NO_ERROR = b"\x00\x00"


class ProduceResponseWalk(EndpointsWalk):
    """Walks a Produce response of any version, raises its throttle time and hides its node endpoints, in place.

    It can count the partitions with errors of each topic, of the first `MAX_COUNTED` topics.
    """

    def __init__(self, version: int, frame_length: int, throttle_time_ms: int, counts_errors: bool) -> None:
        """The walk of one response.

        Args:
            version: of the request.
            frame_length: bytes of the response from its correlation id on.
            throttle_time_ms: the proxy's; the response then contains the larger of this and the broker's.
            counts_errors: whether `refused_shares` is called once the walk has ended.
        """
        super().__init__(frame_length)
        self._version = version
        self._throttle_time_ms = throttle_time_ms
        self._compact = version >= FIRST_FLEXIBLE
        self._by_id = version >= FIRST_WITH_TOPIC_IDS
        offsets = 1 + (version >= FIRST_WITH_APPEND_TIME) + (version >= FIRST_WITH_LOG_START)
        self._partition_fixed = _INDEX + _ERROR_CODE + _OFFSET * offsets
        self._counts_errors = counts_errors
        self.refused: dict[Topic, list[int]] = {}
        """Of the first `MAX_COUNTED` topics: the indexes of the partitions with an error."""
        self._totals: dict[Topic, int] = {}

    def refused_shares(self) -> dict[Topic, Fraction]:
        """Share of each topic's partitions that have an error, 0 to 1. Of a topic that occurs twice, the last counts.

        By name, from version 13 on by the 16 bytes of the id.
        """
        return {topic: Fraction(len(self.refused[topic]), total) for topic, total in self._totals.items() if total}

    def _walk(self) -> Steps:
        yield from self._skip(4, "correlation id")
        if self._compact:
            yield from self._skip_tags()
        topics = yield from self._items(self._compact, _SMALLEST_TOPIC, "topic count")
        if self._compact or self._counts_errors:
            for _ in range(topics):
                yield from self._walk_topic()
        else:  # up to version 8 the place of the throttle time does not depend on the topics
            throttle_size = _THROTTLE_SIZE if self._version >= FIRST_WITH_THROTTLE else 0
            yield from self._skip(max(0, self._limit - self._pos - throttle_size), "topics")
        if self._version >= FIRST_WITH_THROTTLE:
            yield from self._need(_THROTTLE_SIZE, "throttle time")
            self.broker_throttle_ms = unpack_int32(self._buf, self._pos)[0]
            raise_int32(self._buf, self._pos, self._throttle_time_ms)
            self._pos += _THROTTLE_SIZE
        if self._version >= FIRST_WITH_NODE_ENDPOINTS:
            yield from self._hide_tagged_endpoints()
        elif self._compact:
            yield from self._skip_tags()

    def _walk_topic(self) -> Steps:
        after = 0
        if not self._counts_errors:
            after = _after_plain_topic(self._buf, self._pos, self._end, TOPIC_ID_SIZE if self._by_id else 0)
        if after:
            self._pos = after
        else:
            yield from self._walk_partitions()
            if self._compact:
                yield from self._skip_tags()
        yield from self._pause()

    def _walk_partitions(self) -> Steps:
        """The head of a topic, and its partitions."""
        topic = yield from self._topic_of(self._compact, self._by_id, is_read=self._counts_errors)
        failed: list[int] = []
        smallest = self._partition_fixed + (3 if self._compact else 0)
        partitions = yield from self._items(self._compact, smallest, "partition count")
        if self._counts_errors and len(self.refused) < MAX_COUNTED:
            self.refused[topic], self._totals[topic] = failed, partitions
        for _ in range(partitions):
            yield from self._walk_partition(failed)
            yield from self._pause()

    def _walk_partition(self, failed: list[int]) -> Steps:
        yield from self._need(self._partition_fixed, "partition")
        if self._buf[self._pos + _INDEX : self._pos + _INDEX + _ERROR_CODE] != _NO_ERROR:
            failed.append(unpack_int32(self._buf, self._pos)[0])
        self._pos += self._partition_fixed
        if self._version >= FIRST_WITH_RECORD_ERRORS:
            errors = yield from self._items(self._compact, 4, "record error count")
            for _ in range(errors):
                yield from self._walk_record_error()
            yield from self._skip_string(self._compact, "partition error message")
        if self._compact:
            yield from self._skip_tags()

    def _walk_record_error(self) -> Steps:
        yield from self._skip(4, "batch index")
        yield from self._skip_string(self._compact, "record error message")
        if self._compact:
            yield from self._skip_tags()
        yield from self._pause()
