"""What is a record and what goes to quarantine: Spark's rules against the published JSON Schema."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.transforms.parsing import CLOCK_AHEAD_MS, invalid, parsed, valid
from tests.pipeline.usage import fleets, published
from tests.pipeline.usage.fleets import NOON_MS, idle_record, kafka_row, raw_row, throttle_record, usage_record

SPARK = settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"schema": 2}, "unknown schema version"),
    ({"kind": "bill"}, "unknown kind"),
    ({"sidecar": ""}, "sidecar is missing or empty or too long"),
    ({"incarnation": None}, "incarnation is missing or empty or too long"),
    ({"user": None}, "user is missing or too long"),
    ({"labels": {f"l{n}": "" for n in range(33)}}, "labels are missing or too many or too long"),
    ({"bytes": -1}, "bytes is missing or negative or absurd"),
    ({"bytes": 2**53}, "bytes is missing or negative or absurd"),
    ({"bytes": 2**52}, "bytes grew faster than 1 Tbit/s"),
    ({"messages": -1}, "messages is negative or absurd"),
    ({"max_second_bytes": 2**53}, "max_second_bytes is negative or absurd"),
    ({"direction": "sideways"}, "unknown direction"),
    ({"start_time_ms": NOON_MS + 1}, "start_time_ms is after time_ms"),
    ({"time_ms": NOON_MS + CLOCK_AHEAD_MS + 1}, "time_ms is in the future"),
    ({"time_ms": 0, "start_time_ms": 0}, "time_ms is more than 400 days ago"),
    ({"bytes": "many"}, "broken JSON or a wrong type"),
]
WRONG_THROTTLE: list[tuple[dict[str, Any], str]] = [
    ({"limit": ""}, "limit is missing or empty or too long"),
    ({"throttled_ms": -1}, "throttled_ms is missing or negative or absurd"),
    ({"limit_value": -0.5}, "limit_value is negative"),
    ({"fleet": ""}, "fleet is empty or too long"),
    ({"fleet_cap": -0.5}, "fleet_cap is negative"),
]
NOT_RECORDS = [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"schema":1}', b"7", b'{"schema":1}{"schema":1}']


def frame(spark: SparkSession, rows: list[Any]) -> DataFrame:
    return parsed(spark.createDataFrame(rows, fleets.KAFKA_COLUMNS).withColumn("now_ms", f.lit(NOON_MS)))


def test_each_fault_has_its_reason_and_keeps_its_bytes(spark: SparkSession) -> None:
    wrong = [(usage_record(**changes), text) for changes, text in WRONG]
    wrong += [(throttle_record(**changes), text) for changes, text in WRONG_THROTTLE]
    rows = [kafka_row(record, offset) for offset, (record, _) in enumerate(wrong)]
    found = invalid(frame(spark, rows)).orderBy("kafka_offset").collect()
    shown = [(bytes(row["value"]), row["reason"]) for row in found]
    assert shown == [(published.value(record), text) for record, text in wrong]
    beyond_a_schema = {text for _, text in wrong if text.startswith(("start_time_ms", "time_ms", "bytes grew"))}
    assert {text for record, text in wrong if not published.errors(record)} == beyond_a_schema


def test_what_is_no_record_goes_to_quarantine_as_it_came(spark: SparkSession) -> None:
    rows: list[Any] = [raw_row(raw, None, offset) for offset, raw in enumerate(NOT_RECORDS)]
    rows.append(raw_row(None, b"key", len(rows)))
    both = frame(spark, rows)
    found = {row["kafka_offset"]: row for row in invalid(both).collect()}
    assert valid(both).count() == 0
    assert [bytes(found[offset]["value"]) for offset in range(len(NOT_RECORDS))] == NOT_RECORDS
    assert found[len(NOT_RECORDS)]["reason"] == "no value"


TEXT = st.one_of(st.none(), st.text(max_size=3), st.just("x" * 1025))
COUNT = st.one_of(st.integers(-1, 3), st.none(), st.sampled_from([2**53 - 1, 2**53]))
RATE = st.one_of(st.none(), st.floats(-1, 1e12))
TEXTS = ("sidecar", "incarnation", "listener", "user", "client_id", "topic", "limit", "entity")
COUNTS = ("max_second_bytes", "seq", "record_bytes", "requests", "messages", "throttled_ms", "refused_bytes")
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(TEXTS, TEXT),
        **dict.fromkeys(COUNTS, COUNT),
        **dict.fromkeys(("limit_value", "fleet_cap"), RATE),
        "schema": st.sampled_from([1, 1, 1, 2, None]),
        "kind": st.sampled_from(["usage", "throttle", "idle", "other", None]),
        "direction": st.sampled_from(["produce", "fetch", "both", None]),
        "labels": st.one_of(st.none(), st.dictionaries(st.text(max_size=2), st.text(max_size=3), max_size=2)),
        "fleet": st.one_of(st.none(), st.text(max_size=3)),
    },
)
MADE = st.tuples(st.sampled_from([usage_record, throttle_record, idle_record]), CHANGES)


@pytest.mark.timeout(300)
@SPARK
@given(drawn=st.lists(MADE, min_size=60, max_size=120))
def test_spark_accepts_what_the_schema_accepts(spark: SparkSession, drawn: list[Any]) -> None:
    made = [make(**changes) for make, changes in drawn]
    rows = [kafka_row(record, offset) for offset, record in enumerate(made)]
    accepted = {row["kafka_offset"] for row in valid(frame(spark, rows)).select("kafka_offset").collect()}
    for offset, record in enumerate(made):
        assert (offset in accepted) == (published.errors(record) == []), (record, published.errors(record))


def test_a_record_is_typed_and_its_labels_are_in_one_order(spark: SparkSession) -> None:
    labels = [{"team": "etl", "app": "x"}, {"app": "x", "team": "etl"}]
    rows = [kafka_row(usage_record(labels=each, topic="t", messages=7), offset) for offset, each in enumerate(labels)]
    first, second = valid(frame(spark, rows)).orderBy("kafka_offset").collect()
    assert first["labels"] == second["labels"] == json.dumps({"app": "x", "team": "etl"}, separators=(",", ":"))
    assert (first["topic"], first["messages"], first["record_bytes"]) == ("t", 7, None)
    assert str(first["date"]) == "2026-01-05"


def test_the_json_is_parsed_once(spark: SparkSession) -> None:
    plan = valid(frame(spark, [kafka_row(usage_record())]))._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json") == 1
