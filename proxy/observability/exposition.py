"""`Metrics` as Prometheus families and text, built in small steps so that a scrape never holds the event loop for long.

Names, labels and units are a contract: prefix `kafka_quota_proxy_`, base units, `_total` for counters.
"""

from __future__ import annotations

import asyncio
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from proxy.observability.metrics import OTHER, Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from proxy.observability.metrics import LimitInUse
    from proxy.observability.tallies import EntityMetrics, Histogram

T = TypeVar("T")

PREFIX: Final = "kafka_quota_proxy_"
SLICE: Final = 50
"""How many entities' samples are built and written before the event loop gets its turn: a millisecond or two."""
HISTOGRAM_SLICE: Final = 5
"""The same for histograms, where an entity has some 15 lines for each limit that throttled it."""
SUM_SLICE: Final = 1_000
"""The same for limits that are only summed up."""


class Exposition(NamedTuple):
    """What to answer a scrape: the whole body, and its content type."""

    body: bytes
    content_type: str


@cache
def own_version() -> str:
    """The version of this distribution."""
    try:
        return version("kafka-quota-proxy")
    except PackageNotFoundError:
        return "unknown"


async def expose(metrics: Metrics, accept: str = "") -> Exposition:
    """The exposition in the format that the Accept header asks for, giving way to the event loop between slices."""
    encode, content_type = choose_encoder(accept)
    end = b"# EOF\n" if "openmetrics" in content_type else b""
    parts: list[bytes] = []
    previous = ""
    for family in families(metrics):
        text = encode(_OneFamily(family)).removesuffix(end)
        if family.name == previous:  # another slice of the same family: HELP and TYPE have been said
            text = b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))
        previous = family.name
        parts.append(text)
        await asyncio.sleep(0)
    return Exposition(b"".join([*parts, end]), content_type)


