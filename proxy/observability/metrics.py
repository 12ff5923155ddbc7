"""What the proxy counts.

The hot path increments plain integers (`Cell.value`, `EntityMetrics.produce_bytes`); `exposition` turns them into
Prometheus families at a scrape. The number of entities is bounded: after `max_metric_entities` clients, further ones
are counted as `other`, and the log reports that once. `labels` bounds the names themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol
from weakref import WeakValueDictionary

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from protocol.errors import ProtocolError
from proxy.config.config import Config
from proxy.observability import logs
from proxy.observability.labels import label_value
from proxy.observability.tallies import WINDOW_SLOT_NS, Cell, EntityMetrics, Histogram
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS

OTHER: Final = "other"

THROTTLE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

ENTITY_IDLE_NS: Final = 3_600_000_000_000
"""An entity that counted nothing for an hour is forgotten, as Kafka's own quota sensors are."""

MAX_REQUEST_CELLS: Final = 4096

# Each reason has a series from the start, so that a rate over it exists before its first event. Reasons come from the
# code, never from the wire, so new ones are not bounded.
PAUSE_REASONS: Final = (
    "connecting",
    "quota",
    "write_backpressure",
    "memory",
    "response_memory",
    "in_flight",
    "turn",
    "drain",
    "end_of_stream",
)
REJECTION_REASONS: Final = ("max_connections", CONNECTIONS, CONNECTION_CREATION_RATE)
ACCEPT_ERROR_REASONS: Final = ("descriptors_exhausted", "no_memory", "aborted", "other")
UPSTREAM_ERROR_REASONS: Final = (
    "connect_refused",
    "connect_timeout",
    "connect_failed",
    "name_resolution",
    "connection_reset",
    "closed_early",
    "closed_mid_frame",
)


class LimitInUse(Protocol):
    """The part of a `quotas.admission.limit.Limit` that the metrics read."""

    @property
    def name(self) -> str: ...
    @property
    def entity(self) -> object: ...
    @property
    def rate(self) -> float: ...
    def debt_ns(self, now_ns: int, /) -> int: ...


