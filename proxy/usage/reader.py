"""Reads the counters of clients and limits, and adds what is new in them to series.

The hot path increments `EntityMetrics` for /metrics already; a reading subtracts the counts of the one before. So usage
records cost a frame nothing, and their totals are those of /metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proxy.observability.entities import Entities
from proxy.observability.labels import label_value
from proxy.observability.tallies import EntityMetrics
from proxy.observability.throttle_tallies import ThrottleTally
from proxy.usage.client_ids import Labels, identity_of
from proxy.usage.series import FETCH, PRODUCE, Counts, SeriesTable, ThrottleKey, UsageKey

READ_AT_ONCE: Final = 200
"""Clients, topics and limits of one step: about 1 ms."""
NOTHING: Final = (0,) * 8
NO_FACTS: Final = (0, 0, 0, 0)
NO_THROTTLES: Final = (0, 0, 0, 0)


@dataclass(slots=True)
class _Seconds:
    """The seconds of one client in one direction: its bytes when the present one began, and its largest one since the
    latest reading.
    """

    begun_at: int
    largest: int = 0

    def end(self, size: int) -> None:
        """A second has ended, or a reading is due; `size` is the number of bytes up to now."""
        self.largest = max(self.largest, size - self.begun_at)


_Known = tuple[tuple[str, str, Labels], dict[str, dict[str | None, Counts]]]
"""Of a client: its user, client id and labels, as in records, and the counts at the latest reading by direction and
topic; None: of all topics.
"""


class Reader:
    """Callers take all steps of `read` before they start another one."""

    def __init__(self, entities: Entities, table: SeriesTable) -> None:
        self._entities = entities
        self._table = table
        self._since_ms = self._now_ms = 0
        self._clients: dict[EntityMetrics, _Known] = {}
        #: In each direction: produced, fetched.
        self._seconds: dict[EntityMetrics, tuple[_Seconds, _Seconds]] = {}
        #: The counts at the latest reading, of those that have any.
        self._tallies: dict[ThrottleTally, Counts] = {}

    def end_second(self) -> Iterator[None]:
        """Note the largest seconds when a second has ended, in steps."""
        for number, entity in enumerate(self._entities, 1):
            produced, fetched = self._seconds_of(entity)
            for seconds, size in ((produced, entity.produce_bytes), (fetched, entity.fetch_bytes)):
                seconds.end(size)
                seconds.begun_at = size
            if number % READ_AT_ONCE == 0:
                yield

    def _seconds_of(self, entity: EntityMetrics) -> tuple[_Seconds, _Seconds]:
        return self._seconds.setdefault(entity, (_Seconds(0), _Seconds(0)))

    def read(self, since_ms: int, now_ms: int) -> Iterator[None]:
        """Read all counters, in steps. `since_ms`: the reading before; new series began then."""
        self._since_ms, self._now_ms = since_ms, now_ms
        live = list(self._entities)
        done = 0
        for entity in live:
            done += self._read_client(entity)
            if done >= READ_AT_ONCE:
                done = 0
                yield
        if len(self._clients) > len(live):
            for entity in self._clients.keys() - set(live):
                self._read_client(entity)
                del self._clients[entity], self._seconds[entity]
            yield
        if self._entities.throttle_tallies is not None:
            yield from self._read_tallies(list(self._entities.throttle_tallies))

    def _read_client(self, entity: EntityMetrics) -> int:
        """Add what is new of one client. Returns the number of counters that were read."""
        topics = entity.topics or {}
        facts = entity.facts
        known = facts.unanswered, facts.inspected, facts.idempotent, facts.uncompressed
        produced: dict[str | None, Counts] = {None: (entity.produce_bytes, entity.produce_requests, 0, 0, *known)}
        fetched: dict[str | None, Counts] = {None: (entity.fetch_bytes, entity.fetch_requests, 0, 0, *NO_FACTS)}
        for name, each in topics.items():
            passed = each.produce_bytes + each.refused_bytes
            produced[name] = passed, 0, each.produce_messages, each.produce_bytes, *NO_FACTS
            fetched[name] = each.fetch_bytes, 0, 0, each.fetch_bytes, *NO_FACTS
        if entity not in self._clients:
            who = entity.user, *identity_of(entity.client_id, self._table.labels)
            self._clients[entity] = who, {PRODUCE: {}, FETCH: {}}
        who, before = self._clients[entity]
        for direction, counts, seconds in zip(
            (PRODUCE, FETCH), (produced, fetched), self._seconds_of(entity), strict=True
        ):
            seconds.end(counts[None][0])
            largest, seconds.largest = seconds.largest, 0
            for topic, count in counts.items():
                old = before[direction].get(topic, NOTHING)
                # Refused records were taken back. Those of a reading before stay counted until others take their place.
                count = tuple(map(max, count, old))
                if count == old:
                    continue
                before[direction][topic] = count
                key = UsageKey(*who, topic and label_value(topic), direction)
                if topic is None or self._table.has_room_for(key):  # otherwise it is only in the total
                    series = self._table.add(key, tuple(map(int.__sub__, count, old)), self._since_ms, self._now_ms)
                    if topic is None and series.key == key:  # else it is of several clients
                        self._table.note_peak(series, largest)
        return 1 + len(topics)

    def _read_tallies(self, live: list[ThrottleTally]) -> Iterator[None]:
        gone = self._tallies.keys() - set(live)
        for number, tally in enumerate([*live, *gone], 1):
            self._read_tally(tally)
            if number % READ_AT_ONCE == 0:
                yield
        for tally in gone:
            del self._tallies[tally]

    def _read_tally(self, tally: ThrottleTally) -> None:
        """Add what is new of one tally."""
        counts = tally.counts
        old = self._tallies.get(tally, NO_THROTTLES)
        if counts == old:
            return
        self._tallies[tally] = counts
        name, labels = identity_of(tally.client_id, self._table.labels)
        key = ThrottleKey(tally.user, name, labels, tally.limit_name, tally.entity)
        series = self._table.add(key, tuple(map(int.__sub__, counts, old)), self._since_ms, self._now_ms)
        if series.key == key:  # else it is of several limits
            series.limit, series.limit_value = tally.limit, tally.limit_value
