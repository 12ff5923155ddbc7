"""Deltas add up to the last record of every series, to the byte, whatever happens to the records on their way."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.schemas import QUARTER_MS, TABLES, USAGE_KIND
from pipeline.usage.transforms.deltas import dates_to_compute, deltas, samples, series_daily
from tests.pipeline.usage.fleets import NOON_MS, Drawn, fleets, usage_record

# Each example runs Spark jobs: few examples of many fleets.
SPARK = settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def records_frame(spark: SparkSession, records: Sequence[dict[str, Any]]) -> DataFrame:
    columns = TABLES["records"].schema
    rows = []
    for record in records:
        day = datetime.fromtimestamp(record["time_ms"] / 1000, UTC).date()
        row = {**record, "labels": json.dumps(record["labels"], sort_keys=True), "date": day}
        rows.append(tuple(row.get(name) for name in columns.names))
    return spark.createDataFrame(rows, columns)


def all_deltas(spark: SparkSession, records: Sequence[dict[str, Any]]) -> DataFrame:
    return deltas(samples(records_frame(spark, records), USAGE_KIND), None, USAGE_KIND)


def rows_of(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, frame.collect()))


def totals(frame: DataFrame) -> dict[tuple[str, str], tuple[int, int, int]]:
    rows = frame.groupBy("sidecar", "client_id").agg(f.sum("bytes"), f.sum("requests"), f.sum("messages")).collect()
    return {(row[0], row[1]): (row[2], row[3], row[4] or 0) for row in rows}


def expected_totals(drawn: Drawn) -> dict[tuple[str, str], tuple[int, int, int]]:
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for (sidecar, _, client, _), (total, requests, messages) in drawn.final.items():
        before = found.get((sidecar, client), (0, 0, 0))
        found[sidecar, client] = (before[0] + total, before[1] + requests, before[2] + (messages or 0))
    return found


@pytest.mark.timeout(300)
@SPARK
@given(drawn=fleets())
def test_totals_are_those_of_the_last_records_whatever_the_order(spark: SparkSession, drawn: Drawn) -> None:
    found = all_deltas(spark, drawn.arrived).cache()
    assert totals(found) == expected_totals(drawn)
    arrived = {(each["sidecar"], each["incarnation"], each["seq"]): each for each in drawn.arrived}
    once = sorted(arrived.values(), key=lambda each: (each["sidecar"], each["incarnation"], each["seq"]))
    assert rows_of(found) == rows_of(all_deltas(spark, once))


@pytest.mark.timeout(300)
@SPARK
@given(drawn=fleets())
@pytest.mark.nightly
def test_some_dates_first_and_others_later_give_what_all_at_once_gives(spark: SparkSession, drawn: Drawn) -> None:
    """As the report does it: deltas of the dates that changed, series_daily of all others."""
    sampled = samples(records_frame(spark, drawn.arrived), USAGE_KIND).cache()
    daily = series_daily(sampled, USAGE_KIND)
    is_even = f.day("date") % 2 == 0
    parts = [deltas(sampled.where(each), daily.where(~each), USAGE_KIND) for each in (is_even, ~is_even)]
    assert rows_of(parts[0]) + rows_of(parts[1]) == rows_of(deltas(sampled, None, USAGE_KIND))


def test_a_delta_over_hours_is_split_by_time_and_marked(spark: SparkSession) -> None:
    """1,000 bytes from 12:10 to 13:00: 5, 15, 15 and 15 minutes of 50."""
    start, end = NOON_MS + 600_000, NOON_MS + 3_600_000
    arrived = [usage_record(start_time_ms=start, time_ms=start, bytes=0)]
    arrived.append(usage_record(start_time_ms=start, time_ms=end, bytes=1_000, seq=1))
    rows = all_deltas(spark, arrived).orderBy("time").collect()
    split = [(row["time"].minute, row["bytes"], row["split_bytes"]) for row in rows]
    assert split == [(0, 100, 100), *((minute, 300, 300) for minute in (15, 30, 45)), (0, 0, 0)]
    assert {row["longest_gap_ms"] for row in rows[1:]} == {3_000_000}


def test_the_parts_of_a_split_add_up_whatever_the_size(spark: SparkSession) -> None:
    largest = 2**53 - 1
    arrived = [usage_record(start_time_ms=NOON_MS - 7 * 86_400_000 + 1, time_ms=NOON_MS + 1, bytes=largest)]
    rows = all_deltas(spark, arrived).collect()
    assert sum(row["bytes"] for row in rows) == largest
    assert min(row["bytes"] for row in rows) >= 0
    assert len(rows) == 7 * 96 + 1


def test_a_span_that_is_longer_than_the_lookback_is_bounded(spark: SparkSession) -> None:
    rows = all_deltas(spark, [usage_record(start_time_ms=0, time_ms=NOON_MS, bytes=12_345)]).collect()
    assert sum(row["bytes"] for row in rows) == 12_345
    assert len(rows) == 8 * 96 + 1


def test_a_counter_that_is_not_measured_stays_unknown(spark: SparkSession) -> None:
    unknown = all_deltas(spark, [usage_record(bytes=5, messages=None, record_bytes=None)]).collect()
    names = ("messages", "record_bytes", "unanswered_requests")
    assert {tuple(row[name] for name in names) for row in unknown} == {(None, None, None)}
    known = all_deltas(spark, [usage_record(bytes=5, unanswered_requests=3, uncompressed_requests=2)]).collect()
    assert [sum(row[f"{name}_requests"] for row in known) for name in ("unanswered", "uncompressed")] == [3, 2]


def test_a_clock_that_is_set_back_counts_nothing_twice(spark: SparkSession) -> None:
    start = NOON_MS - 2 * QUARTER_MS
    times = [(NOON_MS + 5_000, 100), (NOON_MS - 5_000, 250), (NOON_MS + 9_000, 300)]
    arrived = [usage_record(start_time_ms=start, time_ms=at, bytes=b, seq=n) for n, (at, b) in enumerate(times)]
    rows = all_deltas(spark, arrived).collect()
    assert sum(row["bytes"] for row in rows) == 300
    assert min(row["bytes"] for row in rows) >= 0


def test_late_data_of_a_date_concerns_the_next_date_of_its_series_too(spark: SparkSession) -> None:
    day = timedelta(days=1)
    times = [NOON_MS, NOON_MS + 2 * 86_400_000, NOON_MS + 3 * 86_400_000]
    arrived = [usage_record(time_ms=time, bytes=seq, seq=seq) for seq, time in enumerate(times)]
    arrived.append(usage_record(time_ms=NOON_MS + 86_400_000, client_id="other"))
    daily = series_daily(samples(records_frame(spark, arrived), USAGE_KIND), USAGE_KIND)
    first = date(2026, 1, 5)
    found = dates_to_compute(daily, USAGE_KIND, [first]).collect()
    assert sorted(row["date"] for row in found) == [first, first + 2 * day]


def test_deltas_are_one_shuffle_of_the_samples(spark: SparkSession) -> None:
    """The window over a series and the sums by quarter hour share it."""
    more = spark.newSession()
    more.conf.set("spark.sql.shuffle.partitions", "3")
    sampled = samples(records_frame(more, [usage_record()]), USAGE_KIND).localCheckpoint()
    daily = series_daily(sampled, USAGE_KIND).localCheckpoint()
    plan = deltas(sampled, daily, USAGE_KIND)._jdf.queryExecution().executedPlan().toString()
    shuffles = [line for line in plan.splitlines() if "Exchange hashpartitioning" in line and "sidecar" in line]
    assert len(shuffles) == 1, plan


def test_the_plan_has_no_python_and_no_task_for_a_whole_client(spark: SparkSession) -> None:
    """Partial aggregation before each shuffle, windows by series: a client with most records is many tasks."""
    plan = all_deltas(spark, [usage_record()])._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert "CartesianProduct" not in plan
    assert "partial_max" in plan
    windows = [line for line in plan.splitlines() if "Window [" in line]
    assert windows
    for line in windows:
        partition = line.split("], [")[-2]
        assert all(name in partition for name in ("incarnation", "start_time_ms", "client_id", "topic", "direction"))
