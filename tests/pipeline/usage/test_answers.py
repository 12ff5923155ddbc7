"""Demand, bypass: small cases whose answer can be worked out by hand."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.transforms.bypass import bypass_check, from_offsets
from pipeline.usage.transforms.recommendations import demand, quota_recommendations

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
QUARTER = timedelta(minutes=15)


def throttled(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    """rows: (quarter hours after noon, sidecar, client id, entity, throttled ms)."""
    columns = (
        "time timestamp, sidecar string, labels string, user string, client_id string, limit string, entity string, "
        "throttled_ms bigint"
    )
    made = [(NOON + n * QUARTER, s, "{}", "u", c, "producer_byte_rate", e, ms) for n, s, c, e, ms in rows]
    return spark.createDataFrame(made, columns)


def samples(spark: SparkSession, rates: list[tuple[float, int]]) -> DataFrame:
    made = [("", "producer_byte_rate", "client-id:c", rate, censored) for rate, censored in rates]
    return spark.createDataFrame(made, "cluster string, limit string, entity string, rate double, censored int")


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


def test_a_limit_that_was_just_raised_is_not_recommended_down_again(spark: SparkSession) -> None:
    """299 quarter hours at a limit of 50, half of them throttled, then one at 200 below the new limit."""
    entity = "client-id:etl"
    seconds = [(NOON + n * QUARTER, 200.0 if n == 299 else 50.0) for n in range(300)]
    rates = spark.createDataFrame(
        [
            (at, "p", "", "producer_byte_rate", entity, rate, 10.0, [(int(rate), 900.0, 900 * rate, rate)], True, rate)
            for at, rate in seconds
        ],
        "time timestamp, sidecar string, cluster string, limit string, entity string, p99 double, interval_s double, "
        "bins array<struct<step:int,seconds:double,bytes:double,top:double>>, has_seconds boolean, independent double",
    )
    held = throttled(spark, [(n, "p", "etl", entity, 400_000) for n in range(0, 299, 2)])
    clients = spark.sql(
        "select '' as cluster, 'producer_byte_rate' as limit, 'client-id:etl' as entity, 'produce' as direction, "
        "1.0D as part"
    )
    held = held.withColumns({"limit_value": f.lit(50.0), "fleet": f.lit(None).cast("string")})
    row = quota_recommendations(rates, held, clients).first()
    assert (row["demand_p99"], row["demand_is_lower_bound"]) == (200.0, False)
    assert (row["need"], row["proposed"]) == (200.0, 240.0)


def test_what_brokers_counted_and_sidecars_did_not(spark: SparkSession) -> None:
    hourly = spark.sql(
        "select timestamp'2026-01-05 12:00:00' as hour, '' as cluster, 'a' as topic, 'produce' as direction, "
        "600L as record_bytes, 6L as messages"
    )
    brokers = spark.sql(
        "select date'2026-01-05' as date, timestamp'2026-01-05 12:00:00' as hour, '' as cluster, topic, "
        "record_bytes, messages from values ('a', 1000L, 10L), "
        "('b', cast(null as bigint), 5L) as t(topic, record_bytes, messages)"
    )
    lost = spark.sql("select timestamp'2026-01-05 12:00:00' as hour, '' as cluster, 1L as lost_sidecars")
    found = {(row["topic"], row["measure"]): row for row in bypass_check(hourly, brokers, lost.limit(0)).collect()}
    assert set(found) == {("a", "record_bytes"), ("a", "messages"), ("b", "messages")}
    assert (found["a", "record_bytes"]["unseen_count"], found["a", "record_bytes"]["unseen_share"]) == (400, 0.4)
    assert found["b", "messages"]["unseen_share"] == 1.0
    assert {row["is_certain"] for row in found.values()} == {True}
    doubtful = bypass_check(hourly, brokers, lost).collect()
    assert {(row["is_certain"], row["lost_sidecars"]) for row in doubtful} == {(False, 1)}


def test_growth_of_end_offsets_is_split_over_hours_to_the_message(spark: SparkSession) -> None:
    """Snapshots at 11:30 and 13:30; a topic that was made anew starts at 0."""
    rows = [
        (NOON - 2 * QUARTER, "a", 1_000), (NOON + 6 * QUARTER, "a", 1_007), (NOON + 7 * QUARTER, "a", 3),
        (NOON, "alone", 50),
    ]  # fmt: skip
    snapshots = spark.createDataFrame(rows, "time timestamp, topic string, end_offsets bigint")
    snapshots = snapshots.withColumn("cluster", f.lit(""))
    found = from_offsets(snapshots).orderBy("hour").collect()
    assert [(row["topic"], row["hour"].hour, row["messages"]) for row in found] == [
        ("a", 11, 1), ("a", 12, 4), ("a", 13, 2 + 3),
    ]  # fmt: skip
    assert {row["record_bytes"] for row in found} == {None}
