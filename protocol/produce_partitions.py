"""The partitions of a Produce request, found while it streams by: what limits with `action=reject` decide about.

For the layout see `produce_walk`.
"""

from struct import Struct
from typing import Final, NamedTuple, final

from protocol.errors import ProtocolError
from protocol.produce_walk import ProduceRequestWalk
from protocol.topics import Topic
from protocol.walk import Steps

MAX_PARTITIONS: Final = 10_000
"""Partitions of one request. What is kept of each takes some 200 bytes."""
TRANSACTIONAL: Final = 0b1_0000
"""Of the attributes of a batch."""
CONTROL: Final = 0b10_0000
"""Of the attributes: the batch is the marker of a transaction's end."""
SEQUENCES: Final = 1 << 31
"""Sequence numbers are modulo this (`DefaultRecordBatch.incrementSequence`)."""

_unpack_batch = Struct(">21xhi16xqhi").unpack_from
"""Attributes, last offset delta, producer id, producer epoch, base sequence."""


class TooManyPartitions(ProtocolError):
    """A Produce request with more than `MAX_PARTITIONS` partitions."""

    reason = "too_many_partitions"

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"a Produce request with more than {MAX_PARTITIONS} partitions, of a producer with limits that reject",
            offset,
        )


class PartitionData(NamedTuple):
    """What a request contains for one partition.

    record_bytes   length of the records on the wire
    messages       as the header of the batch claims; 0 where the records are not one batch of magic 2, which brokers
                   refuse from version 3 on
    producer_id    -1: none
    epoch, sequence, next_sequence
                   of an idempotent producer's batch, with the sequence after its last record; all are -1 otherwise,
                   also for transactions
    """

    topic: Topic
    partition: int
    record_bytes: int
    messages: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    next_sequence: int = -1


@final
class _Listing:
    """The partitions that were found. The one that is read is open until its batch has been found."""

    __slots__ = ("count", "found", "index", "open_topic", "record_bytes")

    def __init__(self) -> None:
        self.found: list[PartitionData] = []
        self.count = 0
        self.open_topic: Topic | None = None
        self.index = 0
        self.record_bytes = 0

    def close(self) -> None:
        """The open partition is over: its records are not one batch."""
        if self.open_topic is not None:
            self.found.append(PartitionData(self.open_topic, self.index, self.record_bytes, 0))
            self.open_topic = None


@final
class ProducePartitionsWalk(ProduceRequestWalk):
    """Reports each partition, besides the usage of each topic, as soon as the header of its batch has arrived."""

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        super().__init__(version, frame_length, body_start)
        self._listing = _Listing()

    def take_partitions(self) -> list[PartitionData]:
        """Those that were found since the last call, in the order of the request."""
        listing = self._listing
        if self.is_over:
            listing.close()
        found, listing.found = listing.found, []
        return found

    def _skip_usual_partitions(self, left: int) -> int:
        return left

    def _begin_partition(self, index: int) -> None:
        listing = self._listing
        listing.close()
        listing.count += 1
        if listing.count > MAX_PARTITIONS:
            raise TooManyPartitions(self._offset())
        listing.open_topic, listing.index, listing.record_bytes = self.topic, index, 0

    def _walk_records(self, left: int) -> Steps:
        self._listing.record_bytes = left
        yield from super()._walk_records(left)

    def _read_batch(self, size: int) -> int:
        messages = super()._read_batch(size)
        listing = self._listing
        topic = listing.open_topic
        if topic is not None and size == listing.record_bytes:
            listing.open_topic = None
            attributes, delta, producer_id, epoch, sequence = _unpack_batch(self._buf, self._pos)
            data = PartitionData(topic, listing.index, size, messages, max(-1, producer_id))
            if min(producer_id, epoch, sequence) >= 0 and not attributes & (TRANSACTIONAL | CONTROL):
                data = data._replace(epoch=epoch, sequence=sequence, next_sequence=(sequence + delta + 1) % SEQUENCES)
            listing.found.append(data)
        return messages
