"""`Metrics` as Prometheus families and text, built in steps of about 1 ms: the event loop runs between them.

Their names, types, labels and texts are in `proxy.observability.catalogue`.
"""

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics

from proxy.admin.http_server import VARY, Response
from proxy.fleet.fleet import Fleet
from proxy.fleet.status import REFUSED, advertised
from proxy.observability.build import BUILD
from proxy.observability.catalogue import METRICS
from proxy.observability.client_reports import REPORTED
from proxy.observability.client_times import STATES
from proxy.observability.labels import OTHER, entity_label
from proxy.observability.logs import EventLog
from proxy.observability.metrics import DISK_STATES, Metrics, UsageMetrics
from proxy.observability.output import dropped_lines
from proxy.observability.tallies import EntityMetrics, Histogram
from quotas.fleet.parameters import WHOLE

_Table = tuple[str, Iterable[tuple[Any, ...]]]
"""A family: its name in the catalogue, and rows. A row is the arguments of `add_metric`: the values of the labels, then
the value of the sample, or the buckets and the sum of a histogram.

Rows are read slice by slice, and the event loop runs in between: an iterator reads nothing that may change its size.
"""

_KINDS: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
PREFIX: Final = "kafka_quota_proxy_"
RENDERED_FOR_NS: Final = 1_000_000_000
"""How long the bytes of a rendering are served: rendering takes 10 ms for a thousand series."""
SLICE: Final = 100
"""Rows per step: the event loop runs between two steps, after about 1 ms."""
HISTOGRAM_SLICE: Final = 5
"""Histograms per step: each has about 15 lines."""
SUM_SLICE: Final = 1_000
"""Limits per step that are only added up."""

try:
    _VERSION = version("kafka-quota-proxy")  # read at import, because it opens files and descriptors are available now
except PackageNotFoundError:
    _VERSION = "unknown"

_log = EventLog(__name__)


class Format(NamedTuple):
    """How a scrape is written. `end` follows the last family."""

    content_type: str
    encode: Callable[[Any], bytes]
    end: bytes


TEXT: Final = Format(CONTENT_TYPE_PLAIN_0_0_4, generate_latest, b"")
OPENMETRICS: Final = Format(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, b"# EOF\n")


def format_of(accept: str) -> Format:
    """The first known format of an Accept header, ignoring weights; otherwise the text format. Escaping schemes make no
    difference, because no name here needs escaping.
    """
    for accepted in accept.lower().split(","):
        kind, *parameters = map(str.strip, accepted.split(";"))
        if kind == "application/openmetrics-text" and "version=0.0.1" not in parameters:  # a draft
            return OPENMETRICS
        if kind == "text/plain":
            return TEXT
    return TEXT


class MetricsPage:
    """The page `/metrics`: rendered at most once a second in each format, and scrapes meanwhile get the same bytes.

    A rendering always finishes, even if the scrape that started it has gone: a client that repeatedly connects and
    hangs up cannot keep the page from other clients.
    """

    def __init__(self, metrics: Metrics, fleet: Fleet | None = None) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._rendering: dict[Format, asyncio.Task[bytes]] = {}
        self._rendered_ns: dict[Format, int] = {}

    async def respond(self, accept: str) -> Response:
        form = format_of(accept)
        return Response(await self.body(form), form.content_type, fields=VARY)

    async def body(self, form: Format) -> bytes:
        rendering = self._rendering.get(form)
        if rendering is None or (
            rendering.done() and self._metrics.clock_ns() - self._rendered_ns[form] >= RENDERED_FOR_NS
        ):
            rendering = self._rendering[form] = asyncio.ensure_future(self._render(form))
        return await asyncio.shield(rendering)

    async def _render(self, form: Format) -> bytes:
        try:
            return await expose(self._metrics, form, self._fleet)
        finally:
            self._rendered_ns[form] = self._metrics.clock_ns()


