"""What a Produce request adds to each topic: bytes, messages, producer ids, read while the request arrives.

The body, after the request's header:

    transactional id nullable string (3+), acks int16, timeout int32,
    topics array: name string (0-12) or topic id (13), partitions array:
        index int32, records nullable bytes, tag buffer (9+)
      tag buffer (9+)
    tag buffer (9+)

Records are batches (magic 2) or, from clients older than Kafka 0.11, entries of a message set (magic 0 and 1). The
header of a batch has its number of messages and its producer id, whatever its compression. An entry is one message,
unless it is compressed and wraps others: see `_messages_of_entry`. Brokers check whether magic and version agree;
the proxy does not.

Records that are not batches are no error here: brokers answer them with an error, or ignore a truncated last batch
(`ByteBufferLogInputStream`). Their bytes are counted, since they were sent, but no message.
"""

from struct import Struct
from typing import Final, NamedTuple, final

from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.record_batch import (
    BATCH_HEADER,
    BEFORE_SIZE,
    CODEC,
    claimed_messages,
    read_partitions,
    read_short_partitions,
    unpack_batch,
)
from protocol.topics import LONGEST_NAME, TOPIC_ID_SIZE, Topic
from protocol.walk import FrameWalk, Steps
from protocol.wire import INT32, compact_string_end, plain_string_end, unpack_int32

FIRST_WITH_TRANSACTIONAL_ID = 3
FIRST_FLEXIBLE = 9
FIRST_WITH_TOPIC_IDS = 13


class TopicUsage(NamedTuple):
    """What one topic received. The same topic may be reported several times: these are increments."""

    topic: Topic
    record_bytes: int
    """Length of the records on the wire: compressed, with the headers of their batches."""
    messages: int
    producer_ids: tuple[int, ...]
    """Of idempotent and transactional producers, each once, in no order."""


ACKS_AND_TIMEOUT = 6
_INDEX = 4
_SMALLEST_PARTITION = _INDEX + 4
_SMALLEST_COMPACT_PARTITION = _INDEX + 1 + 1
_SET_ENTRY_MIN = 14  # crc, magic, attributes, and the lengths of key and value
_UP_TO_ATTRIBUTES = 18

_ONE = b"\x00\x00\x00\x01"
_NO_TAGS: Final = b"\x00"
#: Bytes after the last batch: the tags of the partition, the topic and the body.
_TAGS_AFTER_BATCH: Final = 3

_batch_start = Struct(">qi4xbb").unpack_from  # offset, size, magic; attributes, up to magic 1


def _messages_of_entry(offset: int, size: int, attributes: int) -> int:
    """Messages in an entry of `size` bytes: of a compressed one by its offset, without decompressing it.

    Kafka's own client numbers the messages inside from 0 and gives the wrapper the last one's number (KIP-31). Brokers
    do not require it, and aiokafka and kafka-python leave it 0: then it counts as one message. It never counts as more
    messages than it has bytes. This concerns only versions 0 to 2 of Produce, which Kafka 4 refuses (KIP-896).
    """
    return max(1, min(offset + 1, size)) if attributes & CODEC else 1


def one_partition(buf: bytearray, pos: int, end: int, version: int) -> tuple[Topic, int] | None:
    """The topic of a request for one partition, and the position after the partition count. `pos`: index of the body.

    Returns:
        `None` if there are more topics or partitions, a name is long, or `end` comes before the partition.
    """
    if version < FIRST_FLEXIBLE:
        return _one_plain_partition(buf, pos, end, version)
    pos = compact_string_end(buf, pos, end) + ACKS_AND_TIMEOUT + 1
    if pos >= end or buf[pos - 1] != 2:
        return None
    head = read_topic_head(buf, pos, end, version >= FIRST_WITH_TOPIC_IDS)
    return None if head is None or head[1] != 1 else (head[0], head[2])


