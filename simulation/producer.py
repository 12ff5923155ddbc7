"""A model producer, with the timeouts and retries of real ones.

It obeys throttle times and has 5 requests in flight, like Java's; or ignores them and has many, like librdkafka's up to
2.x; idempotent, transactional or neither; with acknowledgements or without.
"""

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from simulation import kafka
from simulation.client import RETRY_SECONDS, TRANSACTION, Client, Place, Values
from simulation.cluster import BATCH_BYTES, PLAIN, TRANSACTIONAL, Batch
from simulation.kafka import BAD_STATE, DUPLICATE, NONE, NOT_COORDINATOR, OLD_EPOCH, STORAGE
from simulation.kernel import SECOND
from simulation.link import Link

DELIVERY_NS: Final = 120 * SECOND
RETRY_NS: Final = int(RETRY_SECONDS * SECOND)
TRANSACTION_SECONDS: Final = 1.0
"""How long a transaction takes new records."""
COMMITTED: Final = 0.7


@dataclass(eq=False)
class Pending:
    """A batch on its way: of `size` bytes, since `made_ns`."""

    place: Place
    batch: Batch
    size: int
    made_ns: int


@dataclass
class Shape:
    """What a producer wants to send, and how. `rate`: bytes per second, of batches of `batch_bytes`, `records` each.

    seconds   for how long it makes records
    busy_seconds, period_seconds
              in each period it makes records for so long, and then rests, as a job does between two triggers
    """

    rate: float
    batch_bytes: int = 16_384
    records: int = 10
    acks: int = 1
    in_flight: int = 5
    request_bytes: int = 1_048_576
    buffer_bytes: int = 33_554_432
    version: int = 7
    is_idempotent: bool = False
    is_transactional: bool = False
    seconds: float = math.inf
    busy_seconds: float = 1.0
    period_seconds: float = 1.0

    @property
    def mean_rate(self) -> float:
        return self.rate * self.busy_seconds / self.period_seconds

    def made(self, seconds: float) -> float:
        """The bytes that it wants to send in its first seconds."""
        seconds = min(seconds, self.seconds)
        if self.busy_seconds == self.period_seconds:
            return self.rate * seconds
        periods, rest = divmod(seconds, self.period_seconds)
        return self.rate * (periods * self.busy_seconds + min(rest, self.busy_seconds))

    def pause(self, seconds: float) -> float:
        """After this time, how long until it makes the next records."""
        at = seconds % self.period_seconds
        rest = self.period_seconds - at if at > self.busy_seconds else self.batch_bytes / self.rate
        return max(0.05, rest)


