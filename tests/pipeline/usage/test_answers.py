"""Neighbours, recommendations, bypass: small cases whose answer can be worked out by hand."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.jobs.broker_history import import_range
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.bypass import bypass_check, from_offsets
from pipeline.usage.transforms.neighbours import noisy_neighbours
from pipeline.usage.transforms.recommendations import demand, quota_recommendations, rates

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
QUARTER = timedelta(minutes=15)


def team() -> Column:
    """The client id up to its dash."""
    return f.split("client_id", "-")[0]


def usage(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    """rows: (quarter hours after noon, sidecar, client id, bytes)."""
    columns = (
        "time timestamp, sidecar string, labels string, user string, client_id string, topic string, direction string, "
        "bytes bigint, record_bytes bigint, messages bigint, requests bigint"
    )
    made = [(NOON + n * QUARTER, s, "{}", "u", c, "t", "produce", b, b, max(1, b // 100), 1) for n, s, c, b in rows]
    return spark.createDataFrame(made, columns)


def throttled(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    """rows: (quarter hours after noon, sidecar, client id, entity, throttled ms, limit)."""
    columns = (
        "time timestamp, sidecar string, labels string, user string, client_id string, limit string, entity string, "
        "throttled_ms bigint, limit_value double"
    )
    made = [(NOON + n * QUARTER, s, "{}", "u", c, "producer_byte_rate", e, ms, float(v)) for n, s, c, e, ms, v in rows]
    return spark.createDataFrame(made, columns)


def test_waiting_is_put_down_to_the_shares_of_the_others(spark: SparkSession) -> None:
    """a takes 90 %, b 10 %; a waits 1 s, b waits 20 s: a caused 0.9 x 20 s, b 0.1 x 1 s. c has a limit of its own."""
    used = usage(spark, [(0, "p", "a-1", 900), (0, "p", "b-1", 100), (0, "p", "c-1", 5_000), (0, "q", "a-1", 1)])
    group = "resource-group:g"
    waits = [
        (0, "p", "a-1", group, 1_000, 100),
        (0, "p", "b-1", group, 20_000, 100),
        (0, "p", "c-1", "client-id:c-1", 9_000, 100),
        (0, "q", "a-1", group, 500, 100),
    ]
    rows = {row["team"]: row for row in noisy_neighbours(used, throttled(spark, waits), team()).collect()}
    assert set(rows) == {"a", "b"}
    assert (rows["a"]["share"], rows["a"]["victims"], rows["a"]["victims_throttled_ms"]) == (0.9, 1, 20_000)
    assert rows["a"]["caused_throttled_ms"] == pytest.approx(18_000)
    assert rows["b"]["caused_throttled_ms"] == pytest.approx(100)


def test_all_clients_of_a_sidecar_share_its_total(spark: SparkSession) -> None:
    used = usage(spark, [(0, "p", "a-1", 750), (0, "p", "b-1", 250)])
    found = noisy_neighbours(used, throttled(spark, [(0, "p", "b-1", "total", 4_000, 10)]), team()).collect()
    assert {row["team"]: row["caused_throttled_ms"] for row in found} == {"a": 3_000.0, "b": 0.0}


def samples(spark: SparkSession, rates: list[tuple[float, int]]) -> DataFrame:
    made = [("t", "u", "c", "producer_byte_rate", "client-id:c", rate, censored) for rate, censored in rates]
    return spark.createDataFrame(
        made, "team string, user string, client_id string, limit string, entity string, rate double, censored int"
    )


@pytest.mark.parametrize(
    ("rates", "expected", "is_lower_bound"),
    [
        # Without censoring: the 99th of 100.
        ([(float(n), 0) for n in range(1, 101)], 99.0, False),
        # Everything throttled at the limit: at least that.
        ([(50.0, 1)] * 10, 50.0, True),
        # Half of the samples hit a limit of 50. Of the rest one has 200: demand reaches that far.
        ([(10.0, 0)] * 5 + [(50.0, 1)] * 5 + [(200.0, 0)], 200.0, False),
    ],
)
def test_throttled_samples_are_lower_bounds_of_demand(
    spark: SparkSession, rates: list[tuple[float, int]], expected: float, is_lower_bound: bool
) -> None:
    row = demand(samples(spark, rates)).first()
    assert (row["demand_p99"], row["demand_is_lower_bound"]) == (expected, is_lower_bound)


def test_a_client_at_its_limit_gets_no_recommendation_to_keep_it(spark: SparkSession) -> None:
    """At 1,000 B/s in each of four days' quarter hours, and throttled in all of them."""
    quarters = range(4 * 96)
    used = usage(spark, [(n, "p", "a-1", 900_000) for n in quarters] + [(n, "q", "a-1", 9) for n in quarters])
    waits = throttled(spark, [(n, "p", "a-1", "client-id:a-1", 60_000, 1_000) for n in quarters])
    (row,) = quota_recommendations(rates(used, waits, team())).collect()
    assert (row["used_p50"], row["used_p99"], row["current_limit"]) == (1_000.0, 1_000.0, 1_000.0)
    assert row["demand_is_lower_bound"]
    assert (row["proposed"], row["confidence"]) == (1_500.0, "low")
    assert (row["intervals"], row["throttled_intervals"], row["days"]) == (384, 384, 5)
    assert not row["buffer_fits"]  # 32 MiB at 1,500 B/s take 6 hours, delivery.timeout.ms is 2 minutes
    assert [each["hour"] for each in row["by_hour"]] == list(range(24))


