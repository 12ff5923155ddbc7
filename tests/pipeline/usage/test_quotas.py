"""Simulating a quotas file through the proxy's engine, and writing recommendations as one."""

import itertools
import random
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.failures import InputError
from pipeline.usage.jobs import apply
from pipeline.usage.jobs.replay import MAX_REQUESTS, Engine, Offer, Row
from pipeline.usage.jobs.simulate import not_replayed, simulate
from pipeline.usage.quotas_in_force import in_force, load
from pipeline.usage.transforms.members import members
from quotas.entity import Entity
from quotas.parsing.file import load_quotas
from tests.pipeline.usage.fleets import throttle_record, usage_record
from tests.pipeline.usage.test_deltas import records_frame

START_MS = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp() * 1000)
QUOTAS = """
[[quota]]
client-id = "etl"
producer_byte_rate = 1000

[[resource-group]]
name = "batch"
client-id = ["batch-*"]
producer_byte_rate = 2000
"""


def offer(client_id: str, rate: int, quarter: int = 0, direction: str = "produce") -> Offer:
    start = START_MS + quarter * 900_000
    return Offer(start, start + 900_000, "u", client_id, direction, rate * 900, 9_000)


def replay(offers: list[Offer], quotas: str = QUOTAS) -> list[Row]:
    engine = Engine(load(quotas))
    return [row for each in offers for row in engine.add(each)] + list(engine.end())


def waits(offers: list[Offer]) -> dict[str, float]:
    """Seconds throttled by client."""
    found: dict[str, float] = {}
    for row in replay(offers):
        found[row[3]] = found.get(row[3], 0) + row[7] / 1000
    return found


def test_the_hours_of_waiting_are_those_after_the_offer() -> None:
    rows = replay([offer("etl", 10_000), offer("etl", 1, quarter=40)])
    hours = [(row[0] - START_MS) / 3_600_000 for row in rows]
    assert hours == sorted(hours)
    assert hours[0] == 0
    assert 2 <= max(hours) <= 3
    assert {row[5:7] for row in rows} == {("producer_byte_rate", "client-id:etl")}


def test_delayed_bytes_are_those_of_the_whole_queue() -> None:
    """Ten requests at once, of a second each: one passes, and nine are held or queued."""
    rows = replay([Offer(START_MS, START_MS + 1, "u", "etl", "produce", 20_000, 10)])
    assert 14_000 < sum(row[8] for row in rows) <= 18_000
    assert 15 <= sum(row[7] for row in rows) / 1000 <= 20


def test_what_waits_for_a_day_is_dropped_then() -> None:
    """A million times the limit for two hours: the client is held until a day after its last offer, and no longer.

    The first request passes, since the bucket is full.
    """
    offers = [offer("etl", 10**9, quarter) for quarter in range(8)]
    offers.append(Offer(offers[-1].end_ms, offers[-1].end_ms + 10_000, "u", "etl", "produce", 2**53 - 1, 2))
    rows = replay(offers)
    assert max(row[0] for row in rows) < offers[-1].end_ms + 25 * 3_600_000
    assert sum(row[7] for row in rows) <= 26 * 3_600_000
    assert sum(row[8] for row in rows) == sum(each.size for each in offers) - offers[0].size // MAX_REQUESTS


def test_spark_gives_what_one_process_gives(spark: SparkSession) -> None:
    names = ("batch-1", "batch-2", "etl", "free")
    made = [
        usage_record(
            sidecar=pod, client_id=name, user="u", start_time_ms=START_MS, time_ms=START_MS + 900_000 * (n + 1),
            bytes=900 * 1_500 * (n + 1), requests=9_000 * (n + 1),
        )
        for pod in ("p", "q")
        for name in names
        for n in range(3)
    ]  # fmt: skip
    frame = records_frame(spark, made).localCheckpoint()
    found: dict[tuple[str, str], int] = {}
    for row in simulate(frame, QUOTAS).collect():
        key = (row["sidecar"], row["client_id"])
        found[key] = found.get(key, 0) + row["throttled_ms"]
    expected = waits([offer(name, 1_500, quarter) for quarter in range(3) for name in names])
    assert found == {
        (pod, name): pytest.approx(1000 * s, rel=0.02) for pod in ("p", "q") for name, s in expected.items()
    }


