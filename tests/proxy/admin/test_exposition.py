"""How counters are shown: by the contract of names and labels, and so that Prometheus understands them."""

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from protocol.wire import MAX_NAME
from proxy.admin.exposition import (
    OPENMETRICS,
    PREFIX,
    RENDERED_FOR_NS,
    TEXT,
    Format,
    MetricsPage,
    expose,
    families,
    format_of,
)
from proxy.enforcement.report import DELAY, NOTIFY, PAUSE, REJECT
from proxy.observability.catalogue import METRICS
from proxy.observability.client_times import STATES
from proxy.observability.entities import ENTITY_IDLE_NS
from proxy.observability.metrics import DISK_STATES, DiskFigures, Metrics
from proxy.observability.tallies import WINDOW_SLOT_NS, WINDOW_SLOTS
from quotas.admission.limit import Limit
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import DEFAULT, Entity
from quotas.limit_kinds import LIMIT_NAMES
from tests.proxy.conversation import Clock
from tests.proxy.metrics import NAMES, metrics_with

WINDOW_NS = WINDOW_SLOTS * WINDOW_SLOT_NS


def limit(name: str, owner: str, rate: int, debt_seconds: float = 0) -> Limit:
    """A limit of a client id, with this debt."""
    found = Limit(name, Entity(None, owner), TokenBucket(rate, burst_ns=0))
    found.algorithm.record(round(debt_seconds * rate), Clock().now_ns)
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return metrics_with(clock)


async def scrape(metrics: Metrics, accept: str = "") -> dict[str, Metric]:
    form = format_of(accept)
    parse = parse_openmetrics if form is OPENMETRICS else parse_text
    parsed = list(parse((await expose(metrics, form)).decode()))
    found = {family.name.removeprefix(PREFIX): family for family in parsed}
    assert len(found) == len(parsed), "every family has one HELP and one TYPE"
    return found


def value(shown: Mapping[str, Metric], family: str, sample: str = "", /, **labels: str) -> float | None:
    """The one sample of that family (name ending in `sample`) with these labels, or None."""
    name = PREFIX + (sample or family)
    found = [one.value for one in shown[family].samples if (one.name, one.labels) == (name, labels)]
    assert len(found) <= 1, "a series appears once"
    return found[0] if found else None


async def test_every_family_exists_before_anything_happened(clock: Clock) -> None:
    shown = await scrape(metrics_with(clock))
    for name, info in METRICS.items():
        if not name.startswith(("fleet_", "client_", "cluster_", "disk_", "quotas_topic_")) or name in shown:
            assert (shown[name].type, shown[name].documentation) == (info.type, info.text)
    assert value(shown, "connections") == 0
    assert value(shown, "config_last_reload_successful") == 1
    assert value(shown, "protocol_errors", "protocol_errors_total", reason="frame_too_large") == 0
    for reason in ("quota", "turn", "response_memory"):
        assert value(shown, "paused_connections", reason=reason) == 0
    assert "process_resident_memory_bytes" in shown
    assert "python_info" in shown


async def test_what_the_disk_guard_knows(clock: Clock) -> None:
    metrics = metrics_with(clock)
    disks = [(3, "/data", 0.94, 5.5, -2.0)]
    metrics.sources.disks = lambda _: DiskFigures("slowing", 0.1, True, 7, disks)
    shown = await scrape(metrics)
    assert value(shown, "disk_guard_factor") == 0.1
    assert [value(shown, "disk_guard_state", state=each) for each in DISK_STATES] == [0, 0, 1, 0]
    assert value(shown, "disk_guard_stale") == 1
    assert value(shown, "disk_guard_refused", "disk_guard_refused_total") == 7
    at = {"broker": "3", "directory": "/data"}
    assert value(shown, "disk_used_ratio", **at) == 0.94
    assert value(shown, "disk_reading_age_seconds", **at) == 5.5
    assert value(shown, "disk_fill_bytes_per_second", **at) == -2