def test_what_brokers_counted_and_sidecars_did_not(spark: SparkSession) -> None:
    hourly = spark.sql(
        "select timestamp'2026-01-05 12:00:00' as hour, 'a' as topic, 'produce' as direction, 'proxy' as source, "
        "600L as record_bytes, 6L as messages"
    )
    brokers = spark.sql(
        "select date'2026-01-05' as date, timestamp'2026-01-05 12:00:00' as hour, topic, record_bytes, messages "
        "from values ('a', 1000L, 10L), ('b', cast(null as bigint), 5L) as t(topic, record_bytes, messages)"
    )
    found = {(row["topic"], row["measure"]): row for row in bypass_check(hourly, brokers).collect()}
    assert set(found) == {("a", "record_bytes"), ("a", "messages"), ("b", "messages")}
    assert (found["a", "record_bytes"]["unseen_count"], found["a", "record_bytes"]["unseen_share"]) == (400, 0.4)
    assert found["b", "messages"]["unseen_share"] == 1.0


def test_growth_of_end_offsets_is_split_over_hours_to_the_message(spark: SparkSession) -> None:
    """Snapshots at 11:30 and 13:30; a topic that was made anew starts at 0."""
    rows = [
        (NOON - 2 * QUARTER, "a", 1_000), (NOON + 6 * QUARTER, "a", 1_007), (NOON + 7 * QUARTER, "a", 3),
        (NOON, "alone", 50),
    ]  # fmt: skip
    snapshots = spark.createDataFrame(rows, "time timestamp, topic string, end_offsets bigint")
    found = from_offsets(snapshots).orderBy("hour").collect()
    assert [(row["topic"], row["hour"].hour, row["messages"]) for row in found] == [
        ("a", 11, 1), ("a", 12, 4), ("a", 13, 2 + 3),
    ]  # fmt: skip
    assert {row["record_bytes"] for row in found} == {None}


def test_the_limit_in_force_is_the_last_one_that_is_known(spark: SparkSession) -> None:
    used = usage(spark, [(n, "p", "a-1", 900) for n in range(3)])
    waits = throttled(spark, [(0, "p", "a-1", "client-id:a-1", 0, 1_000), (1, "p", "a-1", "client-id:a-1", 0, 2_000)])
    assert quota_recommendations(rates(used, waits, team())).first()["current_limit"] == 2_000.0


@pytest.mark.nightly
def test_history_of_brokers_is_imported_and_marked(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    """A counter that restarts in between counts on from 0."""
    start = int(NOON.timestamp())
    values = [[start + 300 * n, str(total)] for n, total in enumerate([1_000, 1_500, 200, 300])]
    answer = {"data": {"result": [{"metric": {"topic": "orders", "instance": "b1"}, "values": values}]}}
    path = tmp_path / "range.json"
    path.write_text(json.dumps(answer))
    assert import_range(warehouse, str(path), "produce") == 1
    assert import_range(warehouse, str(path), "produce") == 1
    (row,) = warehouse.read("usage_hourly").collect()
    assert (row["topic"], row["bytes"], row["source"], row["team"]) == ("orders", 800, "brokers", "unallocated")
    assert warehouse.read("broker_topic_hourly").first()["record_bytes"] == 800
