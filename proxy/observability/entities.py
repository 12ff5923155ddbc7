"""The counters of each (user, client id), bounded in number.

After `max_entities` clients, further ones are counted as `other`, and the log reports that once. `labels` bounds the
names themselves.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final
from weakref import WeakValueDictionary

from proxy.observability import logs
from proxy.observability.labels import label_value
from proxy.observability.tallies import WINDOW_SLOT_NS, EntityMetrics, Histogram
from proxy.observability.topic_traffic import SeriesCount, TrafficByTopic

OTHER: Final = "other"

THROTTLE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

ENTITY_IDLE_NS: Final = 3_600_000_000_000
"""An entity that counted nothing for an hour is forgotten, as Kafka's own quota sensors are."""

_log = logging.getLogger(__name__)


class Entities:
    """Sessions call `of` once and keep the result; `tick` is called at least once a second.

    Iterating yields all that a scrape shows: entities in use, expired ones that a session still has, and `other`.
    """

    def __init__(self, max_entities: int, clock_ns: Callable[[], int], *, by_topic: bool = False) -> None:
        self.max_entities = max_entities
        self._clock_ns = clock_ns
        #: Of topics; None: nothing is counted by topic.
        self._series = SeriesCount() if by_topic else None
        self._known: dict[tuple[str, str], EntityMetrics] = {}
        # Expired, but a session still has and increments them.
        self._dormant: WeakValueDictionary[tuple[str, str], EntityMetrics] = WeakValueDictionary()
        self._other: EntityMetrics | None = None
        self._announced: set[str] = set()
        #: Throttled requests and connections of all clients, by reason (see `proxy.enforcement.report`).
        self.throttle_reasons: Counter[str] = Counter()
        self._slot = clock_ns() // WINDOW_SLOT_NS

    def of(self, user: str, client_id: str) -> EntityMetrics:
        """The counters of (user, client id), or the shared ones of `other` when there are too many entities."""
        key = (user, client_id)
        found = self._known.get(key)
        if found is not None:
            return found
        label_key = (label_value(user), label_value(client_id))
        if label_key != key:
            return self.of(*label_key)
        found = self._dormant.get(key)
        if key == (OTHER, OTHER):  # a client of that name has the series of `other`
            return self._shared_other()
        if len(self._known) + len(self._dormant) - (found is not None) >= self.max_entities:
            if found is not None:
                return found
            self.announce_other("clients")
            return self._shared_other()
        if found is None:
            found = self._new(user, client_id)
        else:
            del self._dormant[key]
        self._known[key] = found
        return found

    def _shared_other(self) -> EntityMetrics:
        if self._other is None:
            self._other = self._new(OTHER, OTHER)
        return self._other

    def _new(self, user: str, client_id: str) -> EntityMetrics:
        topics = None if self._series is None else TrafficByTopic(self._series)
        return EntityMetrics(user, client_id, self._clock_ns(), topics)

    def throttled(self, limit_name: str, user: str, client_id: str, mode: str, seconds: float, now_ns: int) -> None:
        """One request of the client was throttled for `seconds` by a limit of that name."""
        entity = self.of(user, client_id)
        histogram = entity.throttles.get((limit_name, mode))
        if histogram is None:
            histogram = entity.throttles[limit_name, mode] = Histogram(THROTTLE_BUCKETS)
        histogram.observe(seconds)
        entity.window.record(seconds, now_ns // WINDOW_SLOT_NS, entity.requests)

    def tick(self, now_ns: int) -> None:
        """Slide the throttle windows; cheap unless a slot of 3 s has just ended."""
        slot = now_ns // WINDOW_SLOT_NS
        if slot != self._slot:
            self._slot = slot
            for entity in self:
                entity.window.roll(slot, entity.requests)

    def expire(self, now_ns: int) -> None:
        """Forget entities that counted nothing for an hour.

        An entity that a session still has is shown until the session drops it.
        """
        for key, entity in list(self._known.items()):
            if entity.idle_ns(now_ns) >= ENTITY_IDLE_NS:
                del self._known[key]
                self._dormant[key] = entity
        if self._series is not None:
            self._series.value = sum(len(entity.topics) for entity in self if entity.topics is not None)

    def __iter__(self) -> Iterator[EntityMetrics]:
        yield from self._known.values()
        yield from self._dormant.values()
        if self._other is not None:
            yield self._other

    def announce_other(self, what: str) -> None:
        """Log once that there are more `what` (clients, limits) than `max_metric_entities`."""
        if what not in self._announced:
            self._announced.add(what)
            logs.event(
                _log,
                logging.WARNING,
                "metric_entities_exhausted",
                what=what,
                max_metric_entities=self.max_entities,
                effect="further ones are counted as 'other'; raise --max-metric-entities to show them one by one",
            )
