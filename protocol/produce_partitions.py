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
class ProducePartitionsWalk(ProduceRequestWalk):
    """Reports each partition, besides the usage of each topic, as soon as the header of its batch has arrived."""

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        super().__init__(version, frame_length, body_start)
        self._found: list[PartitionData] = []
        self._partitions = 0
        #: The partition that is read, until its batch has been found; its topic is None once it has.
        self._open_topic: Topic | None = None
        self._index = 0
        self._records = 0

    def take_partitions(self) -> list[PartitionData]:
        """Those that were found since the last call, in the order of the request."""
        if self.is_over:
            self._close_partition()
        found, self._found = self._found, []
        return found

    def _skip_usual_partitions(self, left: int) -> int:
        return left

    def _begin_partition(self, index: int) -> None:
        self._close_partition()
        self._partitions += 1
        if self._partitions > MAX_PARTITIONS:
            raise TooManyPartitions(self._offset())
        self._open_topic, self._index, self._records = self.topic, index, 0

    def _close_partition(self) -> None:
        """Its records are not one batch."""
        if self._open_topic is not None:
            self._found.append(PartitionData(self._open_topic, self._index, self._records, 0))
            self._open_topic = None

    def _walk_records(self, left: int) -> Steps:
        self._records = left
        yield from super()._walk_records(left)

    def _read_batch(self, size: int) -> int:
        messages = super()._read_batch(size)
        topic = self._open_topic
        if topic is not None and size == self._records:
            self._open_topic = None
            attributes, delta, producer_id, epoch, sequence = _unpack_batch(self._buf, self._pos)
            data = PartitionData(topic, self._index, size, messages, max(-1, producer_id))
            if min(producer_id, epoch, sequence) >= 0 and not attributes & (TRANSACTIONAL | CONTROL):
                data = data._replace(epoch=epoch, sequence=sequence, next_sequence=(sequence + delta + 1) % SEQUENCES)
            self._found.append(data)
        return messages
