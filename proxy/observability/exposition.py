"""`Metrics` as Prometheus families and text, built in steps of about 2 ms: the event loop runs between them.

Names, labels and units are a contract: prefix `kafka_quota_proxy_`, base units, `_total` for counters.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple, TypeVar

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from proxy.observability.build import BUILD
from proxy.observability.labels import OTHER, entity_label
from proxy.observability.logs import event
from proxy.observability.metrics import LimitInUse, Metrics, UsageMetrics
from proxy.observability.tallies import EntityMetrics, Histogram

T = TypeVar("T")

PREFIX: Final = "kafka_quota_proxy_"
SLICE: Final = 50
"""Entities per step: the event loop runs between two steps, after 1 to 2 ms."""
HISTOGRAM_SLICE: Final = 5
"""The same for histograms: an entity has about 15 lines for each limit that throttled it."""
SUM_SLICE: Final = 1_000
"""The same for limits that are only added up."""

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
    yield _requests(metrics)
    entities = list(metrics.entities)
    slices = list(_sliced(entities, SLICE))
    yield from map(_bytes, slices)
    yield from map(_excess, slices)
    yield from map(_throttled, slices)
    yield from map(_data_during_notice, slices)
    yield from map(_throttle_seconds, _sliced([entity for entity in entities if entity.throttles], HISTOGRAM_SLICE))
    yield from map(_throttle_time_max, slices)
    yield from map(_throttle_time_avg, slices)
    yield from _limits(metrics)
    yield _produced(metrics)
    yield from _usage(metrics.usage)
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
                event(_log, logging.WARNING, "process_metrics_left_out", exc_info=True)
            metrics.process_metrics_failed = True
        else:
            yield from found


def _produced(metrics: Metrics) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "produced_rate",
        "One-minute rate of records produced, in bytes or messages per second, by outcome; needs a total threshold.",
        labels=["unit", "outcome"],
    )
    for unit, outcome, rate in metrics.produced():
        family.add_metric([unit, outcome], rate)
    return family


def _usage(usage: UsageMetrics) -> Iterator[Metric]:
    yield _counter("usage_records_sent", "Usage records that were written.", usage.sent)
    yield _counter("usage_records_lost", "Usage records that were dropped before they were written.", usage.lost)
    yield _by_reason("usage_errors", "Attempts to write usage records that failed.", usage.errors)
    yield _gauge("usage_series", "Series of usage records.", usage.series)
    yield _gauge("usage_records_pending", "Usage records that are not written yet.", usage.pending)
    yield _gauge(
        "usage_last_success_timestamp_seconds",
        "When usage records were written last, in seconds since 1970; 0: not yet.",
        usage.last_success_seconds,
    )


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
    connections = metrics.connections
    yield _gauge("connections", "Open client connections.", connections.open)
    yield _paused(connections.paused)
    yield _gauge("in_flight_requests", "Requests forwarded to a broker and not answered yet.", connections.in_flight())
    yield _gauge(
        "buffered_bytes",
        "Bytes in memory that their receiver has not taken yet.",
        connections.buffered_bytes,
    )
    yield _gauge(
        "memory_paused",
        "1: connections are not read because --max-buffered-bytes is used up; 0: they are.",
        int(connections.memory_paused),
    )
    yield _by_reason(
        "connections_closed",
        "Client connections closed by --stalled-client-timeout (while memory was used up), --handshake-timeout or "
        "--connections-max-idle.",
        connections.closed,
    )
    yield _by_reason(
        "connections_rejected", "Client connections closed right after being accepted.", connections.rejected
    )
    yield _by_reason(
        "throttle_reasons", "Throttled requests and connections, by reason.", metrics.entities.throttle_reasons
    )
    yield _by_reason("accept_errors", "Attempts to accept a client connection that failed.", metrics.errors.accept)
    yield _by_reason("upstream_errors", "Connections to a broker that failed.", metrics.errors.upstream)
    yield _by_reason(
        "protocol_errors", "Connections closed because their bytes cannot be parsed.", metrics.errors.protocol
    )
    yield _counter(
        "dropped_frames",
        "Held requests that were dropped because their client hung up; it sends them again, unless they are of acks=0.",
        connections.dropped_frames,
    )
    yield HistogramMetricFamily(
        PREFIX + "event_loop_lag_seconds",
        "How late a timer of the event loop fired.",
        buckets=_buckets(metrics.loop_lag),
        sum_value=metrics.loop_lag.sum_seconds,
    )
    yield _gauge(
        "config_last_reload_successful",
        "1: configuration and quotas file were applied when last read; 0: refused, and what was in force before stays.",
        int(metrics.reload_ok),
    )
    yield _gauge(
        "certificates_last_reload_successful",
        "1: certificates, keys and the file of --command-config were used when last read; 0: refused, as above.",
        int(metrics.tls_reload_ok),
    )
    family = GaugeMetricFamily(
        PREFIX + "certificate_not_after_timestamp_seconds",
        "When the first certificate of the chain that is shown to clients, or to brokers, expires.",
        labels=("side",),
    )
    for side, seconds in metrics.certificates.items():
        family.add_metric((side,), seconds)
    yield family
    yield _gauge(
        "enforcement_enabled",
        "1: quotas are enforced; 0: a dry run, or enforcement is switched off.",
        int(metrics.enforcement_enabled),
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _paused(paused: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "paused_connections",
        "Connections that are not read now, by reason; a connection may have several reasons.",
        labels=["reason"],
    )
    for reason, count in paused.items():
        family.add_metric([reason], count)
    return family


def _by_reason(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family


def _requests(metrics: Metrics) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "requests", "Requests received, by Kafka API and version.", labels=["api", "version"]
    )
    for key, cell in metrics.requests.items():
        family.add_metric(key, cell.value)
    return family


def _bytes(entities: Sequence[EntityMetrics]) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "bytes", "Bytes charged to quotas.", labels=["direction", "user", "client_id"]
    )
    for entity in entities:
        family.add_metric(["produce", entity.user, entity.client_id], entity.produce_bytes)
        family.add_metric(["fetch", entity.user, entity.client_id], entity.fetch_bytes)
    return family


def _excess(entities: Sequence[EntityMetrics]) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "excess_bytes",
        "Bytes of data requests and fetch responses over a limit: held, or in a dry run forwarded.",
        labels=["limit", "user", "client_id"],
    )
    for entity in entities:
        for limit, size in entity.excess.items():
            family.add_metric([limit, entity.user, entity.client_id], size)
    return family


_THROTTLE_LABELS: Final = ("limit", "user", "client_id", "mode")


def _throttled(entities: Sequence[EntityMetrics]) -> Metric:
    family = CounterMetricFamily(PREFIX + "throttled", "Requests that were throttled.", labels=_THROTTLE_LABELS)
    for entity in entities:
        for (limit, mode), histogram in entity.throttles.items():
            family.add_metric([limit, entity.user, entity.client_id, mode], histogram.count)
    return family


def _data_during_notice(entities: Sequence[EntityMetrics]) -> Metric:
    text = "Data requests that found debt before a throttle time was over, those on their way included."
    family = CounterMetricFamily(PREFIX + "data_during_notice", text, labels=["user", "client_id"])
    for entity in entities:
        family.add_metric([entity.user, entity.client_id], entity.data_during_notice)
    return family


def _throttle_seconds(entities: Sequence[EntityMetrics]) -> Metric:
    family = HistogramMetricFamily(
        PREFIX + "throttle_seconds", "How long throttled requests were throttled.", labels=_THROTTLE_LABELS
    )
    for entity in entities:
        for (limit, mode), histogram in entity.throttles.items():
            labels = [limit, entity.user, entity.client_id, mode]
            family.add_metric(labels, _buckets(histogram), histogram.sum_seconds)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.cumulative()]


def _throttle_time_max(entities: Sequence[EntityMetrics]) -> Metric:
    text = "Largest throttle time of a data request in the last 30 s; 0: none was throttled."
    return _throttle_time("throttle_time_max_seconds", text, entities, 0)


def _throttle_time_avg(entities: Sequence[EntityMetrics]) -> Metric:
    text = "Mean throttle time over all data requests of the last 30 s; 0: none was throttled."
    return _throttle_time("throttle_time_avg_seconds", text, entities, 1)


def _throttle_time(name: str, text: str, entities: Sequence[EntityMetrics], index: int) -> Metric:
    """`index`: of the value in `ThrottleWindow.max_and_mean`."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=["user", "client_id"])
    for entity in entities:
        family.add_metric([entity.user, entity.client_id], entity.window.max_and_mean(entity.requests)[index])
    return family


