"""Tables: what two runs at once leave, and what is kept for how long."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.usage.jobs.maintain import maintain
from pipeline.usage.jobs.report import Deltas, Rules, charge
from pipeline.usage.jobs.runs import begin
from pipeline.usage.schemas import DAY_MS, TABLES
from pipeline.usage.tables import Warehouse
from tests.pipeline.usage.fleets import NOON_MS


def test_an_earlier_run_does_not_write_over_a_later_one(spark: SparkSession, warehouse: Warehouse) -> None:
    columns = "sidecar string, incarnation string"

    def write(run: Warehouse, name: str) -> None:
        made = spark.createDataFrame([(name, "run-1")], columns)
        empty = run.read("sidecars").drop("sidecar", "incarnation").limit(0)
        run.replace("sidecars", made.join(empty, how="left"))

    earlier, later = begin(warehouse), begin(warehouse)
    for run, name in ((earlier, "a"), (later, "b"), (later, "c"), (earlier, "d")):
        write(run, name)
    assert [row["sidecar"] for row in warehouse.read("sidecars").collect()] == ["c"]
    write(replace(warehouse, fence=None), "by hand")
    assert [row["sidecar"] for row in warehouse.read("sidecars").collect()] == ["by hand"]


def test_two_runs_make_a_table_and_write_it_at_once(spark: SparkSession, warehouse: Warehouse) -> None:
    """Delta refuses all but one of the commits that meet: the others are tried again."""

    def write(number: int) -> None:
        own = Warehouse(spark.newSession(), warehouse.root)
        own.replace("isolated", own.row("isolated", {"step": f.lit(f"{number}")}))

    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(write, number) for number in range(3)]:
            each.result()
    assert warehouse.read("isolated").count() == 1


def test_what_was_added_since_a_version_that_delta_has_forgotten_is_all_rows(warehouse: Warehouse) -> None:
    """Of twelve versions the log of the first ten is in a checkpoint."""
    for n in range(12):
        row = {"date": f.lit("2026-01-05"), "topic": f.lit("t"), "messages": f.lit(n)}
        warehouse.append("broker_topic_hourly", warehouse.row("broker_topic_hourly", row))
    for n in range(10):
        for each in Path(warehouse.path("broker_topic_hourly"), "_delta_log").glob(f"{n:020}.*[!t]"):
            each.unlink()
    found = {version: warehouse.added_since("broker_topic_hourly", version).count() for version in (-1, 3, 10)}
    assert found == {-1: 12, 3: 12, 10: 1}


def test_a_small_report_has_a_task_for_each_stage_whatever_it_reads(spark: SparkSession, warehouse: Warehouse) -> None:
    days = spark.sql("select date_add(date'2026-01-05', cast(id as int)) as date from range(12)")
    warehouse.append("broker_topic_hourly", days.join(warehouse.read("broker_topic_hourly").drop("date"), how="left"))
    assert len(list(Path(warehouse.path("broker_topic_hourly")).glob("date=*"))) == 12
    assert warehouse.read("broker_topic_hourly").rdd.getNumPartitions() == 1


def test_the_name_of_sparks_functions_is_looked_up_once(spark: SparkSession) -> None:
    """Each lookup searches all jars for a class of that name in each package that PySpark imports."""
    jvm, name = spark.sparkContext._jvm, "org.apache.spark.sql.functions"
    assert getattr(jvm, name) is getattr(jvm, name)


@pytest.mark.nightly
def test_old_rows_are_deleted_but_for_charges_of_closed_months(spark: SparkSession, warehouse: Warehouse) -> None:
    now_ms = NOON_MS + 440 * DAY_MS
    days = ("2026-01-05", "2026-02-05", "2027-03-01")
    for name, column in (("isolated", "at"), ("chargeback_daily", "date"), ("quota_recommendations", "")):
        for day in days:
            warehouse.append(name, warehouse.row(name, {column: f.lit(day)}))
    closed = {"period": f.lit("2026-01"), "first_day": f.lit("2026-01-01"), "end_day": f.lit("2026-02-01")}
    warehouse.append("closed_periods", warehouse.row("closed_periods", closed))
    maintain(warehouse, now_ms)
    assert [f"{row['at']:%Y-%m-%d}" for row in warehouse.read("isolated").collect()] == ["2027-03-01"]
    assert {str(row["date"]) for row in warehouse.read("chargeback_daily").collect()} == {"2026-01-05", "2027-03-01"}
    assert warehouse.read("quota_recommendations").count() == 3
    assert {name for name, table in TABLES.items() if not table.ages_by} == {
        "sidecars", "quota_recommendations", "closed_periods",
    }  # fmt: skip


@pytest.mark.parametrize(("first", "amounts"), [(date(2026, 3, 1), ["-1.00", "1.00"]), (date(2027, 2, 1), ["1.00"])])
def test_a_closed_month_of_which_usage_was_deleted_is_not_refunded(
    spark: SparkSession, warehouse: Warehouse, first: date, amounts: list[str]
) -> None:
    """first: of the newest 28 days. Without its usage a closed month costs nothing: that is corrected for a year."""
    closed = {"period": "2026-01", "first_day": "2026-01-01", "end_day": "2026-02-01", "price_list": 'currency = "EUR"'}
    charged = {"date": "2026-01-05", "team": "a", "axis": "network_in", "source": "price", "amount": "1.00"}
    for name, row in (("closed_periods", closed | {"owners": ""}), ("chargeback_daily", charged)):
        warehouse.append(name, warehouse.row(name, {key: f.lit(value) for key, value in row.items()}))
    nothing = spark.range(0)
    deltas = Deltas(nothing, nothing, None, first, nothing, nothing, nothing)
    charge(warehouse, Rules(), [date(2026, 1, 20)], deltas)
    assert sorted(str(row["amount"]) for row in warehouse.read("chargeback_daily").collect()) == amounts
