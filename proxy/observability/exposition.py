"""`Metrics` as Prometheus families and text, built in steps of about 2 ms: the event loop runs between them.

Names, labels and units are a contract: prefix `kafka_quota_proxy_`, base units, `_total` for counters.
"""

import asyncio
import logging
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from proxy.observability.build import BUILD
from proxy.observability.labels import OTHER, entity_label
from proxy.observability.logs import event
from proxy.observability.metrics import Metrics, UsageMetrics
from proxy.observability.tallies import EntityMetrics, Histogram

T = TypeVar("T")
_Simple = CounterMetricFamily | GaugeMetricFamily
_Row = tuple[Sequence[str], float]
"""The labels of a sample, and its value."""

PREFIX: Final = "kafka_quota_proxy_"
SLICE: Final = 50
"""Clients per step: the event loop runs between two steps, after 1 to 2 ms."""
HISTOGRAM_SLICE: Final = 5
"""The same for histograms: a client has about 15 lines for each limit that throttled it."""
SUM_SLICE: Final = 1_000
"""The same for limits that are only added up."""

_CLIENT: Final = ("user", "client_id")
_THROTTLE_LABELS: Final = ("limit", *_CLIENT, "mode")

_log = logging.getLogger("proxy.observability.exposition")


class Exposition(NamedTuple):
    """The response to a scrape: the whole body, and its content type."""

    body: bytes
    content_type: str


@cache
def own_version() -> str:
    """The version of this distribution. The first call reads files: make it while descriptors are available."""
    try:
        return version("kafka-quota-proxy")
    except PackageNotFoundError:
        return "unknown"


async def expose(metrics: Metrics, accept: str = "") -> Exposition:
    """The exposition in the format that the Accept header asks for. The event loop runs between slices."""
    encode, content_type = choose_encoder(accept)
    end = b"# EOF\n" if "openmetrics" in content_type else b""
    parts: list[bytes] = []
    previous = ""
    for family in families(metrics):
        text = encode(_OneFamily(family)).removesuffix(end)
        if family.name == previous:  # a further slice of one family has no HELP and TYPE
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
        previous = family.name
        parts.append(text)
        await asyncio.sleep(0)
    return Exposition(b"".join([*parts, end]), content_type)


