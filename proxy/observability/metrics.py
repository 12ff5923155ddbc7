"""What the proxy counts.

The hot path increments plain integers (`Cell.value`, `EntityMetrics.produce_bytes`); `proxy.admin.exposition` turns
them into Prometheus families at a scrape.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from protocol.errors import ProtocolError
from proxy.observability.client_reports import ClientReports
from proxy.observability.entities import Entities
from proxy.observability.labels import OTHER
from proxy.observability.tallies import Cell, Histogram
from quotas.admission.limit import Limit
from quotas.entity import AnyEntity
from quotas.limit_kinds import CONNECTION_CREATION_RATE, CONNECTIONS
from quotas.problems import Problem

Clock: TypeAlias = Callable[[], int]
"""Returns monotonic nanoseconds."""
LAG_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

MAX_REQUEST_CELLS: Final = 4096

# Each reason has a series from the start, so that a rate over it exists before its first event. Reasons come from the
# code, never from the wire, so new ones are not bounded.
#: In the order of the bits in `proxy.sessions.pump_set`.
PAUSE_REASONS: Final = (
    "connecting",
    "quota",
    "write_backpressure",
    "memory",
    "in_flight",
    "end_of_stream",
    "turn",
    "response_memory",
    "delay",
    "login",
)
PROXY_HEADER_TIMEOUT: Final = "proxy_header_timeout"
REJECTION_REASONS: Final = ("max_connections", CONNECTIONS, CONNECTION_CREATION_RATE, PROXY_HEADER_TIMEOUT)
CLOSING_REASONS: Final = ("stalled", "handshake_timeout", "max_idle", "max_age")
STALLED, HANDSHAKE_TIMEOUT, MAX_IDLE, MAX_AGE = CLOSING_REASONS
USAGE_ERROR_REASONS: Final = (
    "unreachable",
    "timeout",
    "broker_error",
    "authentication",
    "authorization",
    "topic_missing",
    "topic_compacted",
    "file",
    "defect",
)
DISK_STATES: Final = ("starting", "open", "slowing", "full")
"""Of the disk guard."""
ACCEPT_ERROR_REASONS: Final = ("descriptors_exhausted", "no_memory", "aborted", "other")


@dataclass(slots=True)
class ConnectionMetrics:
    """Connections and the memory that they hold. The server, the pumps and the sweep keep these up to date."""

    open: int = 0
    rejected: Counter[str] = field(default_factory=lambda: _zeros(REJECTION_REASONS))
    paused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PAUSE_REASONS, 0))
    in_flight: Callable[[], int] = lambda: 0
    buffered_bytes: int = 0
    memory_used_ratio: float = 0.0
    memory_paused: bool = False
    closed: Counter[str] = field(default_factory=lambda: _zeros(CLOSING_REASONS))
    dropped_frames: int = 0


@dataclass(slots=True)
class ErrorCounts:
    """Errors by reason. `proxy.brokers.health` has the reasons of `upstream`. `logins`: of clients, by brokers.

    latest   by reason, when a connection was refused last, and the fields of its log line
    """

    protocol: Counter[str] = field(default_factory=lambda: _zeros([*_reasons_below(ProtocolError), "defect"]))
    upstream: Counter[str] = field(default_factory=Counter)
    accept: Counter[str] = field(default_factory=lambda: _zeros(ACCEPT_ERROR_REASONS))
    logins: int = 0
    latest: dict[str, tuple[int, Mapping[str, object]]] = field(default_factory=dict)


@dataclass(slots=True)
class UsageMetrics:
    """Usage records. The emitter keeps these up to date.

    `pending`: records that are not written yet. `last_success_seconds`: since 1970, UTC; 0: none was written.
    """

    sent: int = 0
    lost: int = 0
    series: int = 0
    pending: int = 0
    last_success_seconds: float = 0.0
    errors: Counter[str] = field(default_factory=lambda: _zeros(USAGE_ERROR_REASONS))


class DiskFigures(NamedTuple):
    """What the disk guard knows. `disks`: broker, directory, used share, age of the reading in seconds, and by how many
    bytes per second it grows.
    """

    state: str
    factor: float
    is_stale: bool
    refused: int
    disks: Sequence[tuple[int, str, float, float, float]]


class MovingRate(NamedTuple):
    """A limit whose rate moves, in units per second.

    rate         it has now; while it is only observed, what it would have
    why          why it was lowered last, in a sentence; "" if it was not in the last minute
    state        what the last decision did
    cuts, slow_seconds
                 how often it was lowered, and in how many seconds too many responses of protected clients were slow
    """

    limit: Limit
    rate: float
    least: float
    most: float
    to: str
    is_observed: bool
    state: str
    why: str
    cuts: int
    slow_seconds: int


@dataclass(slots=True)
class Sources:
    """Figures from other objects, requested at a scrape.

    used_ratios      of limits in use: which part of each was used
    response_times   of brokers: address, Kafka's name of the requests, or `other`, and times
    disks            of the disk guard, at most so many disks; None without --disk-guard
    quotas_topic     what was read of the topic of quotas, by the end of the metric's name
    moved_brokers, hidden_brokers   how many are not at their own port of --broker-ports, and how many have none
    moving           the limits whose rates move
    configured       the entities of entries with limits; `matched`: those of them that a limit in use was of, as far as
                     scrapes saw it
    """

    used_ratios: Callable[[], Iterable[tuple[Limit, float]]] = tuple
    response_times: Callable[[], Iterable[tuple[str, str, Histogram]]] = tuple
    disks: Callable[[int], DiskFigures | None] = lambda _: None
    quotas_topic: Callable[[], Mapping[str, float]] = dict
    moved_brokers: Callable[[], int] = int
    hidden_brokers: Callable[[], int] = int
    moving: Callable[[], Iterable[MovingRate]] = tuple
    configured: Callable[[], Iterable[AnyEntity]] = tuple
    matched: set[AnyEntity] = field(default_factory=set)


class Metrics:
    """All that this process counts. `proxy.process.assemble` sets the callables `limits_in_use` and `produced`.

    The catalogue describes each. `certificates`: when they expire, in seconds since 1970, by the side
    that they are shown to. `client_telemetry`: clients may report their own metrics; the rest: see `Entities`.
    """

    def __init__(
        self,
        clock_ns: Clock = time.monotonic_ns,
        *,
        max_entities: int = 1000,
        max_tallies: int = 0,
        by_topic: bool = False,
        client_telemetry: bool = False,
        event_loop: str = "uvloop",
    ) -> None:
        self.clock_ns = clock_ns
        self.event_loop = event_loop
        self.entities = Entities(clock_ns, max_entities, max_tallies, by_topic=by_topic)
        self.client_reports = ClientReports(max_entities if client_telemetry else 0)
        self.usage = UsageMetrics()
        self.requests: dict[tuple[str, str], Cell] = {}
        self.connections = ConnectionMetrics()
        self.errors = ErrorCounts()
        self.loop_lag = Histogram(LAG_BUCKETS)
        #: Of files that are watched, by `FileWatch`, of `cluster` and of `quotas_topic`: whether they were applied when
        #: last read.
        self.reload_ok = {"config": True, "tls": True}
        #: When they were last read, and what was wrong.
        self.reloads: dict[str, dict[str, object]] = {}
        self.certificates: Mapping[str, int] = {}
        self.enforcement_enabled = True
        self.limits_in_use: Callable[[], Iterable[Limit]] = tuple
        self.sources = Sources()
        #: One-minute rates where a total threshold asks for them: unit, outcome, units per second.
        self.produced: Callable[[], Iterable[tuple[str, str, float]]] = tuple
        # No collector is in the library's global registry: two proxies in one process (tests) share nothing.
        self.process_collectors: list[Collector] = [
            ProcessCollector(registry=None),
            PlatformCollector(registry=None),
            GCCollector(registry=CollectorRegistry()),
        ]
        self.process_metrics_failed = False

    def note_reload(self, what: str, *problems: Problem) -> None:
        """It was read just now, for the metric and the page /config; with problems: it was refused."""
        self.reload_ok[what] = not problems
        at, errors = datetime.now(UTC).isoformat(timespec="seconds"), list(map(str, problems))
        self.reloads[what] = {"at": at, "ok": not problems, "errors": errors}

    def request_cell(self, api_name: str, api_version: int) -> Cell:
        """The counter of requests of one API and version. Callers keep it."""
        key = (api_name, str(api_version))
        cell = self.requests.get(key)
        if cell is None:
            if len(self.requests) >= MAX_REQUEST_CELLS:  # only with APIs that the table does not know
                key = (OTHER, OTHER)
            cell = self.requests.setdefault(key, Cell())
        return cell


def _reasons_below(error: type[ProtocolError]) -> list[str]:
    """The reasons of all errors of that tree, without its root, which is never raised itself."""
    reasons = []
    for child in error.__subclasses__():
        reasons += [child.reason, *_reasons_below(child)]
    return reasons


def _zeros(reasons: Iterable[str]) -> Counter[str]:
    return Counter(dict.fromkeys(reasons, 0))