async def expose(metrics: Metrics, form: Format = TEXT, fleet: Fleet | None = None) -> bytes:
    """All families in a format. The event loop runs between slices."""
    parts: list[bytes] = []
    previous = ""
    for family in families(metrics, fleet):
        text = form.encode(SimpleNamespace(collect=partial(iter, [family]))).removesuffix(form.end)
        if family.name == previous:  # later slices of a family have no HELP and TYPE
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
        previous = family.name
        parts.append(text)
        await asyncio.sleep(0)
    return b"".join([*parts, form.end])


def families(metrics: Metrics, fleet: Fleet | None = None) -> Iterator[Metric]:
    """Every family. A large family comes in slices, as several consecutive families with one name."""
    metrics.entities.tick(metrics.clock_ns())
    tables = [_whole_process(metrics), _clients(list(metrics.entities)), _limits(metrics), _usage(metrics.usage)]
    tables += [_times(list(metrics.entities)), _used(metrics), _brokers(metrics), _disks(metrics), _moving(metrics)]
    reports = metrics.client_reports
    if reports.most:
        tables.append((f"client_{each.family}", reports.rows(each)) for each in REPORTED)
    if fleet is not None:
        tables.append(_fleet(fleet, metrics.entities.max_entities))
    for name, rows in chain.from_iterable(tables):
        info, left = METRICS[name], iter(rows)
        size = HISTOGRAM_SLICE if info.type == "histogram" else SLICE
        while True:
            part = list(islice(left, size))
            family = _KINDS[info.type](PREFIX + name, info.text, labels=info.labels)
            for row in part:
                family.add_metric(*row)
            yield family
            if len(part) < size:
                break
    yield from _process(metrics)


def _process(metrics: Metrics) -> Iterator[Metric]:
    """The families of prometheus_client's collectors, without those of a collector that fails.

    ProcessCollector opens files in /proc, which fails when the process is out of descriptors: the scrape that would
    show this must not fail with it.
    """
    for collector in metrics.process_collectors:
        try:
            found = list(collector.collect())
        except Exception:  # noqa: BLE001 - a library's code: an error in it costs only its own families
            if not metrics.process_metrics_failed:
                _log.warning("process_metrics_left_out", exc_info=True)
            metrics.process_metrics_failed = True
        else:
            yield from found


def _single(name: str, value: float) -> _Table:
    return name, [((), value)]


def _by_label(name: str, counts: Mapping[str, float]) -> _Table:
    return name, [((value,), count) for value, count in counts.items()]


def _whole_process(metrics: Metrics) -> Iterator[_Table]:
    connections, errors = metrics.connections, metrics.errors
    yield "build_info", [((_VERSION, BUILD, platform.python_version(), metrics.event_loop), 1)]
    yield _single("connections", connections.open)
    yield _single("in_flight_requests", connections.in_flight())
    yield _single("buffered_bytes", connections.buffered_bytes)
    yield _single("memory_used_ratio", connections.memory_used_ratio)
    yield _single("memory_paused", connections.memory_paused)
    yield _single("config_last_reload_successful", metrics.reload_ok["config"])
    yield _single("certificates_last_reload_successful", metrics.reload_ok["tls"])
    if "cluster" in metrics.reload_ok:
        yield _single("cluster_quotas_last_read_successful", metrics.reload_ok["cluster"])
    if "quotas_topic" in metrics.reload_ok:
        yield _single("quotas_topic_last_read_successful", metrics.reload_ok["quotas_topic"])
        for name, value in metrics.sources.quotas_topic().items():
            yield _single(f"quotas_topic_{name}", value)
    yield _single("enforcement_enabled", metrics.enforcement_enabled)
    yield _by_label("paused_connections", connections.paused)
    yield _by_label("connections_closed", connections.closed)
    yield _by_label("connections_rejected", connections.rejected)
    yield _by_label("throttle_reasons", metrics.entities.throttle_reasons)
    yield _by_label("accept_errors", errors.accept)
    yield _by_label("upstream_errors", errors.upstream)
    yield _by_label("protocol_errors", errors.protocol)
    conflicts = {"moved": metrics.sources.moved_brokers(), "hidden": metrics.sources.hidden_brokers()}
    yield _by_label("broker_port_conflicts", conflicts)
    yield _single("client_logins_refused", errors.logins)
    yield _single("dropped_frames", connections.dropped_frames)
    yield _single("log_lines_dropped", dropped_lines())
    yield "event_loop_lag_seconds", [((), *_of(metrics.loop_lag))]
    yield "requests", [(labels, cell.value) for labels, cell in metrics.requests.items()]
    yield "produced_rate", [((unit, outcome), rate) for unit, outcome, rate in metrics.produced()]
    yield _by_label("certificate_not_after_timestamp_seconds", metrics.certificates)


