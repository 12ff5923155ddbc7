"""The counters of each (user, client id), bounded in number.

After `--max-metric-entities` clients, further ones are counted as `other`, and the log reports that once. So are
throttles (a limit and a mode of a client, 16 series each) after that number. `labels` bounds the names themselves.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from proxy.observability.generated_ids import GeneratedIds
from proxy.observability.labels import OTHER, label_value
from proxy.observability.logs import EventLog
from proxy.observability.tallies import WINDOW_SLOT_NS, Cell, EntityMetrics, Histogram, ThrottleWindow
from proxy.observability.throttle_tallies import ThrottleTallies
from proxy.observability.topic_traffic import TrafficByTopic

THROTTLE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

ENTITY_IDLE_NS: Final = 3_600_000_000_000
"""An entity that counted nothing for an hour is forgotten, as Kafka's own quota sensors are."""

#: A client of that name has the series of `other`, too.
_SHARED: Final = (OTHER, OTHER)

_log = EventLog(__name__)


class Entities:
    """Sessions call `of` once, keep the result and count themselves in its `sessions`; `tick` is called at least once
    a second.

    `max_tallies`: for usage records; 0: none are written. `by_topic`: count the traffic of topics.
    """

    def __init__(self, clock_ns: Callable[[], int], max_entities: int, max_tallies: int, *, by_topic: bool) -> None:
        self.max_entities = max_entities
        self.throttle_tallies = ThrottleTallies(max_tallies) if max_tallies else None
        self.generated_ids = GeneratedIds()
        self._clock_ns = clock_ns
        #: Of topics; None: nothing is counted by topic.
        self._series = Cell() if by_topic else None
        self._known: dict[tuple[str, str], EntityMetrics] = {}
        #: The number of histograms, without those of `other`. `expire` counts them anew.
        self._throttles = 0
        self._announced: set[str] = set()
        #: Throttled requests and connections of all clients, by reason (see `proxy.enforcement.report`).
        self.throttle_reasons: Counter[str] = Counter()
        self._slot = clock_ns() // WINDOW_SLOT_NS
        self._forgotten_bytes = 0

    def of(self, user: str, client_id: str) -> EntityMetrics:
        """The counters of (user, client id), or the shared ones of `other` when there are too many entities."""
        found = self._known.get((user, client_id))
        if found is not None:
            return found
        key = (label_value(user), label_value(client_id))
        if key not in self._known and len(self._known) - (_SHARED in self._known) >= self.max_entities:
            return self._other("clients")
        return self._at(key)

    def _other(self, what: str) -> EntityMetrics:
        self.announce_other(what)
        return self._at(_SHARED)

    def _at(self, key: tuple[str, str]) -> EntityMetrics:
        found = self._known.get(key)
        if found is None:
            topics = None if self._series is None else TrafficByTopic(self._series)
            now_ns = self._clock_ns()
            found = self._known[key] = EntityMetrics(*key, ThrottleWindow(now_ns // WINDOW_SLOT_NS), now_ns, topics)
        return found

    def throttled(self, limit_name: str, user: str, client_id: str, mode: str, seconds: float, now_ns: int) -> None:
        """One request of the client was throttled for `seconds` by a limit of that name."""
        entity = self.observe(limit_name, user, client_id, mode, seconds)
        entity.window.record(seconds, now_ns // WINDOW_SLOT_NS, entity.requests)

    def observe(self, limit_name: str, user: str, client_id: str, mode: str, seconds: float) -> EntityMetrics:
        """Like `throttled`, for a connection, which is not a request and does not count in the window of requests."""
        entity = self.of(user, client_id)
        histogram = entity.throttles.get((limit_name, mode))
        if histogram is None:
            histogram = self._throttles_of(entity).setdefault((limit_name, mode), Histogram(THROTTLE_BUCKETS))
        histogram.observe(seconds)
        return entity

    def _throttles_of(self, entity: EntityMetrics) -> dict[tuple[str, str], Histogram]:
        """Where a histogram that the entity does not have yet belongs."""
        if entity is not self._known.get(_SHARED):
            if self._throttles >= self.max_entities:
                return self._other("throttles").throttles
            self._throttles += 1
        return entity.throttles

    def tick(self, now_ns: int) -> None:
        """Slide the throttle windows; cheap unless a slot of 3 s has just ended."""
        slot = now_ns // WINDOW_SLOT_NS
        if slot != self._slot:
            self._slot = slot
            for entity in self:
                entity.window.roll(slot, entity.requests)

    def expire(self, now_ns: int) -> None:
        """Forget entities that have no session and counted nothing for an hour, and such tallies."""
        for key, entity in list(self._known.items()):
            if entity.idle_ns(now_ns) >= ENTITY_IDLE_NS and not entity.sessions:
                del self._known[key]
                self._forgotten_bytes += entity.produce_bytes
        self._throttles = sum(len(entity.throttles) for key, entity in self._known.items() if key != _SHARED)
        if self.throttle_tallies is not None:
            self.throttle_tallies.expire(now_ns, ENTITY_IDLE_NS)
        if self._series is not None:
            self._series.value = sum(len(entity.topics) for entity in self if entity.topics is not None)

    def produced_bytes(self) -> int:
        """All clients together have produced so far. O(clients)."""
        return self._forgotten_bytes + sum([entity.produce_bytes for entity in self._known.values()])

    def __iter__(self) -> Iterator[EntityMetrics]:
        return iter(list(self._known.values()))

    def announce_other(self, what: str) -> None:
        """Log once that there are more `what` (clients, throttles, limits) than `max_metric_entities`."""
        if what not in self._announced:
            self._announced.add(what)
            effect = "further ones are counted as 'other'; raise --max-metric-entities to show them one by one"
            _log.warning("metric_entities_exhausted", what=what, max_metric_entities=self.max_entities, effect=effect)