def fill(metrics: Metrics, clock: Clock) -> None:
    metrics.request_cell("Produce", 12).value += 3
    entity = metrics.entities.of("ANONYMOUS", "etl")
    entity.produce_bytes += 5_000
    entity.fetch_bytes += 70
    entity.produce_requests += 2
    entity.exceed("producer_byte_rate", 4_000)
    metrics.entities.throttled("producer_byte_rate", "ANONYMOUS", "etl", "notify", 1.8, clock.now_ns)
    metrics.connections.rejected["max_connections"] += 1
    metrics.errors.accept["descriptors_exhausted"] += 1
    metrics.errors.upstream["connect_refused"] += 1
    metrics.errors.protocol["unknown_api"] += 1
    metrics.loop_lag.observe(0.004)
    metrics.connections.open = 7
    metrics.connections.buffered_bytes = 4096
    metrics.connections.paused["quota"] = 2
    metrics.connections.in_flight = lambda: 5
    metrics.connections.dropped_frames = 1
    metrics.connections.memory_used_ratio = 0.625
    metrics.connections.memory_paused = True
    metrics.connections.closed["stalled"] = 3
    metrics.limits_in_use = lambda: [limit("producer_byte_rate", "etl", 5_000_000, 1.8)]
    metrics.reload_ok = {"config": False, "tls": False}
    metrics.certificates = {"clients": 2_000_000_000}


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_what_is_counted_is_shown(metrics: Metrics, clock: Clock, accept: str) -> None:
    fill(metrics, clock)
    shown = await scrape(metrics, accept)
    etl = {"user": "ANONYMOUS", "client_id": "etl"}
    throttle = {"limit": "producer_byte_rate", "mode": "notify", **etl}
    limit = {"limit": "producer_byte_rate", "entity": "client-id:etl"}
    assert value(shown, "requests", "requests_total", api="Produce", version="12") == 3
    assert value(shown, "bytes", "bytes_total", direction="produce", **etl) == 5000
    assert value(shown, "bytes", "bytes_total", direction="fetch", **etl) == 70
    assert value(shown, "excess_bytes", "excess_bytes_total", limit="producer_byte_rate", **etl) == 4_000
    assert value(shown, "throttled", "throttled_total", **throttle) == 1
    assert value(shown, "throttle_seconds", "throttle_seconds_sum", **throttle) == 1.8
    assert value(shown, "throttle_seconds", "throttle_seconds_bucket", le="1.0", **throttle) == 0
    assert value(shown, "throttle_seconds", "throttle_seconds_bucket", le="2.5", **throttle) == 1
    assert value(shown, "throttle_seconds", "throttle_seconds_bucket", le="+Inf", **throttle) == 1
    assert value(shown, "throttle_time_max_seconds", **etl) == 1.8
    assert value(shown, "throttle_time_avg_seconds", **etl) == 0.9
    assert value(shown, "quota_limit", **limit) == 5_000_000
    assert value(shown, "quota_debt_seconds", **limit) == 1.8
    assert value(shown, "connections") == 7
    assert value(shown, "paused_connections", reason="quota") == 2
    assert value(shown, "in_flight_requests") == 5
    assert value(shown, "buffered_bytes") == 4096
    assert value(shown, "memory_used_ratio") == 0.625
    assert value(shown, "memory_paused") == 1
    assert value(shown, "connections_closed", "connections_closed_total", reason="stalled") == 3
    assert value(shown, "connections_rejected", "connections_rejected_total", reason="max_connections") == 1
    assert value(shown, "accept_errors", "accept_errors_total", reason="descriptors_exhausted") == 1
    assert value(shown, "upstream_errors", "upstream_errors_total", reason="connect_refused") == 1
    assert value(shown, "protocol_errors", "protocol_errors_total", reason="unknown_api") == 1
    assert value(shown, "dropped_frames", "dropped_frames_total") == 1
    assert value(shown, "event_loop_lag_seconds", "event_loop_lag_seconds_count") == 1
    assert value(shown, "config_last_reload_successful") == 0
    assert value(shown, "certificates_last_reload_successful") == 0
    assert value(shown, "certificate_not_after_timestamp_seconds", side="clients") == 2_000_000_000


async def test_names_and_labels_are_the_contract_and_follow_prometheus_rules(metrics: Metrics, clock: Clock) -> None:
    fill(metrics, clock)
    shown = await scrape(metrics)
    own = {name: family for name, family in shown.items() if family.name.startswith(PREFIX)}
    for name, family in own.items():
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(METRICS[name].labels), sample
            assert sample.name.endswith("_total") == (METRICS[name].type == "counter"), sample
        assert not any(unit in name for unit in ("_ms", "milli", "_kb", "_mb", "minutes")), "base units only"


