"""What of a Produce request a broker refused, from its response, whose layout `produce` has.

It is for statistics, and one response may name tens of thousands of topics. So only so much of it is looked at
(`MAX_PIECES`, some milliseconds), and what stands behind that is taken to have met errors as often as what was seen.
"""

from fractions import Fraction
from struct import Struct
from typing import NamedTuple

from protocol.apis import APIS, PRODUCE
from protocol.errors import MalformedFrame, UnsupportedVersion
from protocol.produce import FIRST_FLEXIBLE, FIRST_WITH_THROTTLE, FIRST_WITH_TOPIC_IDS
from protocol.topics import TOPIC_ID_SIZE, Topic
from protocol.walk import FrameWalk, Steps

FIRST_WITH_APPEND_TIME = 2
FIRST_WITH_LOG_START = 5
FIRST_WITH_RECORD_ERRORS = 8

MAX_PIECES = 2_000
"""Topics, partitions, record errors and tagged fields of a response that are looked at: all of them where it has 1,000
topics of one partition."""

_index_and_error = Struct(">ih").unpack_from
_INDEX_AND_ERROR_SIZE = 6
_OFFSET = 8
_SMALLEST_TOPIC = 2


class RefusedShares(NamedTuple):
    """Which share of each topic's partitions met an error, 0 to 1."""

    seen: dict[Topic, Fraction]
    """By name, from version 13 on by the 16 bytes of the id: of the partitions that were looked at."""
    unseen: Fraction
    """Of any other topic: as of all partitions that were looked at. 0 where that was the whole response."""

    def of(self, topic: Topic) -> Fraction:
        return self.seen.get(topic, self.unseen)


def refused_shares(version: int, response: bytes | memoryview) -> RefusedShares:
    """Reads the beginning of a response, as far as `MAX_PIECES` go. Of a topic named twice the last counts.

    Args:
        version: of the request that is answered.
        response: from its correlation id on, whole.

    Raises:
        UnsupportedVersion: the table does not let this version pass.
        MalformedFrame: what was looked at is not what its version says.
    """
    if not APIS[PRODUCE].covers(version):
        raise UnsupportedVersion(APIS[PRODUCE].name, version)
    walk = _ErrorsWalk(version, len(response))
    walk.advance(bytearray(response), 0, len(response))
    seen = {topic: Fraction(failed, total) for topic, (failed, total) in walk.counts.items() if total}
    if walk.is_over:
        return RefusedShares(seen, Fraction(0))
    all_failed = sum(failed for failed, _ in walk.counts.values())
    all_seen = sum(total for _, total in walk.counts.values())
    return RefusedShares(seen, Fraction(all_failed, max(1, all_seen)))


class _ErrorsWalk(FrameWalk):
    """Walks a response that is shown whole; it is not over when `MAX_PIECES` were not enough."""

    work_left = MAX_PIECES

    def __init__(self, version: int, frame_length: int) -> None:
        super().__init__(frame_length)
        self._version = version
        self._compact = version >= FIRST_FLEXIBLE
        offsets = 1 + (version >= FIRST_WITH_APPEND_TIME) + (version >= FIRST_WITH_LOG_START)
        self._partition_fixed = _INDEX_AND_ERROR_SIZE + _OFFSET * offsets
        self.counts: dict[Topic, list[int]] = {}
        """Of each topic: partitions with an error, partitions."""

    def _walk(self) -> Steps:
        yield from self._skip(4, "correlation id")
        yield from self._skip_version_tags()
        topics = yield from self._items(self._compact, _SMALLEST_TOPIC, "topic count")
        for _ in range(topics):
            yield from self._walk_topic()
        if self._version >= FIRST_WITH_THROTTLE:
            yield from self._skip(4, "throttle time")
        yield from self._skip_version_tags()

    def _walk_topic(self) -> Steps:
        yield from self._piece()
        if self._version >= FIRST_WITH_TOPIC_IDS:
            topic: Topic = yield from self._collect(TOPIC_ID_SIZE, "topic id")
        else:
            at = self._offset()
            size = yield from self._string_size(self._compact, "topic name")
            if size < 0:
                raise MalformedFrame("topic name", at)
            name = yield from self._collect(size, "topic name")
            try:
                topic = name.decode()
            except UnicodeDecodeError:
                raise MalformedFrame("topic name as UTF-8", at) from None
        counts = self.counts[topic] = [0, 0]
        partitions = yield from self._items(self._compact, self._partition_fixed, "partition count")
        for _ in range(partitions):
            yield from self._piece()
            yield from self._need(self._partition_fixed, "partition")
            _, error_code = _index_and_error(self._buf, self._pos)
            counts[0] += error_code != 0
            counts[1] += 1
            self._pos += self._partition_fixed
            if self._version >= FIRST_WITH_RECORD_ERRORS:
                yield from self._skip_record_errors()
            yield from self._skip_version_tags()
        yield from self._skip_version_tags()

    def _skip_record_errors(self) -> Steps:
        """And the partition's error message."""
        errors = yield from self._items(self._compact, 4, "record error count")
        for _ in range(errors):
            yield from self._piece()
            yield from self._skip(4, "batch index")
            yield from self._skip_message("record error message")
            yield from self._skip_version_tags()
        yield from self._skip_message("partition error message")

    def _skip_message(self, what: str) -> Steps:
        size = yield from self._string_size(self._compact, what)
        yield from self._skip(max(0, size), what)

    def _skip_version_tags(self) -> Steps:
        if self._compact:
            yield from self._skip_tags()

    def _piece(self) -> Steps:
        if self.work_left <= 0:
            yield
        self.work_left -= 1
