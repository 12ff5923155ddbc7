"""`Metrics` as Prometheus families and text, built in steps of about 1 ms: the event loop runs between them.

Names, labels and units are a contract: prefix `kafka_quota_proxy_`, base units, `_total` for counters.
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
from proxy.fleet.status import REFUSED, stated
from proxy.observability.build import BUILD
from proxy.observability.client_reports import REPORTED, ClientReports
from proxy.observability.labels import OTHER, entity_label
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Metrics, UsageMetrics
from proxy.observability.output import dropped_lines
from proxy.observability.tallies import EntityMetrics, Histogram
from proxy.observability.wait_clock import STATES
from quotas.fleet.parameters import WHOLE

_Kind = type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
_Table = tuple[_Kind, str, str, Sequence[str], Iterable[tuple[Any, ...]]]
"""A family: kind, name without prefix, text, labels, and rows. A row is the arguments of `add_metric`: the values of
the labels, then the value of the sample, or the buckets and the sum of a histogram.

Rows are read slice by slice, and the event loop runs in between: an iterator reads nothing that may change its size.
"""

PREFIX: Final = "kafka_quota_proxy_"
RENDERED_FOR_NS: Final = 1_000_000_000
"""From the end of a rendering, which takes 10 ms for a thousand series."""
SLICE: Final = 100
"""Rows per step: the event loop runs between two steps, after about 1 ms."""
HISTOGRAM_SLICE: Final = 5
"""The same for histograms: each has about 15 lines."""
SUM_SLICE: Final = 1_000
"""The same for limits that are only added up."""

try:
    _VERSION = version("kafka-quota-proxy")  # it reads files: now, while descriptors are available
except PackageNotFoundError:
    _VERSION = "unknown"

_CLIENT: Final = ("user", "client_id")
_THROTTLE: Final = ("limit", *_CLIENT, "mode")

_log = EventLog(__name__)


class Format(NamedTuple):
    """How a scrape is written. `end`: after the last family."""

    content_type: str
    encode: Callable[[Any], bytes]
    end: bytes


TEXT: Final = Format(CONTENT_TYPE_PLAIN_0_0_4, generate_latest, b"")
OPENMETRICS: Final = Format(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, b"# EOF\n")


def format_of(accept: str) -> Format:
    """The first of an Accept header that is known, without weights; else the text. Escaping schemes make no difference:
    names here need none.
    """
    for accepted in accept.lower().split(","):
        kind, *parameters = map(str.strip, accepted.split(";"))
        if kind == "application/openmetrics-text" and "version=0.0.1" not in parameters:  # a draft
            return OPENMETRICS
        if kind == "text/plain":
            return TEXT
    return TEXT


class MetricsPage:
    """The page `/metrics`: rendered once a second at most in each format, and scrapes meanwhile get the same bytes.

    A rendering ends, whatever becomes of the scrape that it began for: a client that connects and hangs up, again and
    again, keeps no other one from a page.
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
        if family.name == previous:  # a further slice of one family has no HELP and TYPE
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
        previous = family.name
        parts.append(text)
        await asyncio.sleep(0)
    return b"".join([*parts, form.end])


def families(metrics: Metrics, fleet: Fleet | None = None) -> Iterator[Metric]:
    """Every family. A large one comes in slices: several families of one name in a row."""
    metrics.entities.tick(metrics.clock_ns())
    tables = [_whole_process(metrics), _clients(list(metrics.entities)), _limits(metrics), _usage(metrics.usage)]
    tables += [_times(list(metrics.entities)), _used(metrics), _brokers(metrics)]
    if metrics.client_reports.most:
        tables.append(_reports(metrics.client_reports))
    if fleet is not None:
        tables.append(_fleet(fleet, metrics.entities.max_entities))
    for kind, name, text, labels, rows in chain.from_iterable(tables):
        left = iter(rows)
        size = HISTOGRAM_SLICE if kind is HistogramMetricFamily else SLICE
        while True:
            part = list(islice(left, size))
            family = kind(PREFIX + name, text, labels=labels)
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
        except Exception:  # noqa: BLE001 - a library's code: any of its errors costs its own families only
            if not metrics.process_metrics_failed:
                _log.warning("process_metrics_left_out", exc_info=True)
            metrics.process_metrics_failed = True
        else:
            yield from found


def _counter(name: str, text: str, value: float) -> _Table:
    return CounterMetricFamily, name, text, (), [((), value)]


def _gauge(name: str, text: str, value: float) -> _Table:
    return GaugeMetricFamily, name, text, (), [((), value)]