_LIMIT_TEXT: Final = "The rate that a limit allows, in its unit per second (other: the sum)."
_DEBT_TEXT: Final = "How long the limit takes to pay off its debt, 0: none (other: the longest)."


def _limits(metrics: Metrics) -> Iterator[Metric]:
    """Rates and debts of the limits in use. Limits after the bound are added up under the entity `other`, and limits
    whose entities have one label under that label.
    """
    limits = list(metrics.limits_in_use())
    shown, rest = limits[: metrics.entities.max_entities], limits[metrics.entities.max_entities :]
    if rest:
        metrics.entities.announce_other("limits")
    now_ns = metrics.clock_ns()
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for part in _sliced(shown, SLICE):
        for limit in part:
            _add(totals, entity_label(limit.entity), limit, now_ns)
        yield _limit_family("quota_limit", _LIMIT_TEXT)  # empty: the event loop runs between two families
    for part in _sliced(rest, SUM_SLICE):
        for limit in part:
            _add(totals, OTHER, limit, now_ns)
        yield _limit_family("quota_limit", _LIMIT_TEXT)
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


def _add(totals: dict[tuple[str, str], tuple[float, float]], label: str, limit: LimitInUse, now_ns: int) -> None:
    """Add a limit to `totals`, by name and entity label: the sum of the rates, and the longest debt in seconds."""
    key = (limit.name, label)
    rate, debt_seconds = totals.get(key, (0.0, 0.0))
    totals[key] = (rate + limit.rate, max(debt_seconds, limit.debt_ns(now_ns) / 1e9))
