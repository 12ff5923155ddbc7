"""Simulating a quotas file through the proxy's engine, and writing recommendations as one."""

import tomllib
from datetime import UTC, datetime

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipeline.usage.jobs import apply
from pipeline.usage.jobs.simulate import Offer, replay, simulate
from pipeline.usage.quotas_in_force import QuotasError, in_force, load
from quotas.entity import Entity
from quotas.parsing.file import load_quotas
from tests.pipeline.usage.fleets import usage_record
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
    return Offer(start, start + 900_000, "u", client_id, direction, rate * 900)


def waits(offers: list[Offer]) -> dict[str, float]:
    """Seconds throttled by client."""
    found: dict[str, float] = {}
    for row in replay(offers, load(QUOTAS)):
        found[row[2]] = found.get(row[2], 0) + row[7] / 1000
    return found


def test_below_the_limit_no_connection_waits() -> None:
    assert waits([offer("etl", 900), offer("free", 10**9), offer("etl", 10**9, direction="fetch")]) == {}


def test_twice_the_limit_takes_twice_as_long() -> None:
    """A quarter hour's offer of 2,000 B/s at 1,000 B/s: the last request passes a quarter hour late."""
    found = waits([offer("etl", 2_000)])["etl"]
    assert 1_600 < found <= 1_800


def test_clients_of_a_group_share_its_limit() -> None:
    alone = waits([offer("batch-1", 2_000)])
    both = waits([offer("batch-1", 2_000), offer("batch-2", 2_000)])
    assert sum(alone.values()) < 100
    assert all(found > 600 for found in both.values())
    assert set(both) == {"batch-1", "batch-2"}


def test_the_hours_of_waiting_are_those_after_the_offer() -> None:
    rows = list(replay([offer("etl", 10_000), offer("etl", 1, quarter=40)], load(QUOTAS)))
    hours = [(row[0] - START_MS) / 3_600_000 for row in rows]
    assert hours == sorted(hours)
    assert hours[0] == 0
    assert 2 <= max(hours) <= 3
    assert {row[4:6] for row in rows} == {("producer_byte_rate", "client-id:etl")}


def test_delayed_bytes_are_those_of_the_whole_queue() -> None:
    """Ten requests at once, of a second each: one passes, and nine are held or queued."""
    rows = list(replay([Offer(START_MS, START_MS + 1, "u", "etl", "produce", 20_000, 10)], load(QUOTAS)))
    assert 14_000 < sum(row[8] for row in rows) <= 18_000
    assert 15 <= sum(row[7] for row in rows) / 1000 <= 20


def test_what_waits_for_a_day_is_dropped_then() -> None:
    """A million times the limit for two hours: the client is held until a day after its last offer, and no longer.

    The first request passes, since the bucket is full.
    """
    offers = [offer("etl", 10**9, quarter) for quarter in range(8)]
    offers.append(Offer(offers[-1].end_ms, offers[-1].end_ms + 10_000, "u", "etl", "produce", 2**53 - 1, 2))
    rows = list(replay(offers, load(QUOTAS)))
    assert max(row[0] for row in rows) < offers[-1].end_ms + 25 * 3_600_000
    assert sum(row[7] for row in rows) <= 26 * 3_600_000
    assert sum(row[8] for row in rows) == sum(each.size for each in offers) - offers[0].size // 30


def test_spark_gives_what_one_process_gives(spark: SparkSession) -> None:
    names = ("batch-1", "batch-2", "etl", "free")
    made = [
        usage_record(
            sidecar=pod, client_id=name, user="u", start_time_ms=START_MS, time_ms=START_MS + 900_000 * (n + 1),
            bytes=900 * 1_500 * (n + 1), requests=90 * (n + 1),
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
    assert found == {(pod, name): pytest.approx(1000 * s) for pod in ("p", "q") for name, s in expected.items()}


def test_the_quotas_in_force_are_those_of_the_proxy(spark: SparkSession) -> None:
    made = [("u", name, '{"cluster":"east"}') for name in ("etl", "batch-1", "free")]
    clients = spark.createDataFrame(made, "user string, client_id string, labels string")
    found = {(row["client_id"], row["entity"]): row["limit_value"] for row in in_force(clients, QUOTAS).collect()}
    assert found == {("etl", "client-id:etl"): 1_000.0, ("batch-1", "resource-group:batch"): 2_000.0}


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ('client-id = "a"\nproducer_byte_rat = 5', "unknown key 'producer_byte_rat'"),
        ('topic = "a"\n"bytes.in.per.sec.threshold" = 5', "no effect without total.bytes.in.per.sec.threshold"),
    ],
)
def test_a_wrong_quotas_file_is_refused(entry: str, error: str) -> None:
    with pytest.raises(QuotasError, match=error):
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
