"""Simulating a quotas file through the proxy's engine, and writing recommendations as one."""

import tomllib
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from pipeline.usage.jobs import apply
from pipeline.usage.jobs.simulate import Offer, QuotasError, load, replay, simulate
from quotas.parsing.parse import load_quotas

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
    return Offer(START_MS + quarter * 900_000, "u", client_id, direction, rate * 900)


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


def test_spark_gives_what_one_process_gives(spark: SparkSession) -> None:
    names = ("etl", "batch-1", "batch-2", "free")
    rows = [
        (
            datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(minutes=15 * n),
            pod,
            "u",
            name,
            "produce",
            900 * 1_500,
        )
        for n in range(3)
        for pod in ("p", "q")
        for name in names
    ]
    columns = "time timestamp, sidecar string, user string, client_id string, direction string, bytes bigint"
    found: dict[tuple[str, str], int] = {}
    for row in simulate(spark.createDataFrame(rows, columns), QUOTAS).collect():
        key = (row["sidecar"], row["client_id"])
        found[key] = found.get(key, 0) + row["throttled_ms"]
    offers = [offer(name, 1_500, quarter) for quarter in range(3) for name in sorted(names)]
    expected = waits(offers)
    assert found == {(pod, name): pytest.approx(1000 * s) for pod in ("p", "q") for name, s in expected.items()}


def test_a_wrong_quotas_file_is_refused() -> None:
    with pytest.raises(QuotasError, match="producer_byte_rat"):
        load('[[quota]]\nclient-id = "a"\nproducer_byte_rat = 5')


RECOMMENDED = [
    {"entity": "client-id:etl", "limit": "producer_byte_rate", "proposed": 1500.0, "current": 1000.0},
    {"entity": "client-id:etl", "limit": "consumer_byte_rate", "proposed": 20.0, "current": 10.0},
    {"entity": "user:o'hara,client-id:x", "limit": "producer_byte_rate", "proposed": 3.0, "current": None},
]


def test_recommendations_are_a_quotas_file_that_the_proxy_reads() -> None:
    text = apply.quotas_toml(RECOMMENDED)
    found = load_quotas(tomllib.loads(text))
    assert found.errors == ()
    assert [(str(placed.entity), dict(placed.limits)) for placed in found.placed] == [
        ("client-id:etl", {"producer_byte_rate": 1500, "consumer_byte_rate": 20}),
        ("user:o'hara,client-id:x", {"producer_byte_rate": 3}),
    ]
    assert "+producer_byte_rate = 1500" in apply.diff("", text, "quotas.toml")
    assert apply.diff(text, text, "quotas.toml") == ""


def test_recommendations_change_their_lines_of_the_quotas_file_only() -> None:
    before = (
        '# limits of the platform\n[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "1kB"  # since May\n\n'
        '[[resource-group]]\nname = "batch"\nclient-id = ["batch-*"]\nproducer_byte_rate = 2000\n\n'
        '[[quota]]\nip = "10.0.0.1"\nconnections = 5\n'
    )
    after = apply.quotas_toml(RECOMMENDED, before)
    assert load_quotas(tomllib.loads(after)).errors == ()
    changed = [line for line in apply.diff(before, after, "q").splitlines()[2:] if line[0] in "+-"]
    assert changed == [
        '-producer_byte_rate = "1kB"  # since May',
        "+producer_byte_rate = 1500  # since May",
        "+consumer_byte_rate = 20",
        "+",
        "+[[quota]]",
        '+user = "o\'hara"',
        '+client-id = "x"',
        "+producer_byte_rate = 3",
    ]
    assert apply.quotas_toml(RECOMMENDED, after) == after


@pytest.mark.parametrize("before", ["quota = [", 'quota = [{client-id = "etl", producer_byte_rate = 1}]\n'])
def test_a_quotas_file_that_has_no_lines_to_edit_is_refused(before: str) -> None:
    with pytest.raises(apply.ApplyError):
        apply.quotas_toml(RECOMMENDED, before)


def test_recommendations_are_kafka_configs_commands() -> None:
    first, _, third = apply.kafka_configs(RECOMMENDED, "b:9092").splitlines()
    assert first == (
        "kafka-configs.sh --bootstrap-server b:9092 --alter --add-config producer_byte_rate=1500 "
        "--entity-type clients --entity-name 'etl'"
    )
    assert third.endswith("--entity-type users --entity-name 'o'\\''hara' --entity-type clients --entity-name 'x'")


@pytest.mark.parametrize("entity", ["total", "resource-group:batch", 'client-id:"a b"', "topic:t", ""])
def test_what_is_no_client_is_left_to_people(entity: str) -> None:
    assert apply.entity_keys(entity) == {}