def _usage(usage: UsageMetrics) -> Iterator[_Table]:
    yield _single("usage_records_sent", usage.sent)
    yield _single("usage_records_lost", usage.lost)
    yield _by_label("usage_errors", usage.errors)
    yield _single("usage_series", usage.series)
    yield _single("usage_records_pending", usage.pending)
    yield _single("usage_last_success_timestamp_seconds", usage.last_success_seconds)


def _fleet(fleet: Fleet, most: int) -> Iterator[_Table]:
    """`most` bounds the limits with series of their own. Limits that no member has advertised have none."""
    caps, metrics = fleet.member.caps, fleet.metrics
    yield _single("fleet_joined", metrics.is_joined)
    yield _single("fleet_members", len(fleet.member.seen))
    yield _single("fleet_max_members", fleet.member.max_members)
    yield _single("fleet_members_lacking_limits", len(fleet.differences.lacking))
    yield _single("fleet_shared_limits", len(fleet.limits))
    yield _by_label("fleet_records", {"sent": metrics.sent, "read": metrics.read})
    yield _by_label("fleet_refused_records", {reason: caps.counts[reason] for reason in REFUSED})
    yield _by_label("fleet_errors", metrics.errors)
    yield _single("fleet_lapses", caps.counts["lapses"])
    yield "fleet_delivery_seconds", [((), *_of(metrics.delivery))]
    quota, claimed = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    differ = 0
    for shared, key in islice(advertised(fleet), most):
        at = shared.limit.name, entity_label(shared.limit.entity)
        quota[at], claimed[at] = shared.rate, key.total / WHOLE
        differ += shared.is_lowered and not shared.limit.moves
    yield "fleet_quota", quota.items()
    yield "fleet_claimed_ratio", claimed.items()
    yield _single("fleet_lower_quotas", differ)


def _moving(metrics: Metrics) -> Iterator[_Table]:
    """The limits whose rates move."""
    found = {(each.limit.name, entity_label(each.limit.entity)): each for each in metrics.sources.moving()}
    yield "moving_rate", [((*at, "observe" if each.is_observed else "set"), each.rate) for at, each in found.items()]
    yield "moving_rate_cuts", [(at, each.cuts) for at, each in found.items()]
    yield "protected_slow_seconds", [(at, each.slow_seconds) for at, each in found.items()]


def _clients(clients: Sequence[EntityMetrics]) -> Iterator[_Table]:
    """The families with a client in their labels."""
    produced = ((("produce", *_name(client)), client.produce_bytes) for client in clients)
    fetched = ((("fetch", *_name(client)), client.fetch_bytes) for client in clients)
    yield "bytes", chain(produced, fetched)
    sizes = (((limit, *_name(client)), size) for client in clients for limit, size in list(client.excess.items()))
    yield "excess_bytes", sizes
    yield "throttled", ((labels, histogram.count) for labels, histogram in _throttles(clients))
    yield "data_during_notice", ((_name(client), client.data_during_notice) for client in clients)
    yield "throttle_seconds", ((labels, *_of(histogram)) for labels, histogram in _throttles(clients))
    for number, name in enumerate(("throttle_time_max_seconds", "throttle_time_avg_seconds")):
        yield name, ((_name(client), client.window.max_and_mean(client.requests)[number]) for client in clients)


