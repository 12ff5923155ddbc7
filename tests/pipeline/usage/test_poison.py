"""Whoever may write to the usage topic cannot stop ingest or report: bytes of any kind, and records of any size."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from demo import fleet
from pipeline.usage import owners, price_list
from pipeline.usage.isolation import isolate
from pipeline.usage.jobs import report as job
from pipeline.usage.jobs.ingest import write_batch
from pipeline.usage.jobs.report import Rules, report, warnings
from pipeline.usage.page.content import render
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.sums import total
from tests.pipeline.usage.fleets import KAFKA_COLUMNS, NOON_MS, kafka_row, raw_row, throttle_record, usage_record
from tests.pipeline.usage.test_deltas import records_frame

RULES = Rules(owners.parse(fleet.EXAMPLE_OWNERS), price_list.parse(fleet.EXAMPLE_PRICES))
LARGEST = 2**53 - 1
SPARK = settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def with_text(record: dict[str, Any], field: str, text: str) -> bytes:
    """The record with this JSON in place of a field's."""
    return json.dumps({**record, field: "@"}).replace('"@"', text).encode()


def planted() -> Iterator[tuple[bytes, str]]:
    """Values that once ended the stream, and their reason; "" for those that are records."""
    yield with_text(usage_record(), "labels", '{"a":"1","a":"2"}'), "labels have a name twice"
    yield with_text(usage_record(), "time_ms", str(2**63)), "broken JSON or a wrong type"
    for name in ("time_ms", "start_time_ms", "seq", "bytes"):
        for number in (-(2**63), 2**63 - 1, 2**53):
            yield with_text(usage_record(), name, str(number)), f"{name} is missing or negative or absurd"
    for text in ("1e308", "1e20", "NaN", "Infinity", '"Infinity"'):
        yield with_text(throttle_record(), "limit_value", text), "limit_value is absurd"
    yield with_text(throttle_record(), "limit_value", "-Infinity"), "limit_value is negative"
    yield with_text(throttle_record(), "limit_value", "9223372036854775807"), ""
    yield with_text(usage_record(messages=0, record_bytes=5, topic="t", direction="fetch"), "labels", '{"":""}'), ""
    yield b"[" * 100_000, "broken JSON or a wrong type"


def batch(spark: SparkSession, rows: list[Any]) -> DataFrame:
    return spark.createDataFrame(rows, KAFKA_COLUMNS).withColumn("now_ms", f.lit(NOON_MS))


@pytest.mark.timeout(600)
def test_what_a_topic_can_hold_is_a_record_or_has_a_reason(spark: SparkSession, warehouse: Warehouse) -> None:
    made = list(planted())
    rows = [raw_row(raw, b"", offset) for offset, (raw, _) in enumerate(made)]
    write_batch(warehouse, batch(spark, rows), "app", 0)
    found = {row["kafka_offset"]: row["reason"] for row in warehouse.read("quarantine").collect()}
    records = {row["kafka_offset"] for row in warehouse.read("records").collect()}
    assert found == {offset: reason for offset, (_, reason) in enumerate(made) if reason}
    assert records == {offset for offset, (_, reason) in enumerate(made) if not reason}


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_sums_of_the_largest_counters_are_reported(spark: SparkSession, warehouse: Warehouse) -> None:
    """1,100 series that counted 2^53 - 1 each, in the 21 hours that 1 Tbit/s takes for it: more than 64 bits."""
    numbers = ("bytes", "requests", "record_bytes", "messages")
    largest = {"start_time_ms": NOON_MS - 21 * 3_600_000, **dict.fromkeys(numbers, LARGEST)}
    rows = [kafka_row(usage_record(incarnation=f"run-{n}", topic="t", **largest), n) for n in range(1_100)]
    waits = {"throttled_ms": LARGEST, "delayed_bytes": LARGEST, "entity": "user:alice", "limit_value": 2.0**63}
    rows += [kafka_row(throttle_record(incarnation=f"run-{n}", **waits), 1_100 + n) for n in range(1_100)]
    write_batch(warehouse, batch(spark, rows), "app", 0)
    assert warehouse.read("records").count() == 2_200
    assert report(warehouse, RULES)
    assert warehouse.read("usage_hourly").agg(f.sum(f.col("bytes").cast("double"))).first()[0] > 1e18
    assert warehouse.read("chargeback_daily").where("amount > 0").count() > 0
    assert "alice" in render(warehouse)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NUMBER = st.sampled_from([0, 1, 1.5, -1, LARGEST, 2**53, 2**63 - 1, -(2**63), 2**63, NOON_MS, NOON_MS + 1, None])
NUMBERS = ("time_ms", "start_time_ms", "seq", "bytes", "requests", "messages", "throttled_ms", "limit_value")
FIELDS = {
    **dict.fromkeys([*usage_record(), *throttle_record()], JSON),
    **dict.fromkeys(NUMBERS, NUMBER),
    **dict.fromkeys(("has_total", "final"), st.booleans()),
    "entity": st.sampled_from(["total", "user:alice", "user:", 'client-id:"', "topic:x", ","]),
}
SHAPED = st.builds(
    lambda make, changes: make(**changes),
    st.sampled_from([usage_record, throttle_record]),
    st.lists(st.sampled_from(sorted(FIELDS)), max_size=2, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
    ),
)
VALUE = st.binary(max_size=40) | st.builds(lambda record: json.dumps(record).encode("utf-8", "replace"), SHAPED)


