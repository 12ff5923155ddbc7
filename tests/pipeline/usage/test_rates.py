"""What clients need: rates between two records, one bucket for a shared limit, and the engine as the judge."""

import itertools
import random
import tomllib
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.usage.jobs.apply import quotas_toml, recommended
from pipeline.usage.jobs.replay import Engine, Offer
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.jobs.simulate import simulate
from pipeline.usage.quotas_in_force import load
from pipeline.usage.schemas import USAGE_KIND
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.deltas import samples
from pipeline.usage.transforms.members import members
from pipeline.usage.transforms.rates import pace, rates_quarterly
from pipeline.usage.transforms.recommendations import ASSUMED, needs, quota_recommendations
from quotas.parsing.file import load_quotas
from tests.pipeline.usage.fleets import throttle_record, usage_record
from tests.pipeline.usage.test_deltas import records_frame

START_MS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp() * 1000)
HOUR_S = 3_600
Load = Callable[[int], float]
"""Bytes per second of one client at a second."""
EMPTY = (
    "time timestamp, sidecar string, labels string, user string, client_id string, limit string, entity string, "
    "throttled_ms bigint, limit_value double, fleet string"
)


def recorded(
    loads: dict[str, Load], hours: int, *, seconds: bool = False, number: int | None = None
) -> list[dict[str, Any]]:
    """What a sidecar sends: a record every 8 to 10 s where something changed, like the proxy; else every 10 minutes.

    seconds: with the largest second of that time. number: of the sidecar, each of which reads at times of its own.
    """
    made: list[dict[str, Any]] = []
    steps = random.Random(hours if number is None else number)
    sidecar = {} if number is None else {"sidecar": f"pod-{number}", "incarnation": f"run-{number}"}
    every = itertools.accumulate((steps.choice([8, 9, 9, 10]) for _ in itertools.repeat(None)), initial=0)
    moments = [*itertools.takewhile(lambda moment: moment < hours * HOUR_S, every), hours * HOUR_S]
    for client, load_of in loads.items():
        total = sent_at = 0.0
        before = -1.0
        for begin, end in itertools.pairwise(moments):
            sizes = [load_of(each) for each in range(begin, end)]
            total += sum(sizes)
            if total != before or begin - sent_at >= 600:
                made.append(
                    usage_record(
                        client_id=client, seq=len(made), start_time_ms=START_MS,
                        time_ms=START_MS + end * 1000,
                        bytes=int(total), requests=int(total) // 16_384,
                        max_second_bytes=int(max(sizes)) if seconds else None, **sidecar,
                    )
                )  # fmt: skip
                before, sent_at = total, begin
    return made


def test_a_steady_rate_stays_what_it_is_where_two_readings_fall_into_one_slot(spark: SparkSession) -> None:
    """1 MB/s, read every 8 to 10 s: one in nine slots of 10 s has two readings."""
    found = rates(spark, recorded({"c0": lambda second: 1e6}, 2), None)
    assert needs(found).first()["need"] == pytest.approx(1e6, rel=0.06)
    assert max(row["peak"] for row in found.collect()) == pytest.approx(1e6, rel=0.06)


def arrivals(loads: dict[str, Load], hours: int, user: str = "alice") -> Iterable[Offer]:
    """The same traffic, second by second: what the engine would really get."""
    for second in range(hours * HOUR_S):
        for client, load_of in loads.items():
            size = int(load_of(second))
            if size:
                start = START_MS + second * 1000
                yield Offer(start, start + 1000, user, client, "produce", size, 4)


def held_s(offers: Iterable[Offer], entity: str, rate: float) -> float:
    """Seconds for which the clients of a limit were held, as the engine does it; the longest of them."""
    user, _, client = entity.partition(",client-id:")
    keys = f'user = "{user.removeprefix("user:")}"\n' + (f'client-id = "{client}"\n' if client else "")
    engine = Engine(load(f"[[quota]]\n{keys}producer_byte_rate = {int(rate)}\n"))
    rows = [row for offer in offers for row in engine.add(offer)]
    by_client: dict[str, float] = {}
    for row in itertools.chain(rows, engine.end()):
        by_client[row[3]] = by_client.get(row[3], 0) + row[7] / 1000
    return max(by_client.values(), default=0.0)


