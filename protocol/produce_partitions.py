"""A whole Produce request, partition by partition: what each contains, and the request without some of them.

For the layout see `produce_walk`. Topics and partitions keep their order, and all bytes that are kept are the client's.
"""

from collections.abc import Collection, Generator
from struct import Struct
from typing import Final, NamedTuple

from protocol.apis import APIS, PRODUCE
from protocol.errors import MalformedFrame, ProtocolError, UnsupportedVersion
from protocol.produce_walk import FIRST_FLEXIBLE, FIRST_WITH_TOPIC_IDS, FIRST_WITH_TRANSACTIONAL_ID
from protocol.record_batch import BATCH_HEADER, BEFORE_SIZE, claimed_messages
from protocol.topics import LONGEST_NAME, NO_TOPIC_ID, TOPIC_ID_SIZE, Topic
from protocol.wire import MAX_STRING, encode_varint, skip, skip_tags, unsigned_varint

MAX_PARTITIONS: Final = 10_000
"""Topics, partitions and tagged fields of one request. What is kept of each takes some 200 bytes."""
TRANSACTIONAL: Final = 0b1_0000
"""Of the attributes of a batch."""
CONTROL: Final = 0b10_0000
"""Of the attributes of a batch."""
SEQUENCES: Final = 1 << 31
"""Sequence numbers are modulo this (`DefaultRecordBatch.incrementSequence`)."""

_ACKS_AND_TIMEOUT: Final = 6
_INDEX: Final = 4

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_unpack_batch = Struct(">8xi4xb4xhi16xqhii").unpack_from
"""Size, magic, attributes, last offset delta, producer id, producer epoch, base sequence, records count."""


class TooManyPartitions(ProtocolError):
    """A Produce request with more than `MAX_PARTITIONS` topics and partitions."""

    reason = "too_many_partitions"

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"a Produce request with more than {MAX_PARTITIONS} topics and partitions, for a topic with action=reject",
            offset,
        )


class PartitionData(NamedTuple):
    """What a request contains for one partition.

    topic          `NO_TOPIC_ID` for a name above `LONGEST_NAME`
    record_bytes   length of the records on the wire
    messages       as the header of the batch claims; 0 where the records are not one batch of magic 2, which brokers
                   refuse from version 3 on
    producer_id    -1: none
    epoch, sequence, next_sequence
                   of an idempotent producer's batch, with the sequence after its last record; all are -1 otherwise,
                   also for transactions
    start, end     offsets of its entry in the request
    """

    topic: Topic
    partition: int
    record_bytes: int
    messages: int
    producer_id: int
    epoch: int
    sequence: int
    next_sequence: int
    start: int
    end: int


class _TopicEntry(NamedTuple):
    """Offsets of a topic's entry in the request, and its partitions as a range of `ProduceRequest.partitions`."""

    start: int
    count_at: int
    end: int
    first: int
    after: int