def _by_reason(name: str, text: str, counts: Mapping[str, int], kind: _Kind = CounterMetricFamily) -> _Table:
    return kind, name, text, ("reason",), [((reason,), count) for reason, count in counts.items()]


def _whole_process(metrics: Metrics) -> Iterator[_Table]:
    connections, errors = metrics.connections, metrics.errors
    info = {
        "version": _VERSION,
        "build": BUILD,
        "python_version": platform.python_version(),
        "event_loop": metrics.event_loop,
    }
    text = "Version, build, Python and event loop; the value is always 1."
    yield GaugeMetricFamily, "build_info", text, list(info), [(list(info.values()), 1)]
    yield _gauge("connections", "Open client connections.", connections.open)
    yield _gauge("in_flight_requests", "Requests forwarded to a broker and not answered yet.", connections.in_flight())
    yield _gauge("buffered_bytes", "Bytes in memory that their receiver has not taken yet.", connections.buffered_bytes)
    yield _gauge("memory_used_ratio", "Part of --max-buffered-bytes that is in use.", connections.memory_used_ratio)
    yield _gauge("memory_paused", "1: connections wait for memory; 0: none does.", connections.memory_paused)
    text = "1: configuration and quotas file were applied when last read; 0: refused, the ones before are in force."
    yield _gauge("config_last_reload_successful", text, metrics.reload_ok["config"])
    text = "1: certificates, keys and the file of --command-config were used when last read; 0: refused, as above."
    yield _gauge("certificates_last_reload_successful", text, metrics.reload_ok["tls"])
    if "cluster" in metrics.reload_ok:
        text = "1: the cluster's own client quotas could be read; 0: those that were read last are in force."
        yield _gauge("cluster_quotas_last_read_successful", text, metrics.reload_ok["cluster"])
    yield _gauge("enforcement_enabled", "1: enforced; 0: a dry run, or switched off.", metrics.enforcement_enabled)
    text = "Connections that are not read now, by reason; a connection may have several reasons."
    yield _by_reason("paused_connections", text, connections.paused, GaugeMetricFamily)
    causes = "--stalled-client-timeout (while memory was used up), --handshake-timeout, --connections-max-idle"
    text = f"Client connections closed by {causes} or --max-connection-age."
    yield _by_reason("connections_closed", text, connections.closed)
    text = "Client connections closed right after being accepted."
    yield _by_reason("connections_rejected", text, connections.rejected)
    yield _by_reason("throttle_reasons", "Throttled requests and connections.", metrics.entities.throttle_reasons)
    yield _by_reason("accept_errors", "Attempts to accept a client connection that failed.", errors.accept)
    yield _by_reason("upstream_errors", "Connections to a broker that failed.", errors.upstream)
    yield _by_reason("protocol_errors", "Connections closed because their bytes cannot be parsed.", errors.protocol)
    text = "Brokers whose own port another broker has: moved to a free one of --broker-ports, or hidden from clients."
    found = {"moved": metrics.sources.moved_brokers(), "hidden": metrics.sources.hidden_brokers()}
    by_outcome = [((outcome,), count) for outcome, count in found.items()]
    yield GaugeMetricFamily, "broker_port_conflicts", text, ("outcome",), by_outcome
    text = "Logins of clients, through the proxy, that a broker refused."
    yield _counter("client_logins_refused", text, errors.logins)
    text = "Held requests that were dropped because their client hung up; all but those of acks=0 are sent again."
    yield _counter("dropped_frames", text, connections.dropped_frames)
    text = "Lines that stderr or stdout did not take: their reader had stopped, or the disk was full."
    yield _counter("log_lines_dropped", text, dropped_lines())
    text, lag = "How late a timer of the event loop fired.", metrics.loop_lag
    yield HistogramMetricFamily, "event_loop_lag_seconds", text, (), [((), _buckets(lag), lag.sum_seconds)]
    requests = [(labels, cell.value) for labels, cell in metrics.requests.items()]
    text = "Requests received, by Kafka API and version."
    yield CounterMetricFamily, "requests", text, ("api", "version"), requests
    text = "One-minute rate of records produced, in bytes or messages per second, by outcome; needs a total threshold."
    rates = [((unit, outcome), rate) for unit, outcome, rate in metrics.produced()]
    yield GaugeMetricFamily, "produced_rate", text, ("unit", "outcome"), rates
    text = "When the first certificate of the chain that is shown to clients, or to brokers, expires."
    dates = [((side,), seconds) for side, seconds in metrics.certificates.items()]
    yield GaugeMetricFamily, "certificate_not_after_timestamp_seconds", text, ("side",), dates


