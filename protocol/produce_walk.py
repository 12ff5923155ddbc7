"""What a Produce request adds to each topic: bytes, messages, producer ids, read while the request arrives.

The body, after the request's header:

    transactional id nullable string (3+), acks int16, timeout int32,
    topics array: name string (0-12) or topic id (13), partitions array:
        index int32, records nullable bytes, tag buffer (9+)
      tag buffer (9+)
    tag buffer (9+)

Records are batches (magic 2) or, from clients older than Kafka 0.11, entries of a message set (magic 0 and 1). The
header of a batch has its number of messages and its producer id, whatever its compression. An entry is one message,
unless it is compressed and wraps others: see `_wrapped`. Brokers check whether magic and version agree; the proxy does
not.

Records that are not batches are no error here: brokers answer them with an error, or ignore a truncated last batch
(`ByteBufferLogInputStream`). Their bytes are counted, since they were sent, but no message.
"""

from struct import Struct
from typing import NamedTuple

from protocol.apis import APIS, PRODUCE
from protocol.errors import MalformedFrame, TruncatedFrame, UnsupportedVersion
from protocol.topics import TOPIC_ID_SIZE, Topic
from protocol.walk import FrameWalk, Reading, Steps

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


_ACKS_AND_TIMEOUT = 6
_INDEX = 4
_BATCH_HEADER = 61
_SMALLEST_PARTITION = _INDEX + 4
_SMALLEST_COMPACT_PARTITION = _INDEX + 1 + 1
_PARTITION_LOOK = _INDEX + 4 + _BATCH_HEADER
_TOPIC_LOOK = 1 + 0x7E + 1  # a name whose length takes one byte, and a partition count that does
_SET_ENTRY_MIN = 14  # crc, magic, attributes, and the lengths of key and value
_BEFORE_SIZE = 12  # base offset, and the size itself
_UP_TO_ATTRIBUTES = 18

_NO_TAGS = bytes(3)  # of the partition, the topic and the body
_SMALLEST_USUAL = _ACKS_AND_TIMEOUT + 1 + 1 + 1 + _INDEX + 1 + _BATCH_HEADER + 3

_CODEC = 0b111  # of the attributes: 0 is no compression
_SMALLEST_RECORD = 7  # length, attributes, timestamp delta, offset delta, key length, value length, header count
_MOST_PER_BYTE = 8  # compressed records: their offset deltas differ, and no codec writes a difference in under a bit

_batch_start = Struct(">qi4xbb").unpack_from  # offset, size, magic; attributes, up to magic 1
_batch_header = Struct(">8xi4xb4xh20xq6xi").unpack_from  # size, magic, attributes, producer id, records count
_int16 = Struct(">h").unpack_from
_int32 = Struct(">i").unpack_from
_plain_start = Struct(">2x4xih").unpack_from  # acks, timeout; topic count, length of the first name
_plain_partition = Struct(">i4xi").unpack_from  # partition count, index, length of the first records


def _claimed(count: int, attributes: int, size: int) -> int:
    """Messages of a batch of `size` bytes whose header contains `count`, which may be any number.

    Brokers refuse a batch with a wrong count, so no accepted batch reaches the bound. Without it one small frame could
    use up a topic's messages of a year.
    """
    payload = size - _BATCH_HEADER
    most = payload * _MOST_PER_BYTE if attributes & _CODEC else payload // _SMALLEST_RECORD
    if 0 <= count <= most:
        return count
    return most if count > 0 else 0


def _wrapped(offset: int, size: int) -> int:
    """Messages in a compressed entry of `size` bytes, by its offset, without decompressing it.

    Kafka's own client numbers the messages inside from 0 and gives the wrapper the last one's number (KIP-31). Brokers
    do not require it, and aiokafka and kafka-python leave it 0: then it counts as one message. It never counts as more
    messages than it has bytes. This concerns only versions 0 to 2 of Produce, which Kafka 4 refuses (KIP-896).
    """
    return max(1, min(offset + 1, size))


def _read_size(buf: bytearray, pos: int) -> tuple[int, int]:
    """Size of records in a flexible version, and the index of their first byte. The next four bytes are in `buf`.

    The size is 0 or less where the fast path does not apply: null or empty records, more than three bytes of length.
    """
    low = buf[pos]
    if low < 0x80:
        return low - 1, pos + 1
    middle = buf[pos + 1]
    if middle < 0x80:
        return ((low & 0x7F | middle << 7) - 1, pos + 2) if middle else (0, pos)
    high = buf[pos + 2]
    return ((low & 0x7F | (middle & 0x7F) << 7 | high << 14) - 1, pos + 3) if 0 < high < 0x80 else (0, pos)


