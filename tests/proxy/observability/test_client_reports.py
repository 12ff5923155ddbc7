"""What clients report: the worst of a client's processes, bounded in time and number."""

import asyncio
import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from proxy.admin.exposition import OPENMETRICS, PREFIX, expose
from proxy.observability.client_reports import EXPIRY_NS, NAMES, REPORTED, BufferOutlook, ClientReports
from proxy.observability.metrics import Metrics
from proxy.observability.tallies import EntityMetrics, ThrottleWindow
from tests.proxy.conversation import Clock

SECOND_NS = 1_000_000_000
MB32 = 33_554_432
ONE, TWO = b"1" * 16, b"2" * 16


def client(name: str = "etl") -> EntityMetrics:
    return EntityMetrics("alice", name, ThrottleWindow(0), 0, sessions=1)


def full(sent: float, queued_ms: float = 0, free: float = 0) -> list[tuple[str, float]]:
    return [
        ("buffer-total-bytes", MB32),
        ("buffer-available-bytes", free),
        ("outgoing-byte-total", sent),
        ("record-queue-time-max", queued_ms),
    ]


def some(free: float, queued_ms: float, errors: float) -> list[tuple[str, float]]:
    return [("buffer-available-bytes", free), ("record-queue-time-avg", queued_ms), ("record-error-total", errors)]


def test_the_worst_of_a_client_and_the_sum_of_counts() -> None:
    reports, etl, other = ClientReports(10), client(), client("other")
    reports.record(etl, ONE, some(7, 5, 2), 0)
    reports.record(etl, TWO, some(9, 8, 3), 0)
    reports.record(other, ONE, [("record-error-total", 100), ("records-lag-max", 3), ("records-lag-max", 2)], 0)
    assert reports.reported(etl) == {"buffer-available-bytes": 7, "record-queue-time-avg": 8, "record-error-total": 5}
    assert reports.reported(other) == {"record-error-total": 100, "records-lag-max": 3}
    reports.record(etl, ONE, [("buffer-available-bytes", 11)], 1)
    assert reports.reported(etl) == {"buffer-available-bytes": 9, "record-queue-time-avg": 8, "record-error-total": 3}
    assert reports.reported(client("of whom nothing is known")) == {}


def test_reports_expire() -> None:
    reports, etl = ClientReports(10), client()
    reports.record(etl, ONE, full(0), 0)
    reports.record(etl, TWO, [("buffer-available-bytes", 9)], SECOND_NS)
    reports.expire(EXPIRY_NS - 1)
    assert reports.reported(etl)["buffer-total-bytes"] == MB32
    reports.expire(EXPIRY_NS)
    assert reports.reported(etl) == {"buffer-available-bytes": 9}
    reports.expire(EXPIRY_NS + SECOND_NS)
    assert (reports.reported(etl), list(reports.rows(REPORTED[0]))) == ({}, [])


def test_at_most_so_many_processes() -> None:
    reports, etl = ClientReports(2), client()
    for number in range(5):
        reports.record(etl, bytes([number]), [("record-error-total", 1)], 0)
    reports.record(client("late"), ONE, [("record-error-total", 1)], 0)
    assert [value for _, value in reports.rows(REPORTED[5])] == [2]
    reports.record(etl, bytes(1), [("record-error-total", 7)], 1)
    assert reports.reported(etl) == {"record-error-total": 8}, "those that are known go on"
    assert ClientReports(0).record(etl, ONE, full(0), 0) is None


@pytest.mark.parametrize(
    ("sent", "queued_ms", "free", "expected"),
    [
        (2_500_000, 15_000, 0, BufferOutlook(MB32, MB32, 134, 105)),
        (2_500_000, 130_000, 0, BufferOutlook(MB32, MB32, 134, 0)),
        (3_400_000, 15_000, 0, None),  # 98 s: above the smallest useful limit
        (0, 15_000, 0, BufferOutlook(MB32, MB32, 3_600, 105)),
        (10_000, 0, 0.6 * MB32, None),  # open batches of a slow producer
        (50_000_000, 61_000, 0.9 * MB32, BufferOutlook(int(0.1 * MB32), MB32, 0, 59)),
        (50_000_000, 59_000, 0.9 * MB32, None),
    ],
)
def test_when_records_expire(sent: float, queued_ms: float, free: float, expected: BufferOutlook | None) -> None:
    """In ten seconds so many bytes were sent."""
    reports, etl = ClientReports(10), client()
    reports.record(etl, ONE, full(1_000, free=free), 0)
    assert reports.outlook(etl) is None
    assert reports.record(etl, ONE, full(1_000 + sent, queued_ms, free), 10 * SECOND_NS) == expected
    reports.record(etl, TWO, full(0, free=MB32), 10 * SECOND_NS)
    assert reports.outlook(etl) == expected, "of the worst process"


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(sorted(NAMES.values())), st.floats()), max_size=8), max_size=6),
    st.lists(st.integers(0, 10**20), min_size=6, max_size=6),
)
def test_any_numbers_are_borne(pushes: list[list[tuple[str, float]]], times: list[int]) -> None:
    reports, etl = ClientReports(10), client()
    for points, now_ns in zip(pushes, times, strict=False):
        reports.record(etl, ONE, points, now_ns)
        outlook = reports.outlook(etl)
        assert outlook is None or 0 <= outlook.expires_in_seconds <= 120
        assert all(math.isfinite(value) for value in reports.reported(etl).values())


def gauges(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    page = asyncio.run(expose(metrics, OPENMETRICS)).decode()
    return {
        (sample.name.removeprefix(f"{PREFIX}client_"), sample.labels["user"], sample.labels["client_id"]): sample.value
        for family in text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.name.startswith(f"{PREFIX}client_") and "user" in sample.labels
    }


def metrics_with(*points: tuple[str, float], is_on: bool = True) -> Metrics:
    metrics = Metrics(Clock(), client_telemetry=is_on)
    for name in ("etl", "other"):
        entity = metrics.entities.of("alice", name)
        entity.sessions = 1
        metrics.client_reports.record(entity, ONE, points, 0)
    return metrics


def test_a_gauge_of_each_metric_in_base_units() -> None:
    found = gauges(metrics_with(*((each.name, 2_000.0) for each in REPORTED)))
    families: Iterable[str] = [each.family for each in REPORTED]
    assert found == {
        (family, "alice", name): 2.0 if family.endswith("_seconds") else 2_000.0
        for family in families
        for name in ("etl", "other")
    }
    times = [each for each in REPORTED if "-time-" in each.name or "latency" in each.name]
    assert all(each.family.endswith("_seconds") for each in times)
    assert gauges(metrics_with(("record-error-total", 1.0), is_on=False)) == {}