@pytest.mark.timeout(900)
@pytest.mark.nightly
@SPARK
@given(values=st.lists(VALUE, min_size=100, max_size=300), attempt=st.uuids())
def test_random_values_are_read_and_reported(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, values: list[bytes], attempt: object
) -> None:
    warehouse = Warehouse(spark, str(tmp_path_factory.mktemp("warehouse")))
    write_batch(warehouse, batch(spark, [raw_row(raw, b"", n) for n, raw in enumerate(values)]), "app", 0)
    assert warehouse.read("records").count() + warehouse.read("quarantine").count() == len(values)
    report(warehouse, RULES)
    render(warehouse)


@pytest.mark.timeout(300)
def test_a_client_that_breaks_a_step_is_named_the_rest_computed(spark: SparkSession, warehouse: Warehouse) -> None:
    columns = "sidecar string, user string, client_id string"
    rows = spark.createDataFrame([("p", "u", f"c{n}") for n in range(5)], columns)
    kept: list[set[str]] = []

    def run(part: DataFrame) -> None:
        checked = part.withColumn("zero", f.lit(1) / f.when(f.col("client_id") == "c3", 0).otherwise(1))
        kept.append({row["client_id"] for row in checked.collect()})

    isolate(warehouse, "step", rows, run)
    assert kept[-1] == {"c0", "c1", "c2", "c4"}
    (row,) = warehouse.read("isolated").collect()
    assert (row["step"], row["client_id"], row["reason"][:16]) == ("step", "c3", "[DIVIDE_BY_ZERO]")


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_a_report_names_what_breaks_one_of_its_steps(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(name: str, number: str, column: str, value: str) -> None:
        original = getattr(job, name)

        def step(rows: DataFrame, *others: Any) -> DataFrame:
            one = f.lit(1) / f.when(f.col(column) == value, 0).otherwise(1)
            return original(rows.withColumn(number, (f.col(number) * one).cast(rows.schema[number].dataType)), *others)

        monkeypatch.setattr(job, name, step)

    breaking("sidecar_days", "seq", "client_id", "bad")
    breaking("quota_recommendations", "p99", "entity", "user:alice,client-id:bad")
    every = [(name, n) for name in ("good", "bad") for n in range(5)]
    made = [usage_record(client_id=c, seq=n, time_ms=NOON_MS + 10_000 * n, bytes=1_000 * n) for c, n in every]
    warehouse.append("records", records_frame(spark, made))
    named = warnings(warehouse, report(warehouse, Rules()))
    assert any(each.startswith("sidecar_days: left out client_id 'bad', user 'alice'") for each in named), named
    assert any("quota_recommendations: left out sidecar 'pod-1', limit 'producer_byte_rate'" in each for each in named)
    assert {row["client_id"] for row in warehouse.read("quota_recommendations").collect()} == {"good"}
    assert {row["sidecar"] for row in warehouse.read("sidecars").collect()} == {"pod-1"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["pace", pytest.param("members", marks=pytest.mark.nightly)])
def test_what_several_steps_read_ends_these_steps_only(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    original, column = getattr(job, name), "sidecar" if name == "pace" else "client_id"

    def broken(*rows: Any) -> DataFrame:
        found: DataFrame = original(*rows)
        return found.where(f.lit(1) / (f.length(column) * 0) > 0)

    monkeypatch.setattr(job, name, broken)
    made = [usage_record(seq=n, time_ms=NOON_MS + 10_000 * n, bytes=1_000) for n in range(6)]
    warehouse.append("records", records_frame(spark, made))
    named = warnings(warehouse, report(warehouse, RULES))
    failed = {each.partition(":")[0] for each in named if "[DIVIDE_BY_ZERO]" in each}
    assert {"noisy_neighbours", "rates_quarterly"} <= failed, named
    assert warehouse.read("usage_hourly").agg(f.sum("bytes")).first()[0] == 1_000
    assert warehouse.read("chargeback_daily").count() > 0


@pytest.mark.timeout(300)
def test_a_topic_that_breaks_the_bypass_check_is_named(spark: SparkSession, warehouse: Warehouse) -> None:
    """Brokers counted no more than 64 bits of `good`, and of `bad` less than sidecars: their difference overflows."""
    day = NOON_MS // 1000 // 86_400 * 86_400
    at = {"date": f.to_date(f.timestamp_seconds(f.lit(day))), "hour": f.timestamp_seconds(f.lit(day))}
    for topic, counted, seen in (("good", 10, 4), ("bad", -(2**63), 2**62)):
        common = {**at, "topic": f.lit(topic)}
        brokers = common | {"messages": f.lit(counted).cast("bigint")}
        warehouse.append("broker_topic_hourly", warehouse.row("broker_topic_hourly", brokers))
        used = common | {"direction": f.lit("produce"), "messages": f.lit(seen), "bytes": f.lit(0)}
        warehouse.append("usage_hourly", warehouse.row("usage_hourly", used))
    dates = report(warehouse, Rules())
    assert [(row["topic"], row["unseen_count"]) for row in warehouse.read("bypass_check").collect()] == [("good", 6)]
    (line,) = warnings(warehouse, dates)
    assert line.startswith("bypass_check: left out topic 'bad': [ARITHMETIC_OVERFLOW]")


def test_sums_are_bounded(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(2**62,), (2**62,), (None,)], "value bigint")
    found = rows.agg(total("value"), total(f.lit(None).cast("bigint")), total(f.lit(7))).first()
    assert tuple(found) == (2**63 - 1, None, 21)