def usual_usage(buf: bytearray, pos: int, end: int, version: int) -> TopicUsage | None:
    """The fast path for most requests: one topic, one partition and one batch of magic 2, whole in `buf[pos:end]`.

    Args:
        pos: index of the body: that of the frame plus `RequestHeader.body_offset`.
        end: where the frame ends.

    Returns:
        `None` if the body is anything else, or malformed: use a `ProduceRequestWalk`.
    """
    if end - pos < _SMALLEST_USUAL:
        return None
    if version >= FIRST_FLEXIBLE:
        name, after, batch = _usual_flexible_places(buf, pos, end, version)
        size = end - 3 - batch
    else:
        name, after, batch = _usual_plain_places(buf, pos, end, version)
        size = end - batch
    if not batch or size < _BATCH_HEADER:
        return None
    batch_size, magic, attributes, producer_id, count = _batch_header(buf, batch)
    if magic != 2 or batch_size + _BEFORE_SIZE != size:
        return None
    topic: Topic
    if version >= FIRST_WITH_TOPIC_IDS:
        topic = bytes(buf[name:after])
    else:
        try:
            topic = buf[name:after].decode()
        except UnicodeDecodeError:
            return None
    return TopicUsage(topic, size, _claimed(count, attributes, size), (producer_id,) if producer_id >= 0 else ())


_Places = tuple[int, int, int]
"""Index of a topic's name or id, index after it, index of its batch; the last is 0 if the body is not a usual one."""

_NOT_USUAL = (0, 0, 0)


def _usual_flexible_places(buf: bytearray, pos: int, end: int, version: int) -> _Places:
    size = buf[pos]  # of the transactional id, plus one; 0 if there is none
    name = pos + (size or 1) + _ACKS_AND_TIMEOUT + 1
    if size >= 0x80 or name >= end or buf[name - 1] != 2:
        return _NOT_USUAL
    if version >= FIRST_WITH_TOPIC_IDS:
        after = name + TOPIC_ID_SIZE
    else:
        after = name + buf[name]
        name += 1
    records = after + 1 + _INDEX
    if after - name > 0x7E or records + 1 + _BATCH_HEADER + 3 > end or buf[after] != 2:
        return _NOT_USUAL
    size, batch = _read_size(buf, records)
    if batch + size + 3 != end or buf[end - 3 : end] != _NO_TAGS:
        return _NOT_USUAL
    return name, after, batch


def _usual_plain_places(buf: bytearray, pos: int, end: int, version: int) -> _Places:
    if version >= FIRST_WITH_TRANSACTIONAL_ID:
        size = _int16(buf, pos)[0]
        pos += 2 + (size if size > 0 else 0)
        if size < -1 or pos + _SMALLEST_USUAL - 2 > end:
            return _NOT_USUAL
    topics, size = _plain_start(buf, pos)
    name = pos + _ACKS_AND_TIMEOUT + 4 + 2
    after = name + size
    batch = after + 4 + _INDEX + 4
    if topics != 1 or size < 0 or batch + _BATCH_HEADER > end:
        return _NOT_USUAL
    partitions, size = _plain_partition(buf, after)
    if partitions != 1 or batch + size != end:
        return _NOT_USUAL
    return name, after, batch


