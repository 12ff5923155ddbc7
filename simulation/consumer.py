"""A model consumer: a member of a group that fetches from each leader, and sends heartbeats."""

from typing import Any, Final

from simulation import kafka
from simulation.client import GROUP, Client, Place, Values
from simulation.cluster import MARKER, TRANSACTIONAL, batches_of
from simulation.kafka import NONE
from simulation.link import Link

HEARTBEAT_SECONDS: Final = 3.0


class Consumer(Client):
    """positions: the next offset of each partition; `gaps`: records that it should have had.

    reads_committed   it gets no records of transactions that are open, and leaves out those that were aborted
    read              the numbers of records that an application gets, of transactions
    """

    def __init__(
        self,
        *args: Any,
        group: str = "group",
        most_bytes: int = 1_048_576,
        version: int = 11,
        reads_committed: bool = False,
        **options: Any,
    ) -> None:
        self.group, self.most_bytes, self.fetch_version = group, most_bytes, version
        self.reads_committed = reads_committed
        self.positions: dict[Place, int] = {}
        self.gaps: list[str] = []
        self.bytes = 0
        self.read: list[int] = []
        super().__init__(*args, **options)
        self._tick(HEARTBEAT_SECONDS, self._beat)

    def work(self) -> None:
        for node, places in self.by_leader(self.leaders):
            link = self.link(node)
            if link is not None and not any(each.api == kafka.FETCH for each in link.in_flight):
                self._fetch(link, places)

    def _fetch(self, link: Link, places: list[Place]) -> None:
        topics: dict[str, list[tuple[int, ...]]] = {}
        for name, number in places:
            offset = self.positions.setdefault((name, number), 0)
            topics.setdefault(name, []).append((number, -1, offset, -1, -1, 262_144))
        isolation = int(self.reads_committed)
        values: Values = -1, 500, 1, self.most_bytes, isolation, 0, -1, list(topics.items()), [], ""
        link.request(kafka.FETCH, self.fetch_version, values, self._fetched)

    def _fetched(self, values: Values | None) -> None:
        if values is None:
            return
        *_, topics = values
        is_moved = False
        for name, partitions in topics:
            for number, error, _, _, _, aborted, _, records in partitions:
                is_moved |= error != NONE
                self.take((name, number), aborted or [], records or b"")
        if is_moved and not self.is_stopped:
            self.retry()

    def take(self, place: Place, aborted: list[tuple[int, int]], records: bytes) -> None:
        """`aborted`: producers, and the first offset of each one's transaction."""
        self.bytes += len(records)
        waiting = sorted(aborted, key=lambda each: -each[1])
        left_out: set[int] = set()
        for batch, base, _ in batches_of(records):
            position = self.positions[place]
            if base > position:
                self.gaps.append(f"{place}: {position} to {base}")
            self.positions[place] = max(position, base + batch.size)
            while waiting and waiting[-1][1] <= base:
                left_out.add(waiting.pop()[0])
            if batch.kind == MARKER:
                left_out.discard(batch.producer_id)
            elif batch.kind == TRANSACTIONAL and batch.producer_id not in left_out:
                self.read.append(batch.first)

    # ---- the group

    def _beat(self) -> None:
        link = self.coordinator(self.group, GROUP)
        if link is not None:
            link.request(kafka.HEARTBEAT, 1, (self.group, 1, "member", None), self._beaten)

    def _beaten(self, values: Values | None) -> None:
        if values is None and not self.is_stopped:
            self.lost_coordinator()