async def test_above_the_bound_clients_are_other_with_one_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    metrics = metrics_with(clock, max_metric_entities=2)
    with caplog.at_level(logging.WARNING, "proxy.observability.entities"):
        for number in range(100):
            metrics.entities.of("ANONYMOUS", f"client-{number}").produce_bytes += 1
            metrics.entities.throttled("producer_byte_rate", "ANONYMOUS", f"client-{number}", "notify", 1, clock.now_ns)
    assert [record.getMessage() for record in caplog.records] == ["metric_entities_exhausted"]
    shown = await scrape(metrics)
    clients = {sample.labels["client_id"]: sample.value for sample in shown["bytes"].samples if sample.value}
    assert clients == {"client-0": 1, "client-1": 1, "other": 98}
    other = {"limit": "producer_byte_rate", "user": "other", "client_id": "other", "mode": "notify"}
    assert value(shown, "throttled", "throttled_total", **other) == 98


@pytest.mark.parametrize("form", [TEXT, OPENMETRICS])
async def test_the_number_of_series_levels_off_whatever_names_come(clock: Clock, form: Format) -> None:
    """Ten and twenty times as many clients as have a name here, throttled by each limit in each mode, and their limits.

    The bound is that of docs/operate.md.
    """
    most = 20
    metrics, calls = metrics_with(clock, max_metric_entities=most), 0
    limits: list[Limit] = []
    metrics.limits_in_use = lambda: limits
    metrics.sources.used_ratios = lambda: [(each, 0.5) for each in limits[:most]]  # of `History`
    counts = []
    for number in range(20 * most):
        entity = metrics.entities.of("u", f"client-{number}")
        entity.times.spent_ns = [1] * len(STATES)
        for name in LIMIT_NAMES:
            limits.append(limit(name, f"client-{number}", 1))
            entity.exceed(name, 1)
            for mode in (NOTIFY, DELAY, PAUSE, REJECT):
                metrics.entities.throttled(name, "u", f"client-{number}", mode, 1, clock.now_ns)
                calls += 1
        if number + 1 in {most // 2, 10 * most, 20 * most}:
            lines = (await expose(metrics, form)).splitlines()
            counts.append(sum(not line.startswith(b"#") for line in lines))
    assert counts[0] < counts[1] == counts[2] <= 46 * most + 1_500
    assert sum(sample.value for sample in (await scrape(metrics))["throttled"].samples) == calls


async def test_idle_clients_make_room_for_throttles(clock: Clock) -> None:
    entities = metrics_with(clock, max_metric_entities=2).entities

    def throttle(client_id: str, *modes: str) -> None:
        for mode in modes:
            entities.throttled("producer_byte_rate", "u", client_id, mode, 1, clock.now_ns)

    throttle("a", NOTIFY, PAUSE)
    throttle("b", NOTIFY)
    throttle("a", NOTIFY)
    assert {(each.client_id, *key): found.count for each in entities for key, found in each.throttles.items()} == {
        ("a", "producer_byte_rate", NOTIFY): 2,
        ("a", "producer_byte_rate", PAUSE): 1,
        ("other", "producer_byte_rate", NOTIFY): 1,
    }
    assert entities.of("u", "b").window.max_and_mean(1) == (1.0, 1.0), "which has no limit in its labels"
    entities.expire(clock.now_ns)
    clock.now_ns += ENTITY_IDLE_NS
    entities.expire(clock.now_ns)
    throttle("b", NOTIFY, PAUSE)
    assert [(each.client_id, len(each.throttles)) for each in entities] == [("b", 2)]


async def test_beyond_the_bound_limits_are_summed_up(clock: Clock) -> None:
    metrics = metrics_with(clock, max_metric_entities=1)
    produce = [limit("producer_byte_rate", *each) for each in (("a", 1), ("b", 10, 0.5), ("c", 100, 2))]
    metrics.limits_in_use = lambda: [*produce, limit("consumer_byte_rate", "c", 1000)]
    shown = await scrape(metrics)
    assert value(shown, "quota_limit", limit="producer_byte_rate", entity="client-id:a") == 1
    assert value(shown, "quota_limit", limit="producer_byte_rate", entity="other") == 110
    assert value(shown, "quota_limit", limit="consumer_byte_rate", entity="other") == 1000
    assert value(shown, "quota_debt_seconds", limit="producer_byte_rate", entity="other") == 2
    assert len(shown["quota_limit"].samples) == 3


async def test_entries_that_matched_stay_so_up_to_the_bound(clock: Clock) -> None:
    """A limit in use goes with its idle client: an alert must not come each night."""
    metrics = metrics_with(clock, max_metric_entities=2)
    each, of_all, third = Entity(None, "a"), Entity(None, DEFAULT), Entity(None, "c")
    metrics.sources.configured = lambda: [each, of_all, third]
    matched = {"client-id:a": 0, "client-id:<default>": 0}

    async def shown() -> dict[str, float]:
        return {sample.labels["entity"]: sample.value for sample in (await scrape(metrics))["quota_matched"].samples}

    assert await shown() == matched
    metrics.limits_in_use = lambda: [Limit("producer_byte_rate", Entity(None, "b"), TokenBucket(1), origin=of_all)]
    assert await shown() == matched | {"client-id:<default>": 1}
    metrics.limits_in_use = lambda: [limit("producer_byte_rate", "a", 1), limit("producer_byte_rate", "c", 1)]
    assert await shown() == dict.fromkeys(matched, 1)
    metrics.sources.configured = lambda: [third]
    assert await shown() == {"client-id:c": 1}
    metrics.limits_in_use, metrics.sources.configured = tuple, lambda: [each, third]
    assert await shown() == {"client-id:a": 0, "client-id:c": 1}, "of other entries nothing is kept"


FORMATS = ("", "application/openmetrics-text; version=1.0.0")

_SAMPLE = re.compile(
    r"""[a-zA-Z_:][a-zA-Z0-9_:]*                                              # name
        (?:\{[a-z_]+="(?:[^"\\]|\\[\\"n])*"(?:,[a-z_]+="(?:[^"\\]|\\[\\"n])*")*\})?    # labels
        [ ](?:[+-]?[0-9.e+-]+|[+-]Inf|NaN)                                     # value""",
    re.VERBOSE,
)


def check_lines(body: bytes) -> None:
    """Each line of an exposition is a comment or one sample, whatever a parser takes for the end of a line."""
    text = body.decode("utf-8")
    assert text.endswith("\n")
    lines = text.split("\n")[:-1]
    assert text.splitlines() == lines, "no character besides the line feed ends a line"
    assert all(line.isprintable() for line in lines)
    for line in lines:
        assert re.match(r"# (HELP|TYPE) [a-zA-Z_:]|# EOF$", line) or _SAMPLE.fullmatch(line), line
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(set(series)) == len(series), "a series appears once"


@given(user=NAMES, client_id=NAMES, limit_of=NAMES.filter(bool), accept=st.sampled_from(FORMATS))
def test_any_name_from_the_wire_can_be_scraped(user: str, client_id: str, limit_of: str, accept: str) -> None:
    metrics = metrics_with(Clock())
    metrics.entities.of(user, client_id).produce_bytes += 1
    metrics.entities.of(user + "\udc80", client_id).produce_bytes += 1
    metrics.entities.throttled("producer_byte_rate", user, client_id, "notify", 1, 0)
    owners = [Entity(user or "u", limit_of), Entity(None, limit_of + "\r"), Entity(None, limit_of + "\0")]
    metrics.limits_in_use = lambda: [Limit("producer_byte_rate", owner, TokenBucket(1)) for owner in owners]
    check_lines(asyncio.run(expose(metrics, format_of(accept))))
    shown = asyncio.run(scrape(metrics, accept))
    produced = [one for one in shown["bytes"].samples if one.labels["direction"] == "produce"]
    assert sum(sample.value for sample in produced) == 2
    assert all(len(text) <= MAX_NAME for sample in produced for text in sample.labels.values())
    assert sum(sample.value for sample in shown["quota_limit"].samples) == 3


class FailingCollector(Collector):
    """As ProcessCollector when /proc cannot be opened, or says what float() does not take."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("process_half_done", "Not to be shown.", value=1)
        raise OSError(24, "Too many open files")


async def test_a_failing_collector_costs_only_its_families(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    metrics.process_collectors[0] = FailingCollector()
    with caplog.at_level(logging.WARNING, "proxy.admin.exposition"):
        shown = await scrape(metrics)
        await scrape(metrics)
    assert "process_half_done" not in shown
    assert "python_info" in shown
    assert value(shown, "connections") == 0
    assert [record.getMessage() for record in caplog.records] == ["process_metrics_left_out"]


async def test_the_mean_of_a_scrape_counts_requests_before_the_first_throttle(metrics: Metrics, clock: Clock) -> None:
    entity = metrics.entities.of("u", "c")
    entity.produce_requests += 9
    clock.now_ns += WINDOW_SLOT_NS
    entity.produce_requests += 1
    metrics.entities.throttled("producer_byte_rate", "u", "c", "notify", 2.0, clock.now_ns)
    entity.produce_requests += 1
    labels = {"user": "u", "client_id": "c"}
    assert value(await scrape(metrics), "throttle_time_avg_seconds", **labels) == pytest.approx(2 / 11)
    clock.now_ns += WINDOW_NS - WINDOW_SLOT_NS
    assert value(await scrape(metrics), "throttle_time_avg_seconds", **labels) == 1.0, "the nine are too old now"


def test_a_large_scrape_has_steps_and_new_series_in_between_do_not_break_it(metrics: Metrics, clock: Clock) -> None:
    clients = [metrics.entities.of("u", f"client-{number}") for number in range(500)]
    for client in clients:
        metrics.entities.throttled("producer_byte_rate", "u", client.client_id, "notify", 1, clock.now_ns)
        client.exceed("producer_byte_rate", 1)
    for number in range(200):
        metrics.request_cell("Known", number)
    sizes = []
    for number, family in enumerate(families(metrics)):
        sizes.append(len(family.samples))
        metrics.request_cell("Unknown", number)
        metrics.errors.upstream[f"new-{number}"] += 1
        metrics.entities.throttled(f"limit-{number}", "u", f"client-{number}", "notify", 1, clock.now_ns)
        for client in clients[number : number + 20]:
            client.exceed(f"limit-{number}", 1)
    assert sum(sizes) > 10_000
    assert max(sizes) <= 100


# ---- how often it is rendered
def rendered(metrics: Metrics) -> list[None]:
    """Grows by one with each rendering."""
    times: list[None] = []
    metrics.limits_in_use = lambda: times.append(None) or ()  # type: ignore[func-returns-value]
    return times


async def test_scrapes_within_a_second_get_the_same_bytes(metrics: Metrics, clock: Clock) -> None:
    fill(metrics, clock)
    metrics.connections.open = 1
    times, page = rendered(metrics), MetricsPage(metrics)
    pages = await asyncio.gather(*(page.body(form) for form in (TEXT, OPENMETRICS) * 50))
    assert len(times) == 2
    assert len(set(map(id, pages))) == 2
    metrics.connections.open = 2
    clock.now_ns += RENDERED_FOR_NS - 1
    assert [await page.body(TEXT), await page.body(OPENMETRICS)] == pages[:2]
    clock.now_ns += 1
    for form in (TEXT, OPENMETRICS):
        assert b"kafka_quota_proxy_connections 2.0\n" in await page.body(form)
    assert len(times) == 4


async def test_a_rendering_that_fails_is_not_the_last(metrics: Metrics, clock: Clock) -> None:
    metrics.produced = lambda: [("bytes", "accepted", cast("float", "no number"))]
    page = MetricsPage(metrics)
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            await page.body(TEXT)
    metrics.produced = tuple
    clock.now_ns += RENDERED_FOR_NS
    assert (await page.body(TEXT)).startswith(b"# HELP ")


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain; version=abc", TEXT),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5", TEXT),
        ("text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6, application/openmetrics-text;version=1.0.0", TEXT),
        ("Application/OpenMetrics-Text ; version=abc", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.5", OPENMETRICS),
        ("text/html, application/openmetrics-text, text/plain", OPENMETRICS),
    ],
)
def test_which_format_a_scrape_gets(accept: str, form: Format) -> None:
    assert format_of(accept) is form