def _usage(usage: UsageMetrics) -> Iterator[_Table]:
    yield _counter("usage_records_sent", "Usage records that were written.", usage.sent)
    yield _counter("usage_records_lost", "Usage records that were dropped before they were written.", usage.lost)
    yield _by_reason("usage_errors", "Attempts to write usage records that failed.", usage.errors)
    yield _gauge("usage_series", "Series of usage records.", usage.series)
    yield _gauge("usage_records_pending", "Usage records that are not written yet.", usage.pending)
    text = "When usage records were written last, in seconds since 1970; 0: not yet."
    yield _gauge("usage_last_success_timestamp_seconds", text, usage.last_success_seconds)


def _fleet(fleet: Fleet, most: int) -> Iterator[_Table]:
    """`most`: limits with series of their own; those of which no member has stated anything have none."""
    caps, metrics = fleet.member.caps, fleet.metrics
    yield _gauge("fleet_joined", "1: limits are shared with the fleet; 0: its topic is away.", metrics.is_joined)
    yield _gauge("fleet_members", "Proxies of the fleet that were heard in the last 16 s.", len(fleet.member.heard))
    yield _gauge("fleet_max_members", "--fleet-max-members.", caps.parameters.max_members)
    yield _gauge("fleet_shared_limits", "Limits in use that the fleet shares.", len(fleet.limits))
    text, records = "Records of the fleet's topic.", [(("sent",), metrics.sent), (("read",), metrics.read)]
    yield CounterMetricFamily, "fleet_records", text, ("direction",), records
    text = "Records that were refused: void, foreign (another fleet's), clashes (in this proxy's name), overflows."
    yield _by_reason("fleet_refused_records", text, {reason: caps.counts[reason] for reason in REFUSED})
    yield _by_reason("fleet_errors", "Failures to read or write the fleet's topic.", metrics.errors)
    text = "How often a part of a limit ended because it was not renewed in time."
    yield _counter("fleet_lapses", text, caps.counts["lapses"])
    text, delivery = "From sending a record to reading it back.", metrics.delivery
    yield HistogramMetricFamily, "fleet_delivery_seconds", text, (), [((), _buckets(delivery), delivery.sum_seconds)]
    quota, claimed = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    differ = 0
    for shared, key in islice(stated(fleet), most):
        at = shared.limit.name, entity_label(shared.limit.entity)
        quota[at], claimed[at] = shared.rate, key.total / WHOLE
        differ += shared.rate < shared.configured
    text = "What all members together may use, in the limit's unit per second."
    yield GaugeMetricFamily, "fleet_quota", text, ("limit", "entity"), quota.items()
    text = "What all members have claimed of it; above 1: some claims are not filled yet."
    yield GaugeMetricFamily, "fleet_claimed_ratio", text, ("limit", "entity"), claimed.items()
    yield _gauge("fleet_lower_quotas", "Limits of which another member states less than this proxy's quota.", differ)


def _clients(clients: Sequence[EntityMetrics]) -> Iterator[_Table]:
    """The families with a client in their labels."""
    text = "Bytes charged to quotas."
    produced = ((("produce", *_name(client)), client.produce_bytes) for client in clients)
    fetched = ((("fetch", *_name(client)), client.fetch_bytes) for client in clients)
    yield CounterMetricFamily, "bytes", text, ("direction", *_CLIENT), chain(produced, fetched)
    text = "Bytes of data requests and fetch responses over a limit: held, or in a dry run forwarded."
    sizes = (((limit, *_name(client)), size) for client in clients for limit, size in list(client.excess.items()))
    yield CounterMetricFamily, "excess_bytes", text, ("limit", *_CLIENT), sizes
    throttled = ((labels, histogram.count) for labels, histogram in _throttles(clients))
    yield CounterMetricFamily, "throttled", "Requests that were throttled.", _THROTTLE, throttled
    text = "Data requests that found debt before a throttle time was over, those on their way included."
    during = ((_name(client), client.data_during_notice) for client in clients)
    yield CounterMetricFamily, "data_during_notice", text, _CLIENT, during
    text = "How long throttled requests were throttled."
    histograms = ((labels, _buckets(histogram), histogram.sum_seconds) for labels, histogram in _throttles(clients))
    yield HistogramMetricFamily, "throttle_seconds", text, _THROTTLE, histograms
    text = "Largest throttle time of a data request in the last 30 s; 0: none was throttled."
    largest = ((_name(client), client.window.max_and_mean(client.requests)[0]) for client in clients)
    yield GaugeMetricFamily, "throttle_time_max_seconds", text, _CLIENT, largest
    text = "Mean throttle time over all data requests of the last 30 s; 0: none was throttled."
    mean = ((_name(client), client.window.max_and_mean(client.requests)[1]) for client in clients)
    yield GaugeMetricFamily, "throttle_time_avg_seconds", text, _CLIENT, mean