def _one_plain_partition(buf: bytearray, pos: int, end: int, version: int) -> tuple[str, int] | None:
    if version >= FIRST_WITH_TRANSACTIONAL_ID:
        pos = plain_string_end(buf, pos, end)
    name = pos + ACKS_AND_TIMEOUT + 4
    after = plain_string_end(buf, name, end)
    if (
        after + 4 > end
        or after - name - 2 > LONGEST_NAME
        or buf[name - 4 : name] != _ONE
        or buf[after : after + 4] != _ONE
    ):
        return None
    try:
        return buf[name + 2 : after].decode(), after + 4
    except UnicodeDecodeError:
        return None


def read_topic_head(buf: bytearray, pos: int, end: int, by_id: bool) -> tuple[Topic, int, int] | None:
    """A topic of a flexible version, the number of its partitions, and the position of the first one.

    None: it has not arrived, has more than 126 partitions or characters, or is malformed.
    """
    if pos >= end:
        return None
    after = pos + TOPIC_ID_SIZE if by_id else pos + buf[pos]
    if after >= end or after > pos + 0x7F or not 0 < buf[after] < 0x80:
        return None
    try:
        topic = bytes(buf[pos:after]) if by_id else buf[pos + 1 : after].decode()
    except UnicodeDecodeError:
        return None
    return topic, buf[after] - 1, after + 1


PlainTopic = tuple[Topic, int, int, int]
"""A topic of a request: bytes and messages of its records, and their producer id; -1: none."""


def read_plain_topic(buf: bytearray, pos: int, end: int, by_id: bool, most: int) -> tuple[PlainTopic, int, int] | None:
    """A topic of a flexible version that has arrived whole, the number of its partitions, and the position after it.

    Plain: without tags, one batch of magic 2 in each partition, all of one producer, fewer than 127 partitions and
    characters of the name, and no more than `most` partitions. None: it is not.
    """
    head = read_topic_head(buf, pos, end, by_id)
    if head is None or head[1] > most:
        return None
    topic, partitions, first = head
    count, pos, record_bytes, messages, producer_id = read_short_partitions(buf, first, end, partitions)
    if count < partitions:
        count, pos, record_bytes, messages, producer_id = read_partitions(buf, first, end, partitions, tags=True)
    if not 0 < count == partitions or pos >= end or buf[pos]:
        return None
    return (topic, record_bytes, messages, producer_id), count, pos + 1


def read_plain_body(buf: bytearray, pos: int, end: int, by_id: bool, most: int) -> tuple[list[PlainTopic], int]:
    """The topics of a whole body of a flexible version, and how many topics and partitions it has. Nothing where one
    is not plain, or it has more than `most` of these.
    """
    topics: list[PlainTopic] = []
    left = most
    pos = compact_string_end(buf, pos, end) + ACKS_AND_TIMEOUT + 1
    if pos >= end or not 0 < buf[pos - 1] < 0x80:
        return [], 0
    for _ in range(buf[pos - 1] - 1):
        read = read_plain_topic(buf, pos, end, by_id, left - 1)
        if read is None:
            return [], 0
        topic, count, pos = read
        left -= 1 + count
        topics.append(topic)
    return (topics, most - left) if pos == end - 1 and not buf[pos] else ([], 0)


class _Arriving:
    """The records of a partition that have not arrived whole. `end`: how many bytes of the frame follow them."""

    __slots__ = ("_batch_end", "_messages", "_size", "end")

    def __init__(self, end: int) -> None:
        self.end = self._batch_end = end
        self._size, self._messages = 1, 0

    def begin_batch(self, end: int, size: int, messages: int) -> None:
        """A batch of `size` bytes begins, which `end` bytes of the frame follow."""
        self._batch_end, self._size, self._messages = end, size, messages

    def late(self, left: int) -> tuple[int, int]:
        """Bytes of the records, and messages of the batch, that are to come while `left` bytes of the frame are."""
        records_left, batch_left = left - self.end, left - self._batch_end
        return (
            records_left if records_left > 0 else 0,
            self._messages * batch_left // self._size if batch_left > 0 else 0,
        )


