"""What a Produce request puts into which topic: bytes, messages, producer ids, found while the request streams by.

The body, after the request's header:

    transactional id nullable string (3+), acks int16, timeout int32,
    topics array: name string (0-12) or topic id (13), partitions array:
        index int32, records nullable bytes, tag buffer (9+)
      tag buffer (9+)
    tag buffer (9+)

Records are batches (magic 2) or, from clients of before Kafka 0.11, entries of a message set (magic 0 and 1). A batch
tells its messages and its producer id in its own header, whatever its compression. An entry is one message, unless it
is compressed and wraps others: see `_wrapped`. Magic and version are not held against each other; brokers do that.

Records that are no batches are no error here: brokers answer them with one of their own, or pass over a last batch that
is cut short (`ByteBufferLogInputStream`). Their bytes are counted, for they went over the wire, and no message.
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
    """What one topic got. The same topic may be told of several times: these are increments."""

    topic: Topic
    record_bytes: int
    """Length of the records, as they are on the wire: compressed, with the headers of their batches."""
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
    """Messages of a batch of `size` bytes whose header says `count`, which may be any number.

    Brokers refuse a batch with a wrong count, so the bound is never met by what is kept. Without it one small frame
    could spend a topic's messages of a year.
    """
    payload = size - _BATCH_HEADER
    most = payload * _MOST_PER_BYTE if attributes & _CODEC else payload // _SMALLEST_RECORD
    if 0 <= count <= most:
        return count
    return most if count > 0 else 0


def _wrapped(offset: int, size: int) -> int:
    """Messages in a compressed entry of `size` bytes: what its offset claims, without unpacking it.

    Kafka's own client numbers the messages inside from 0 and gives the wrapper the last one's number (KIP-31). Brokers
    do not ask for it, and aiokafka and kafka-python leave it 0: then it counts as one message. It never counts as more
    messages than it has bytes. That concerns versions 0 to 2 of Produce alone, which Kafka 4 refuses (KIP-896).
    """
    return max(1, min(offset + 1, size))


def _read_size(buf: bytearray, pos: int) -> tuple[int, int]:
    """Of records in a flexible version: their size and where they begin. The next four bytes are there.

    The size is 0 or less where a longer way must be taken: null or empty records, more than three bytes of length.
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
    """The short way for most requests: one topic, one partition and one batch of magic 2, whole in `buf[pos:end]`.

    Args:
        pos: where the body begins: `RequestHeader.body_offset` bytes behind the start of the frame.
        end: where the frame ends.

    Returns:
        `None` when the body is anything else, or nothing that can be read: a `ProduceRequestWalk` finds out.
    """
    if end - pos < _SMALLEST_USUAL:
        return None
    if version >= FIRST_FLEXIBLE:
        size = buf[pos]  # of the transactional id, plus one; 0 when there is none
        name = pos + (size or 1) + _ACKS_AND_TIMEOUT + 1
        if size >= 0x80 or name >= end or buf[name - 1] != 2:
            return None
        if version >= FIRST_WITH_TOPIC_IDS:
            behind = name + TOPIC_ID_SIZE
        else:
            behind = name + buf[name]
            name += 1
        records = behind + 1 + _INDEX
        if behind - name > 0x7E or records + 1 + _BATCH_HEADER + 3 > end or buf[behind] != 2:
            return None
        size, batch = _read_size(buf, records)
        if batch + size + 3 != end or buf[end - 1] or buf[end - 2] or buf[end - 3]:  # three times no tags
            return None
    else:
        if version >= FIRST_WITH_TRANSACTIONAL_ID:
            size = _int16(buf, pos)[0]
            pos += 2 + (size if size > 0 else 0)
            if size < -1 or pos + _SMALLEST_USUAL - 2 > end:
                return None
        topics, size = _plain_start(buf, pos)
        name = pos + _ACKS_AND_TIMEOUT + 4 + 2
        behind = name + size
        batch = behind + 4 + _INDEX + 4
        if topics != 1 or size < 0 or batch + _BATCH_HEADER > end:
            return None
        partitions, size = _plain_partition(buf, behind)
        if partitions != 1 or batch + size != end:
            return None
    if size < _BATCH_HEADER:
        return None
    batch_size, magic, attributes, producer_id, count = _batch_header(buf, batch)
    if magic != 2 or batch_size + _BEFORE_SIZE != size:
        return None
    count = _claimed(count, attributes, size)
    topic = bytes(buf[name:behind])
    if version >= FIRST_WITH_TOPIC_IDS:
        return TopicUsage(topic, size, count, (producer_id,) if producer_id >= 0 else ())
    try:
        return TopicUsage(topic.decode(), size, count, (producer_id,) if producer_id >= 0 else ())
    except UnicodeDecodeError:
        return None


