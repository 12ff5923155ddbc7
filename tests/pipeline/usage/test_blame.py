"""Who delayed whom: planted traffic on shared limits, from records through a report, with and without a quotas file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.usage import owners, price_list
from pipeline.usage.jobs.report import Rules, report
from pipeline.usage.tables import Warehouse
from tests.pipeline.usage.fleets import NOON_MS, throttle_record, usage_record
from tests.pipeline.usage.test_deltas import records_frame

OWNERS = "".join(f'[[owner]]\nteam = "{name}"\nclient-id = "{name}(-.*)?"\n' for name in "abcd")
PRICES = 'currency = "EUR"\n[[price]]\naxis = "waiting"\namount = "3.60"\nper = "hour"\nfrom = 2026-01-01\n'
QUOTAS = """
[[quota]]
user = "u"
producer_byte_rate = 1000
[[quota]]
user = "u"
client-id = "d"
producer_byte_rate = "unlimited"
[[resource-group]]
name = "g"
client-id = ["a", "b"]
producer_byte_rate = 1000
[[resource-group]]
name = "t"
topic = "t*"
bytes_in_rate = 1000
"""


@dataclass(frozen=True, slots=True)
class Use:
    """So many bytes and requests of one client, evenly over some seconds after noon."""

    client: str
    size: int
    requests: int = 0
    first_s: int = 0
    last_s: int = 60
    direction: str = "produce"
    topic: str | None = None
    messages: int | None = None
    sidecar: str = "p"
    label: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """So many seconds of waiting of one client at a limit, evenly over some seconds after noon."""

    client: str
    seconds: float
    entity: str = "user:u"
    first_s: int = 0
    last_s: int = 60
    limit: str = "producer_byte_rate"
    sidecar: str = "p"
    fleet: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """caused: (entity, client) to seconds of others' waiting; nobody else caused any."""

    name: str
    uses: list[Use]
    waits: list[Wait]
    caused: dict[tuple[str, str], float] = field(default_factory=dict)


