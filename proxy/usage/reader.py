"""Reads the counters of clients and limits, and adds what is new in them to series.

The hot path increments `EntityMetrics` for /metrics already; a reading subtracts the counts of the one before. So usage
records cost a frame nothing, and their totals are those of /metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from proxy.observability.entities import Entities
from proxy.observability.labels import label_value
from proxy.observability.tallies import EntityMetrics
from proxy.observability.throttle_tallies import ThrottleTally
from proxy.usage.client_ids import Labels, identity_of
from proxy.usage.series import FETCH, PRODUCE, SERIES_IDLE_MS, Counts, Key, SeriesTable, ThrottleKey, UsageKey
from quotas.admission.limit import Limit

READ_AT_ONCE: Final = 200
"""Clients, topics and limits of one step: about 1 ms."""


class _Direction:
    """The counts of one direction of one client at the latest reading.

    who      its user, and client id and labels as in records
    topics   bytes and messages by topic; None: not counted so
    """

    __slots__ = ("bytes", "name", "requests", "topics", "who")

    def __init__(self, who: tuple[str, str, Labels], name: str) -> None:
        self.who = who
        self.name = name
        self.bytes = 0
        self.requests = 0
        self.topics: dict[str, tuple[int, int]] | None = None


class Reader:
    """Callers take all steps of `read` before they start another one.

    `is_in_use`: whether a limit was not replaced, forgotten or removed.
    """

    def __init__(
        self, entities: Entities, table: SeriesTable, stamped: Labels, is_in_use: Callable[[Limit], bool]
    ) -> None:
        self._entities = entities
        self._table = table
        self._stamped = stamped
        self._is_in_use = is_in_use
        self._since_ms = self._now_ms = 0
        self._clients: dict[EntityMetrics, tuple[_Direction, _Direction]] = {}
        self._tallies: dict[ThrottleTally, tuple[Counts, int]] = {}  # the counts, and when they changed last

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
                del self._clients[entity]
            yield
        for number, tally in enumerate(self._entities.throttle_tallies or ()):
            self._read_tally(tally)
            if number % READ_AT_ONCE == READ_AT_ONCE - 1:
                yield

    # ---- clients

    def _read_client(self, entity: EntityMetrics) -> int:
        """Add what is new of one client. Returns the number of counters that were read."""
        known = self._clients.get(entity)
        if known is None:
            who = entity.user, *identity_of(entity.client_id, self._stamped)
            known = self._clients[entity] = _Direction(who, PRODUCE), _Direction(who, FETCH)
        topics = () if entity.topics is None else entity.topics.items()
        by_topic = [(name, each.produce_bytes, each.produce_messages) for name, each in topics]
        self._read_direction(known[0], entity.produce_bytes, entity.produce_requests, by_topic)
        by_topic = [(name, each.fetch_bytes, 0) for name, each in topics]
        self._read_direction(known[1], entity.fetch_bytes, entity.fetch_requests, by_topic)
        return 1 + len(topics)

    def _read_direction(
        self, direction: _Direction, size: int, requests: int, by_topic: list[tuple[str, int, int]]
    ) -> None:
        """Add what is new of one direction: all of it, and its split by topic."""
        if size != direction.bytes or requests != direction.requests:
            new = size - direction.bytes, requests - direction.requests, 0
            direction.bytes, direction.requests = size, requests
            self._add(UsageKey(*direction.who, None, direction.name), new)
        if by_topic:
            self._add_topics(direction, by_topic)

    def _add_topics(self, direction: _Direction, by_topic: list[tuple[str, int, int]]) -> None:
        """Add what is new of each topic. A topic without room for a series is in the total only."""
        before = direction.topics
        if before is None:
            before = direction.topics = {}
        for topic, size, messages in by_topic:
            old_size, old_messages = before.get(topic, (0, 0))
            if size != old_size or messages != old_messages:
                before[topic] = size, messages
                key = UsageKey(*direction.who, label_value(topic), direction.name)
                if self._table.has_room_for(key):
                    self._add(key, (size - old_size, 0, messages - old_messages))

    def _add(self, key: Key, counts: Counts) -> None:
        self._table.add(key, counts, self._since_ms, self._now_ms)

    # ---- limits

    def _read_tally(self, tally: ThrottleTally) -> None:
        counts = (tally.throttled_ns, tally.delayed_bytes, tally.refused_bytes, tally.would_have_bytes)
        now_ms = self._now_ms
        before, changed_ms = self._tallies.setdefault(tally, ((0, 0, 0, 0), now_ms))
        name, labels = identity_of(tally.client_id, self._stamped)
        key = ThrottleKey(tally.user, name, labels, tally.limit_name, tally.entity)
        if counts != before:
            self._tallies[tally] = counts, now_ms
            self._add(key, tuple(map(int.__sub__, counts, before)))
        elif now_ms - changed_ms >= SERIES_IDLE_MS:
            del self._tallies[tally]
            tallies = self._entities.throttle_tallies
            if tallies is not None:
                tallies.remove(tally)
            return
        limit = tally.limit
        if limit is not None:
            tally.limit_value = limit.rate if self._is_in_use(limit) else None
        self._table.set_limit_value(key, tally.limit_value)