class ProduceRequestWalk(FrameWalk):
    """Walks the body of a Produce request. It changes no byte.

    The bytes of a topic are reported when the length of its records has arrived, messages and producer ids when the
    header of their batch has: before the records themselves. So a decision can use the first part of a frame, and what
    later parts contain is taken when they arrive.
    """

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        """body_start: bytes of the frame before its body: `RequestHeader.body_offset` less the four of the length."""
        api = APIS[PRODUCE]
        if not api.covers(version):
            raise UnsupportedVersion(api.name, version)
        super().__init__(frame_length, body_start)
        self._version = version
        self._compact = version >= FIRST_FLEXIBLE
        self._by_id = version >= FIRST_WITH_TOPIC_IDS
        self._usages: list[TopicUsage] = []
        self._topic: Topic = ""
        self._record_bytes = 0
        self._messages = 0
        self._producer_ids: set[int] = set()

    def take(self) -> list[TopicUsage]:
        """What was found since the last call, in the order of the request.

        The list grows with each batch: take it after each `advance`.
        """
        self._close_topic()
        usages = self._usages
        self._usages = []
        return usages

    def _close_topic(self) -> None:
        if self._record_bytes or self._messages or self._producer_ids:
            self._usages.append(TopicUsage(self._topic, self._record_bytes, self._messages, tuple(self._producer_ids)))
            self._record_bytes = self._messages = 0
            self._producer_ids.clear()

    def _walk(self) -> Steps:
        compact = self._compact
        if self._version >= FIRST_WITH_TRANSACTIONAL_ID:
            size = yield from self._string_size(compact, "transactional id")
            yield from self._skip(max(0, size), "transactional id")
        yield from self._skip(_ACKS_AND_TIMEOUT, "acks, timeout")
        smallest = TOPIC_ID_SIZE + 2 if self._by_id else 3 if compact else 6
        topics = yield from self._items(compact, smallest, "topic count")
        for _ in range(topics):
            yield from self._walk_topic()
        if compact:
            yield from self._skip_tags()

    def _walk_topic(self) -> Steps:
        partitions = self._read_usual_topic()
        if partitions < 0:
            partitions = yield from self._read_topic()
        while partitions:
            partitions = self._skip_usual_partitions(partitions)
            if self.work_left <= 0 and self._pos < self._end:
                yield
            elif partitions:
                yield from self._walk_partition()
                partitions -= 1
        self._close_topic()
        if self._compact:
            if self._pos < self._end and not self._buf[self._pos]:
                self._pos += 1
            else:
                yield from self._skip_tags()
        self.work_left -= 1
        if self.work_left <= 0 and self._pos < self._end:
            yield

    def _read_usual_topic(self) -> int:
        """The number of a topic's partitions, if its head is complete and short. Else -1, and nothing was read."""
        if not self._compact or self._end - self._pos < _TOPIC_LOOK:
            return -1
        buf, at = self._buf, self._pos
        if self._by_id:
            after = at + TOPIC_ID_SIZE
        else:
            after = at + buf[at]
            at += 1
        if not 0 <= after - at <= 0x7E or not 0 < buf[after] < 0x80:
            return -1
        partitions = buf[after] - 1
        if partitions * _SMALLEST_COMPACT_PARTITION > self._limit - after - 1:
            return -1
        topic = bytes(buf[at:after])
        try:
            self._topic = topic if self._by_id else topic.decode()
        except UnicodeDecodeError:
            return -1
        self._pos = after + 1
        return partitions

    def _read_topic(self) -> Reading:
        if self._by_id:
            self._topic = yield from self._collect(TOPIC_ID_SIZE, "topic id")
        else:
            size = yield from self._string_size(self._compact, "topic name")
            at = self._offset()
            if size < 0:
                raise MalformedFrame("topic name", at)
            name = yield from self._collect(size, "topic name")
            try:
                self._topic = name.decode()
            except UnicodeDecodeError:
                raise MalformedFrame("topic name as UTF-8", at) from None
        smallest = _SMALLEST_COMPACT_PARTITION if self._compact else _SMALLEST_PARTITION
        return (yield from self._items(self._compact, smallest, "partition count"))

    def _skip_usual_partitions(self, left: int) -> int:
        """Skips those that are complete and contain one batch of magic 2. Returns how many are left."""
        buf, pos, end, tags, work_left = self._buf, self._pos, self._end, int(self._compact), self.work_left
        while left and work_left > 0 and end - pos >= _PARTITION_LOOK:
            if tags:
                size, batch = _read_size(buf, pos + _INDEX)
            else:
                size, batch = _int32(buf, pos + _INDEX)[0], pos + _INDEX + 4
            after = batch + size
            if size < _BATCH_HEADER or after + tags > end or (tags and buf[after]):
                break
            batch_size, magic, attributes, producer_id, count = _batch_header(buf, batch)
            if magic != 2 or batch_size + _BEFORE_SIZE != size:
                break
            self._record_bytes += size
            self._messages += _claimed(count, attributes, size)
            if producer_id >= 0:
                self._producer_ids.add(producer_id)
            pos = after + tags
            left -= 1
            work_left -= 1
        self._pos = pos
        self.work_left = work_left
        return left

    def _walk_partition(self) -> Steps:
        self.work_left -= 1
        yield from self._skip(_INDEX, "partition index")
        size = yield from self._bytes_size(self._compact, "records")
        if size > self._limit - self._pos:
            raise TruncatedFrame("records", self._offset())
        if size > 0:
            self._record_bytes += size
            yield from self._walk_records(size)
        if self._compact:
            yield from self._skip_tags()

    def _walk_records(self, left: int) -> Steps:
        """The next `left` bytes, which the frame has."""
        while left >= _UP_TO_ATTRIBUTES:
            if self._end - self._pos < _UP_TO_ATTRIBUTES:
                yield from self._need(_UP_TO_ATTRIBUTES, "batch")
            offset, size, magic, attributes = _batch_start(self._buf, self._pos)
            size += _BEFORE_SIZE
            if size > left:
                break
            if magic == 2 and size >= _BATCH_HEADER:
                if self._end - self._pos < _BATCH_HEADER:
                    yield from self._need(_BATCH_HEADER, "batch header")
                self._add_batch(size)
            elif magic in (0, 1) and size >= _BEFORE_SIZE + _SET_ENTRY_MIN:
                self._messages += _wrapped(offset, size) if attributes & _CODEC else 1
            else:
                break
            left -= size
            if size <= self._end - self._pos:
                self._pos += size
            else:
                yield from self._skip(size, "batch")
            self.work_left -= 1
            if self.work_left <= 0 and self._pos < self._end:
                yield
        yield from self._skip(left, "records")

    def _add_batch(self, size: int) -> None:
        """What the header of the batch at the current position contains."""
        _, _, attributes, producer_id, count = _batch_header(self._buf, self._pos)
        self._messages += _claimed(count, attributes, size)
        if producer_id >= 0:
            self._producer_ids.add(producer_id)