USER = "user:u"
LOUD = [Use("a", 9_000_000), Use("b", 500_000), Use("c", 500_000)]
CASES = [
    # The fair share is a third, so a's excess is 56.7 % of what passed: its part of the waiting of b and c.
    Case("an aggressor that waits", LOUD, [Wait("a", 20), Wait("b", 7), Wait("c", 3)], {(USER, "a"): 5.667}),
    Case("an aggressor that never waits", LOUD, [Wait("b", 7), Wait("c", 3)], {(USER, "a"): 5.667}),
    Case(
        "two aggressors",  # d wants 0.5 MB only, so the fair share is 9.5 MB / 3
        [Use("a", 5_000_000), Use("b", 4_000_000), Use("c", 500_000), Use("d", 500_000)],
        [Wait("a", 5), Wait("c", 8)],
        {(USER, "a"): 8 * 0.18333, (USER, "b"): 8 * 0.08333},
    ),
    Case("all equal", [Use("a", 5_000_000), Use("b", 5_000_000)], [Wait("a", 9), Wait("b", 9)]),
    Case(
        "equal but for 5 %",
        [Use("a", 1_050_000), Use("b", 1_000_000), Use("c", 1_000_000), Use("d", 950_000)],
        [Wait(name, 50) for name in "abcd"],
    ),
    Case(
        "a small excess causes a small part",
        [Use("a", 1_200_000), Use("b", 1_000_000), Use("c", 1_000_000), Use("d", 800_000)],
        [Wait(name, 50) for name in "abcd"],
        {(USER, "a"): 150 * 0.05},
    ),
    Case(
        "bursts apart in one quarter hour",
        [Use("a", 9_000_000, last_s=60), Use("b", 4_000_000, first_s=240, last_s=300)],
        [Wait("a", 50, last_s=70), Wait("b", 30, first_s=240, last_s=310)],
    ),
    Case(
        "one burst, and a debt of minutes",
        [Use("a", 9_000_000, last_s=10), Use("b", 300_000, first_s=10, last_s=240)],
        [Wait("b", 200, first_s=10, last_s=240)],
        {(USER, "a"): 200 * 4_350_000 / 9_300_000},
    ),
    Case(
        "a poller of small requests",
        [Use("a", 30_000, 3_000, direction="fetch"), Use("b", 9_000_000, 10)],
        [Wait("b", 30, limit="request_rate")],
        {(USER, "a"): 30 * 1_495 / 3_010},
    ),
    Case(
        "a fetcher, beside a producer of more",
        [Use("a", 8_000_000, direction="fetch"), Use("b", 2_000_000, direction="fetch"), Use("c", 99_000_000)],
        [Wait("b", 10, limit="consumer_byte_rate")],
        {(USER, "a"): 10 * 0.3},
    ),
    Case(
        "a topic, of which a writes little, and much to others",
        [
            Use("a", 900_000_000, topic="other"), Use("a", 100_000, topic="t"), Use("b", 2_000_000, topic="t"),
            Use("c", 5_900_000, topic="t"),
        ],
        [Wait("b", 40, "topic:t", limit="bytes_in_rate")],
        {("topic:t", "c"): 40 * 1_950_000 / 8_000_000},
    ),
    Case(
        "a topic's records, many of them small",
        [Use("a", 1_000, topic="t", messages=9_000), Use("b", 5_000_000, topic="t", messages=1_000)],
        [Wait("b", 40, "topic:t", limit="messages_in_rate")],
        {("topic:t", "a"): 40 * 0.4},
    ),
    Case(
        "creations, which nobody counts", LOUD, [Wait("b", 60, "total", limit="controller_mutation_rate")]
    ),
    Case("two sidecars", [*LOUD[:1], Use("b", 500_000, sidecar="q")], [Wait("b", 9, sidecar="q")]),
    Case(
        "two sidecars of a fleet",  # a's are on p alone, and b's requests wait on q
        [Use("a", 9_000_000), Use("b", 1_000_000, sidecar="q")],
        [Wait("b", 36, sidecar="q", fleet="etl")],
        {(USER, "a"): 36 * 0.4},
    ),
    Case(
        "ten client ids of one team, each a little above its share",
        [*(Use(f"a-{n}", 1_080_000) for n in range(10)), Use("b", 200_000)],
        [Wait("b", 55)],
        {(USER, f"a-{n}"): 55 * 0.08 / 11 for n in range(10)},
    ),
    Case(
        "the pods of a job",
        [*(Use("a", 900_000, label=f"pod-{n}") for n in range(10)), Use("b", 1_000_000)],
        [Wait("b", 3)],
        {(USER, "a"): 3 * 0.4},
    ),
    Case(
        "two limits",  # c is above its share of the total, and is held by its own limit: no member of the user's
        [Use("a", 4_000_000), Use("b", 1_000_000), Use("c", 9_000_000)],
        [Wait("b", 2), Wait("b", 5, "total"), Wait("c", 9, "user:u,client-id:c")],
        # Of the total 4 MB are a's, which did not wait for it, and 5 MB each one's of the others.
        {(USER, "a"): 2 * 0.3, ("total", "c"): 5 * 4 / 14},
    ),
]  # fmt: skip
WITH_QUOTAS = [
    CASES[1],
    CASES[6],
    Case(
        "the total, by a flag",
        LOUD,
        [Wait("b", 7), Wait("b", 4, "total")],
        {(USER, "a"): 7 * 0.425, ("total", "a"): 4 * 0.425},
    ),
    Case(
        "a group, of which one never waits",
        [Use("a", 9_000_000), Use("b", 1_000_000), Use("c", 90_000_000)],
        [Wait("b", 7, "resource-group:g")],
        {("resource-group:g", "a"): 7 * 0.4},
    ),
    Case(
        "a group of topics, to which a writes little, and much to others",
        [
            Use("a", 900_000_000, topic="other"), Use("a", 100_000, topic="t1"), Use("b", 2_000_000, topic="t1"),
            Use("c", 5_900_000, topic="t2"),
        ],
        [Wait("b", 40, "resource-group:t", limit="bytes_in_rate")],
        {("resource-group:t", "c"): 40 * 1_950_000 / 8_000_000},
    ),
    Case("one without the limit", [Use("d", 9_000_000), Use("b", 1_000_000), Use("c", 1_000_000)], [Wait("b", 7)]),
]  # fmt: skip


