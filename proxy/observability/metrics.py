"""What the proxy counts.

The hot path increments plain integers (`Cell.value`, `EntityMetrics.produce_bytes`); `exposition` turns them
into Prometheus families only when someone scrapes. Label values that come from the wire are bounded: beyond
`max_metric_entities` clients, the rest is counted as `other`, and the log says so once.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from protocol.errors import ProtocolError
from proxy.observability import logs
from proxy.observability.tallies import WINDOW_SLOT_NS, Cell, EntityMetrics, Histogram
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from proxy.config.config import Config

OTHER: Final = "other"

THROTTLE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

ENTITY_IDLE_NS: Final = 3_600_000_000_000
"""An entity that counted nothing for an hour makes room for others, as Kafka's own quota sensors do."""

MAX_REQUEST_CELLS: Final = 4096
MAX_LABEL_CHARS: Final = 256

# Known from the start, so that a rate over each of them exists before its first event. New reasons may be added freely:
# they come from the code, never from the wire.
PAUSE_REASONS: Final = (
    "connecting",
    "quota",
    "write_backpressure",
    "memory",
    "in_flight",
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
    "closed_mid_frame",
)


class LimitInUse(Protocol):
    """What the metrics need to know of a `quotas.admission.limit.Limit`."""

    @property
    def name(self) -> str: ...
    @property
    def entity(self) -> object: ...
    @property
    def rate(self) -> float: ...
    def debt_ns(self, now_ns: int, /) -> int: ...


class Metrics:
    """All that this process counts.

    Sessions use `request_cell` and `entity` once and keep what they get. The server keeps the plain attributes up to
    date (`connections`, `buffered_bytes`, `paused`, `dropped_frames`), sets the callables `in_flight` and
    `limits_in_use`, and calls `tick` at least once a second.
    """

    def __init__(self, config: Config, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self.max_entities = config.max_metric_entities
        self.event_loop = config.event_loop
        self._logger = logging.getLogger("proxy.observability.metrics")

        self.requests: dict[tuple[str, str], Cell] = {}
        self._entities: dict[tuple[str, str], EntityMetrics] = {}
        # Forgotten here, but a session still holds and increments them.
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
        self.paused: dict[str, int] = dict.fromkeys(PAUSE_REASONS, 0)
        self.in_flight: Callable[[], int] = lambda: 0
        self.limits_in_use: Callable[[], Iterable[LimitInUse]] = tuple
        #: One-minute rates where a total threshold asks for them: unit, outcome, units per second.
        self.produced: Callable[[], Iterable[tuple[str, str, float]]] = tuple

        # Not the library's global registry: two proxies in one process (tests) must not share anything.
        self.process_registry = CollectorRegistry()
        ProcessCollector(registry=self.process_registry)
        PlatformCollector(registry=self.process_registry)
        GCCollector(registry=self.process_registry)

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
        if key == (OTHER, OTHER):  # a client of that very name must not become a second series with the same labels
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
        """How much later than asked for a timer of the loop fired."""
        self.lag.observe(max(0.0, seconds))

    def config_reloaded(self, *, ok: bool) -> None:
        """The quotas file changed and was taken over whole (ok), or refused whole."""
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

        One that a session still holds goes on being shown until the session lets go of it.
        """
        for key, entity in list(self._entities.items()):
            if entity.idle_ns(now_ns) >= ENTITY_IDLE_NS:
                del self._entities[key]
                self._dormant[key] = entity

    def entities(self) -> Iterator[EntityMetrics]:
        """All that are shown: those in use, those that a session still holds, and `other`."""
        yield from self._entities.values()
        yield from self._dormant.values()
        if self._other is not None:
            yield self._other

    def announce_other(self, what: str) -> None:
        """Say once that there are more `what` (clients, limits) than the metrics tell apart."""
        if what not in self._other_announced:
            self._other_announced.add(what)
            logs.event(
                self._logger,
                logging.WARNING,
                "metric_entities_exhausted",
                what=what,
                max_metric_entities=self.max_entities,
                effect="further ones are counted as 'other'; raise --max-metric-entities to tell them apart",
            )


def label_value(name: str) -> str:
    """A name from the wire as a label value: encodable, and of bounded length."""
    if len(name) > MAX_LABEL_CHARS:
        name = f"{name[: MAX_LABEL_CHARS - 1]}…"
    return name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")


def _reasons_below(error: type[ProtocolError]) -> list[str]:
    """The reasons of all errors of that tree, without its root, which is never raised itself."""
    reasons = []
    for child in error.__subclasses__():
        reasons += [child.reason, *_reasons_below(child)]
    return reasons


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
