"""The partitions of a Produce request, found while it streams by: what limits with `action=reject` decide about.

For the layout see `produce_walk`.
"""

from struct import Struct
from typing import Final, NamedTuple, final

from protocol.produce_walk import ProduceRequestWalk
from protocol.record_batch import CONTROL
from protocol.topics import Topic
from protocol.walk import Steps

TRANSACTIONAL: Final = 0b1_0000
"""Of the attributes of a batch."""
SEQUENCES: Final = 1 << 31
"""Sequence numbers are modulo this (`DefaultRecordBatch.incrementSequence`)."""

_unpack_batch = Struct(">21xhi16xqhi").unpack_from
"""Attributes, last offset delta, producer id, producer epoch, base sequence."""


class PartitionData(NamedTuple):
    """What a request contains for one partition.

    record_bytes   length of the records on the wire
    messages       as the header of the batch claims; 0 where the records are not one batch of magic 2, which brokers
                   refuse from version 3 on
    producer       id and epoch
    sequence, next_sequence
                   of an idempotent producer's batch, with the sequence after its last record; both are -1 otherwise,
                   also for transactions
    """

    topic: Topic
    partition: int
    record_bytes: int = 0
    messages: int = 0
    producer: tuple[int, int] = (-1, -1)
    sequence: int = -1
    next_sequence: int = -1


@final
class _Listing:
    """The partitions that were found; `is_open`: the batch of the last one may follow."""

    __slots__ = ("found", "is_open", "left")

    def __init__(self) -> None:
        self.found: list[PartitionData] = []
        self.is_open = False
        self.left = 0


@final
class ProducePartitionsWalk(ProduceRequestWalk):
    """Reports each partition, besides the usage of each topic, as soon as the header of its batch has arrived."""

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        super().__init__(version, frame_length, body_start)
        self._listing = _Listing()

    @property
    def partitions_left(self) -> int:
        """Partitions of the topic that is read: those that have not been reported, or one more."""
        return self._listing.left

    def take_partitions(self) -> list[PartitionData]:
        """Those that were found since the last call, in the order of the request."""
        listing = self._listing
        known = len(listing.found) - (listing.is_open and not self.is_over)
        found, listing.found = listing.found[:known], listing.found[known:]
        return found

    def _skip_plain_topic(self) -> bool:
        return False

    def _skip_usual_partitions(self, left: int) -> int:
        self._listing.left = left
        return left

    def _begin_partition(self, index: int) -> None:
        self._listing.found.append(PartitionData(self.topic, index))
        self._listing.is_open = True

    def _walk_records(self, left: int) -> Steps:
        self._listing.found[-1] = self._listing.found[-1]._replace(record_bytes=left)
        yield from super()._walk_records(left)

    def _read_batch(self, size: int) -> int:
        messages = super()._read_batch(size)
        listing = self._listing
        if listing.is_open and size == listing.found[-1].record_bytes:
            listing.is_open = False
            attributes, delta, producer_id, epoch, sequence = _unpack_batch(self._buf, self._pos)
            data = listing.found[-1]._replace(messages=messages)
            if min(producer_id, epoch, sequence) >= 0 and not attributes & (TRANSACTIONAL | CONTROL):
                next_sequence = (sequence + delta + 1) % SEQUENCES
                data = data._replace(producer=(producer_id, epoch), sequence=sequence, next_sequence=next_sequence)
            listing.found[-1] = data
        return messages
