"""What the brokers of a cluster have in common: topics and their logs, leaders, producers and transactions."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from simulation.kafka import BAD_STATE, DUPLICATE, NONE, OLD_EPOCH, OUT_OF_ORDER
from simulation.kernel import SECOND

_batch: Final = Struct(">qiibIhiqqqhii")
_payload: Final = Struct(">QI")
BATCH_BYTES: Final = _batch.size + _payload.size
"""A batch without padding."""
PLAIN, TRANSACTIONAL, MARKER = 0, 0x10, 0x30
"""Attributes of batches: a marker ends a transaction."""
TRANSACTION_NS: Final = 60 * SECOND
"""A transaction that takes longer is aborted."""
Place = tuple[str, int]


class Batch(NamedTuple):
    """Records `first` to `first + size - 1`, by the number that their client gave to each."""

    first: int
    size: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    kind: int = PLAIN

    def encode(self, size: int, base_offset: int = 0) -> bytes:
        """A record batch of format 2 of `size` bytes; its records are numbers and padding, which no proxy reads."""
        head = _batch.pack(
            base_offset, size - 12, 0, 2, 0, self.kind, self.size - 1, 0, 0,
            self.producer_id, self.epoch, self.sequence, self.size,
        )  # fmt: skip
        return (head + _payload.pack(self.first, self.size)).ljust(size, b"\0")


def batches_of(records: bytes) -> Iterator[tuple[Batch, int, int]]:
    """Those of a message, with the base offset and the size of each."""
    at = 0
    while at < len(records):
        base, length, _, _, _, kind, _, _, _, producer_id, epoch, sequence, _ = _batch.unpack_from(records, at)
        first, count = _payload.unpack_from(records, at + _batch.size)
        yield Batch(first, count, producer_id, epoch, sequence, kind), base, length + 12
        at += length + 12


@dataclass
class Partition:
    """Its log, and what it remembers of producers.

    producers   the last batch of each, with its offset
    open        where the transaction of each begins, as long as it is open
    ended       of each that has ended: its producer, whether it was committed, its first offset, and its marker's
    """

    leader: int
    log: list[tuple[int, Batch, int]] = field(default_factory=list)
    end: int = 0
    producers: dict[int, tuple[Batch, int]] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    ended: list[tuple[int, bool, int, int]] = field(default_factory=list)

    def append(self, batch: Batch, size: int) -> tuple[int, int]:
        """Error code and base offset. A sequence is appended once, and none before the one that precedes it."""
        last = self.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
        if last is not None and batch.epoch < last[0].epoch:
            return OLD_EPOCH, -1
        if last is not None and last[0].epoch == batch.epoch:
            before, offset = last
            if batch.sequence == before.sequence and batch.size == before.size:
                return NONE, offset
            if batch.sequence <= before.sequence:
                return DUPLICATE, -1
            if batch.sequence != before.sequence + before.size:
                return OUT_OF_ORDER, -1
        elif batch.producer_id >= 0 and batch.sequence:
            return OUT_OF_ORDER, -1
        if batch.kind == TRANSACTIONAL and batch.producer_id not in self.open:
            return BAD_STATE, -1
        offset = self._write(batch, size)
        if batch.producer_id >= 0:
            self.producers[batch.producer_id] = batch, offset
        return NONE, offset

    def _write(self, batch: Batch, size: int) -> int:
        offset = self.end
        self.log.append((offset, batch, size))
        self.end += batch.size
        return offset

    def mark(self, producer_id: int, epoch: int, *, commits: bool) -> None:
        """The end of a transaction. An epoch that is new keeps out what comes late of the old one."""
        offset = self._write(Batch(0, 1, producer_id, epoch, -1, MARKER), BATCH_BYTES)
        self.ended.append((producer_id, commits, self.open.pop(producer_id), offset))
        last = self.producers.get(producer_id)
        if last is None or last[0].epoch < epoch:
            self.producers[producer_id] = Batch(0, 1, producer_id, epoch), offset

    @property
    def stable(self) -> int:
        """The offset up to which each transaction has ended."""
        return min(self.open.values(), default=self.end)

    def aborted(self, since: int, until: int) -> list[tuple[int, int]]:
        """Producers and first offsets of the transactions with records among these offsets."""
        return [
            (each, first) for each, commits, first, end in self.ended if not commits and first < until and end >= since
        ]

    def read(self, offset: int, most_bytes: int, end: int) -> list[tuple[int, Batch, int]]:
        """Batches from this offset, at least one if there is one before `end`."""
        if offset >= end:
            return []
        first = bisect_right(self.log, offset, key=lambda each: each[0] + each[1].size)
        found: list[tuple[int, Batch, int]] = []
        size = 0
        for each in self.log[first:]:
            if (found and size + each[2] > most_bytes) or each[0] >= end:
                break
            found.append(each)
            size += each[2]
        return found


@dataclass
class Transaction:
    """A transactional id. `places`: partitions of the open transaction; `commits`: how the latest one ended."""

    producer_id: int
    epoch: int
    places: dict[Place, None] = field(default_factory=dict)
    since_ns: int = 0
    commits: bool | None = None


class Cluster:
    """`topics`: the partitions of each. `addresses`: where each living broker is, by its id.

    quotas   by name of a client id: of DescribeClientQuotas
    """

    def __init__(self, topics: dict[str, int], brokers: int) -> None:
        self.topics = {name: [Partition(n % brokers) for n in range(count)] for name, count in topics.items()}
        self.addresses: dict[int, tuple[str, int]] = {}
        self.quotas: dict[str, dict[str, float]] = {}
        self.transactions: dict[str, Transaction] = {}
        self._producer_ids = 0

    def described_quotas(self) -> list[object]:
        """As DescribeClientQuotas has them."""
        return [([("client-id", name)], list(limits.items())) for name, limits in self.quotas.items()]

    def partition(self, topic: str, number: int) -> Partition | None:
        partitions = self.topics.get(topic, [])
        return partitions[number] if 0 <= number < len(partitions) else None

    def coordinator(self, key: str) -> int:
        """Of a group or a transaction."""
        living = sorted(self.addresses)
        return living[sum(key.encode()) % len(living)] if living else -1

    def move_leaders(self, from_broker: int) -> None:
        """To the others, one after the other."""
        others = sorted(each for each in self.addresses if each != from_broker)
        moved = [p for partitions in self.topics.values() for p in partitions if p.leader == from_broker]
        for n, partition in enumerate(moved if others else []):
            partition.leader = others[n % len(others)]

    # ---- producers and transactions

    def new_producer(self, name: str | None) -> tuple[int, int]:
        """Producer id and epoch. An open transaction of that name is aborted."""
        found = self.transactions.get(name or "")
        if found is None:
            self._producer_ids += 1
            found = Transaction(self._producer_ids, 0)
            if name:
                self.transactions[name] = found
        else:
            self._fence(found)
        return found.producer_id, found.epoch

    def _fence(self, transaction: Transaction) -> None:
        transaction.epoch += 1
        self._mark(transaction, commits=False)
        transaction.commits = None

    def _mark(self, transaction: Transaction, *, commits: bool) -> None:
        for topic, number in transaction.places:
            self.topics[topic][number].mark(transaction.producer_id, transaction.epoch, commits=commits)
        transaction.places.clear()
        transaction.commits = commits

    def add_places(self, name: str, epoch: int, places: Iterable[Place], now_ns: int) -> int:
        """Error code."""
        found = self.transactions[name]
        if epoch != found.epoch:
            return OLD_EPOCH
        if not found.places:
            found.since_ns, found.commits = now_ns, None
        for place in places:
            found.places[place] = None
            partition = self.topics[place[0]][place[1]]
            partition.open.setdefault(found.producer_id, partition.end)
        return NONE

    def end_transaction(self, name: str, epoch: int, *, commits: bool) -> int:
        """Error code. To end it twice in one way is no error."""
        found = self.transactions[name]
        if epoch != found.epoch:
            return OLD_EPOCH
        if not found.places:
            return NONE if found.commits == commits else BAD_STATE
        self._mark(found, commits=commits)
        return NONE

    def abort_late(self, now_ns: int) -> None:
        for each in self.transactions.values():
            if each.places and now_ns - each.since_ns > TRANSACTION_NS:
                self._fence(each)