class Metrics:
    """All that this process counts.

    Sessions call `request_cell` and `entity` once and keep the result. The server keeps the plain attributes up to
    date (`connections`, `buffered_bytes`, `memory_paused`, `paused`, `dropped_frames`, `stalled_closed`), sets the
    callables `in_flight`, `limits_in_use` and `produced`, and calls `tick` at least once a second.
    """

    def __init__(self, config: Config, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self.max_entities = config.observability.max_metric_entities
        self.event_loop = config.event_loop
        self._logger = logging.getLogger("proxy.observability.metrics")

        self.requests: dict[tuple[str, str], Cell] = {}
        self._entities: dict[tuple[str, str], EntityMetrics] = {}
        # Expired, but a session still has and increments them.
        self._dormant: WeakValueDictionary[tuple[str, str], EntityMetrics] = WeakValueDictionary()
        self._other: EntityMetrics | None = None
        self._other_announced: set[str] = set()
        self._slot = clock_ns() // WINDOW_SLOT_NS

        self.protocol_errors = dict.fromkeys([*_reasons_below(ProtocolError), "defect"], 0)
        self.upstream_errors = dict.fromkeys(UPSTREAM_ERROR_REASONS, 0)
        self.rejected = dict.fromkeys(REJECTION_REASONS, 0)
        self.accept_errors = dict.fromkeys(ACCEPT_ERROR_REASONS, 0)
        self.lag = Histogram(LAG_BUCKETS)
        self.reload_ok = True

        self.dropped_frames = 0
        self.connections: int = 0
        self.buffered_bytes: int = 0
        self.memory_paused: bool = False
        self.stalled_closed: int = 0
        self.paused: dict[str, int] = dict.fromkeys(PAUSE_REASONS, 0)
        self.in_flight: Callable[[], int] = lambda: 0
        self.limits_in_use: Callable[[], Iterable[LimitInUse]] = tuple
        #: One-minute rates where a total threshold asks for them: unit, outcome, units per second.
        self.produced: Callable[[], Iterable[tuple[str, str, float]]] = tuple

        # No collector is in the library's global registry: two proxies in one process (tests) share nothing.
        self.process_collectors: list[Collector] = [
            ProcessCollector(registry=None),
            PlatformCollector(registry=None),
            GCCollector(registry=CollectorRegistry()),
        ]
        self.process_metrics_failed = False

    # What the server and the sessions call

    def request_cell(self, api_name: str, api_version: int) -> Cell:
        """The counter of requests of one API and version."""
        key = (api_name, str(api_version))
        cell = self.requests.get(key)
        if cell is None:
            if len(self.requests) >= MAX_REQUEST_CELLS:  # only with APIs that the table does not know
                key = (OTHER, OTHER)
            cell = self.requests.setdefault(key, Cell())
        return cell

    def entity(self, user: str, client_id: str) -> EntityMetrics:
        """The counters of (user, client id), or the shared ones of `other` when there are too many entities."""
        key = (user, client_id)
        found = self._entities.get(key)
        if found is not None:
            return found
        label_key = (label_value(user), label_value(client_id))
        if label_key != key:
            return self.entity(*label_key)
        found = self._dormant.get(key)
        if key == (OTHER, OTHER):  # a client of that name has the series of `other`
            return self._shared_other()
        if len(self._entities) + len(self._dormant) - (found is not None) >= self.max_entities:
            if found is not None:
                return found
            self.announce_other("clients")
            return self._shared_other()
        if found is None:
            found = EntityMetrics(user, client_id, self.clock_ns())
        else:
            del self._dormant[key]
        self._entities[key] = found
        return found

    def _shared_other(self) -> EntityMetrics:
        if self._other is None:
            self._other = EntityMetrics(OTHER, OTHER, self.clock_ns())
        return self._other

    def throttled(self, limit_name: str, user: str, client_id: str, mode: str, seconds: float, now_ns: int) -> None:
        """One request of the client was throttled for `seconds` by a limit of that name."""
        entity = self.entity(user, client_id)
        histogram = entity.throttles.get((limit_name, mode))
        if histogram is None:
            histogram = entity.throttles[limit_name, mode] = Histogram(THROTTLE_BUCKETS)
        histogram.observe(seconds)
        entity.window.record(seconds, now_ns // WINDOW_SLOT_NS, entity.requests)

    def protocol_error(self, reason: str) -> None:
        _count(self.protocol_errors, reason)

    def upstream_error(self, reason: str) -> None:
        _count(self.upstream_errors, reason)

    def connection_rejected(self, reason: str) -> None:
        _count(self.rejected, reason)

    def accept_error(self, reason: str) -> None:
        _count(self.accept_errors, reason)

    def loop_lag(self, seconds: float) -> None:
        """Count a timer of the event loop that fired `seconds` late."""
        self.lag.observe(max(0.0, seconds))

    def config_reloaded(self, *, ok: bool) -> None:
        """The quotas file changed and was applied as a whole (ok), or refused as a whole."""
        self.reload_ok = ok

    def tick(self, now_ns: int) -> None:
        """Slide the throttle windows; cheap unless a slot of 3 s has just ended."""
        slot = now_ns // WINDOW_SLOT_NS
        if slot != self._slot:
            self._slot = slot
            for entity in self.entities():
                entity.window.roll(slot, entity.requests)

    def expire(self, now_ns: int) -> None:
        """Forget entities that counted nothing for an hour.

        An entity that a session still has is shown until the session drops it.
        """
        for key, entity in list(self._entities.items()):
            if entity.idle_ns(now_ns) >= ENTITY_IDLE_NS:
                del self._entities[key]
                self._dormant[key] = entity

    def entities(self) -> Iterator[EntityMetrics]:
        """All that a scrape shows: entities in use, expired ones that a session still has, and `other`."""
        yield from self._entities.values()
        yield from self._dormant.values()
        if self._other is not None:
            yield self._other

    def announce_other(self, what: str) -> None:
        """Log once that there are more `what` (clients, limits) than `max_metric_entities`."""
        if what not in self._other_announced:
            self._other_announced.add(what)
            logs.event(
                self._logger,
                logging.WARNING,
                "metric_entities_exhausted",
                what=what,
                max_metric_entities=self.max_entities,
                effect="further ones are counted as 'other'; raise --max-metric-entities to show them one by one",
            )


def _reasons_below(error: type[ProtocolError]) -> list[str]:
    """The reasons of all errors of that tree, without its root, which is never raised itself."""
    reasons = []
    for child in error.__subclasses__():
        reasons += [child.reason, *_reasons_below(child)]
    return reasons


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