class ProduceRequest:
    """One request of version 3 or later. Call `read` until it returns True; `partitions` are complete then."""

    def __init__(self, version: int, request: bytes | bytearray, body_start: int) -> None:
        """Reads nothing yet.

        Args:
            request: the whole of it, from its API key on.
            body_start: offset in it of the body: `RequestHeader.body_offset` less the four bytes of the length.

        Raises:
            UnsupportedVersion: the version is below 3, or the table does not let it pass.
        """
        api = APIS[PRODUCE]
        if not api.covers(version) or version < FIRST_WITH_TRANSACTIONAL_ID:
            raise UnsupportedVersion(api.name, version)
        self.partitions: list[PartitionData] = []
        self._compact = version >= FIRST_FLEXIBLE
        self._by_id = version >= FIRST_WITH_TOPIC_IDS
        self._request = request
        self._pos = body_start
        self._count_at = body_start
        self._topics_at = body_start
        self._topics: list[_TopicEntry] = []
        self._pieces_left = MAX_PARTITIONS
        self._work_left = 0
        self._is_transactional = False
        self._steps: Generator[None, None, None] | None = None

    def read(self, work: int) -> bool:
        """Reads on. Returns whether the request has been read to its end.

        Args:
            work: how many topics and partitions (a few microseconds each) it may take.

        Raises:
            MalformedFrame: the bytes are no such request.
            TooManyPartitions
        """
        if self._steps is None:
            self._steps = self._read()
        self._work_left = work
        for _ in self._steps:
            return False
        return True

    def without(self, removed: Collection[int]) -> bytes:
        """The request, from its API key on, without these partitions, and without topics that have none left.

        Args:
            removed: positions in `partitions`.
        """
        request = memoryview(self._request)
        parts: list[bytes | memoryview] = []
        kept_topics = 0
        for topic in self._topics:
            kept = [at for at in range(topic.first, topic.after) if at not in removed]
            if len(kept) == topic.after - topic.first:
                parts.append(request[topic.start : topic.end])
            elif kept:
                parts += (request[topic.start : topic.count_at], self._count(len(kept)))
                parts += [request[self.partitions[at].start : self.partitions[at].end] for at in kept]
                parts.append(request[self.partitions[topic.after - 1].end : topic.end])
            else:
                continue
            kept_topics += 1
        head = (request[: self._count_at], self._count(kept_topics))
        return b"".join((*head, *parts, request[self._topics_end :]))

    def _count(self, count: int) -> bytes:
        return encode_varint(count + 1) if self._compact else _INT32.pack(count)

    @property
    def _topics_end(self) -> int:
        return self._topics[-1].end if self._topics else self._topics_at

    # ---- reading

    def _read(self) -> Generator[None, None, None]:
        size = self._string_size("transactional id")
        self._is_transactional = size >= 0
        self._skip(max(0, size), "transactional id")
        self._skip(_ACKS_AND_TIMEOUT, "acks, timeout")
        self._count_at = self._pos
        topics = self._items("topic count")
        self._topics_at = self._pos
        for _ in range(topics):
            yield from self._read_topic()
        self._skip_tags()
        if self._pos != len(self._request):
            raise MalformedFrame("the end of the frame: bytes after its last field", self._pos)

    def _read_topic(self) -> Generator[None, None, None]:
        start, first = self._pos, len(self.partitions)
        topic = self._topic()
        count_at = self._pos
        for _ in range(self._items("partition count")):
            self.partitions.append(self._partition(topic))
            self._work_left -= 1
            if self._work_left <= 0:
                yield
        self._skip_tags()
        self._topics.append(_TopicEntry(start, count_at, self._pos, first, len(self.partitions)))
        self._work_left -= 1
        if self._work_left <= 0:
            yield

    def _topic(self) -> Topic:
        if self._by_id:
            at = self._skip(TOPIC_ID_SIZE, "topic id")  # before the slice: mypyc reads `_pos` there before a call
            return bytes(self._request[at : self._pos])
        size = self._string_size("topic name")
        if size < 0:
            raise MalformedFrame("topic name", self._pos)
        at = self._skip(size, "topic name")
        if size > LONGEST_NAME:
            return NO_TOPIC_ID
        try:
            return self._request[at : self._pos].decode()
        except UnicodeDecodeError:
            raise MalformedFrame("topic name as UTF-8", at) from None

    def _partition(self, topic: Topic) -> PartitionData:
        start = self._skip(_INDEX, "partition index")
        index: int = _INT32.unpack_from(self._request, start)[0]
        size = max(0, self._size(_INT32, "records"))
        records = self._skip(size, "records")
        self._skip_tags()
        messages, producer_id, numbers = 0, -1, (-1, -1, -1)
        if size >= BATCH_HEADER:
            batch_size, magic, attributes, delta, seen_id, epoch, sequence, claimed = _unpack_batch(
                self._request, records
            )
            if magic == 2 and batch_size + BEFORE_SIZE == size:
                messages, producer_id = claimed_messages(claimed, attributes, size), max(-1, seen_id)
                is_transactional = self._is_transactional or attributes & (TRANSACTIONAL | CONTROL)
                if not is_transactional and producer_id >= 0 and epoch >= 0 and sequence >= 0:
                    numbers = (epoch, sequence, (sequence + delta + 1) % SEQUENCES)
        return PartitionData(topic, index, size, messages, producer_id, *numbers, start, self._pos)

    # ---- primitives, from the current position on

    def _skip(self, size: int, what: str) -> int:
        """Skips `size` bytes, and returns where they begin."""
        at = self._pos
        self._pos = skip(at, size, len(self._request), 0, what)
        return at

    def _items(self, what: str) -> int:
        """The number of items of an array."""
        at = self._pos
        count = max(0, self._size(_INT32, what))
        self._count_pieces(count, at)
        return count

    def _skip_tags(self) -> None:
        """In flexible versions."""
        if self._compact:
            at, end = self._pos, len(self._request)
            self._count_pieces(unsigned_varint(self._request, at, end, 0, "tag count")[0], at)
            self._pos = skip_tags(self._request, at, end, 0)

    def _count_pieces(self, count: int, at: int) -> None:
        self._pieces_left -= count
        if self._pieces_left < 0:
            raise TooManyPartitions(at)

    def _string_size(self, what: str) -> int:
        size = self._size(_INT16, what)
        if size > MAX_STRING:
            raise MalformedFrame(what, self._pos)
        return size

    def _size(self, length: Struct, what: str) -> int:
        """Size of a string, bytes or an array, -1 when null. `length`: its type in versions that are not flexible."""
        end = len(self._request)
        if self._compact:
            size, self._pos = unsigned_varint(self._request, self._pos, end, 0, what)
            return size - 1
        at = self._skip(length.size, what)
        plain: int = length.unpack_from(self._request, at)[0]
        if plain < -1:
            raise MalformedFrame(what, at)
        return plain
