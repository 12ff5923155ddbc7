"""What did not arrive is shown: topics that are not split yet, lost sidecars, holes of the topic, other rules."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage import owners
from pipeline.usage.jobs import runs
from pipeline.usage.jobs.report import SHOWN, Rules, report, warnings
from pipeline.usage.schemas import REQUEST_FACTS, TABLES, USAGE_KIND
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.deltas import deltas, samples
from pipeline.usage.transforms.hourly import usage_hourly
from pipeline.usage.transforms.sidecars import sidecar_days, sidecars, topic_holes
from tests.pipeline.usage.fleets import NOON_MS, idle_record, usage_record
from tests.pipeline.usage.test_deltas import all_deltas, records_frame

INTERVAL_MS = 10_000
PACES = "sidecar string, incarnation string, pace_ms bigint"
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def by_topic(frame: DataFrame) -> dict[str | None, int]:
    rows = usage_hourly(frame, f.lit("t")).groupBy("topic").agg(f.sum("bytes")).collect()
    return {row[0]: row[1] for row in rows}


def test_what_is_not_split_by_topic_yet_is_topic_unknown(spark: SparkSession) -> None:
    """A total each 10 s, its topics after 60 s: a kill after 85 s loses nothing that the total has."""
    common = {"has_total": True, "start_time_ms": NOON_MS}
    made = [usage_record(**common, time_ms=NOON_MS + n * INTERVAL_MS, bytes=1_000 * n) for n in range(1, 9)]
    split = {"a": 4_000, "b": 1_500}
    made += [usage_record(**common, time_ms=NOON_MS + 60_000, topic=t, bytes=b) for t, b in split.items()]
    assert by_topic(all_deltas(spark, made)) == {"a": 4_000, "b": 1_500, None: 2_500}
    assert by_topic(all_deltas(spark, made[:5])) == {None: 5_000}


def test_topics_are_no_more_than_their_total(spark: SparkSession) -> None:
    """All came before 13:00, the split by topic after it: its part of the next hour is not counted again."""
    before, after = NOON_MS + 3_599_000, NOON_MS + 3_600_000 + 30_000
    common = {"has_total": True, "start_time_ms": before - 30_000}
    made = [usage_record(**common, time_ms=before, bytes=10_001)]
    made += [usage_record(**common, time_ms=after, topic=t, bytes=b) for t, b in (("a", 9_001), ("b", 1_000))]
    rows = usage_hourly(all_deltas(spark, made), f.lit("t")).collect()
    assert sum(row["bytes"] for row in rows) == 10_001
    assert min(row["bytes"] for row in rows) >= 0
    assert sum(row["bytes"] for row in rows if row["hour"].hour == 12) == 10_001


def test_records_of_older_proxies_count_each_byte_once(spark: SparkSession) -> None:
    made = [usage_record(bytes=70), usage_record(topic="a", bytes=700)]
    assert by_topic(all_deltas(spark, made)) == {None: 70, "a": 700}


def idle(seq: int, sidecar: str) -> dict[str, Any]:
    return idle_record(sidecar=sidecar, seq=seq, time_ms=NOON_MS, start_time_ms=NOON_MS)


def readings(sidecar: str, count: int, *, start: int = 0, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    """One record each 10 s from noon on; the first one has this number."""
    return [
        usage_record(
            sidecar=sidecar, seq=first + n, time_ms=NOON_MS + (start + n) * INTERVAL_MS, start_time_ms=NOON_MS,
            bytes=1_000 * (n + 1), **more,
        )
        for n in range(count)
    ]  # fmt: skip


def runs_of(spark: SparkSession, made: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    paces = spark.createDataFrame([(each["sidecar"], each["incarnation"], INTERVAL_MS) for each in made], PACES)
    days = sidecar_days(records_frame(spark, made), all_deltas(spark, made), paces.distinct())
    return {(row["sidecar"], row["incarnation"]): row for row in sidecars(days).collect()}


def test_each_run_of_a_proxy_says_what_is_missing(spark: SparkSession) -> None:
    complete = readings("complete", 300)
    gaps = [each for each in readings("gaps", 300) if not 130 <= each["seq"] < 140 and each["seq"] != 7]
    # Of proxies that write idle records the silence says something.
    silent = [idle(0, "silent"), *readings("silent", 30, first=1)]
    quiet = readings("quiet", 30, final=False)
    killed = readings("killed", 20, final=False) + readings("killed", 270, start=21, incarnation="run-2", final=False)
    ended = [*readings("ended", 9), usage_record(sidecar="ended", seq=9, time_ms=NOON_MS + 95_000, final=True)]
    # It had no clients for hours; then it is stopped, and starts again.
    was_idle = readings("was-idle", 9, final=False) + readings("was-idle", 9, start=250, incarnation="run-2")
    # Two proxies of one host.
    beside = readings("host", 300, final=False) + readings("host", 290, start=9, incarnation="run-2", final=False)
    found = runs_of(spark, [*complete, *complete[:5], *gaps, *silent, *quiet, *killed, *ended, *was_idle, *beside])
    columns = ("state", "ended_cleanly", "missing_records", "repeated")
    assert {name: tuple(row[column] for column in columns) for name, row in found.items()} == {
        ("complete", "run-1"): ("running", None, 0, 5),
        ("gaps", "run-1"): ("running", None, 11, 0),
        ("silent", "run-1"): ("silent", False, 0, 0),
        ("quiet", "run-1"): ("silent", None, 0, 0),
        ("killed", "run-1"): ("replaced", False, 0, 0),
        ("killed", "run-2"): ("running", None, 0, 0),
        ("ended", "run-1"): ("ended", True, 0, 0),
        ("was-idle", "run-1"): ("replaced", None, 0, 0),
        ("was-idle", "run-2"): ("running", None, 0, 0),
        ("host", "run-1"): ("running", None, 0, 0),
        ("host", "run-2"): ("running", None, 0, 0),
    }
    # 20,000 bytes in 190 s: about 1,000 in the interval that was lost.
    assert found["killed", "run-1"]["bytes"] == 20_000
    assert found["killed", "run-1"]["estimated_missing_bytes"] == pytest.approx(1_000, rel=0.1)
    assert found["complete", "run-1"]["estimated_missing_bytes"] == 0


def test_what_is_missing_is_what_could_pass_in_the_gap(spark: SparkSession) -> None:
    """A killed proxy with a record a minute, of which the pace is not known: it was away for 30 s."""
    begin = {"start_time_ms": NOON_MS, "final": False, "client_id": "c"}
    made = [usage_record(**begin, seq=n, time_ms=NOON_MS + 60_000 * n, bytes=10**9 * n) for n in range(1, 100)]
    again = {"incarnation": "run-2", "time_ms": NOON_MS + 99 * 60_000 + 30_000}
    made = [idle_record(seq=0, time_ms=NOON_MS), *made, idle_record(**again)]
    days = sidecar_days(records_frame(spark, made), all_deltas(spark, made), spark.createDataFrame([], PACES))
    found = {row["incarnation"]: row for row in sidecars(days).collect()}
    assert found["run-1"]["ended_cleanly"] is False
    assert found["run-1"]["estimated_missing_bytes"] == pytest.approx(0.5e9, rel=0.05)


def test_a_short_run_lacks_one_interval_of_the_other_runs(spark: SparkSession) -> None:
    """26 MB in 30 s, three readings 8 to 10 s apart; then it was killed, and nothing ran for hours."""
    times = (8_500, 18_200, 26_400)
    short = []
    for pod in ("pod-1", "alone"):
        run = {"sidecar": pod, "incarnation": "short", "labels": {"cluster": pod}}
        short.append(idle_record(**run, seq=0, time_ms=NOON_MS + times[0]))
        for n, at in enumerate(times, 1):
            short.append(usage_record(**run, seq=n, time_ms=NOON_MS + at, start_time_ms=NOON_MS, bytes=1_000 * at))
    long = [each | {"labels": {"cluster": "pod-1"}} for each in readings("pod-1", 300, start=2_000, incarnation="long")]
    later = [each | {"labels": {"cluster": "alone"}} for each in readings("other", 300, start=2_000)]
    paces = spark.createDataFrame([("pod-1", "long", INTERVAL_MS)], PACES)
    made = [*short, *long, *later]
    days = sidecar_days(records_frame(spark, made), all_deltas(spark, made), paces)
    found = {(row["sidecar"], row["incarnation"]): row for row in sidecars(days).collect()}
    assert found["pod-1", "short"]["ended_cleanly"] is False
    assert found["pod-1", "short"]["estimated_missing_bytes"] == pytest.approx(1_000 * INTERVAL_MS, rel=0.1)
    assert found["alone", "short"]["estimated_missing_bytes"] == pytest.approx(26_400_000 / 2, rel=0.01), "not all"


def test_a_clock_that_was_set_back_over_midnight_lacks_no_records(spark: SparkSession) -> None:
    midnight = NOON_MS + 43_200_000
    times = [midnight + n * 60_000 for n in (*range(5), *range(-30, -20), *range(5, 9))]
    made = [usage_record(seq=seq, time_ms=time_ms) for seq, time_ms in enumerate(times)]
    (row,) = runs_of(spark, made).values()
    assert (row["missing_records"], row["last_gap"]) == (0, None)
    (row,) = runs_of(spark, [each for each in made if each["seq"] != 7]).values()
    assert row["missing_records"] == 1


HOUR_MS = 3_600_000


def lives(spark: SparkSession, made: list[tuple[str, str, int, int, int, int, int, bool]]) -> DataFrame:
    """made: (sidecar, run, first hour, last hour, first and last hour of day with clients, clock's offset in minutes,
    whether it ends by itself). A record each 5 minutes: idle ones while there are no clients, the first one too.
    """
    columns = "sidecar string, incarnation string, first bigint, last bigint, opens int, closes int, off bigint"
    begin = f.lit(NOON_MS - 12 * HOUR_MS)
    at = f.posexplode(f.sequence(begin + f.col("first") * HOUR_MS, begin + f.col("last") * HOUR_MS, f.lit(300_000)))
    rows = spark.createDataFrame(made, f"{columns}, ends boolean").select("*", at.alias("seq", "true_ms"))
    hour = f.floor(f.col("true_ms") / HOUR_MS) % 24
    is_busy = (f.col("seq") > 0) & (hour >= f.col("opens")) & (hour < f.col("closes"))
    time_ms = f.col("true_ms") + f.col("off") * 60_000
    values = {
        "kind": f.when(is_busy, "usage").otherwise("idle"), "time_ms": time_ms, "user": f.when(is_busy, "u"),
        "start_time_ms": begin + f.col("first") * HOUR_MS + f.col("off") * 60_000, "labels": f.lit("{}"),
        "bytes": f.when(is_busy, f.col("seq").cast("bigint") * 10**9), "direction": f.when(is_busy, "produce"),
        "final": f.col("ends") & (f.col("true_ms") == begin + f.col("last") * HOUR_MS),
        "date": f.to_date(f.timestamp_millis(time_ms)), "kafka_time": f.timestamp_millis(f.col("true_ms") + 700),
    }  # fmt: skip
    return rows.withColumns(values).withColumns(
        {name: f.lit(None).cast(kind) for name, kind in (("topic", "string"), ("has_total", "boolean"),
         ("client_id", "string"), ("listener", "string"), ("record_bytes", "bigint"), ("messages", "bigint"),
         ("requests", "bigint"), ("max_second_bytes", "bigint"), ("kafka_offset", "bigint"),
         *((fact, "bigint") for fact in REQUEST_FACTS))}
    )  # fmt: skip


MONTH = 31 * 24
CLEAN = [
    # All month: one run that idles at night, one with a restart each day, a clock that is behind, one ahead.
    *((f"office-{n}", "run-0", n, MONTH, 9, 17, 0, False) for n in range(4)),
    *((f"daily-{n}", f"run-{d:02}", 24 * d + n, 24 * d + n + 23, 0, 24, 0, True) for n in range(2) for d in range(30)),
    ("behind", "run-0", 0, MONTH, 0, 24, -25, False),
    ("ahead", "run-0", 0, MONTH, 8, 9, 9, False),
    # They start, work or idle, and stop: nightly batches, and pods that no client ever came to.
    *((f"batch-{n}", f"run-{d:02}", 24 * d + 1, 24 * d + 4, 2, 3, n - 10, True) for n in range(20) for d in range(31)),
    *((f"unused-{n}", f"run-{n}", 30 * n, 30 * n + 3, 0, 0, 0, True) for n in range(22)),
]  # fmt: skip


def sidecars_of(made: DataFrame) -> DataFrame:
    paces = made.sparkSession.createDataFrame([], PACES)
    return sidecars(sidecar_days(made, deltas(samples(made, USAGE_KIND), None, USAGE_KIND), paces))


@pytest.mark.timeout(600)
def test_a_clean_month_of_50_sidecars_gives_no_warning(spark: SparkSession, warehouse: Warehouse) -> None:
    assert len({each[0] for each in CLEAN}) == 50
    days = [date(2026, 1, 5) + timedelta(days=n) for n in range(-1, 33)]
    warehouse.replace("sidecars", sidecars_of(lives(spark, CLEAN)))
    assert warnings(warehouse, days) == []
    states = warehouse.read("sidecars").groupBy("state").count().collect()
    assert {row["state"]: row["count"] for row in states} == {"running": 6, "ended": 60 + 620 + 22}
    # Two of them die: one for good, and one whose next run begins an hour later.
    dies = (("batch-3", "run-30"), ("daily-1", "run-07"))
    killed = [(*each[:7], False) if each[:2] in dies else each for each in CLEAN]
    warehouse.replace("sidecars", sidecars_of(lives(spark, killed)))
    found = warnings(warehouse, days)
    assert [line.partition(": it ended without a final record")[0] for line in found] == [
        "sidecar batch-3, run run-30", "sidecar daily-1, run run-07",
    ]  # fmt: skip


def test_records_of_days_that_were_deleted_are_not_missing(spark: SparkSession) -> None:
    """Of a run of more than 400 days; one that began yesterday lacks its first three records."""
    day = f.to_date(f.lit("2027-03-01"))
    days = spark.createDataFrame(
        [("old", 400, 9_000), ("old", 399, 9_010), ("new", 1, 3)], "sidecar string, ago int, first_seq bigint"
    ).withColumns(
        {
            "date": f.date_sub(day, f.col("ago")), "cluster": f.lit(""), "incarnation": f.lit("run-1"),
            "last_seq": f.col("first_seq") + 9, "records": f.lit(10), "repeated": f.lit(0), "final": f.lit(False),
            **{name: f.lit(0) for name in ("first_ms", "last_ms", "least_lag_ms", "most_lag_ms", "bytes", "idle")},
            "pace_ms": f.lit(0),
        }
    )  # fmt: skip
    found = {row["sidecar"]: (row["missing_records"], row["last_gap"]) for row in sidecars(days).collect()}
    assert found == {"old": (0, None), "new": (3, date(2027, 2, 28))}


def test_a_warning_is_of_the_dates_that_were_computed(spark: SparkSession, warehouse: Warehouse) -> None:
    at = f.lit("2026-01-06 12:00:00").cast("timestamp")
    sidecar = {"sidecar": f.lit("pod-1"), "incarnation": f.lit("run-1"), "missing_records": f.lit(2)}
    seen = {"first_record": at, "last_record": f.lit("2026-01-09").cast("timestamp"), "last_gap": f.to_date(at)}
    hole = {"kafka_partition": f.lit(3), "first_offset": f.lit(5), "last_offset": f.lit(9), "found_at": at}
    left_out = {"step": f.lit("rates"), "client_id": f.lit("c"), "reason": f.lit("why"), "at": at}
    for name, row in (("sidecars", sidecar | seen), ("topic_holes", hole), ("isolated", left_out)):
        warehouse.append(name, warehouse.row(name, row))
    assert warnings(warehouse, [date(2026, 1, 6)]) == [
        "sidecar pod-1, run run-1: 2 records are missing",
        "usage topic, partition 3: offsets 5 to 9 were deleted before ingest read them",
        "rates: left out client_id 'c': why",
    ]
    assert warnings(warehouse, [date(2026, 1, 7)]) == []
    warehouse.append("topic_holes", warehouse.row("topic_holes", hole).crossJoin(spark.range(SHOWN)).drop("id"))
    assert warnings(warehouse, [date(2026, 1, 6)])[-2] == "and more: see the table topic_holes"


def test_holes_of_the_topic_are_named_by_their_offsets(spark: SparkSession) -> None:
    offsets = [n for n in range(50, 400) if n not in (60, 61, 128) and not 191 <= n < 320]
    read = spark.createDataFrame([(0, n) for n in offsets] + [(1, 5)], "kafka_partition int, kafka_offset bigint")
    known = spark.createDataFrame([(0, 40)], "kafka_partition int, last_offset bigint")
    found = topic_holes(read.unionByName(read.limit(9)), known).orderBy("first_offset").collect()
    assert [tuple(row) for row in found] == [(0, 41, 49), (0, 60, 61), (0, 128, 128), (0, 191, 319)]


OWNERS = '[[owner]]\nteam = "search"\nclient-id = "etl"\n'


@pytest.mark.timeout(600)
@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_report_warns_of_gaps_and_other_rules(spark: SparkSession, warehouse: Warehouse, goes_on: bool) -> None:
    """goes_on: it is computed again with the other rules, and old days come late."""
    made = [each for each in readings("pod-1", 40) if each["seq"] != 30]
    warehouse.append("records", records_frame(spark, made))
    rules = Rules()
    dates = report(warehouse, rules)
    assert warnings(warehouse, dates) == ["sidecar pod-1, run run-1: 1 record is missing"]
    assert runs.outdated(warehouse, rules.fingerprint) is None
    newer = Rules(owners.parse(OWNERS))
    assert report(warehouse, newer) == []
    assert runs.outdated(warehouse, newer.fingerprint) == dates[0]
    if not goes_on:
        return
    report(warehouse, newer, since=dates[0])
    assert runs.outdated(warehouse, newer.fingerprint) is None
    assert {row["team"] for row in warehouse.read("usage_hourly").collect()} == {"search"}
    recommended = warehouse.read("quota_recommendations").collect()
    # Old days come late: the recommendations stay those of the newest days.
    old = usage_record(time_ms=NOON_MS - 60 * 86_400_000, start_time_ms=NOON_MS - 60 * 86_400_000 - 1, bytes=7)
    warehouse.append("records", records_frame(spark, [old]))
    assert report(warehouse, newer) == [(NOON - timedelta(days=60)).date()]
    assert warehouse.read("quota_recommendations").collect() == recommended
    # They count too in a run that computes newer days again.
    warehouse.append("records", records_frame(spark, [old | {"bytes": 8, "time_ms": old["time_ms"] + 1}]))
    assert report(warehouse, newer, since=dates[0]) == [(NOON - timedelta(days=60)).date(), *dates]
    assert set(TABLES["sidecars"].schema.names) == set(warehouse.read("sidecars").columns)
