"""The batches of idempotent producers that were refused on one connection, and which of the following ones may pass.

A batch has the sequence number of its first record. The numbers of a (producer id, epoch, partition) are consecutive,
and wrap around from 2^31 - 1 to 0. A broker that knows the producer accepts only the next batch, or one that it has
already, but a broker that does not know the producer accepts any. So after a batch has been refused, later ones are
refused until it has come back, whether or not their limit is in debt; then until the next one has come back, and so on
up to the last one that was refused. If an earlier batch is refused after that, it must pass first.

Clients send refused batches again in order, even on a new connection, so they are forgotten with the connection.
"""

from typing import Final, TypeAlias

from protocol.topics import Topic

SEQUENCES: Final = 1 << 31
"""Sequence numbers are modulo this (`DefaultRecordBatch.incrementSequence`)."""

Producer: TypeAlias = tuple[int, int]
"""Producer id and epoch."""

Partition: TypeAlias = tuple[Topic, int]
"""Topic, by its name or its id as the request has it, and index."""


class _Entry:
    """next_up: the sequence that must pass before any later one; last: the last one that was refused."""

    __slots__ = ("last", "next_up", "producer", "since_ns")

    def __init__(self, producer: Producer, sequence: int, now_ns: int) -> None:
        self.producer = producer
        self.next_up = sequence
        self.last = sequence
        #: When the first batch was refused, or when the batch before `next_up` passed.
        self.since_ns = now_ns


class RefusedSequences:
    """The refused sequences of each partition, for its latest producer. `now_ns` is a monotonic time in nanoseconds.

    entries      the partitions with a refused batch that has not passed, each of about 300 bytes
    error        the error code of the latest one
    storage_ns   when the disk guard refused a request last
    """

    __slots__ = ("entries", "error", "storage_ns")

    def __init__(self) -> None:
        self.entries: Final[dict[Partition, _Entry]] = {}
        self.error = self.storage_ns = 0

    def is_later(self, partition: Partition, producer: Producer, sequence: int) -> bool:
        """Whether this batch follows one that must pass first."""
        entry = self.entries.get(partition)
        return entry is not None and producer == entry.producer and _follows(sequence, entry.next_up)

    def refused_for_ns(self, partition: Partition, now_ns: int) -> int:
        """How long all batches of this partition have been refused."""
        entry = self.entries.get(partition)
        return 0 if entry is None else now_ns - entry.since_ns

    def refuse(self, partition: Partition, producer: Producer, sequence: int, now_ns: int) -> bool:
        """Refuse this batch. Returns whether it is later than all refused before, so that each counts once."""
        entry = self.entries.get(partition)
        if entry is None or producer != entry.producer:
            self.entries[partition] = _Entry(producer, sequence, now_ns)
            return True
        if _follows(entry.next_up, sequence):
            entry.next_up = sequence
        is_new = _follows(sequence, entry.last)
        if is_new:
            entry.last = sequence
        return is_new

    def passed(self, partition: Partition, producer: Producer, sequence: int, next_sequence: int, now_ns: int) -> None:
        """Record that this batch passes, which is not later. `next_sequence`: that of the batch after it."""
        entry = self.entries.get(partition)
        if entry is None or (producer == entry.producer and sequence != entry.next_up):
            return
        if producer == entry.producer and not _follows(next_sequence, entry.last):
            entry.next_up, entry.since_ns = next_sequence, now_ns
        else:
            del self.entries[partition]


def _follows(sequence: int, other: int) -> bool:
    """Whether a sequence is later than another one, from which it is less than half of all sequences away."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2