class _OneFamily:
    """The part of a CollectorRegistry that the encoders of prometheus_client call."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def families(metrics: Metrics) -> Iterator[Metric]:
    """Every family. A large one comes in slices: several families of one name in a row."""
    metrics.entities.tick(metrics.clock_ns())
    yield from _whole_process(metrics)
    yield from _of_clients(list(metrics.entities))
    yield from _limits(metrics)
    yield from _usage(metrics.usage)
    yield from _process(metrics)


def _family(
    name: str, text: str, labels: Sequence[str], rows: Iterable[_Row], kind: type[_Simple] = CounterMetricFamily
) -> Metric:
    family = kind(PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


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
                event(_log, logging.WARNING, "process_metrics_left_out", exc_info=True)
            metrics.process_metrics_failed = True
        else:
            yield from found


def _usage(usage: UsageMetrics) -> Iterator[Metric]:
    yield _counter("usage_records_sent", "Usage records that were written.", usage.sent)
    yield _counter("usage_records_lost", "Usage records that were dropped before they were written.", usage.lost)
    yield _by_reason("usage_errors", "Attempts to write usage records that failed.", usage.errors)
    yield _gauge("usage_series", "Series of usage records.", usage.series)
    yield _gauge("usage_records_pending", "Usage records that are not written yet.", usage.pending)
    text = "When usage records were written last, in seconds since 1970; 0: not yet."
    yield _gauge("usage_last_success_timestamp_seconds", text, usage.last_success_seconds)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _sliced(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """At least one slice, so that every family exists."""
    for start in range(0, max(1, len(items)), size):
        yield items[start : start + size]


def _whole_process(metrics: Metrics) -> Iterator[Metric]:
    info = {
        "version": own_version(),
        "build": BUILD,
        "python_version": platform.python_version(),
        "event_loop": metrics.event_loop,
    }
    build = GaugeMetricFamily(
        PREFIX + "build_info", "Version, build, Python and event loop; the value is always 1.", labels=list(info)
    )
    build.add_metric(list(info.values()), 1)
    yield build
    connections, errors = metrics.connections, metrics.errors
    for name, text, value in (
        ("connections", "Open client connections.", connections.open),
        ("in_flight_requests", "Requests forwarded to a broker and not answered yet.", connections.in_flight()),
        ("buffered_bytes", "Bytes in memory that their receiver has not taken yet.", connections.buffered_bytes),
        (
            "memory_paused",
            "1: connections are not read because --max-buffered-bytes is used up; 0: they are.",
            connections.memory_paused,
        ),
        (
            "config_last_reload_successful",
            "1: configuration and quotas file were applied when last read; 0: refused, and what was in force before "
            "stays.",
            metrics.reload_ok,
        ),
        (
            "certificates_last_reload_successful",
            "1: certificates, keys and the file of --command-config were used when last read; 0: refused, as above.",
            metrics.tls_reload_ok,
        ),
        (
            "enforcement_enabled",
            "1: quotas are enforced; 0: a dry run, or enforcement is switched off.",
            metrics.enforcement_enabled,
        ),
    ):
        yield _gauge(name, text, value)
    text = "Connections that are not read now, by reason; a connection may have several reasons."
    yield _by_reason("paused_connections", text, connections.paused, GaugeMetricFamily)
    closed = "by --stalled-client-timeout (while memory was used up), --handshake-timeout or --connections-max-idle"
    for name, text, counts in (
        ("connections_closed", f"Client connections closed {closed}.", connections.closed),
        ("connections_rejected", "Client connections closed right after being accepted.", connections.rejected),
        ("throttle_reasons", "Throttled requests and connections, by reason.", metrics.entities.throttle_reasons),
        ("accept_errors", "Attempts to accept a client connection that failed.", errors.accept),
        ("upstream_errors", "Connections to a broker that failed.", errors.upstream),
        ("protocol_errors", "Connections closed because their bytes cannot be parsed.", errors.protocol),
    ):
        yield _by_reason(name, text, counts)
    text = "Held requests that were dropped because their client hung up; all but those of acks=0 are sent again."
    yield _counter("dropped_frames", text, connections.dropped_frames)
    yield HistogramMetricFamily(
        PREFIX + "event_loop_lag_seconds",
        "How late a timer of the event loop fired.",
        buckets=_buckets(metrics.loop_lag),
        sum_value=metrics.loop_lag.sum_seconds,
    )
    requests = ((labels, cell.value) for labels, cell in metrics.requests.items())
    yield _family("requests", "Requests received, by Kafka API and version.", ["api", "version"], requests)
    text = "One-minute rate of records produced, in bytes or messages per second, by outcome; needs a total threshold."
    rates = (((unit, outcome), rate) for unit, outcome, rate in metrics.produced())
    yield _family("produced_rate", text, ["unit", "outcome"], rates, GaugeMetricFamily)
    text = "When the first certificate of the chain that is shown to clients, or to brokers, expires."
    dates = (((side,), seconds) for side, seconds in metrics.certificates.items())
    yield _family("certificate_not_after_timestamp_seconds", text, ["side"], dates, GaugeMetricFamily)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _by_reason(name: str, text: str, counts: Mapping[str, int], kind: type[_Simple] = CounterMetricFamily) -> Metric:
    return _family(name, text, ["reason"], (([reason], count) for reason, count in counts.items()), kind)


def _of_clients(clients: Sequence[EntityMetrics]) -> Iterator[Metric]:
    """The families with a client in their labels, each in slices."""
    slices = list(_sliced(clients, SLICE))
    yield from _counts_of_clients(slices)
    for part in _sliced([client for client in clients if client.throttles], HISTOGRAM_SLICE):
        text = "How long throttled requests were throttled."
        family = HistogramMetricFamily(PREFIX + "throttle_seconds", text, labels=_THROTTLE_LABELS)
        for labels, histogram in _throttles(part):
            family.add_metric(labels, _buckets(histogram), histogram.sum_seconds)
        yield family
    for part in slices:
        text = "Largest throttle time of a data request in the last 30 s; 0: none was throttled."
        largest = ((_name(client), client.window.max_and_mean(client.requests)[0]) for client in part)
        yield _family("throttle_time_max_seconds", text, _CLIENT, largest, GaugeMetricFamily)
    for part in slices:
        text = "Mean throttle time over all data requests of the last 30 s; 0: none was throttled."
        mean = ((_name(client), client.window.max_and_mean(client.requests)[1]) for client in part)
        yield _family("throttle_time_avg_seconds", text, _CLIENT, mean, GaugeMetricFamily)


def _counts_of_clients(slices: Sequence[Sequence[EntityMetrics]]) -> Iterator[Metric]:
    for part in slices:
        text, labels = "Bytes charged to quotas.", ["direction", *_CLIENT]
        produced = ((["produce", *_name(client)], client.produce_bytes) for client in part)
        fetched = ((["fetch", *_name(client)], client.fetch_bytes) for client in part)
        yield _family("bytes", text, labels, chain(produced, fetched))
    for part in slices:
        text = "Bytes of data requests and fetch responses over a limit: held, or in a dry run forwarded."
        sizes = (([limit, *_name(client)], size) for client in part for limit, size in client.excess.items())
        yield _family("excess_bytes", text, ["limit", *_CLIENT], sizes)
    for part in slices:
        throttled = ((labels, histogram.count) for labels, histogram in _throttles(part))
        yield _family("throttled", "Requests that were throttled.", _THROTTLE_LABELS, throttled)
    for part in slices:
        text = "Data requests that found debt before a throttle time was over, those on their way included."
        during = ((_name(client), client.data_during_notice) for client in part)
        yield _family("data_during_notice", text, _CLIENT, during)


def _name(client: EntityMetrics) -> tuple[str, str]:
    return client.user, client.client_id


def _throttles(clients: Iterable[EntityMetrics]) -> Iterator[tuple[list[str], Histogram]]:
    """The histograms of clients, with the labels of `_THROTTLE_LABELS`."""
    for client in clients:
        for (limit, mode), histogram in client.throttles.items():
            yield [limit, *_name(client), mode], histogram


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.cumulative()]


_LIMIT_TEXT: Final = "The rate that a limit allows, in its unit per second (other: the sum)."
_DEBT_TEXT: Final = "How long the limit takes to pay off its debt, 0: none (other: the longest)."


def _limits(metrics: Metrics) -> Iterator[Metric]:
    """Rates and debts of the limits in use. Limits after the bound are added up under the entity `other`, and limits
    whose entities have one label under that label.
    """
    limits = list(metrics.limits_in_use())
    most = metrics.entities.max_entities
    if len(limits) > most:
        metrics.entities.announce_other("limits")
    now_ns = metrics.clock_ns()
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for number, limit in enumerate(limits):
        if number % (SLICE if number < most else SUM_SLICE) == 0:
            yield _limit_family("quota_limit", _LIMIT_TEXT)  # empty: the event loop runs between two families
        key = (limit.name, entity_label(limit.entity) if number < most else OTHER)
        rate, debt_seconds = totals.get(key, (0.0, 0.0))
        totals[key] = (rate + limit.rate, max(debt_seconds, limit.debt_ns(now_ns) / 1e9))
    slices = list(_sliced(list(totals.items()), SLICE))
    for rows in slices:
        family = _limit_family("quota_limit", _LIMIT_TEXT)
        for labels, (rate, _) in rows:
            family.add_metric(labels, rate)
        yield family
    for rows in slices:
        family = _limit_family("quota_debt_seconds", _DEBT_TEXT)
        for labels, (_, debt_seconds) in rows:
            family.add_metric(labels, debt_seconds)
        yield family


def _limit_family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=["limit", "entity"])