def _times(clients: Sequence[EntityMetrics]) -> Iterator[_Table]:
    text = "Where the time of a client's connections went: each is in one state at a time."
    spent = (
        ((state, *_name(client)), each / 1e9)
        for client in clients
        for state, each in zip(STATES, client.times.spent_ns, strict=True)
        if each
    )
    yield CounterMetricFamily, "connection_seconds", text, ("state", *_CLIENT), spent
    text = "Throttle times of brokers, for quotas of their own, that clients were told."
    told = ((_name(client), client.times.broker_throttled_seconds) for client in clients)
    yield CounterMetricFamily, "broker_throttle_seconds", text, _CLIENT, told


def _reports(reports: ClientReports) -> Iterator[_Table]:
    """What clients have reported, in the units of the names."""
    for each in REPORTED:
        text = f"Reported by the client: {each.name}; of its processes the worst, or the sum."
        yield GaugeMetricFamily, f"client_{each.family}", text, _CLIENT, reports.rows(each)


def _name(client: EntityMetrics) -> tuple[str, str]:
    return client.user, client.client_id


def _throttles(clients: Iterable[EntityMetrics]) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    """The histograms of clients, with the values of `_THROTTLE`."""
    for client in clients:
        for (limit, mode), histogram in list(client.throttles.items()):
            yield (limit, *_name(client), mode), histogram


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.cumulative()]


def _brokers(metrics: Metrics) -> Iterator[_Table]:
    text = "From the end of a request to its response: one of each connection a second, no long polls."
    kinds = ((address, api, each) for address, api, each in metrics.sources.response_times())
    rows = (((address, api), _buckets(each), each.sum_seconds) for address, api, each in kinds)
    yield HistogramMetricFamily, "broker_response_seconds", text, ("broker", "api"), rows


def _used(metrics: Metrics) -> Iterator[_Table]:
    """Of limits with one label the largest."""
    used, waiters = dict[tuple[str, str], float](), dict[tuple[str, str], int]()
    for limit, ratio in metrics.sources.used_ratios():
        key = limit.name, entity_label(limit.entity)
        used[key] = max(used.get(key, 0.0), ratio)
        waiters[key] = waiters.get(key, 0) + limit.waiters.waiting
    text = "Rate of the last ten seconds or so, as a part of the limit; above 1 while a burst is used."
    yield GaugeMetricFamily, "quota_used_ratio", text, ("limit", "entity"), used.items()
    text = "Connections with a request or response that waits for the limit."
    yield GaugeMetricFamily, "quota_waiters", text, ("limit", "entity"), waiters.items()


def _limits(metrics: Metrics) -> Iterator[_Table]:
    """Rates and debts of the limits in use. Limits after the bound are added up under the entity `other`, and limits
    whose entities have one label under that label.
    """
    labels = "limit", "entity"
    text = "The rate that a limit allows, in its unit per second (other: the sum)."
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
            yield GaugeMetricFamily, "quota_limit", text, labels, ()  # empty: the event loop runs between two families
        key = (limit.name, entity_label(limit.entity) if number < most else OTHER)
        rate, debt_seconds = totals.get(key, (0.0, 0.0))
        totals[key] = (rate + limit.rate, max(debt_seconds, limit.expected_ns(limit.debt_ns(now_ns), now_ns) / 1e9))
        metrics.sources.matched.update(entity for entity in (limit.entity, limit.origin) if entity in configured)
    yield GaugeMetricFamily, "quota_limit", text, labels, ((key, rate) for key, (rate, _) in totals.items())
    matched = {(entity_label(entity),): int(entity in metrics.sources.matched) for entity in configured}
    text = "1: a client, topic or connection has had the limits of this entry; 0: none has yet."
    yield GaugeMetricFamily, "quota_matched", text, ("entity",), matched.items()
    text = "How long the limit takes to pay off its debt, 0: none (other: the longest)."
    yield GaugeMetricFamily, "quota_debt_seconds", text, labels, ((key, debt) for key, (_, debt) in totals.items())