class ProduceRequestWalk(FrameWalk):
    """Walks the body of a Produce request. It changes no byte.

    The bytes of a topic are reported as they arrive, and messages in proportion to the bytes of their batch: what is
    announced and does not arrive counts nothing. Producer ids are reported with the header of their batch.

    Topics that have arrived whole and are plain are read by `read_plain_topic`, in a third of the time.
    """

    # Class attributes for the reason given in `FrameWalk`.
    topics_left = 1
    """Topics whose names have not been read; 1 or more before their number is known."""
    topic: Topic = ""
    """The topic that is read."""
    _record_bytes = 0
    """Of the topic that is read and not reported yet: of a partition all, as soon as its length has arrived."""
    _messages = 0
    _arriving: "_Arriving | None" = None
    """The records that are read, perhaps in part."""

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        """body_start: bytes of the frame before its body: `RequestHeader.body_offset` less the four of the length."""
        super().__init__(frame_length, body_start)
        self._version = version
        self._compact = version >= FIRST_FLEXIBLE
        self._usages: list[TopicUsage] = []
        self._producer_ids: set[int] = set()

    @property
    def by_id(self) -> bool:
        """Whether topics are named by their ids."""
        return self._version >= FIRST_WITH_TOPIC_IDS

    @property
    def late(self) -> tuple[int, int]:
        """Bytes of the records, and messages of the batch, of the topic that is read that `take` has not returned."""
        return self._record_bytes, self._messages

    def take(self) -> list[TopicUsage]:
        """What was found since the last call, in the order of the request.

        The list grows with each batch: take it after each `advance`.
        """
        late = (0, 0) if self._arriving is None else self._arriving.late(self.frame_left)
        self._report(*late)
        usages = self._usages
        self._usages = []
        return usages

    def _report(self, late_bytes: int, late_messages: int) -> None:
        """Report what was found of the topic that is read, but for what has not arrived."""
        record_bytes, messages = self._record_bytes - late_bytes, self._messages - late_messages
        if record_bytes or messages or self._producer_ids:
            self._usages.append(TopicUsage(self.topic, record_bytes, messages, tuple(self._producer_ids)))
            self._record_bytes, self._messages = late_bytes, late_messages
            self._producer_ids.clear()

    def _walk(self) -> Steps:
        compact = self._compact
        if self._version >= FIRST_WITH_TRANSACTIONAL_ID:
            yield from self._skip_string(compact, "transactional id")
        yield from self._skip(ACKS_AND_TIMEOUT, "acks, timeout")
        smallest = TOPIC_ID_SIZE + 2 if self.by_id else 3 if compact else 6
        self.topics_left = topics = yield from self._items(compact, smallest, "topic count")
        for _ in range(topics):
            if not self._skip_plain_topic():
                yield from self._walk_topic()
        if compact:
            yield from self._skip_tags()

    def _skip_plain_topic(self) -> bool:
        """Skip the topic at hand, if it is plain and has arrived whole."""
        if not self._compact or self.work_left <= 1:
            return False
        read = read_plain_topic(self._buf, self._pos, self._end, self.by_id, self.work_left - 1)
        if read is None:
            return False
        (self.topic, record_bytes, messages, producer_id), count, self._pos = read
        self._usages.append(TopicUsage(self.topic, record_bytes, messages, (producer_id,) if producer_id >= 0 else ()))
        self.topics_left -= 1
        self.work_left -= 1 + count
        return True

    def _walk_topic(self) -> Steps:
        self.topic = yield from self._topic_of(self._compact, self.by_id)
        smallest = _SMALLEST_COMPACT_PARTITION if self._compact else _SMALLEST_PARTITION
        partitions = yield from self._items(self._compact, smallest, "partition count")
        self.topics_left -= 1
        while partitions:
            partitions = self._skip_usual_partitions(partitions)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif partitions:
                yield from self._walk_partition()
                partitions -= 1
        self._report(0, 0)
        if self._compact:
            yield from self._skip_tags()
        yield from self._pause()

    def _skip_usual_partitions(self, left: int) -> int:
        """Skips those that are complete and contain one batch of magic 2. Returns how many are left."""
        count = 1
        while count and left and self.work_left > 0:
            count, self._pos, record_bytes, messages, producer_id = read_partitions(
                self._buf, self._pos, self._end, min(left, self.work_left), tags=self._compact
            )
            self._record_bytes += record_bytes
            self._messages += messages
            if producer_id >= 0:
                self._producer_ids.add(producer_id)
            left -= count
            self.work_left -= count
        return left

    def _walk_partition(self) -> Steps:
        self.work_left -= 1
        yield from self._need(_INDEX, "partition index")
        self._begin_partition(unpack_int32(self._buf, self._pos)[0])
        self._pos += _INDEX
        size = yield from self._size(self._compact, INT32, "records")
        if size > self._limit - self._pos:
            raise TruncatedFrame("records", self._offset())
        if size > 0:
            self._record_bytes += size
            self._arriving = _Arriving(self._limit - self._pos - size)
            yield from self._walk_records(size)
            self._arriving = None
        if self._compact:
            yield from self._skip_tags()

    def _begin_partition(self, index: int) -> None:
        """The partition of this index follows; not called for those of the fast path."""

    def _walk_records(self, left: int) -> Steps:
        """The next `left` bytes, which the frame has."""
        while left >= _UP_TO_ATTRIBUTES:
            if self._end - self._pos < _UP_TO_ATTRIBUTES:
                yield from self._need(_UP_TO_ATTRIBUTES, "batch")
            offset, size, magic, attributes = _batch_start(self._buf, self._pos)
            size += BEFORE_SIZE
            if size > left:
                break
            if magic == 2 and size >= BATCH_HEADER:
                if self._end - self._pos < BATCH_HEADER:
                    yield from self._need(BATCH_HEADER, "batch header")
                messages = self._read_batch(size)
            elif magic in (0, 1) and size >= BEFORE_SIZE + _SET_ENTRY_MIN:
                messages = _messages_of_entry(offset, size, attributes)
            else:
                break
            self._messages += messages
            if self._arriving is not None:
                self._arriving.begin_batch(self._limit - self._pos - size, size, messages)
            left -= size
            yield from self._skip(size, "batch")
            yield from self._pause()
        yield from self._skip(left, "records")

    def _read_batch(self, size: int) -> int:
        """Notes the producer id of the batch at the current position. Returns its messages."""
        _, _, attributes, producer_id, count = unpack_batch(self._buf, self._pos)
        if producer_id >= 0:
            self._producer_ids.add(producer_id)
        return claimed_messages(count, attributes, size)


@final
class LastBatchWalk(ProduceRequestWalk):
    """The rest of a request whose only batch has arrived in part. It has one partition, and no tags follow the batch:
    the bytes after it are 0.
    """

    def __init__(self, version: int, frame_length: int, left: int, topic: Topic, size: int, messages: int) -> None:
        """left: bytes of the frame that have not arrived. size, messages: of the batch."""
        super().__init__(version, frame_length, frame_length - left)
        self.topic, self.topics_left = topic, 0
        self._tags_size: Final = _TAGS_AFTER_BATCH if self._compact else 0
        self._arriving = arriving = _Arriving(self._tags_size)
        arriving.begin_batch(self._tags_size, size, messages)
        self._record_bytes, self._messages = arriving.late(left)

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        frame_end = pos + self.frame_left
        self.frame_left = frame_end - end
        tags = max(pos, frame_end - self._tags_size)
        if tags < end and any(buf[tags:end]):
            raise MalformedFrame("no tagged fields after the batch", self.frame_length - (frame_end - tags))
        if not self.frame_left:
            self._finish()
        return end
