"""The whole report over Delta: totals, late data, closed periods, and what a rerun changes."""

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage import fleet, owners, price_list
from pipeline.usage.jobs import closing
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.tables import Warehouse

START = datetime(2026, 1, 5, tzinfo=UTC)
SMALL = fleet.Fleet(
    int(START.timestamp() * 1000), days=2, interval_s=5_400, sidecars=2, clients=12, topics=4, series=48, restart_days=1
)
RULES = Rules(owners.parse(fleet.EXAMPLE_OWNERS), price_list.parse(fleet.EXAMPLE_PRICES))


def last_counters(records: DataFrame) -> int:
    series = ["sidecar", "incarnation", "start_time_ms", "user", "client_id", "topic", "direction"]
    last = records.where("kind = 'usage'").groupBy(*series).agg(f.max("bytes").alias("bytes"))
    return int(last.agg(f.sum("bytes")).first()[0])


def total(frame: DataFrame, column: str) -> Any:
    return frame.agg(f.sum(column)).first()[0]


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, frame.collect()))


@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_totals_reconcile_and_late_data_gives_what_data_in_time_would_have(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    made = fleet.records(spark, SMALL, partitions=1).localCheckpoint()
    is_late = (f.col("sidecar") == "pod-1") & (f.col("date") == f.lit(date(2026, 1, 5))) & (f.col("kind") == "usage")
    warehouse.append("records", with_kafka(made.where(~is_late)))
    assert report(warehouse, RULES)
    assert report(warehouse, RULES) == []
    warehouse.append("records", with_kafka(made.where(is_late)))
    warehouse.append("records", with_kafka(made.where(is_late)))  # a second stream sent all of it again
    report(warehouse, RULES)

    hourly = warehouse.read("usage_hourly")
    assert total(hourly, "bytes") == last_counters(made)
    charges = warehouse.read("chargeback_daily")
    assert total(charges.where("axis in ('network_in', 'network_out')"), "quantity") == last_counters(made)
    for day in charges.groupBy("date", "axis").agg(f.sum("cost").alias("c"), f.sum("amount").alias("a")).collect():
        assert day["a"] == round(day["c"], 2), day
    assert charges.where("team = 'unallocated'").count() > 0

    # Closing: what was billed stays; more usage of a closed month becomes corrections.
    before = rows(charges.drop("closed_period"))
    closed = closing.close(warehouse, "2026-01", RULES.prices, fleet.EXAMPLE_OWNERS)  # type: ignore[arg-type]
    assert rows(warehouse.read("chargeback_daily").drop("closed_period")) == before
    more = made.where("sidecar = 'pod-0' and kind = 'usage'").withColumn("sidecar", f.lit("pod-9"))
    warehouse.append("records", with_kafka(more))
    report(warehouse, RULES)
    now = warehouse.read("chargeback_daily")
    assert rows(now.where("charge_class is null").drop("closed_period")) == before
    corrected = now.where("charge_class = 'Correction'")
    assert total(corrected.where("axis in ('network_in', 'network_out')"), "quantity") == last_counters(more)
    assert total(corrected, "amount") > Decimal(0)
    again = closing.recompute(warehouse, closed).agg(closing.fingerprint()).first()["fingerprint"]
    assert again == closed.fingerprint


def with_kafka(made: DataFrame) -> DataFrame:
    nothing = f.lit(None)
    return made.withColumns({"kafka_partition": nothing, "kafka_offset": nothing, "kafka_time": nothing})