TOPICS = """
[[quota]]
topic = "rows"
bytes_in_rate = 1000

[[quota]]
client-id = "b"
request_rate = 5

[[quota]]
total = true
connections = 10
connection_creation_rate = 5
"""


def test_topics_and_fleets_are_replayed_from_records(spark: SparkSession) -> None:
    """Each pod's client writes half of its bytes to a topic, at half of its limit: three pods of a fleet are over it.
    The proxy's own jitter: totals each 8 to 10 s, topics each 60 s.
    """
    rng, start = random.Random(1), START_MS
    made: list[dict[str, Any]] = []
    for pod, cluster in itertools.product(("p", "q", "r"), ("east", "west")):
        common: dict[str, Any] = {"sidecar": f"{pod}-{cluster}", "client_id": "a", "user": "u", "start_time_ms": start}
        common |= {"labels": {"cluster": cluster}}
        if cluster == "east" and pod != "r":
            made.append(throttle_record(**common, time_ms=start + 1_000, limit="bytes_in_rate", fleet="etl"))
        common["has_total"], at = True, 0
        while at < 900_000:
            at += rng.randint(8_000, 10_000)
            made.append(usage_record(**common, time_ms=start + at, bytes=2 * at, requests=at // 100))
        for at in range(60_000, 960_000, 60_000):
            for topic, size in (("rows", 500 * at // 1000), ("free", 800 * at // 1000)):
                split = common | {"topic": topic, "record_bytes": size, "messages": at // 100}
                made.append(usage_record(**split, time_ms=start + at, bytes=at))
    frame = records_frame(spark, made).localCheckpoint()
    found = simulate(frame, TOPICS).groupBy("sidecar", "entity").agg(f.sum("throttled_ms")).collect()
    held_s = {(row[0], row[1]): row[2] / 1000 for row in found if row[2] > 60_000}
    assert held_s.keys() == {(f"{pod}-east", "topic:rows") for pod in "pqr"}
    # What three offer in 900 s needs 1,350 s; from the burst's end on each always has a request in the queue.
    assert all(each == pytest.approx(1_350, rel=0.05) for each in held_s.values())
    left_out = not_replayed(frame, TOPICS)
    requests = "requests that carry no data, for request_rate"
    assert [each.partition(" (")[0] for each in left_out] == ["connection_creation_rate", "connections", requests]
    totals = frame.where("topic is null")
    assert "bytes_in_rate (needs records by topic: --usage-by-topic)" in not_replayed(totals, TOPICS)
    assert simulate(totals, TOPICS).isEmpty()


SHARED = """
[[quota]]
topic = "rows"
bytes_in_rate = 1000
exempt-client-id = "free"

[[quota]]
topic = "<default>"
messages_in_rate = 30

[[resource-group]]
name = "polls"
user = "u"
request_rate = 5

[[resource-group]]
name = "topics"
topic = "r*"
bytes_in_rate = 700

[[quota]]
total = true
"total.bytes.in.per.sec.threshold" = 90
connections = 7
"""


def writes(spark: SparkSession, rows: Sequence[tuple[str, str | None, str]]) -> DataFrame:
    made = [("u", client, '{"cluster":"east"}', topic, way) for client, topic, way in rows]
    columns = "user string, client_id string, labels string, topic string, direction string"
    return spark.createDataFrame(made, columns)


def test_the_quotas_in_force_are_those_of_the_proxy(spark: SparkSession) -> None:
    clients = writes(spark, [(name, None, "produce") for name in ("etl", "batch-1", "free")])
    found = {(row["client_id"], row["entity"]): row["limit_value"] for row in in_force(clients, QUOTAS).collect()}
    assert found == {("etl", "client-id:etl"): 1_000.0, ("batch-1", "resource-group:batch"): 2_000.0}


def test_the_quotas_in_force_are_those_of_topics_requests_and_thresholds_too(spark: SparkSession) -> None:
    rows = [("etl", "rows", "produce"), ("free", "rows", "produce"), ("free", "other", "produce"), ("io", "x", "fetch")]
    found = in_force(writes(spark, rows), SHARED).collect()
    threshold = "bytes.in.per.sec.threshold"
    of_etl = {
        ("request_rate", "resource-group:polls", 5.0),
        ("bytes_in_rate", "topic:rows", 1_000.0),
        ("bytes_in_rate", "resource-group:topics", 700.0),
        ("messages_in_rate", "topic:rows", 30.0),
        (threshold, "topic:rows", 45.0),
    }
    of_free = of_etl - {("bytes_in_rate", "topic:rows", 1_000.0)}
    of_free |= {("messages_in_rate", "topic:other", 30.0), (threshold, "topic:other", 45.0)}
    assert {row[3:6] for row in found if row["client_id"] == "etl"} == of_etl
    assert {row[3:6] for row in found if row["client_id"] == "free"} == of_free
    assert {row[3:6] for row in found if row["client_id"] == "io"} == {("request_rate", "resource-group:polls", 5.0)}
    assert len(found) == len(of_etl) + len(of_free) + 1
    group = {(row["client_id"], *row["topics"]) for row in found if row["entity"] == "resource-group:topics"}
    assert group == {("etl", "rows"), ("free", "rows")}, "free writes to another topic, too"


def test_who_is_exempt_from_a_topic_limit_is_no_member_and_who_never_waited_is(spark: SparkSession) -> None:
    usage = writes(spark, [(name, "rows", "produce") for name in ("etl", "free", "silent")])
    day, names = datetime(2026, 1, 5, tzinfo=UTC), [("bytes_in_rate", "topic:rows")]
    names.append(("request_rate", "resource-group:polls"))
    columns = "time timestamp, labels string, user string, client_id string, limit string, entity string, fleet string"
    held = spark.createDataFrame([(day, '{"cluster":"east"}', "u", "etl", *name, None) for name in names], columns)
    found = members(usage, held, in_force(usage, SHARED)).collect()
    clients = {name: {row["client_id"] for row in found if (row["limit"], row["entity"]) == name} for name in names}
    assert clients == {names[0]: {"etl", "silent"}, names[1]: {"etl", "free", "silent"}}


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ('client-id = "a"\nproducer_byte_rat = 5', "unknown key 'producer_byte_rat'"),
        ('topic = "a"\n"bytes.in.per.sec.threshold" = 5', "no effect without total.bytes.in.per.sec.threshold"),
    ],
)
def test_a_wrong_quotas_file_is_refused(entry: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        load(f"[[quota]]\n{entry}")


RECOMMENDED = [
    {"entity": entity, "limit": limit, "proposed": proposed, "current_limit": current, "why": "a\nb"}
    for entity, limit, proposed, current in (
        ("client-id:etl", "producer_byte_rate", 1500.0, 1000.0),
        ("client-id:etl", "consumer_byte_rate", 20.0, 10.0),
        ("resource-group:batch", "producer_byte_rate", 9.0, 5.0),
        ('user:"CN=o\'hara,O=acme",client-id:x', "producer_byte_rate", 3.0, None),
    )
]


def test_recommendations_are_entries_that_the_proxy_reads() -> None:
    text = apply.quotas_toml(RECOMMENDED)
    found = load_quotas(tomllib.loads(text))
    assert found.errors == ()
    assert [(str(placed.entity), dict(placed.limits)) for placed in found.placed] == [
        ("client-id:etl", {"producer_byte_rate": 1500, "consumer_byte_rate": 20}),
        ('user:"CN=o\'hara,O=acme",client-id:x', {"producer_byte_rate": 3}),
    ]
    assert text.endswith("# no client: resource-group:batch\n# # now 5; a b\n# producer_byte_rate = 9\n")


@given(user=st.none() | st.text(max_size=9), client_id=st.text(max_size=9))
@example('"', "a\nb\\")
@example("\x7f", "\U0001f600\u202e")
@example(" alice", '"${etl}"')
def test_any_name_is_an_entry_that_the_proxy_reads(user: str | None, client_id: str) -> None:
    assume("*" not in f"{user}{client_id}" and client_id and user != "")
    entity = Entity(user, client_id)
    text = apply.quotas_toml([RECOMMENDED[0] | {"entity": str(entity)}])
    assert text.replace("\n", "").isprintable()
    assert [placed.entity for placed in load_quotas(tomllib.loads(text)).placed] == [entity]


@pytest.mark.parametrize(
    "entity", ["total", "resource-group:batch", "client-id:producer-*", 'user:"<default>"', "topic:t", ""]
)
def test_what_is_no_client_is_left_to_people(entity: str) -> None:
    assert apply.entity_keys(entity) == {}