class ProduceRequestWalk(FrameWalk):
    """Walks the body of a Produce request. It changes no byte, and what it tells of lies before what it has seen.

    A topic's bytes are told of when the length of its records has been seen, messages and producer ids when the header
    of their batch has: before what they stand for has come. So what is known of a frame that has begun to arrive can be
    taken and decided upon, and what comes to be known later can be taken then.
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

        It grows with the batches that are seen: take it after each `advance`.
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
            partitions = self._read_usual_topic()
            if partitions < 0:
                partitions = yield from self._read_topic()
            while partitions:
                partitions = self._pass_usual_partitions(partitions)
                if self.work_left <= 0 and self._pos < self._end:
                    yield
                elif partitions:
                    yield from self._walk_partition()
                    partitions -= 1
            self._close_topic()
            if compact:
                if self._pos < self._end and not self._buf[self._pos]:
                    self._pos += 1
                else:
                    yield from self._skip_tags()
            self.work_left -= 1
            if self.work_left <= 0 and self._pos < self._end:
                yield
        if compact:
            yield from self._skip_tags()

    def _read_usual_topic(self) -> int:
        """The topic and the number of its partitions, if they came whole and are short. Else -1: nothing was read."""
        if not self._compact or self._end - self._pos < _TOPIC_LOOK:
            return -1
        buf, at = self._buf, self._pos
        if self._by_id:
            behind = at + TOPIC_ID_SIZE
        else:
            behind = at + buf[at]
            at += 1
        if not 0 <= behind - at <= 0x7E or not 0 < buf[behind] < 0x80:
            return -1
        partitions = buf[behind] - 1
        if partitions * _SMALLEST_COMPACT_PARTITION > self._limit - behind - 1:
            return -1
        topic = bytes(buf[at:behind])
        try:
            self._topic = topic if self._by_id else topic.decode()
        except UnicodeDecodeError:
            return -1
        self._pos = behind + 1
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

    def _pass_usual_partitions(self, left: int) -> int:
        """Passes those that came whole and hold one batch of magic 2. Returns how many are left."""
        buf, pos, end, tags, work_left = self._buf, self._pos, self._end, int(self._compact), self.work_left
        while left and work_left > 0 and end - pos >= _PARTITION_LOOK:
            if tags:
                size, batch = _read_size(buf, pos + _INDEX)
            else:
                size, batch = _int32(buf, pos + _INDEX)[0], pos + _INDEX + 4
            behind = batch + size
            if size < _BATCH_HEADER or behind + tags > end or (tags and buf[behind]):
                break
            batch_size, magic, attributes, producer_id, count = _batch_header(buf, batch)
            if magic != 2 or batch_size + _BEFORE_SIZE != size:
                break
            self._record_bytes += size
            self._messages += _claimed(count, attributes, size)
            if producer_id >= 0:
                self._producer_ids.add(producer_id)
            pos = behind + tags
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
        """Over `left` bytes, all of which the frame has."""
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
                _, _, attributes, producer_id, count = _batch_header(self._buf, self._pos)
                self._messages += _claimed(count, attributes, size)
                if producer_id >= 0:
                    self._producer_ids.add(producer_id)
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
