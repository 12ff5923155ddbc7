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
from typing import NamedTuple

from protocol.errors import MalformedFrame
from protocol.node_endpoints import EndpointsWalk
from protocol.throttle_time import INT32, raise_int32
from protocol.topics import LONGEST_NAME, TOPIC_ID_SIZE, Topic
from protocol.walk import Reading, Steps

FIRST_WITH_THROTTLE = 1
FIRST_WITH_APPEND_TIME = 2
FIRST_WITH_LOG_START = 5
FIRST_WITH_RECORD_ERRORS = 8
FIRST_FLEXIBLE = 9
FIRST_WITH_NODE_ENDPOINTS = 10
FIRST_WITH_TOPIC_IDS = 13

MAX_PIECES = 2_000
"""Most topics, partitions and record errors counted in one response: all of them in a response with 1,000
topics of one partition."""

_THROTTLE_SIZE = 4
_SMALLEST_OLD_RESPONSE = 12  # correlation id, topic count, throttle time

# The most common response has one topic, one partition and no error message:
# correlation id; no tags, 1 topic + 1; topic; 1 partition + 1; index to log start offset;
# no record errors, no message, no tags, no tags; throttle time; no tags.
_USUAL_WITH_ID = Struct(">4xH16xB30xIiB")
_USUAL_LENGTHS = 0x01000000
_FROM_END_TO_THROTTLE = 5
# The same with a topic's name: its length plus one is a byte after the topic count. One layout for each length up to
# 126, by the size of the response, so that one call reads everything.
_USUAL_WITH_NAME = {
    layout.size: layout.unpack_from for layout in (Struct(f">4xHB{length}xB30xIiB") for length in range(1, 127))
}
_NAME_SIZE_LESS_ONE = Struct(">4xHB0xB30xIiB").size - 1

# The same with the length before it, and what precedes the topic's name or id: for responses of equal size in a row.
_RUNS_WITH_ID = {layout.size: (layout.iter_unpack, b"\x00\x02") for layout in (Struct(">ii2s16xB30xI4xB"),)}
_RUNS_WITH_NAME = {
    layout.size: (layout.iter_unpack, bytes((0, 2, length + 1)))
    for length, layout in ((length, Struct(f">ii3s{length}xB30xI4xB")) for length in range(1, 127))
}

# A partition of a flexible version without messages and tags; the fields before these.
_PLAIN_END = b"\x01\x00\x00"  # no record errors, no error message, no tags
_PLAIN_FIXED = 30
_PLAIN_PARTITION = 33
_BEFORE_TOPICS = 4 + 1 + 1  # correlation id, tags, topic count
_MOST_PLAIN_TOPICS = 16

_usual_with_id = _USUAL_WITH_ID.unpack_from
_USUAL_WITH_ID_SIZE = _USUAL_WITH_ID.size


def finish_usual_produce_response(buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int) -> bool:
    """Raises the throttle time of the response in `buf[start:end]`, in place, if the response has the common layout.

    From version 9 on that is up to 16 topics with up to 126 partitions each, without error messages and tags. Up to
    version 8 it is any response; its structure is not checked. Error codes are not read: to count them, use
    `ProduceResponseWalk`.

    Args:
        start: index of the correlation id.
        end: where the response ends; all of it must be in `buf`.
        version: of the request, 0 to 13.
        throttle_time_ms: the proxy's; the response then contains the larger of this and the broker's.

    Returns:
        False if the response has another shape. Nothing is changed then: use `ProduceResponseWalk`.
    """
    if version < FIRST_FLEXIBLE:
        return _finish_old_response(buf, start, end, version, throttle_time_ms)
    id_size = TOPIC_ID_SIZE if version >= FIRST_WITH_TOPIC_IDS else 0
    topics = 0
    if id_size:
        if end - start == _USUAL_WITH_ID_SIZE:
            topics, partitions, lengths, throttle, tags = _usual_with_id(buf, start)
    elif (usual_with_name := _USUAL_WITH_NAME.get(end - start)) is not None:
        topics, name, partitions, lengths, throttle, tags = usual_with_name(buf, start)
        if name != end - start - _NAME_SIZE_LESS_ONE:
            topics = 0
    if topics != 2 or partitions != 2 or lengths != _USUAL_LENGTHS or tags:
        return _finish_plain_response(buf, start, end, id_size, throttle_time_ms)
    if throttle_time_ms > throttle:
        INT32.pack_into(buf, end - _FROM_END_TO_THROTTLE, throttle_time_ms)
    return True