def _times(clients: Sequence[EntityMetrics]) -> Iterator[_Table]:
    spent = (
        ((state, *_name(client)), each / 1e9)
        for client in clients
        for state, each in zip(STATES, client.times.spent_ns, strict=True)
        if each
    )
    yield "connection_seconds", spent
    yield "broker_throttle_seconds", ((_name(client), client.times.broker_throttled_seconds) for client in clients)


def _name(client: EntityMetrics) -> tuple[str, str]:
    return client.user, client.client_id


def _throttles(clients: Iterable[EntityMetrics]) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    """The histograms of clients, with the values of their labels."""
    for client in clients:
        for (limit, mode), histogram in list(client.throttles.items()):
            yield (limit, *_name(client), mode), histogram


def _of(histogram: Histogram) -> tuple[list[tuple[str, int]], float]:
    """Its buckets and its sum."""
    buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.cumulative()]
    return buckets, histogram.sum_seconds


def _brokers(metrics: Metrics) -> Iterator[_Table]:
    found = metrics.sources.response_times()
    yield "broker_response_seconds", (((address, api), *_of(each)) for address, api, each in found)


def _disks(metrics: Metrics) -> Iterator[_Table]:
    found = metrics.sources.disks(metrics.entities.max_entities)
    if found is None:
        return
    yield _single("disk_guard_factor", found.factor)
    yield _by_label("disk_guard_state", {state: state == found.state for state in DISK_STATES})
    yield _single("disk_guard_stale", found.is_stale)
    yield _single("disk_guard_refused", found.refused)
    for number, name in enumerate(("disk_used_ratio", "disk_reading_age_seconds", "disk_fill_bytes_per_second"), 2):
        yield name, [((str(disk[0]), disk[1]), float(disk[number])) for disk in found.disks]


def _used(metrics: Metrics) -> Iterator[_Table]:
    """The largest value among limits that share a label."""
    used, waiters = dict[tuple[str, str], float](), dict[tuple[str, str], int]()
    for limit, ratio in metrics.sources.used_ratios():
        key = limit.name, entity_label(limit.entity)
        used[key] = max(used.get(key, 0.0), ratio)
        waiters[key] = waiters.get(key, 0) + limit.waiters.waiting
    yield "quota_used_ratio", used.items()
    yield "quota_waiters", waiters.items()


def _limits(metrics: Metrics) -> Iterator[_Table]:
    """Rates and debts of the limits in use. Limits after the bound are added up under the entity `other`, and limits
    whose entities have one label under that label.
    """
    limits = list(metrics.limits_in_use())
    most = metrics.entities.max_entities
    if len(limits) > most:
        metrics.entities.announce_other("limits")
    now_ns = metrics.clock_ns()
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    configured = dict.fromkeys(islice(metrics.sources.configured(), most))
    metrics.sources.matched.intersection_update(configured)
    for number, limit in enumerate(limits):
        if number % (SLICE if number < most else SUM_SLICE) == 0:
            yield "quota_limit", ()  # empty: the event loop runs between two families
        key = (limit.name, entity_label(limit.entity) if number < most else OTHER)
        rate, debt_seconds = totals.get(key, (0.0, 0.0))
        totals[key] = (rate + limit.rate, max(debt_seconds, limit.expected_ns(limit.debt_ns(now_ns), now_ns) / 1e9))
        metrics.sources.matched.update(entity for entity in (limit.entity, limit.origin) if entity in configured)
    yield "quota_limit", ((key, rate) for key, (rate, _) in totals.items())
    matched = {(entity_label(entity),): int(entity in metrics.sources.matched) for entity in configured}
    yield "quota_matched", matched.items()
    yield "quota_debt_seconds", ((key, debt) for key, (_, debt) in totals.items())
