"""The batches of idempotent producers that were refused, by partition: which of the following ones may pass.

A batch has the sequence number of its first record; the numbers of a (producer id, epoch, partition) are consecutive
and wrap around from 2^31 - 1 to 0. A broker that knows the producer accepts no batch but the next one, or one that it
has; but a broker that does not know it accepts any. So after a batch was refused, later ones are refused until it has
come back, whether their limit is in debt or not; then until the next one has come back, and so on up to the last one
that was refused. Earlier ones, which are sent again, are not refused.

A refused batch is counted once, however often it comes back. An entry is dropped when its last batch has passed, for a
newer epoch, and an hour after its last use. The state is for all connections, since a producer may reconnect. It is
bounded: see `has_room`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Final, TypeAlias

MAX_ENTRIES: Final = 20_000
"""Partitions of producers with a refused batch. An entry takes some 400 bytes."""
EXPIRY_NS: Final = 3_600_000_000_000

SEQUENCES: Final = 1 << 31
"""Sequence numbers are modulo this (`DefaultRecordBatch.incrementSequence`)."""


ProducerPartition: TypeAlias = "tuple[Hashable, Hashable]"
"""A producer and one of its partitions."""


class Arrival(Enum):
    """How a batch stands to those that were refused.

    FREE     none of them concerns it, or it is the one that has to pass next: its limits decide
    LATER    it follows that one: it must be refused
    EARLIER  it precedes them: it is not refused
    """

    FREE = "free"
    LATER = "later"
    EARLIER = "earlier"


class _Entry:
    """next_up: the sequence that has to pass before any later one; last: the last one that was refused."""

    __slots__ = ("epoch", "last", "next_up", "since_ns", "used_ns")

    def __init__(self, epoch: int, sequence: int, now_ns: int) -> None:
        self.epoch = epoch
        self.next_up = sequence
        self.last = sequence
        #: Since when `next_up` is refused.
        self.since_ns = now_ns
        self.used_ns = now_ns


class RefusedSequences:
    """See the module. A partition is one of a producer. Sequences are 0 or more; `now_ns` is a monotonic time in
    nanoseconds.
    """

    __slots__ = ("_counts", "_entries", "_most")

    def __init__(self, most: int = MAX_ENTRIES) -> None:
        self._most: Final = most
        #: The one that was used last comes last.
        self._entries: dict[ProducerPartition, _Entry] = {}
        #: Entries of each producer.
        self._counts: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def concerns(self, producer: Hashable) -> bool:
        """Whether there are refused batches of this producer."""
        return producer in self._counts

    def arrival(self, partition: ProducerPartition, epoch: int, sequence: int, now_ns: int) -> Arrival:
        """How this batch stands to the refused ones."""
        entry = self._entries.get(partition)
        if entry is None or epoch > entry.epoch or now_ns - entry.used_ns >= EXPIRY_NS:
            return Arrival.FREE
        if epoch < entry.epoch:
            return Arrival.EARLIER
        if sequence == entry.next_up:
            return Arrival.FREE
        return Arrival.LATER if _follows(sequence, entry.next_up) else Arrival.EARLIER

    def refused_for_ns(self, partition: ProducerPartition, now_ns: int) -> int:
        """For how long all batches of this partition have been refused."""
        entry = self._entries.get(partition)
        return 0 if entry is None else now_ns - entry.since_ns

    def has_room(self, partitions: Iterable[ProducerPartition], now_ns: int) -> bool:
        """Whether batches of all these partitions can be refused."""
        self._expire(now_ns)
        new = sum(each not in self._entries for each in partitions)
        return len(self._entries) + new <= self._most

    def refuse(self, partition: ProducerPartition, epoch: int, sequence: int, now_ns: int) -> bool:
        """This batch is refused: it is `FREE` or `LATER`, and there is room. Returns whether this is its first time."""
        entry = self._remove(partition) if partition in self._entries else None
        if entry is None or epoch != entry.epoch or now_ns - entry.used_ns >= EXPIRY_NS:
            self._add(partition, _Entry(epoch, sequence, now_ns))
            return True
        self._add(partition, entry)
        entry.used_ns = now_ns
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
            entry.next_up, entry.since_ns, entry.used_ns = next_sequence, now_ns, now_ns
            self._add(partition, entry)

    def _add(self, partition: ProducerPartition, entry: _Entry) -> None:
        self._entries[partition] = entry
        self._counts[partition[0]] += 1

    def _remove(self, partition: ProducerPartition) -> _Entry:
        producer = partition[0]
        self._counts[producer] -= 1
        if not self._counts[producer]:
            del self._counts[producer]
        return self._entries.pop(partition)

    def _expire(self, now_ns: int) -> None:
        """Drop the entries that are due: O(these)."""
        while self._entries:
            partition, entry = next(iter(self._entries.items()))
            if now_ns - entry.used_ns < EXPIRY_NS:
                return
            self._remove(partition)


def _follows(sequence: int, other: int) -> bool:
    """Whether a sequence is later than another one, which is less than half of all sequences away."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2