def records(case: Case) -> Iterator[dict[str, Any]]:
    """A record each 10 s in which something changed; the clusters of cases are apart."""
    every: list[Use | Wait] = [*case.uses, *case.waits]
    for each in every:
        labels = {"cluster": case.name}
        if isinstance(each, Use) and each.label:
            labels["pod"] = each.label
        step = 10 / (each.last_s - each.first_s)
        for n in range(1, (each.last_s - each.first_s) // 10 + 1):
            times = {"time_ms": NOON_MS + 1_000 * (each.first_s + 10 * n), "start_time_ms": NOON_MS}
            common = {**times, "sidecar": each.sidecar, "user": "u", "client_id": each.client, "labels": labels}
            if isinstance(each, Wait):
                common |= {"throttled_ms": round(1_000 * each.seconds * step * n)}
                yield throttle_record(**common, limit=each.limit, entity=each.entity, fleet=each.fleet)
            else:
                size = round(each.size * step * n)
                count = {"requests": round(each.requests * step * n), "direction": each.direction}
                if each.topic is not None:
                    messages = None if each.messages is None else round(each.messages * step * n)
                    count |= {"topic": each.topic, "record_bytes": size, "messages": messages}
                yield usage_record(**common, **count, bytes=size)


SOURCES = [
    pytest.param("", id="by records"),
    pytest.param(QUOTAS, id="by a quotas file, too", marks=pytest.mark.nightly),
]


@pytest.fixture(scope="module", params=SOURCES)
def reported(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Case], Warehouse]:
    cases = WITH_QUOTAS if request.param else CASES
    warehouse = Warehouse(spark, str(tmp_path_factory.mktemp("warehouse")))
    made = [record | {"seq": n} for n, record in enumerate(each for case in cases for each in records(case))]
    warehouse.append("records", records_frame(spark, made))
    report(warehouse, Rules(owners.parse(OWNERS), price_list.parse(PRICES), quotas=request.param))
    return cases, warehouse


@pytest.mark.claim("fleet", "groups of topics are blamed by the records of their topics")
@pytest.mark.timeout(600)
def test_waiting_is_caused_by_those_above_their_fair_share(reported: tuple[list[Case], Warehouse]) -> None:
    cases, warehouse = reported
    rows = warehouse.read("noisy_neighbours").where("caused_throttled_ms > 0").collect()
    found: dict[str, dict[tuple[str, str], float]] = {case.name: {} for case in cases}
    for row in rows:
        found[row["cluster"]][row["entity"], row["client_id"]] = round(row["caused_throttled_ms"] / 1_000, 2)
    assert found == {case.name: pytest.approx(case.caused, rel=0.02) for case in cases}


@pytest.mark.timeout(600)
def test_what_nobody_caused_is_the_clients_own_waiting(reported: tuple[list[Case], Warehouse]) -> None:
    """All waiting at a limit with several members is somebody's, once, and at its price."""
    cases, warehouse = reported
    shared = {(case.name, entity): 0.0 for case in cases for entity, _ in case.caused}
    shared[CASES[6].name, USER] = 0.0  # each one waited while no other did
    by_others = dict(shared)
    for row in warehouse.read("waiting_cost").collect():
        assert float(row["cost"]) == pytest.approx(row["waited_ms"] / 1e6), "3.60 EUR an hour are 1 EUR in 1,000 s"
        if (key := (row["cluster"], row["entity"])) in shared:
            shared[key] += row["waited_ms"] / 1_000
            by_others[key] += row["waited_ms"] / 1_000 if row["caused_by"] != row["team"] else 0
    for (name, entity), waited in shared.items():
        (case,) = (each for each in cases if each.name == name)
        assert waited == pytest.approx(sum(wait.seconds for wait in case.waits if wait.entity == entity))
        caused = sum(seconds for (other, _), seconds in case.caused.items() if other == entity)
        assert by_others[name, entity] == pytest.approx(caused, rel=0.02)
