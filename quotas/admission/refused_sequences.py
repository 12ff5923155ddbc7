"""The batches of idempotent producers that were refused, by partition: which of the following ones may pass.

A batch has the sequence number of its first record; the numbers of a (producer id, epoch, partition) are consecutive
and wrap around from 2^31 - 1 to 0. A broker that knows the producer accepts no batch but the next one, or one that it
has; but a broker that does not know it accepts any. So after a batch was refused, later ones are refused until it has
come back, whether their limit is in debt or not; then until the next one has come back, and so on up to the last one
that was refused. Earlier ones, which are sent again, are not refused.

A refused batch is counted once, however often it comes back. An entry is dropped when its last batch has passed, for a
newer epoch, and when the batch that has to pass next was refused an hour ago: later batches that are sent again do not
prolong it, so a batch with a made-up sequence does not stop a producer for good. Responses of the broker end it no
sooner: no later batch is forwarded, and those that were forwarded before the refusal are few. The state is for all
connections, since a producer may reconnect. It is bounded, and so is the part of each client: see `has_room`.
"""

from collections import Counter
from collections.abc import Hashable
from enum import Enum
from typing import Final, TypeAlias

MAX_ENTRIES: Final = 20_000
"""Partitions of producers with a refused batch. An entry takes some 400 bytes."""
MAX_OF_CLIENT: Final = MAX_ENTRIES // 4
"""Of these, the partitions of one client."""
EXPIRY_NS: Final = 3_600_000_000_000

SEQUENCES: Final = 1 << 31
"""Sequence numbers are modulo this (`DefaultRecordBatch.incrementSequence`)."""


Client: TypeAlias = tuple[str, str]
"""User and client id."""

Producer: TypeAlias = tuple[Client, int]
"""A client and one of its producer ids: these can be guessed, and one client must not stop another."""

ClientTopic: TypeAlias = tuple[Client, str]

ProducerPartition: TypeAlias = tuple[Producer, tuple[str, int]]
"""A producer, and a partition of a topic."""


class Arrival(Enum):
    """How a batch stands to those that were refused.

    FREE     none of them is of its partition, or it is the one that has to pass next: its limits decide
    LATER    it follows that one: it must be refused
    EARLIER  it precedes them: it is not refused
    """

    FREE = "free"
    LATER = "later"
    EARLIER = "earlier"


class _Entry:
    """next_up: the sequence that has to pass before any later one; last: the last one that was refused."""

    __slots__ = ("epoch", "last", "next_up", "since_ns")

    def __init__(self, epoch: int, sequence: int, now_ns: int) -> None:
        self.epoch = epoch
        self.next_up = sequence
        self.last = sequence
        #: When `next_up` was refused, or the one before it has come back and passed.
        self.since_ns = now_ns


class RefusedSequences:
    """The refused sequences of all partitions; each producer has its own. Sequences are 0 or more; `now_ns` is a
    monotonic time in nanoseconds. `most`: partitions; `most_of_client`: those of one client.
    """

    __slots__ = ("_counts", "_entries", "_most", "_most_of_client")

    def __init__(self, most: int = MAX_ENTRIES, most_of_client: int = MAX_OF_CLIENT) -> None:
        self._most: Final = most
        self._most_of_client: Final = most_of_client
        #: In the order of `since_ns`.
        self._entries: dict[ProducerPartition, _Entry] = {}
        #: Entries of each client, of each producer, and of each client and topic.
        self._counts: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def has_refused(self, who: Client | Producer | ClientTopic) -> bool:
        """Whether there are refused batches of a client, of a producer, or of a client for a topic."""
        return who in self._counts

    def arrival(self, partition: ProducerPartition, epoch: int, sequence: int, now_ns: int) -> Arrival:
        """How this batch stands to the refused ones."""
        entry = self._entry(partition, now_ns)
        if entry is None or epoch > entry.epoch:
            return Arrival.FREE
        if epoch < entry.epoch:
            return Arrival.EARLIER
        if sequence == entry.next_up:
            return Arrival.FREE
        return Arrival.LATER if _follows(sequence, entry.next_up) else Arrival.EARLIER

    def refused_for_ns(self, partition: ProducerPartition, now_ns: int) -> int:
        """For how long all batches of this partition have been refused."""
        entry = self._entry(partition, now_ns)
        return 0 if entry is None else now_ns - entry.since_ns

    def has_room(self, partition: ProducerPartition, now_ns: int) -> bool:
        """Whether a batch of this partition can be refused."""
        self.expire(now_ns)
        client = partition[0][0]
        is_full = len(self._entries) >= self._most or self._counts[client] >= self._most_of_client
        return partition in self._entries or not is_full

    def refuse(self, partition: ProducerPartition, epoch: int, sequence: int, now_ns: int) -> bool:
        """This batch is refused, and there is room. Returns whether this is its first time. An `EARLIER` one of the
        present epoch, which is refused with others of its request, has to pass next.
        """
        entry = self._entry(partition, now_ns)
        if entry is not None and epoch < entry.epoch:
            return False
        if entry is not None and epoch == entry.epoch and _follows(entry.next_up, sequence):
            entry.next_up = sequence
            return False
        if entry is None or epoch != entry.epoch:
            if partition in self._entries:
                self._remove(partition)
            self._add(partition, _Entry(epoch, sequence, now_ns))
            return True
        is_first_time = _follows(sequence, entry.last)
        if is_first_time:
            entry.last = sequence
        return is_first_time

    def passed(self, partition: ProducerPartition, epoch: int, sequence: int, next_sequence: int, now_ns: int) -> None:
        """This batch, which is not `LATER`, passes; `next_sequence` is that of the batch after it."""
        entry = self._entries.get(partition)
        if entry is None or epoch < entry.epoch or (epoch == entry.epoch and sequence != entry.next_up):
            return
        self._remove(partition)
        if epoch == entry.epoch and not _follows(next_sequence, entry.last):
            entry.next_up, entry.since_ns = next_sequence, now_ns
            self._add(partition, entry)

    def _entry(self, partition: ProducerPartition, now_ns: int) -> _Entry | None:
        """The entry of a partition, unless it is due to be dropped."""
        entry = self._entries.get(partition)
        return None if entry is None or now_ns - entry.since_ns >= EXPIRY_NS else entry

    def _add(self, partition: ProducerPartition, entry: _Entry) -> None:
        self._entries[partition] = entry
        self._counts.update(_counted(partition))

    def _remove(self, partition: ProducerPartition) -> _Entry:
        counts = self._counts
        for key in _counted(partition):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        return self._entries.pop(partition)

    def expire(self, now_ns: int) -> None:
        """Drop the entries that are due: O(these)."""
        while self._entries:
            partition, entry = next(iter(self._entries.items()))
            if now_ns - entry.since_ns < EXPIRY_NS:
                return
            self._remove(partition)


def _counted(partition: ProducerPartition) -> tuple[Hashable, ...]:
    producer, (topic, _) = partition
    client = producer[0]
    return client, producer, (client, topic)


def _follows(sequence: int, other: int) -> bool:
    """Whether a sequence is later than another one, which is less than half of all sequences away."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2
