"""The whole report over Delta: totals, late data, closed periods, and what a rerun changes."""

import random
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from demo import fleet
from demo.usage import as_records
from pipeline.failures import InputError
from pipeline.usage import cli, owners, price_list
from pipeline.usage.jobs.apply import recommended
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.schemas import TABLES
from pipeline.usage.tables import Warehouse
from tests.pipeline.usage.fleets import NOON_MS, throttle_record, usage_record
from tests.pipeline.usage.test_deltas import records_frame
from tests.pipeline.usage.test_kills import Killed, writing

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


def odd_records() -> list[tuple[str, bool, dict[str, Any]]]:
    """(client, whether it comes late, record): series as they should not be."""
    minute, hour, day = 60_000, 3_600_000, 86_400_000
    made: list[tuple[str, bool, dict[str, Any]]] = []

    def add(client: str, after_ms: int, size: int, *, start_ms: int = 0, late: bool = False, **more: Any) -> None:
        times = {"time_ms": NOON_MS + after_ms, "start_time_ms": NOON_MS + start_ms}
        made.append((client, late, usage_record(client_id=client, bytes=size, **times, **more)))

    for run, (start, sizes) in enumerate([(0, (100, 300)), (5 * minute, (50,)), (5 * minute, (7, 9))]):
        for number, size in enumerate(sizes):
            add("restarted", start + (1 + number) * minute, size, start_ms=start, incarnation=f"run-{run}")
    add("midnight", 11 * hour + 50 * minute, 10**9 + 1, late=True)
    add("midnight", 12 * hour + 20 * minute, 3 * 10**9 + 1)
    add("quiet", 0, 10, start_ms=-minute, late=True)
    add("quiet", 10 * day, 1_000_013, start_ms=-minute)
    add("clock-set-right", hour, 100, sidecar="pod-2")
    add("clock-set-right", 5 * minute, 150, sidecar="pod-2", late=True)
    add("clock-set-right", 20 * minute, 170, sidecar="pod-2")
    add("by-topic", minute, 700, topic="t")
    add("by-topic", minute, 33)
    add("by-topic", 20 * minute, 34, late=True)
    return made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("batches", [(None,), pytest.param((False, True), marks=pytest.mark.nightly)])
def test_odd_series_add_up_exactly(spark: SparkSession, warehouse: Warehouse, batches: tuple[bool | None, ...]) -> None:
    """Restarts within a quarter hour, midnight, more than 8 quiet days, a clock an hour off, bytes without a topic; and
    a report that ended at a write is repeated as a whole.
    """
    made = odd_records()
    for late in batches:
        batch = [record for _, is_late, record in made if late is None or is_late == late]
        warehouse.append("records", records_frame(spark, batch))
        warehouse.append("records", records_frame(spark, batch[:2]))  # sent twice
        with pytest.raises(Killed), writing(random.randint(2, 6), after=True):  # among samples and deltas
            report(warehouse, RULES)
        assert report(warehouse, RULES)
    series = {(client, record["incarnation"], record["topic"]): record["bytes"] for client, _, record in made}
    expected = Counter[str]()
    for (client, *_), size in series.items():
        expected[client] += size
    hourly = warehouse.read("usage_hourly").groupBy("client_id").agg(f.sum("bytes"), f.min("bytes")).collect()
    assert {row[0]: row[1] for row in hourly} == expected
    assert min(row[2] for row in hourly) >= 0
    charges = warehouse.read("chargeback_daily").where("axis = 'network_in'").collect()
    charged = Counter[str]()
    for row in charges:
        charged[row["client_id"]] += int(row["quantity"])
    assert charged == expected
    assert sum(row["amount"] for row in charges) == round(sum(row["cost"] for row in charges), 2)
    # From 12:00 to 00:20 UTC: in Berlin it is midnight at 23:00 UTC.
    assert {str(row["date"]) for row in charges if row["client_id"] == "midnight"} == {"2026-01-05", "2026-01-06"}


