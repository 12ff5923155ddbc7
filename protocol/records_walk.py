"""The base of walks over responses with records: bytes and messages of each topic, read while the response arrives.

Records are batches (magic 2) or, in segments of before Kafka 0.11, entries of a message set (magic 0 and 1). The header
of a batch has its number of messages, whatever its compression. These are not counted as messages:

    control batches                 the markers of a transaction's end: consumers do not receive them
    a batch cut by the records' end consumers ignore it and fetch it again
    messages in a compressed entry  of magic 0 and 1: the entry is one message, since only its content has their number

The bytes of a partition are those of all of its records, with control batches and a batch that is cut.
"""

from struct import Struct

from protocol.node_endpoints import EndpointsWalk
from protocol.produce_walk import TopicUsage
from protocol.record_batch import BATCH_HEADER, BEFORE_SIZE, read_batches
from protocol.topics import Topic
from protocol.walk import Steps

_UP_TO_MAGIC = 17
_SMALLEST_ENTRY = BEFORE_SIZE + 14  # crc, magic, attributes, and the lengths of key and value

_entry = Struct(">8xi4xb").unpack_from  # size, magic


class RecordsWalk(EndpointsWalk):
    """Walks a response with records. Subclasses set `_topic`, and call `_walk_records` for each partition."""

    # Class attributes for the reason given in `FrameWalk`.
    _topic: Topic = ""
    _record_bytes = 0
    _messages = 0

    def __init__(self, frame_length: int) -> None:
        super().__init__(frame_length)
        self._usages: list[TopicUsage] = []

    def take(self) -> list[TopicUsage]:
        """What was found since the last call, in the order of the response. The bytes of a partition are reported when
        the length of its records has arrived, the messages of a batch when its header has. Producer ids are not read.
        """
        self._close_topic()
        usages = self._usages
        self._usages = []
        return usages

    def _close_topic(self) -> None:
        if self._record_bytes or self._messages:
            self._usages.append(TopicUsage(self._topic, self._record_bytes, self._messages, ()))
            self._record_bytes = self._messages = 0

    def _walk_records(self, left: int) -> Steps:
        """The records of a partition: the next `left` bytes."""
        self._check_left(left, "records")
        self._record_bytes += left
        yield from self._walk_batches(left)

    def _walk_batches(self, left: int) -> Steps:
        """The next `left` bytes, which are those of a partition from a batch on, and have been reported."""
        while left >= _UP_TO_MAGIC:
            needed = min(left, BATCH_HEADER)
            if self._end - self._pos < needed:
                yield from self._need(needed, "batch header")
            size = self._count_batches(left)
            if not size:
                break
            left -= size
            if size <= self._end - self._pos:
                self._pos += size
            else:
                yield from self._skip(size, "batches")
            if self.work_left <= 0 and self._pos < self._end:
                yield
        yield from self._skip(left, "records")

    def _count_batches(self, left: int) -> int:
        """Count the batches at the current position. Returns their bytes; 0: none is whole in the `left` bytes."""
        buf, pos = self._buf, self._pos
        after, messages, count = read_batches(buf, pos, self._end, pos + left, max(1, self.work_left))
        if not count:
            size, magic = _entry(buf, pos)
            size += BEFORE_SIZE
            if magic not in (0, 1) or not _SMALLEST_ENTRY <= size <= left:
                return 0
            after, messages, count = pos + size, 1, 1
        self._messages += messages
        self.work_left -= count
        return after - pos