def rates(spark: SparkSession, made: list[dict[str, Any]], entity: str | None, fleet: str | None = None) -> DataFrame:
    frame = records_frame(spark, made).where("kind = 'usage'").localCheckpoint()
    at = datetime(2026, 1, 5, tzinfo=UTC)
    held = (at, "pod-1", "{}", "alice", "c0", "producer_byte_rate", entity, 0, 1.0, fleet)
    known = members(frame, spark.createDataFrame([] if entity is None else [held], EMPTY))
    sampled = samples(frame, USAGE_KIND)
    return rates_quarterly(sampled, pace(sampled), known).localCheckpoint()


def minute_an_hour(second: int) -> float:
    return 5e6 if second % HOUR_S < 60 else 0.0


def test_a_minute_an_hour_has_its_own_rate_and_not_the_mean_of_a_quarter(spark: SparkSession) -> None:
    found = rates(spark, recorded({"c0": minute_an_hour}, 3), None)
    rows = found.orderBy("time").collect()
    assert {row["entity"] for row in rows} == {"user:alice,client-id:c0"}
    assert [row["peak"] for row in rows[::4]] == pytest.approx([5e6] * 3, rel=0.02)
    assert [row["p99"] for row in rows[::4]] == pytest.approx([5e6] * 3, rel=0.02)
    need = needs(found).first()
    assert need["need"] == pytest.approx(5e6, rel=0.1)
    assert (need["used_p50"], need["peak"]) == (0.0, pytest.approx(5e6, rel=0.02))


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, 5e6), (60, 1e6)], ids=["all at the same time", "one after the other"]
)
def test_a_shared_limit_is_one_bucket(spark: SparkSession, offset: int, expected: float) -> None:
    """Five clients of 1 MB/s for a minute: their sum at each moment, and not the sum of their peaks."""
    loads: dict[str, Load] = {
        f"c{n}": lambda second, n=n: 1e6 if 0 <= second % 900 - n * offset < 60 else 0.0  # type: ignore[misc]
        for n in range(5)
    }
    found = rates(spark, recorded(loads, 2), "user:alice")
    assert {row["entity"] for row in found.select("entity").distinct().collect()} == {"user:alice"}
    assert needs(found).first()["need"] == pytest.approx(expected, rel=0.1)


def burst(second: int) -> float:
    """A micro-batch of two seconds every ten."""
    return 1e6 if second % 10 < 2 else 0.0


@pytest.mark.claim(
    "fleet", "bursts of one client at several sidecars of a fleet are taken to meet, with low confidence"
)
@pytest.mark.parametrize(
    ("clients", "fleet", "expected", "is_assumed"),
    [
        pytest.param(["c0"] * 10, "etl", 10e6, True, id="executors of one job, in phase"),
        pytest.param([f"c{n}" for n in range(10)], "etl", 4.5e6, False, id="clients that meet by chance"),
        pytest.param(["c0"] * 10, None, 1e6, False, id="ten sidecars with limits of their own"),
    ],
)
def test_bursts_of_one_client_at_the_sidecars_of_a_fleet_are_taken_to_meet(
    spark: SparkSession, clients: list[str], fleet: str | None, expected: float, is_assumed: bool
) -> None:
    """1 MB/s in two seconds of ten each; independent clients meet at random, so their bursts add up as squares do."""
    made: list[dict[str, Any]] = []
    for number, client in enumerate(clients):
        made += recorded({client: burst}, 1, seconds=True, number=number)
    found = rates(spark, made, "user:alice", fleet)
    assert needs(found).first()["need"] == pytest.approx(expected, rel=0.15)
    row = quota_recommendations(found, spark.createDataFrame([], EMPTY), one_client(found)).first()
    assert (ASSUMED in row["why"]) is is_assumed
    assert f"from 1 day, {row['first_day']} to" in row["why"]