@pytest.mark.nightly  # the short forms: test_blame.py has clusters, test_rules.py budgets
@pytest.mark.timeout(600)
def test_two_clusters_are_told_apart_in_each_table_and_a_budget_is_watched(
    spark: SparkSession,
    warehouse: Warehouse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same users, clients and topics in both. A limit of the user holds them in one: there etl waits for loud.

    Most of a small report is the fixed cost of its Spark jobs.
    """
    made = []
    for cluster, step in (("east", 3), ("west", 2)):
        for n in range(1, 31):
            common = {"sidecar": f"pod-{cluster}", "labels": {"cluster": cluster}, "time_ms": NOON_MS + 10_000 * n}
            common["start_time_ms"] = NOON_MS
            made.append(usage_record(**common, seq=step * (n - 1), bytes=10**9 * n))
            made.append(usage_record(**common, seq=step * (n - 1) + 1, client_id="loud", bytes=9 * 10**9 * n))
            if cluster == "east":
                common |= {"entity": "user:alice", "throttled_ms": 500 * n}
                made.append(throttle_record(**common, seq=step * (n - 1) + 2))
    warehouse.append("records", records_frame(spark, made))
    hour = datetime(2026, 1, 5, 12, tzinfo=UTC)
    counted = [(hour.date(), hour, cluster, "t", count) for cluster, count in (("east", 10), ("west", 20))]
    columns = "date date, hour timestamp, cluster string, topic string, messages bigint"
    brokers = spark.createDataFrame(counted, columns).withColumn("record_bytes", f.lit(None))
    warehouse.append("broker_topic_hourly", brokers)
    budget = '[[budget]]\nteam = "unallocated"\namount = "300.00"\n'
    prices = tmp_path / "prices.toml"
    prices.write_text(fleet.EXAMPLE_PRICES + budget, encoding="utf-8")
    monkeypatch.setattr(cli, "session", lambda **_: nullcontext(spark))
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    first_job = scheduler.numTotalJobs()
    assert cli.main(["report", "--warehouse", warehouse.root, "--prices", str(prices)]) == cli.OVER_BUDGET
    assert scheduler.numTotalJobs() - first_job <= 87
    # 600 GB at 0.09 EUR on the fifth of 31 days.
    over = "warning: team unallocated: 54.00 EUR in 2026-01, 334.80 at this rate; its budget is 300.00\n"
    assert capsys.readouterr() == ("computed 1 dates: 2026-01-05 to 2026-01-05\n", over)
    empty = {"storage_snapshots", "isolated"}
    for name, table in TABLES.items():
        if "cluster" in table.schema.names and name not in empty:
            found = {row["cluster"] for row in warehouse.read(name).select("cluster").distinct().collect()}
            waits = name in ("noisy_neighbours", "waiting_cost", "throttling_hourly")
            assert found == ({"east"} if waits else {"east", "west"}), name
    unseen = {row["cluster"]: row["unseen_count"] for row in warehouse.read("bypass_check").collect()}
    assert unseen == {"east": 10, "west": 20}
    entities = {(row["cluster"], row["entity"]) for row in warehouse.read("quota_recommendations").collect()}
    own = {("west", f"user:alice,client-id:{client}") for client in ("etl", "loud")}
    assert entities == {("east", "user:alice"), *own}
    with pytest.raises(InputError, match="choose --cluster, one of 'east', 'west'"):
        recommended(warehouse, "low")
    assert [each["entity"] for each in recommended(warehouse, "low", "east")] == ["user:alice"]


@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_snapshots_alone_are_reported(spark: SparkSession, warehouse: Warehouse) -> None:
    """A thousand messages that no sidecar saw, and a partition for a day."""
    rows = spark.sql(
        "select date'2026-01-08' as date, timestamp(at) as time, '' as cluster, 'x' as topic, 1L as partitions, "
        "5L as size_bytes, end_offsets "
        "from values ('2026-01-08 10:00:00', 5L), ('2026-01-08 10:30:00', 1005L) as t(at, end_offsets)"
    )
    warehouse.append("storage_snapshots", rows)
    assert report(warehouse, RULES) == [date(2026, 1, 8)]
    (unseen,) = warehouse.read("bypass_check").collect()
    assert (unseen["topic"], unseen["hour"].hour, unseen["unseen_count"]) == ("x", 10, 1_000)
    charged = warehouse.read("chargeback_daily").where("axis = 'partitions'").first()
    assert (str(charged["date"]), charged["quantity"]) == ("2026-01-08", 24)
    assert report(warehouse, RULES) == []


def test_records_that_are_made_up_have_every_column(spark: SparkSession) -> None:
    assert set(TABLES["records"].schema.names) <= set(as_records(fleet.records(spark, SMALL)).columns)


@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_totals_reconcile_and_late_data_changes_no_result(spark: SparkSession, warehouse: Warehouse) -> None:
    made = fleet.records(spark, SMALL, partitions=1).localCheckpoint()
    is_late = (f.col("sidecar") == "pod-1") & (f.col("date") == f.lit(date(2026, 1, 5))) & (f.col("kind") == "usage")
    warehouse.append("records", as_records(made.where(~is_late)))
    assert report(warehouse, RULES)
    assert report(warehouse, RULES) == []
    warehouse.append("records", as_records(made.where(is_late)))
    warehouse.append("records", as_records(made.where(is_late)))  # a second stream sent all of it again
    report(warehouse, RULES)

    assert total(warehouse.read("usage_hourly"), "bytes") == last_counters(made)
    charges = warehouse.read("chargeback_daily")
    assert total(charges.where("axis in ('network_in', 'network_out')"), "quantity") == last_counters(made)
    for axis in charges.groupBy("axis").agg(f.sum("cost").alias("c"), f.sum("amount").alias("a")).collect():
        assert axis["a"] == round(axis["c"], 2), axis
    assert charges.where("team = 'unallocated'").count() > 0