def usual_produce_run(frames: memoryview, size: int, version: int) -> list[int]:
    """Correlation ids of the first responses in `frames` that need no change where no throttle time is due.

    These are complete, have one size and the usual shape: see `finish_usual_produce_response`. 0.2 us for each, and
    0.7 us for all of them.

    Args:
        frames: begins with the length field of a response.
        size: of each response, with its length field.
        version: of the requests, 0 to 13; up to version 8 the result is empty.
    """
    runs = _RUNS_WITH_ID if version >= FIRST_WITH_TOPIC_IDS else _RUNS_WITH_NAME
    ids: list[int] = []
    if version < FIRST_FLEXIBLE or size not in runs:
        return ids
    iter_unpack, before_topic = runs[size]
    length = size - 4
    for seen, correlation_id, start, partitions, lengths, tags in iter_unpack(frames[: len(frames) // size * size]):
        if seen != length or start != before_topic or partitions != 2 or lengths != _USUAL_LENGTHS or tags:
            break
        ids.append(correlation_id)
    return ids


def _finish_plain_response(buf: bytearray, start: int, end: int, id_size: int, throttle_time_ms: int) -> bool:
    """As `finish_usual_produce_response`, for any number of topics and partitions. `id_size`: 0 for topic names."""
    last = end - _FROM_END_TO_THROTTLE
    pos = start + _BEFORE_TOPICS
    if pos > last or buf[end - 1] or buf[pos - 2] or not 0 < buf[pos - 1] <= _MOST_PLAIN_TOPICS + 1:
        return False
    for _ in range(buf[pos - 1] - 1):
        pos = _after_plain_topic(buf, pos, last, id_size)
        if not pos:
            return False
    if pos != last:
        return False
    raise_int32(buf, last, throttle_time_ms)
    return True


def _after_plain_topic(buf: bytearray, pos: int, last: int, id_size: int) -> int:
    """Where a topic ends that has no messages and no tags. 0: it has, or it ends after `last`."""
    size = id_size or buf[pos]
    pos += size + 1
    if not 0 < size < 0x80 or pos > last:
        return 0
    partitions = buf[pos - 1] - 1
    after = pos + partitions * _PLAIN_PARTITION
    if not 0 <= partitions < 0x7F or after >= last or buf[after] or not _have_plain_ends(buf, pos, partitions):
        return 0
    return after + 1


def _have_plain_ends(buf: bytearray, pos: int, partitions: int) -> bool:
    """Whether the partitions from `pos` on have a plain end. Then all have one size, and their fields one stride."""
    first, after = pos + _PLAIN_FIXED, pos + partitions * _PLAIN_PARTITION
    return all(
        buf[first + index : after : _PLAIN_PARTITION].count(value) == partitions
        for index, value in enumerate(_PLAIN_END)
    )


def _finish_old_response(buf: bytearray, start: int, end: int, version: int, throttle_time_ms: int) -> bool:
    if version < FIRST_WITH_THROTTLE:
        return True
    if end - start < _SMALLEST_OLD_RESPONSE:
        return False
    raise_int32(buf, end - _THROTTLE_SIZE, throttle_time_ms)
    return True


class RefusedShares(NamedTuple):
    """Share of each topic's partitions that have an error, 0 to 1."""

    seen: dict[Topic, Fraction]
    """By name, from version 13 on by the 16 bytes of the id: of the partitions that were counted."""
    unseen: Fraction
    """Of any other topic: as of all partitions that were counted. 0 if that was the whole response."""

    def of(self, topic: Topic) -> Fraction:
        return self.seen.get(topic, self.unseen)


_SMALLEST_TOPIC = 2
_INDEX = 4
_OFFSET = 8
_ERROR_CODE = 2
_COMPARED_FROM = 8  # fewer partitions are read one by one: to compare them takes as long
_COMPARED_AT_ONCE = 512  # partitions: 2.4 us
_TOPIC_LOOK = 1 + 0x7E + 1  # a name and a partition count whose lengths take one byte
_NO_ERROR = b"\x00\x00"


class ProduceResponseWalk(EndpointsWalk):
    """Walks a Produce response of any version, raises its throttle time and hides its node endpoints, in place.

    It can count the partitions with errors of each topic. That is for statistics, and one response may have tens of
    thousands of topics: so the first `MAX_PIECES` topics, partitions and record errors are counted, and the share of
    the others is estimated from these.
    """

    def __init__(self, version: int, frame_length: int, throttle_time_ms: int, counts_errors: bool) -> None:
        """The walk of one response.

        Args:
            version: of the request.
            frame_length: bytes of the response from its correlation id on.
            throttle_time_ms: the proxy's; the response then contains the larger of this and the broker's.
            counts_errors: whether `refused_shares` is called when the walk is over.
        """
        super().__init__(frame_length)
        self._version = version
        self._throttle_time_ms = throttle_time_ms
        self._compact = version >= FIRST_FLEXIBLE
        self._by_id = version >= FIRST_WITH_TOPIC_IDS
        offsets = 1 + (version >= FIRST_WITH_APPEND_TIME) + (version >= FIRST_WITH_LOG_START)
        self._partition_fixed = _INDEX + _ERROR_CODE + _OFFSET * offsets
        self._uncounted = MAX_PIECES if counts_errors else 0  # pieces that may still be counted
        self._is_cut = not counts_errors  # some pieces were not counted
        self._counts: dict[Topic, list[int]] = {}  # partitions with an error, partitions
        self._topic_counts = [0, 0]  # of the current topic

    def refused_shares(self) -> RefusedShares:
        """For a walk that is over and counts errors. Of a topic that occurs twice, the last one counts."""
        seen = {topic: Fraction(failed, total) for topic, (failed, total) in self._counts.items() if total}
        if not self._is_cut:
            return RefusedShares(seen, Fraction(0))
        all_failed = sum(failed for failed, _ in self._counts.values())
        all_counted = sum(total for _, total in self._counts.values())
        return RefusedShares(seen, Fraction(all_failed, max(1, all_counted)))

    def _walk(self) -> Steps:
        yield from self._skip(4, "correlation id")
        if self._compact:
            yield from self._skip_tags()
        topics = yield from self._items(self._compact, _SMALLEST_TOPIC, "topic count")
        while topics and (self._compact or self._uncounted):
            yield from self._walk_topic()
            topics -= 1
        self._is_cut |= topics > 0
        if self._is_cut and not self._compact:
            # Up to version 8 the place of the throttle time does not depend on the topics.
            throttle_size = _THROTTLE_SIZE if self._version >= FIRST_WITH_THROTTLE else 0
            yield from self._skip(max(0, self._limit - self._pos - throttle_size), "topics")
        if self._version >= FIRST_WITH_THROTTLE:
            yield from self._need(_THROTTLE_SIZE, "throttle time")
            raise_int32(self._buf, self._pos, self._throttle_time_ms)
            self._pos += _THROTTLE_SIZE
        if self._version >= FIRST_WITH_NODE_ENDPOINTS:
            yield from self._hide_tagged_endpoints()
        elif self._compact:
            yield from self._skip_tags()

    def _walk_topic(self) -> Steps:
        partitions = self._read_topic_at_hand()
        if partitions < 0:
            partitions = yield from self._read_topic()
        while partitions:
            if not self._compact and not self._uncounted:
                self._is_cut = True
                return
            partitions = self._skip_plain_partitions(partitions)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif partitions:
                yield from self._walk_partition()
                partitions -= 1
        if self._compact:
            if self._pos < self._end and not self._buf[self._pos]:
                self._pos += 1
            else:
                yield from self._skip_tags()
        yield from self._pause()

    def _read_topic_at_hand(self) -> int:
        """The number of a topic's partitions, if its head is complete and short. Else -1, and nothing was read."""
        if not self._compact or self._end - self._pos < _TOPIC_LOOK:
            return -1
        buf, at = self._buf, self._pos
        after = at + (TOPIC_ID_SIZE if self._by_id else buf[at])
        at += not self._by_id
        if not at <= after <= at + 0x7E or not 0 < buf[after] < 0x80:
            return -1
        partitions = buf[after] - 1
        if partitions * (self._partition_fixed + 3) > self._limit - after - 1:
            return -1
        if self._uncounted:
            try:
                self._begin_topic(bytes(buf[at:after]))
            except UnicodeDecodeError:
                return -1
        else:
            self._is_cut = True
        self._pos = after + 1
        return partitions

    def _read_topic(self) -> Reading:
        at = self._offset()
        size = TOPIC_ID_SIZE
        if not self._by_id:
            size = yield from self._string_size(self._compact, "topic name")
            if size < 0:
                raise MalformedFrame("topic name", at)
        if self._uncounted and size > LONGEST_NAME:
            yield from self._skip(size, "topic")
            self._begin_topic(b"")
        elif self._uncounted:
            topic = yield from self._collect(size, "topic")
            try:
                self._begin_topic(topic)
            except UnicodeDecodeError:
                raise MalformedFrame("topic name as UTF-8", at) from None
        else:
            self._is_cut = True
            yield from self._skip(size, "topic")
        smallest = self._partition_fixed + (3 if self._compact else 0)
        return (yield from self._items(self._compact, smallest, "partition count"))

    def _begin_topic(self, topic: bytes) -> None:
        counts = [0, 0]
        self._counts[topic if self._by_id else topic.decode()] = counts
        self._topic_counts = counts
        self._uncounted -= 1

    def _skip_plain_partitions(self, left: int) -> int:
        """Skips partitions of flexible versions that are complete and have a plain end. Returns how many are left."""
        if not self._compact:
            return left
        compares = True
        while left and self.work_left > 0:
            here = min(left, (self._end - self._pos) // _PLAIN_PARTITION, _COMPARED_AT_ONCE)
            if here >= _COMPARED_FROM and compares:
                compares = _have_plain_ends(self._buf, self._pos, here)
                here = here if compares else 1
            else:
                here = min(here, 1)
            end_at = self._pos + self._partition_fixed
            if not here or self._buf[end_at : end_at + 3] != _PLAIN_END:
                break
            if self._uncounted:
                self._count_errors(here, _PLAIN_PARTITION)
            else:
                self._is_cut = True
            self._pos += here * _PLAIN_PARTITION
            left -= here
            self.work_left -= 1
        return left

    def _count_errors(self, partitions: int, stride: int) -> None:
        """Of the partitions from the current position on, as many as may still be counted."""
        counted = min(partitions, self._uncounted)
        self._uncounted -= counted
        self._is_cut |= counted < partitions
        buf, first = self._buf, self._pos + _INDEX
        failed = sum(buf[at : at + 2] != _NO_ERROR for at in range(first, first + counted * stride, stride))
        self._topic_counts[0] += failed
        self._topic_counts[1] += counted

    def _walk_partition(self) -> Steps:
        self.work_left -= 1
        yield from self._need(self._partition_fixed, "partition")
        if self._uncounted:
            self._count_errors(1, self._partition_fixed)
        else:
            self._is_cut = True
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
        self._uncounted = max(0, self._uncounted - 1)
        yield from self._pause()