def one_client(rates: DataFrame) -> DataFrame:
    """The `parts` of one client for the entities of `rates`."""
    names = {"part": f.lit(1.0), "direction": f.lit("produce")}
    return rates.select("cluster", "limit", "entity").distinct().withColumns(names)


RANDOM = random.Random(7)
NOISE = [RANDOM.choice([0.2, 0.5, 1, 2]) for _ in range(2_000)]
#: Of one client, or of several that share a limit.
LOADS: dict[str, list[Load]] = {
    "a minute an hour": [minute_an_hour],
    "two seconds of ten": [lambda second: 5e6 if second % 10 < 2 else 0.0],  # this and the next are micro-batches
    "five seconds a minute": [lambda second: 9e6 if second % 60 < 5 else 1e4],
}
NIGHTLY: dict[str, list[Load]] = {
    "steady": [lambda second: 2e6],
    "six seconds an hour": [lambda second: 5e6 if second % HOUR_S < 6 else 1e4],
    "noise": [lambda second: 1e6 * NOISE[second // 20 % 2_000]],
    "growing": [lambda second: 1e6 * (1 + second / (8 * HOUR_S))],
    "working hours": [lambda second: 3e6 if 2 <= second // HOUR_S < 6 and second % 900 < 300 else 2e4],
    "shared": [lambda second, n=n: 1e6 if (second // 60 + n) % 5 < 2 else 1e5 for n in range(5)],  # type: ignore[misc]
    "shared micro-batches": [
        lambda second, n=n: 2e6 if (second + 3 * (n // 2)) % 10 < 2 else 1e4  # type: ignore[misc]
        for n in range(3)
    ],
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*LOADS, *(pytest.param(each, marks=pytest.mark.nightly) for each in NIGHTLY)])
def test_the_engine_holds_a_client_at_its_proposal_for_less_than_one_percent(spark: SparkSession, name: str) -> None:
    """And at a third of it for more: no proposal is above three times what that took."""
    hours = 8
    loads = {f"c{n}": load_of for n, load_of in enumerate((LOADS | NIGHTLY)[name])}
    shared = "user:alice" if len(loads) > 1 else None
    row = needs(rates(spark, recorded(loads, hours, seconds=True), shared)).first()
    proposed = row["need"] * 1.2
    allowed_s = 0.01 * hours * HOUR_S
    assert held_s(arrivals(loads, hours), row["entity"], proposed) < allowed_s
    assert held_s(arrivals(loads, hours), row["entity"], proposed / 3) > allowed_s


WEEK = 7 * 24
WEEKLY: dict[str, dict[str, Load]] = {
    "steady": {"c0": lambda second: 2e6},
    "bursty": {"c0": minute_an_hour},
    "shared": {f"c{n}": lambda second, n=n: 1e6 if (second // 60 + n) % 5 < 2 else 1e5 for n in range(3)},  # type: ignore[misc]
    "growing": {"c0": lambda second: 1e6 * (1 + second / (WEEK * HOUR_S))},
    "weekly": {"c0": lambda second: 3e6 if second // (24 * HOUR_S) < 5 and 8 <= second // HOUR_S % 24 < 17 else 2e4},
}


@pytest.mark.timeout(3_600)
@pytest.mark.nightly
def test_a_recommendation_of_a_week_holds_for_less_than_a_percent(spark: SparkSession, warehouse: Warehouse) -> None:
    """Report, apply, and the quotas file in the engine with the true arrivals, second by second; a third holds more."""
    made = [{**each, "user": user} for user, loads in WEEKLY.items() for each in recorded(loads, WEEK, seconds=True)]
    limit = {"entity": "user:shared", "user": "shared", "client_id": "c0", "limit_value": 1e6}
    made.append(throttle_record(**limit, start_time_ms=START_MS, time_ms=START_MS + 10_000))
    warehouse.append("records", records_frame(spark, made))
    report(warehouse, Rules())
    text = quotas_toml(recommended(warehouse, "high"))
    proposed = {str(each.entity): dict(each.limits) for each in load_quotas(tomllib.loads(text)).placed}
    allowed_s = 0.01 * WEEK * HOUR_S
    found = {}
    for user, loads in WEEKLY.items():
        entity = "user:shared" if user == "shared" else f"user:{user},client-id:c0"
        rate = float(proposed.pop(entity)["producer_byte_rate"])
        held = [held_s(arrivals(loads, WEEK, user), entity, rate / part) for part in (1, 3)]
        found[user] = (rate, *held)
        print(user, rate, held)
    assert proposed == {}
    assert all(at_rate < allowed_s < at_a_third for _, at_rate, at_a_third in found.values()), found


@pytest.mark.timeout(600)
def test_a_limit_that_a_fleet_shares_is_one_for_all_of_its_sidecars(spark: SparkSession, warehouse: Warehouse) -> None:
    """Two sidecars send 1 MB/s each of a limit of 3 MB/s. Of a fleet that is 2 MB/s of 3; else each has 1 of 3."""
    made = []
    for number in (1, 2):
        for user, fleet in (("together", {"fleet": "etl", "fleet_cap": 1.5e6}), ("apart", {})):
            at = {"user": user, "sidecar": f"pod-{number}", "incarnation": f"run-{number}", "start_time_ms": START_MS}
            for n in range(1, 7):
                record = {**at, "time_ms": START_MS + 10_000 * n}
                made.append(usage_record(**record, bytes=10_000_000 * n, max_second_bytes=1_000_000))
                limit = {"entity": f"user:{user}", "limit_value": 3e6}
                made.append(throttle_record(**record, **limit, **fleet, throttled_ms=n))
    warehouse.append("records", records_frame(spark, [record | {"seq": n} for n, record in enumerate(made)]))
    report(warehouse, Rules())
    found = warehouse.read("quota_recommendations").collect()
    assert {row["entity"]: row["peak"] for row in found} == pytest.approx({"user:together": 2e6, "user:apart": 1e6})
    assert [row["current_limit"] for row in found] == [3e6, 3e6]
    rows = warehouse.read("rates_quarterly").where("entity like 'user:%'").collect()
    assert {(row["entity"], row["sidecar"]) for row in rows} >= {("user:together", "etl"), ("user:apart", "pod-1")}


def test_a_limit_that_another_one_replaced_holds_its_client_no_longer(spark: SparkSession) -> None:
    today, limit = date(2026, 1, 25), "producer_byte_rate"
    clients = ("cart", "stock", "web", "mail")
    usage = spark.createDataFrame(
        [("{}", "shop", name, "t") for name in clients], "labels string, user string, client_id string, topic string"
    )
    seen = [
        ("cart", "user:shop", 5),  # before its limit moved to the pair
        ("cart", "user:shop,client-id:cart", 0),
        ("cart", "total", 3),
        ("web", "user:shop,client-id:web", 20),  # before its limit moved to the user
        ("mail", "user:shop,client-id:mail", 4),  # not held since, and still in force for all that is known
    ]
    held = [
        (datetime(2026, 1, 25, tzinfo=UTC) - timedelta(days), "p", "{}", "shop", client, limit, entity, 0, 1.0, None)
        for client, entity, days in seen
    ]
    found: dict[str, dict[str, int]] = {name: {} for name in clients}
    for row in members(usage, spark.createDataFrame(held, EMPTY)).collect():
        found[row["client_id"]][row["entity"]] = (row["until"] - today).days
    everywhere = {"total": 5}
    assert found == {
        "cart": {"user:shop": -5, "user:shop,client-id:cart": 8, **everywhere},
        "stock": {"user:shop": 3, **everywhere},
        "web": {"user:shop": 3, "user:shop,client-id:web": -20, **everywhere},
        "mail": {"user:shop,client-id:mail": 4, **everywhere},
    }


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_proposal_ends_with_its_entity_and_names_its_days(spark: SparkSession, warehouse: Warehouse) -> None:
    """Two weeks ago `user:shop` had a limit for all its clients; since then each pair of user and client id has one."""
    day_ms = 24 * HOUR_S * 1000
    moved = START_MS + 14 * day_ms
    made = []
    for start, client, entity, limit in (
        *((START_MS, name, "user:shop", 2.8e6) for name in ("cart", "stock")),
        *((moved + n * day_ms, "cart", "user:shop,client-id:cart", 5e6) for n in range(7)),
        *((moved + n * day_ms, "stock", None, None) for n in range(7)),
    ):
        common = {"user": "shop", "client_id": client, "start_time_ms": start, "incarnation": f"{start}"}
        for n in range(1, 7):
            at = {**common, "time_ms": start + 10_000 * n}
            second = {} if client == "stock" else {"max_second_bytes": 5_000_000}
            made.append(usage_record(**at, **second, bytes=30_000_000 * n))
            if entity is not None:
                made.append(throttle_record(**at, entity=entity, limit_value=limit, throttled_ms=n))
    warehouse.append("records", records_frame(spark, [record | {"seq": n} for n, record in enumerate(made)]))
    report(warehouse, Rules())
    found = {row["entity"]: row for row in warehouse.read("quota_recommendations").collect()}
    assert set(found) == {"user:shop,client-id:cart", "user:shop,client-id:stock"}
    cart, stock = found["user:shop,client-id:cart"], found["user:shop,client-id:stock"]
    assert cart["why"].endswith("from 8 days, 2026-01-05 to 2026-01-25")
    assert [str(cart[name]) for name in ("first_day", "last_day")] == ["2026-01-05", "2026-01-25"]
    assert (cart["current_limit"], cart["peak"], stock["peak"]) == (5e6, 5e6, 3e6)
    assert stock["confidence"] == "low", "of a few minutes"


@pytest.mark.parametrize(
    ("has_seconds", "independent", "confidence"), [(True, 5.0, "high"), (False, 5.0, "medium"), (True, 4.0, "low")]
)
def test_only_records_with_the_largest_second_give_high_confidence(
    spark: SparkSession, has_seconds: bool, independent: float, confidence: str
) -> None:
    """And only where the peak does not rest on bursts that are taken to meet."""
    quarters = spark.range(7 * 96).withColumns(
        {
            "time": f.timestamp_millis(f.lit(START_MS) + f.col("id") * 900_000), "sidecar": f.lit("p"),
            "cluster": f.lit(""), "limit": f.lit("producer_byte_rate"), "entity": f.lit("client-id:c"),
            "p99": f.lit(5.0), "interval_s": f.lit(10.0), "has_seconds": f.lit(has_seconds),
            "independent": f.lit(independent),
            "bins": f.array(f.struct(f.lit(1).alias("step"), f.lit(900.0).alias("seconds"), f.lit(9.0).alias("bytes"),
                                     f.lit(5.0).alias("top"))),
        }
    )  # fmt: skip
    row = quota_recommendations(quarters, spark.createDataFrame([], EMPTY), one_client(quarters)).first()
    assert row["confidence"] == confidence


BURSTS: list[Any] = [
    (lambda second: 4e6 if second % HOUR_S < 60 else 1e5, 1e6),
    pytest.param(lambda second: 8e6 if second % 1_800 < 50 else 0.0, 1e6, marks=pytest.mark.nightly),
    pytest.param(lambda second: 3e6 if second % 600 < 40 else 2e5, 1.2e6, marks=pytest.mark.nightly),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("load_of", "limit"), BURSTS)
def test_a_simulation_of_records_is_near_the_engine(spark: SparkSession, load_of: Load, limit: float) -> None:
    frame = records_frame(spark, recorded({"c0": load_of}, 3)).localCheckpoint()
    quotas = f'[[quota]]\nuser = "alice"\nclient-id = "c0"\nproducer_byte_rate = {int(limit)}\n'
    rows = simulate(frame, quotas).collect()
    true_s = held_s(arrivals({"c0": load_of}, 3), "user:alice,client-id:c0", limit)
    assert true_s > 300
    assert sum(row["throttled_ms"] for row in rows) / 1000 == pytest.approx(true_s, rel=0.1)
    assert sum(row["delayed_bytes"] for row in rows) > 0.5 * 3 * 60 * limit
