"""The HTML report of a minute, of a day, of weeks, and of nothing: no empty figure, no gap in an axis."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
from pyspark.sql import functions as f

from pipeline.usage.page.charts import number_text
from pipeline.usage.page.content import render
from pipeline.usage.schemas import REQUEST_FACTS
from pipeline.usage.tables import Warehouse

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
USAGE = "hour timestamp, team string, client_id string, bytes bigint"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that is not on UTC."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def fill(warehouse: Warehouse, *hours: tuple[int, str, str, int]) -> None:
    """Usage of (hours after noon, team, client id, bytes), each throttled for a second."""
    rows = [(NOON + timedelta(hours=hour), *rest) for hour, *rest in hours]
    made = warehouse.spark.createDataFrame(rows, USAGE)
    made = made.selectExpr(
        "*", "to_date(hour) date", "'' cluster", "'u' user", "'{}' labels", "null topic", "'produce' direction",
        "bytes record_bytes", "1L messages", "1L requests", "0L split_bytes", "0L longest_gap_ms",
        "'producer_byte_rate' limit", "concat('client-id:', client_id) entity", "1000L throttled_ms",
        "0L delayed_bytes", "0L refused_bytes", "0L would_have_bytes", "5e6D limit_value",
        *(f"cast(null as bigint) {fact}" for fact in REQUEST_FACTS),
    )  # fmt: skip
    warehouse.append("usage_hourly", made)
    warehouse.append("throttling_hourly", made)


def figures(html: str) -> list[str]:
    return [re.sub("<[^>]*>", "", each).strip() for each in re.findall("<figcaption>(.*?)</figcaption>", html)]


def labels(html: str) -> list[str]:
    """The time axis of the first figure."""
    return re.findall('<span class="day[^>]*>([^<]*)<', html.partition("</figure>")[0])


def cells(html: str, title: str) -> list[str]:
    """Of the table below a title."""
    return re.findall("<td[^>]*>([^<]*)", html.partition(f">{title}<")[2].partition("</table>")[0])


def test_without_usage_there_are_no_figures(warehouse: Warehouse) -> None:
    html = render(warehouse)
    assert figures(html) == []
    assert "no usage yet" in html
    assert "<section>" not in html, "empty sections are folded"
    assert html.count("<details>") == 8
    assert "<summary>Throttling<span>Nothing was throttled.</span></summary>" in html, "a folded section says why"
    assert "<b>complete</b><span>records of proxies</span>" in html


def test_runs_of_one_proxy_are_one_proxy(warehouse: Warehouse) -> None:
    runs = [("p", f"run-{n}", n < 2) for n in range(3)] + [("q", "run-1", False)]
    made = warehouse.spark.createDataFrame(runs, "sidecar string, incarnation string, is_lost boolean")
    made = made.selectExpr(
        "*", "'' cluster", "not is_lost ended_cleanly", "0L missing_records", "7L estimated_missing_bytes",
        "'replaced' state", "timestamp'2026-01-05' first_record", "timestamp'2026-01-05' last_record", "1L records",
        "0L repeated", "null last_gap", "0L lag_ms", "0L clock_offset_ms", "7L bytes",
    )  # fmt: skip
    warehouse.append("sidecars", made.drop("is_lost"))
    assert "<b>1 of 2</b><span>proxies with missing records</span>" in render(warehouse)


def test_one_hour_has_no_time_axis(warehouse: Warehouse, elsewhere: None) -> None:
    fill(warehouse, (0, "unallocated", "etl", 106_000_000), (0, "unallocated", "verify", 7))
    html = render(warehouse)
    assert figures(html) == ["Produced by client id"]
    assert "2026-01-05 12:00 to 13:00; made " in html
    assert '<span class="name">etl</span>' in html
    assert '<span class="value">106 MB</span>' in html
    assert '<span class="value">7 B</span>' in html
    assert cells(html, "Throttling")[-5:] == ["verify", "producer_byte_rate", "client-id:verify", "1 s", "1"]
    assert "<b>2 s</b><span>that clients waited, in 2.0 h of traffic</span>" in html
    assert '<td class=n data-name="waited">1 s</td>' in html, "beside its name where columns do not fit"


def test_a_day_is_drawn_by_hour_with_the_hours_of_no_usage(warehouse: Warehouse, elsewhere: None) -> None:
    fill(warehouse, (0, "a", "etl", 5), (3, "b", "verify", 7))
    fill(warehouse, (24, "a", "etl", 9), (-24, "a", "etl", 9))
    html = render(warehouse, date(2026, 1, 5), date(2026, 1, 6))
    assert figures(html) == ["Produced by team and hour B", "Throttled time by hour s"]
    assert labels(html) == ["12:00", "13:00", "14:00", "15:00"], "of the chosen period"
    assert "<details><summary>Chargeback<span>No price list was given, or all amounts are 0.</span></summary>" in html


def test_the_facts_of_requests_are_shown_where_they_are_known(warehouse: Warehouse) -> None:
    facts = {"unanswered_requests": 5, "inspected_requests": 10, "idempotent_requests": 10, "uncompressed_requests": 2}
    row = {"date": "2026-01-05", "hour": "2026-01-05 12:00:00", "user": "u", "direction": "produce"}
    known = row | {"client_id": "known", "bytes": 30_000, "requests": 20} | facts
    older = row | {"client_id": "older", "bytes": 2_000, "requests": 20}
    for each in (known, older):
        warehouse.append("usage_hourly", warehouse.row("usage_hourly", {name: f.lit(of) for name, of in each.items()}))
    found = cells(render(warehouse), "Usage")
    assert found == [
        "u", "known", "produce", "30 kB", "1.5 kB", "25 %", "100 %", "20 %",
        "u", "older", "produce", "2 kB", "100 B", "", "", "",
    ]  # fmt: skip


def test_weeks_are_drawn_by_day_with_the_days_of_no_usage(warehouse: Warehouse) -> None:
    fill(warehouse, *((24 * day, f"team-{day}", "etl", 1000 - day) for day in (*range(9), 11)))
    html = render(warehouse)
    assert figures(html) == ["Produced by team and day B", "Throttled time by day s"]
    assert labels(html) == [f"01-{day:02}" for day in range(5, 17)]
    assert 'b7"></i>all others' in html
    # A team has one colour in each figure; the eighth is for all others.
    assert 'class="c7"' in html
    assert ">-100 %</td>" in html, "the trend: used in the first half only"


def test_a_month_over_its_budget_is_flagged(warehouse: Warehouse) -> None:
    month = {"month": "2026-01-01", "team": "ads", "amount": "120", "currency": "EUR", "month_before": "100"}
    more = {"cost_per_gb": "0.5", "run_rate": "250", "budget": "200", "over_budget": "true"}
    row = {name: f.lit(value) for name, value in (month | more).items()}
    warehouse.append("team_months", warehouse.row("team_months", row))
    found = cells(render(warehouse), "Teams by month")
    assert found == ["2026-01", "ads", "120.00", "EUR", "0.5000", "+20 %", "250.00", "200.00", "over"]


def test_a_limit_is_shown_once_and_topics_only_where_something_was_unseen(warehouse: Warehouse) -> None:
    quota = {"limit": "producer_byte_rate", "entity": "total", "proposed": 5e6, "need": 4e6, "confidence": "low"}
    quota |= {"peak": 6e6, "first_day": "2026-01-05", "last_day": "2026-01-12"}
    more = {"intervals": 8, "throttled_intervals": 2, "demand_is_lower_bound": False}
    hour = {"date": "2026-01-05", "hour": "2026-01-05 12:00:00", "measure": "messages", "broker_count": 10}
    for client, part, seen in (("small", 0.2, 10), ("large", 0.8, 4)):
        own = {"client_id": client, "user": "u", "part": part}
        topic = {"topic": f"of-{client}", "seen_count": seen, "unseen_count": 10 - seen}
        for name, values in (("quota_recommendations", quota | more | own), ("bypass_check", hour | topic)):
            warehouse.append(name, warehouse.row(name, {each: f.lit(value) for each, value in values.items()}))
    html = render(warehouse)
    assert cells(html, "Quotas") == [
        "total", "producer_byte_rate", "2", "large", "80 %", "6 MB/s", "5 MB/s", "25 %", "low", "4 MB/s",
        "2026-01-05 to 2026-01-12",
    ]  # fmt: skip
    assert cells(html, "Bypass") == ["of-large", "messages", "10", "4", "6", "60.0 %"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1_234_567, "1.23 MB"), (-5e9, "-5 GB"), (2e18, "2e+03 PB")]
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value, "B") == text
