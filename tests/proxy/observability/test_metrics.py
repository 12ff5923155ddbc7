"""What is counted, and that Prometheus understands how it is shown."""

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from protocol.wire import MAX_NAME
from proxy.config.config import Config, ObservabilityOptions
from proxy.observability.entities import ENTITY_IDLE_NS
from proxy.observability.exposition import PREFIX, SUM_SLICE, expose, families
from proxy.observability.labels import label_value
from proxy.observability.metrics import MAX_REQUEST_CELLS, Metrics
from proxy.observability.tallies import WINDOW_SLOT_NS, WINDOW_SLOTS, Histogram, ThrottleWindow
from quotas.admission.limit import Limit
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import Entity
from tests.proxy.conversation import Clock

WINDOW_NS = WINDOW_SLOTS * WINDOW_SLOT_NS

CONTRACT = {
    "bytes": ("counter", {"direction", "user", "client_id"}),
    "requests": ("counter", {"api", "version"}),
    "excess_bytes": ("counter", {"limit", "user", "client_id"}),
    "throttled": ("counter", {"limit", "user", "client_id", "mode"}),
    "data_during_notice": ("counter", {"user", "client_id"}),
    "throttle_seconds": ("histogram", {"limit", "user", "client_id", "mode"}),
    "throttle_time_max_seconds": ("gauge", {"user", "client_id"}),
    "throttle_time_avg_seconds": ("gauge", {"user", "client_id"}),
    "quota_limit": ("gauge", {"limit", "entity"}),
    "quota_debt_seconds": ("gauge", {"limit", "entity"}),
    "connections": ("gauge", set()),
    "paused_connections": ("gauge", {"reason"}),
    "in_flight_requests": ("gauge", set()),
    "throttle_reasons": ("counter", {"reason"}),
    "connections_rejected": ("counter", {"reason"}),
    "accept_errors": ("counter", {"reason"}),
    "buffered_bytes": ("gauge", set()),
    "memory_used_ratio": ("gauge", set()),
    "memory_paused": ("gauge", set()),
    "connections_closed": ("counter", {"reason"}),
    "event_loop_lag_seconds": ("histogram", set()),
    "upstream_errors": ("counter", {"reason"}),
    "protocol_errors": ("counter", {"reason"}),
    "dropped_frames": ("counter", set()),
    "config_last_reload_successful": ("gauge", set()),
    "certificates_last_reload_successful": ("gauge", set()),
    "certificate_not_after_timestamp_seconds": ("gauge", {"side"}),
    "enforcement_enabled": ("gauge", set()),
    "build_info": ("gauge", {"version", "build", "python_version", "event_loop"}),
    "produced_rate": ("gauge", {"unit", "outcome"}),
    "usage_records_sent": ("counter", set()),
    "usage_records_lost": ("counter", set()),
    "usage_errors": ("counter", {"reason"}),
    "usage_series": ("gauge", set()),
    "usage_records_pending": ("gauge", set()),
    "usage_last_success_timestamp_seconds": ("gauge", set()),
}


def limit(name: str, owner: str, rate: int, debt_seconds: float = 0) -> Limit:
    """A limit of a client id, with this debt."""
    found = Limit(name, Entity(None, owner), TokenBucket(rate, burst_ns=0))
    found.algorithm.record(round(debt_seconds * rate), Clock().now_ns)
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


def metrics_with(clock: Clock, max_metric_entities: int = 1000) -> Metrics:
    options = ObservabilityOptions(max_metric_entities=max_metric_entities)
    return Metrics(Config(bootstrap_servers=(), observability=options), clock_ns=clock)