class Producer(Client):
    """`first`: the number of its first record. What it counts is records.

    made, acked, expired   acked: numbers of the first record of each batch that the broker has accepted
    committed, aborted     the same, of transactions whose end the broker has accepted
    """

    def __init__(self, *args: Any, shape: Shape, first: int, **options: Any) -> None:
        self.shape = shape
        self.first = self.made = first
        self.acked: dict[int, Batch] = {}
        self.sent: dict[int, int] = {}
        self.expired: dict[int, Batch] = {}
        self.waits_ns: list[tuple[int, int]] = []
        self.buffered = 0
        self.queues: dict[Place, deque[Pending]] = {}
        #: Producer id and epoch.
        self.identity: tuple[int, int] | None = None
        self._sequences: dict[Place, int] = {}
        self._is_asking = False
        self.transaction = f"transaction-{first}" if shape.is_transactional else None
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        #: Of the open transaction: its partitions, its batches, those that are not acknowledged, and how it ends.
        self._places: dict[Place, bool] = {}
        self._batches: list[int] = []
        self._unacked: set[int] = set()
        self._commits: bool | None = None
        self._made_bytes = 0.0
        self._turn = self._rests_ns = 0
        super().__init__(*args, **options)
        self._began_ns = self.kernel.now_ns
        if shape.is_transactional:
            self._tick(TRANSACTION_SECONDS, self._finish)
        if shape.rate:
            self._make_again()

    # ---- records

    def _make_again(self) -> None:
        if not self.is_stopped:
            self.kernel.after(self.shape.pause((self.kernel.now_ns - self._began_ns) / SECOND), self._make_again)
            self._make()

    def _make(self) -> None:
        """At the rate that is wanted, while there is room for them."""
        shape, now_ns = self.shape, self.kernel.now_ns
        due = shape.made((now_ns - self._began_ns) / SECOND)
        while self._made_bytes + shape.batch_bytes <= due and self.leaders:
            self._made_bytes += shape.batch_bytes
            if self.buffered + shape.batch_bytes > shape.buffer_bytes:
                continue  # send() blocks: it wants less for now
            places = sorted(self.leaders)
            self._turn += 1
            place = places[self._turn % len(places)]
            batch = Batch(self.made, shape.records)
            self.made += shape.records
            self.buffered += shape.batch_bytes
            size = max(BATCH_BYTES, shape.batch_bytes)
            self.queues.setdefault(place, deque()).append(Pending(place, batch, size, now_ns))
        self._expire(now_ns)
        self.work()

    def _expire(self, now_ns: int) -> None:
        for queue in self.queues.values():
            while queue and now_ns - queue[0].made_ns > DELIVERY_NS:
                self._lose(queue.popleft())

    def _lose(self, pending: Pending) -> None:
        self.expired[pending.batch.first] = pending.batch
        self.buffered -= pending.size
        if pending.batch.sequence >= 0 and pending.batch[2:4] == self.identity:
            self._restart_sequences()

    def _restart_sequences(self) -> None:
        """As Java does when a record with a sequence is given up: with a new producer id, or a new epoch, which aborts
        its transaction.
        """
        self.identity = None
        self._sequences.clear()
        for queue in self.queues.values():
            for pending in queue:
                pending.batch = Batch(pending.batch.first, pending.batch.size)
        self._end(set())  # of which it does not know whether it was committed

    # ---- transactions

    def _finish(self) -> None:
        """No more records for this transaction."""
        if self._batches and self._commits is None:
            self._commits = self.kernel.random.random() < COMMITTED
            self.work()

    def _end(self, outcome: set[int]) -> None:
        outcome.update(self._batches)
        self._places.clear()
        self._batches.clear()
        self._unacked.clear()
        self._commits = None

    def _may_send(self, place: Place) -> bool:
        """Whether the next batch of this partition may go now: only what has been sent once, while a transaction ends;
        and to partitions that the coordinator knows.
        """
        if self.transaction is None or self.queues[place][0].batch.sequence >= 0:
            return True
        return self._commits is None and self._places.setdefault(place, False)

    def _work_on_transaction(self) -> None:
        """Name partitions to the coordinator, or end the transaction."""
        new = [place for place, is_known in self._places.items() if not is_known]
        ends = self._commits is not None and not self._unacked
        link = self.coordinator(self.transaction or "", TRANSACTION) if new or ends else None
        if link is None or self._is_asking or self.identity is None:
            return
        self._is_asking = True
        head = self.transaction, *self.identity
        if ends:
            link.request(kafka.END_TXN, 1, (*head, self._commits), self._ended)
        else:
            topics: dict[str, list[int]] = {}
            for name, number in new:
                topics.setdefault(name, []).append(number)
            link.request(kafka.ADD_PARTITIONS, 1, (*head, list(topics.items())), partial(self._added, new))

    def _added(self, places: list[Place], values: Values | None) -> None:
        errors = None if values is None else {error for _, partitions in values[1] for _, error in partitions}
        if self._accepted(errors):
            self._places.update(dict.fromkeys(places, True))
            self.work()

    def _ended(self, values: Values | None) -> None:
        if self._accepted(None if values is None else {values[1]}):
            self._end(self.committed if self._commits else self.aborted)
            self.work()

    def _accepted(self, errors: set[int] | None) -> bool:
        self._is_asking = False
        if self.is_stopped or errors == {NONE}:
            return not self.is_stopped
        if errors is None or NOT_COORDINATOR in errors:
            self.lost_coordinator()
        else:
            self._restart_sequences()
        return False

    # ---- requests

    def work(self) -> None:
        shape = self.shape
        if self.kernel.now_ns < self._rests_ns:
            return  # `retry` comes later
        if shape.is_idempotent and self.identity is None:
            self._ask_for_id()
            return
        waiting = [place for place, queue in self.queues.items() if queue and self._may_send(place)]
        if self.transaction:
            self._work_on_transaction()
        for node, places in self.by_leader(waiting):
            while queues := [self.queues[each] for each in places if self.queues[each] and self._may_send(each)]:
                link = self.link(node)
                if link is None or len(link.in_flight) >= shape.in_flight:
                    break
                if not shape.acks and len(link.unsent) > shape.request_bytes:
                    break
                self._send(link, queues)

    def _ask_for_id(self) -> None:
        if self._is_asking:
            return
        link = self.coordinator(self.transaction, TRANSACTION) if self.transaction else self.any_link()
        if link is not None:
            self._is_asking = True
            link.request(kafka.INIT_PRODUCER_ID, 1, (self.transaction, 60_000), self._identified)

    def _identified(self, values: Values | None) -> None:
        if self._accepted(None if values is None else {values[1]}) and values is not None:
            _, _, *identity = values
            self.identity = tuple(identity)
            self.work()

    def _numbered(self, pending: Pending) -> Batch:
        batch = pending.batch
        if self.identity is not None and batch.sequence < 0:
            sequence = self._sequences.get(pending.place, 0)
            self._sequences[pending.place] = sequence + batch.size
            kind = TRANSACTIONAL if self.transaction else PLAIN
            pending.batch = batch = Batch(batch.first, batch.size, *self.identity, sequence, kind)
            if self.transaction:
                self._batches.append(batch.first)
                self._unacked.add(batch.first)
        return batch

    def _send(self, link: Link, queues: list[deque[Pending]]) -> None:
        """One batch of each partition, up to the size of a request."""
        shape = self.shape
        chosen: list[Pending] = []
        size = 0
        for queue in queues:
            if queue and (not chosen or size + queue[0].size <= shape.request_bytes):
                size += queue[0].size
                chosen.append(queue.popleft())
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for each in chosen:
            batch = self._numbered(each)
            self.sent[batch.first] = self.sent.get(batch.first, 0) + 1
            topics.setdefault(each.place[0], []).append((each.place[1], batch.encode(each.size)))
        values = self.transaction, shape.acks, 30_000, list(topics.items())
        if not shape.acks:
            self.buffered -= size
        answered = partial(self._answered, chosen)
        link.request(kafka.PRODUCE, shape.version, values, answered, is_answered=bool(shape.acks))

    def _answered(self, chosen: list[Pending], values: Values | None) -> None:
        if values is None:
            self._again(chosen)
            return
        results, *_ = values
        errors = {(name, number): error for name, partitions in results for number, error, *_ in partitions}
        failed = []
        if STORAGE in errors.values():
            self._rests_ns = self.kernel.now_ns + RETRY_NS
        if not {OLD_EPOCH, BAD_STATE}.isdisjoint(errors.values()) and chosen[0].batch[2:4] == self.identity:
            self._restart_sequences()
        for each in chosen:
            if errors[each.place] in {NONE, DUPLICATE}:
                self.buffered -= each.size
                self.acked[each.batch.first] = each.batch
                self._unacked.discard(each.batch.first)
                self.waits_ns.append((self.kernel.now_ns, self.kernel.now_ns - each.made_ns))
            else:
                failed.append(each)
        if failed:
            self._again(failed)

    def _again(self, failed: list[Pending]) -> None:
        """Behind nothing: an older sequence goes first."""
        for each in failed:
            if each.batch.sequence >= 0 and each.batch[2:4] != self.identity:
                self._lose(each)  # of a producer id that was given up: sending it again might write it twice
                continue
            self.queues.setdefault(each.place, deque()).append(each)
        for place in {each.place: None for each in failed}:
            self.queues[place] = deque(sorted(self.queues[place], key=lambda pending: pending.batch.first))
        if not self.is_stopped:
            self.retry()