class _OneFamily:
    """As much of a CollectorRegistry as the encoders of prometheus_client ask for."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def families(metrics: Metrics) -> Iterator[Metric]:
    """Every family, large ones in slices: the same name several times in a row."""
    metrics.tick(metrics.clock_ns())
    yield from _whole_process(metrics)
    yield _requests(metrics)
    entities = list(metrics.entities())
    slices = list(_sliced(entities, SLICE))
    yield from map(_bytes, slices)
    yield from map(_throttled, slices)
    yield from map(_throttle_seconds, _sliced([entity for entity in entities if entity.throttles], HISTOGRAM_SLICE))
    yield from map(_throttle_time_max, slices)
    yield from map(_throttle_time_avg, slices)
    yield from _limits(metrics)
    yield _produced(metrics)
    yield from metrics.process_registry.collect()


def _produced(metrics: Metrics) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "produced_rate",
        "One-minute rate of records produced per second, in bytes or messages, by what became of them; only where a "
        "total threshold is set.",
        labels=["unit", "outcome"],
    )
    for unit, outcome, rate in metrics.produced():
        family.add_metric([unit, outcome], rate)
    return family


def _sliced(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """At least one slice, so that every family exists."""
    for start in range(0, max(1, len(items)), size):
        yield items[start : start + size]


def _whole_process(metrics: Metrics) -> Iterator[Metric]:
    info = {
        "version": own_version(),
        "python_version": platform.python_version(),
        "event_loop": metrics.event_loop,
    }
    build = GaugeMetricFamily(PREFIX + "build_info", "What is running; the value is always 1.", labels=list(info))
    build.add_metric(list(info.values()), 1)
    yield build
    yield _gauge("connections", "Client connections that are open now.", metrics.connections)
    yield _paused(metrics.paused)
    yield _gauge("in_flight_requests", "Requests forwarded to a broker and not answered yet.", metrics.in_flight())
    yield _gauge(
        "buffered_bytes",
        "Bytes held in memory because the side they go to did not take them yet.",
        metrics.buffered_bytes,
    )
    yield _by_reason("connections_rejected", "Client connections closed right after being accepted.", metrics.rejected)
    yield _by_reason("accept_errors", "Attempts to accept a client connection that failed.", metrics.accept_errors)
    yield _by_reason("upstream_errors", "Connections to a broker that failed.", metrics.upstream_errors)
    yield _by_reason(
        "protocol_errors", "Connections closed because of bytes that cannot be parsed.", metrics.protocol_errors
    )
    dropped = CounterMetricFamily(
        PREFIX + "dropped_frames", "Held requests dropped because their client hung up and will send them again."
    )
    dropped.add_metric([], metrics.dropped_frames)
    yield dropped
    lag = HistogramMetricFamily(
        PREFIX + "event_loop_lag_seconds", "How much later than asked for a timer of the event loop fired.", labels=[]
    )
    lag.add_metric([], _buckets(metrics.lag), metrics.lag.sum_seconds)
    yield lag
    yield _gauge(
        "config_last_reload_successful",
        "1: the quotas file was last taken over whole; 0: it was refused whole, and the quotas before it still hold.",
        int(metrics.reload_ok),
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _paused(paused: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "paused_connections",
        "Connections that are not being read now, by reason; one may have several.",
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


_THROTTLE_LABELS: Final = ("limit", "user", "client_id", "mode")


def _throttled(entities: Sequence[EntityMetrics]) -> Metric:
    family = CounterMetricFamily(PREFIX + "throttled", "Requests that were throttled.", labels=_THROTTLE_LABELS)
    for entity in entities:
        for (limit, mode), histogram in entity.throttles.items():
            family.add_metric([limit, entity.user, entity.client_id, mode], histogram.count)
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
    family = GaugeMetricFamily(
        PREFIX + "throttle_time_max_seconds",
        "Largest throttle time of a data request in the last 30 s; 0: none was throttled.",
        labels=["user", "client_id"],
    )
    for entity in entities:
        family.add_metric([entity.user, entity.client_id], entity.window.max_and_mean(entity.requests)[0])
    return family


def _throttle_time_avg(entities: Sequence[EntityMetrics]) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "throttle_time_avg_seconds",
        "Mean throttle time over all data requests of the last 30 s; 0: none was throttled.",
        labels=["user", "client_id"],
    )
    for entity in entities:
        family.add_metric([entity.user, entity.client_id], entity.window.max_and_mean(entity.requests)[1])
    return family


def _limits(metrics: Metrics) -> Iterator[Metric]:
    """Rates and debts of the limits in use; what is beyond the bound is summed up under the entity `other`."""
    limits = list(metrics.limits_in_use())
    shown, rest = limits[: metrics.max_entities], limits[metrics.max_entities :]
    if rest:
        metrics.announce_other("limits")
    now_ns = metrics.clock_ns()
    slices = list(_sliced(shown, SLICE))
    for part in slices:
        family = _limit_family("quota_limit", "The rate that a limit allows, in its unit per second (other: the sum).")
        for limit in part:
            family.add_metric([limit.name, str(limit.entity)], limit.rate)
        yield family
    totals: dict[str, tuple[float, float]] = {}
    if rest:
        for part in _sliced(rest, SUM_SLICE):
            _sum_up(part, now_ns, totals)
            yield _limit_family("quota_limit", "")  # nothing to show yet, but the event loop gets its turn
        family = _limit_family("quota_limit", "")
        for name, (rate, _) in totals.items():
            family.add_metric([name, OTHER], rate)
        yield family
    for part in slices:
        family = _limit_family(
            "quota_debt_seconds", "How long the limit takes to pay off its debt, 0: none (other: the longest)."
        )
        for limit in part:
            family.add_metric([limit.name, str(limit.entity)], limit.debt_ns(now_ns) / 1e9)
        yield family
    if rest:
        family = _limit_family("quota_debt_seconds", "")
        for name, (_, debt_seconds) in totals.items():
            family.add_metric([name, OTHER], debt_seconds)
        yield family


def _limit_family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=["limit", "entity"])


def _sum_up(limits: Sequence[LimitInUse], now_ns: int, totals: dict[str, tuple[float, float]]) -> None:
    """Add to `totals`, by the limits' name: the sum of the rates, and the longest debt in seconds."""
    for limit in limits:
        rate, debt_seconds = totals.get(limit.name, (0.0, 0.0))
        totals[limit.name] = (rate + limit.rate, max(debt_seconds, limit.debt_ns(now_ns) / 1e9))