async def scrape(metrics: Metrics, accept: str = "") -> dict[str, Metric]:
    body, content_type = await expose(metrics, accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    parsed = list(parse(body.decode()))
    names = [family.name for family in parsed]
    assert len(set(names)) == len(names), "every family has one HELP and one TYPE"
    return {family.name.removeprefix(PREFIX): family for family in parsed}


def value(shown: Mapping[str, Metric], family: str, sample: str = "", /, **labels: str) -> float | None:
    """The one sample of that family (name ending in `sample`) with these labels, or None."""
    found = [
        one.value
        for one in shown[family].samples
        if one.name.removeprefix(PREFIX) == (sample or family) and labels == one.labels
    ]
    assert len(found) <= 1, "a series appears once"
    return found[0] if found else None


async def test_every_family_of_the_contract_exists_before_anything_happened(clock: Clock) -> None:
    shown = await scrape(metrics_with(clock))
    for name, (kind, _) in CONTRACT.items():
        assert shown[name].type == kind, name
        assert shown[name].documentation, name
    assert value(shown, "connections") == 0
    assert value(shown, "config_last_reload_successful") == 1
    assert value(shown, "protocol_errors", "protocol_errors_total", reason="frame_too_large") == 0
    for reason in ("quota", "turn", "response_memory"):
        assert value(shown, "paused_connections", reason=reason) == 0
    assert "process_resident_memory_bytes" in shown
    assert "python_info" in shown


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
async def test_what_is_counted_is_shown(clock: Clock, accept: str) -> None:
    metrics = metrics_with(clock)
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


async def test_names_and_labels_are_the_contract_and_follow_prometheus_rules(clock: Clock) -> None:
    metrics = metrics_with(clock)
    fill(metrics, clock)
    shown = await scrape(metrics)
    own = {name: family for name, family in shown.items() if family.name.startswith(PREFIX)}
    assert own.keys() == CONTRACT.keys()
    for name, family in own.items():
        kind, labels = CONTRACT[name]
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, sample
            assert sample.name.endswith("_total") == (kind == "counter"), sample
        assert not any(unit in name for unit in ("_ms", "milli", "_kb", "_mb", "minutes")), "base units only"


async def test_above_the_bound_clients_are_other_with_one_log_line(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_beyond_the_bound_limits_are_summed_up(clock: Clock) -> None:
    metrics = metrics_with(clock, max_metric_entities=1)
    metrics.limits_in_use = lambda: [
        limit("producer_byte_rate", "a", 1),
        limit("producer_byte_rate", "b", 10, debt_seconds=0.5),
        limit("producer_byte_rate", "c", 100, debt_seconds=2),
        limit("consumer_byte_rate", "c", 1000),
    ]
    shown = await scrape(metrics)
    assert value(shown, "quota_limit", limit="producer_byte_rate", entity="client-id:a") == 1
    assert value(shown, "quota_limit", limit="producer_byte_rate", entity="other") == 110
    assert value(shown, "quota_limit", limit="consumer_byte_rate", entity="other") == 1000
    assert value(shown, "quota_debt_seconds", limit="producer_byte_rate", entity="other") == 2
    assert len(shown["quota_limit"].samples) == 3


def test_an_idle_client_makes_room_for_another(clock: Clock) -> None:
    metrics = metrics_with(clock, max_metric_entities=1)
    metrics.entities.of("u", "first").produce_bytes += 1
    metrics.entities.expire(clock.now_ns)
    clock.now_ns += ENTITY_IDLE_NS - 1
    metrics.entities.expire(clock.now_ns)
    assert metrics.entities.of("u", "second").client_id == "other"
    clock.now_ns += 1
    metrics.entities.expire(clock.now_ns)
    assert metrics.entities.of("u", "second").client_id == "second"


def test_a_client_that_is_still_counted_stays(clock: Clock) -> None:
    metrics = metrics_with(clock)
    entity = metrics.entities.of("u", "c")
    for _ in range(3):
        entity.fetch_bytes += 1
        clock.now_ns += ENTITY_IDLE_NS - 1
        metrics.entities.expire(clock.now_ns)
        entity.fetch_bytes += 1
        clock.now_ns += 2
        metrics.entities.expire(clock.now_ns)
    assert metrics.entities.of("u", "c") is entity


def test_a_client_with_a_session_does_not_expire(clock: Clock) -> None:
    metrics = metrics_with(clock)
    entity = metrics.entities.of("u", "c")
    entity.sessions += 1
    for _ in range(2):
        clock.now_ns += ENTITY_IDLE_NS
        metrics.entities.expire(clock.now_ns)
    assert metrics.entities.of("u", "c") is entity
    entity.sessions -= 1
    metrics.entities.expire(clock.now_ns)
    assert list(metrics.entities) == []


NAMES = st.text(st.characters(), max_size=400) | st.text(
    st.sampled_from('a\r\n\0"\\\x85\u2028\ud800\udc80 '), max_size=6
)
"""Names as they may come from the wire. `st.characters()` includes surrogates."""

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
def test_any_name_from_the_wire_gives_a_scrape_that_parses(
    user: str, client_id: str, limit_of: str, accept: str
) -> None:
    metrics = metrics_with(Clock())
    metrics.entities.of(user, client_id).produce_bytes += 1
    metrics.entities.of(user + "\udc80", client_id).produce_bytes += 1
    metrics.entities.throttled("producer_byte_rate", user, client_id, "notify", 1, 0)
    owners = [Entity(user or "u", limit_of), Entity(None, limit_of + "\r"), Entity(None, limit_of + "\0")]
    metrics.limits_in_use = lambda: [Limit("producer_byte_rate", owner, TokenBucket(1)) for owner in owners]
    check_lines(asyncio.run(expose(metrics, accept))[0])
    shown = asyncio.run(scrape(metrics, accept))
    produced = [one for one in shown["bytes"].samples if one.labels["direction"] == "produce"]
    assert sum(sample.value for sample in produced) == 2
    assert all(len(text) <= MAX_NAME for sample in produced for text in sample.labels.values())
    assert sum(sample.value for sample in shown["quota_limit"].samples) == 3


def test_long_names_stay_apart_and_short(clock: Clock) -> None:
    """1,000 client ids of 32 kB once made a scrape of 65 MB."""
    metrics = metrics_with(clock)
    ids = ["x" * 32_000 + str(number) for number in range(100)]
    bucket = TokenBucket(1)
    metrics.limits_in_use = lambda: [Limit("producer_byte_rate", Entity('"' * 32_000, one), bucket) for one in ids]
    for one in ids:
        metrics.entities.of("u", one).produce_bytes += 1
    assert len({label_value(one) for one in ids}) == 100
    body, _ = asyncio.run(expose(metrics))
    check_lines(body)
    assert len(body) < 500_000
    assert len(asyncio.run(scrape(metrics))["quota_limit"].samples) == 100


@given(NAMES)
def test_a_label_is_printable_bounded_and_the_same_when_cut_again(name: str) -> None:
    label = label_value(name)
    assert label.isprintable()
    assert len(label) <= MAX_NAME
    assert label_value(label) == label
    if name.isprintable() and len(name) <= MAX_NAME:
        assert label == name


class FailingCollector(Collector):
    """As ProcessCollector when /proc cannot be opened, or says what float() does not take."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("process_half_done", "Not to be shown.", value=1)
        raise OSError(24, "Too many open files")


async def test_a_collector_that_fails_costs_only_its_own_families(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = metrics_with(clock)
    metrics.process_collectors[0] = FailingCollector()
    with caplog.at_level(logging.WARNING, "proxy.observability.exposition"):
        shown = await scrape(metrics)
        await scrape(metrics)
    assert "process_half_done" not in shown
    assert "python_info" in shown
    assert value(shown, "connections") == 0
    assert [record.getMessage() for record in caplog.records] == ["process_metrics_left_out"]


def test_request_cells_are_bounded(clock: Clock) -> None:
    metrics = metrics_with(clock)
    for number in range(MAX_REQUEST_CELLS + 100):
        metrics.request_cell("Unknown", number).value += 1
    assert len(metrics.requests) == MAX_REQUEST_CELLS + 1
    assert metrics.requests["other", "other"].value == 100
    assert metrics.request_cell("Unknown", 5) is metrics.request_cell("Unknown", 5)


@given(
    st.lists(
        st.tuples(st.integers(0, WINDOW_SLOTS + 2), st.lists(st.none() | st.floats(0, 100), max_size=5)), max_size=30
    )
)
def test_the_throttle_window_agrees_with_a_list_of_all_requests(steps: list[tuple[int, list[float | None]]]) -> None:
    """KIP-13: the largest and the mean throttle time; 0 without any.

    Each step: so many slots pass, with a `roll` in each; then requests, None for one that was not throttled.
    """
    window = ThrottleWindow(0)
    slot = 0
    requests: list[tuple[int, float | None]] = []
    for slots, made in steps:
        for _ in range(slots):
            slot += 1
            window.roll(slot, len(requests))
        for seconds in made:
            requests.append((slot, seconds))
            if seconds is not None:
                window.record(seconds, slot, len(requests))
        seen = [seconds for at, seconds in requests if at > slot - WINDOW_SLOTS]
        throttled = [seconds for seconds in seen if seconds is not None]
        largest, mean = window.max_and_mean(len(requests))
        assert largest == max(throttled, default=0)
        assert mean == pytest.approx(sum(throttled) / len(seen) if throttled else 0)


async def test_the_mean_of_a_scrape_counts_requests_before_the_first_throttle(clock: Clock) -> None:
    metrics = metrics_with(clock)
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


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_each_observation_once_and_bounds_are_inclusive(observations: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for seconds in observations:
        histogram.observe(seconds)
    for bound, count in histogram.cumulative():
        assert count == sum(seconds <= bound for seconds in observations)
    assert histogram.count == len(observations)
    assert histogram.sum_seconds == pytest.approx(sum(observations))


def test_a_large_scrape_has_steps_and_new_series_in_between_do_not_break_it(clock: Clock) -> None:
    metrics = metrics_with(clock)
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


@dataclass
class AskedLimit:
    """It notes each time that its debt is read."""

    entity: str
    asked: list[str]
    name = "producer_byte_rate"
    rate = 1

    def debt_ns(self, _now_ns: int) -> int:
        self.asked.append(self.entity)
        return 0


def test_limits_that_are_only_summed_up_take_turns_with_the_loop_too(clock: Clock) -> None:
    metrics = metrics_with(clock, max_metric_entities=1)
    asked: list[str] = []
    limits = cast("list[Limit]", [AskedLimit(f"client-id:{number}", asked) for number in range(5_001)])
    metrics.limits_in_use = lambda: limits
    most = 0
    for _ in families(metrics):
        most = max(most, len(asked))
        asked.clear()
    assert 0 < most <= SUM_SLICE
