"""Limits set, changed and taken away one by one, while they are in use."""

import gc
import tracemalloc
from fractions import Fraction

import pytest

from quotas.admission.limit import NO_LIMITS, Limit
from quotas.admission.topic_thresholds import ThresholdError
from quotas.algorithms.algorithm import SAMPLED_WINDOW
from quotas.entity import DEFAULT, TOTAL, AnyEntity, Entity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import (
    BYTES_THRESHOLD,
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    CONSUMER_BYTE_RATE,
    LIMIT_NAMES,
    MESSAGES_THRESHOLD,
    PRODUCER_BYTE_RATE,
    PRODUCER_IDS_RATE,
    TOTAL_BYTES_THRESHOLD,
    TOTAL_MESSAGES_THRESHOLD,
)
from quotas.registry.change import Change, check_changes
from quotas.registry.idle import IDLE_NS
from quotas.registry.limit_store import MAX_MOMENTS
from quotas.registry.registry import Registry
from tests.quotas.cost import calls_during

SECOND = 1_000_000_000
ANYONE, ETL, ALICE = Entity(client_id=DEFAULT), Entity(client_id="etl"), Entity("alice")
ANY_PAIR, PAIR = Entity(DEFAULT, DEFAULT), Entity("alice", "etl")


def topic(name: str) -> Named:
    return Named(Kind.TOPIC, name)


def produce(entity: AnyEntity, rate: int | Fraction | None) -> Change:
    return Change(entity, PRODUCER_BYTE_RATE, rate)


def registry_of(*changes: Change) -> Registry:
    registry = Registry()
    registry.alter(changes, 0)
    return registry


def produce_limit(registry: Registry, user: str = "alice", client_id: str = "etl") -> Limit:
    (limit,) = registry.resolve(user, client_id).produce.limits
    return limit


def test_a_limit_is_set_changed_and_taken_away() -> None:
    registry = registry_of(produce(ETL, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(300, 0)
    registry.alter([produce(ETL, 1000)], SECOND)
    assert produce_limit(registry) is limit
    assert (limit.rate, limit.debt_ns(SECOND)) == (1000, SECOND // 10)  # 100 paid at the old rate, 100 are left
    registry.alter([produce(ETL, None)], SECOND)
    assert registry.resolve("alice", "etl").produce is NO_LIMITS
    assert list(registry.limits_in_use()) == []
    assert len(registry) == 0
    registry.alter([produce(ETL, None)], SECOND)  # taking away what is not there succeeds, as in Kafka
    registry.alter([produce(ETL, 100)], SECOND)
    assert produce_limit(registry).debt_ns(SECOND) == 0


def test_what_the_entry_says_of_other_limits_and_its_options_stay() -> None:
    limits = {PRODUCER_BYTE_RATE: 100, CONSUMER_BYTE_RATE: 7}
    registry = Registry([QuotaEntry(ETL, limits, mode="notify", burst_seconds=3)])
    registry.alter([produce(ETL, 200)], 0)
    client = registry.resolve("alice", "etl")
    assert (client.produce.headroom(0), client.fetch.headroom(0)) == (600, 21)
    assert {limit.mode for limit in registry.limits_in_use()} == {"notify"}


def test_a_client_in_use_gets_the_change_in_the_same_object() -> None:
    registry = registry_of(produce(ETL, 100))
    client, generation = registry.resolve("alice", "etl"), registry.generation
    registry.alter([Change(ETL, CONSUMER_BYTE_RATE, 5)], 0)
    assert registry.generation != generation
    assert registry.resolve("alice", "etl") is client
    assert [limit.rate for limit in client.fetch.limits] == [5]


def test_the_share_scales_what_is_set_later() -> None:
    registry = Registry(share=0.1)
    registry.alter([produce(ETL, 5)], 0)
    assert produce_limit(registry).rate == 0.5


@pytest.mark.parametrize("looks_between", [False, True])
def test_who_follows_a_default_pays_at_each_rate_for_as_long_as_it_held(looks_between: bool) -> None:
    registry = registry_of(produce(ANYONE, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(1100, 0)  # 1,000 in debt
    for at_ns, rate in ((SECOND, 10), (21 * SECOND, 500), (22 * SECOND, 1)):
        registry.alter([produce(ANYONE, rate)], at_ns)
        if looks_between:
            assert produce_limit(registry).rate == rate
    # 1 s at 100, 20 s at 10, 1 s at 500: 800 are paid; the rest at 1 a second
    assert produce_limit(registry) is limit
    assert limit.debt_ns(22 * SECOND) == 200 * SECOND


def test_own_changes_come_after_those_of_the_default_that_were_before() -> None:
    registry = registry_of(produce(ANYONE, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(300, 0)
    registry.alter([produce(ANYONE, 10)], 0)
    registry.alter([produce(ETL, 1000)], 10 * SECOND)
    assert limit.debt_ns(10 * SECOND) == SECOND // 10  # ten seconds at 10
    registry.alter([produce(ETL, None)], 10 * SECOND)
    assert (limit.rate, limit.origin) == (10, ANYONE)
    assert produce_limit(registry) is limit


@pytest.mark.parametrize("looks_between", [False, True])
def test_a_default_taken_away_and_set_again_starts_everybody_anew(looks_between: bool) -> None:
    registry = registry_of(produce(ANYONE, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(1100, 0)
    registry.alter([produce(ANYONE, None)], 0)
    if looks_between:
        assert list(registry.limits_in_use()) == []
    registry.alter([produce(ANYONE, 100)], 0)
    successor = produce_limit(registry)
    assert successor is not limit
    assert successor.debt_ns(0) == 0
    assert list(registry.limits_in_use()) == [successor]


@pytest.mark.parametrize("looks_between", [False, True])
def test_a_users_own_limit_puts_the_pairs_that_a_default_made_out_of_use(looks_between: bool) -> None:
    registry = registry_of(produce(ANY_PAIR, 100))
    pair = produce_limit(registry)
    assert pair.entity == PAIR
    pair.algorithm.record(1100, 0)
    registry.alter([produce(ALICE, 50)], 0)
    if looks_between:
        assert list(registry.limits_in_use()) == []
        assert produce_limit(registry).entity == ALICE
    registry.alter([produce(ALICE, None)], 0)
    assert produce_limit(registry).entity == PAIR
    assert produce_limit(registry).debt_ns(0) == 0


def test_what_is_gone_by_one_change_is_not_touched_by_the_next() -> None:
    registry = registry_of(produce(ANYONE, 100))
    produce_limit(registry)
    registry.alter([produce(ANYONE, None)], 0)
    registry.alter([Change(ANYONE, CONSUMER_BYTE_RATE, 5)], 0)
    client = registry.resolve("alice", "etl")
    assert (client.produce.limits, len(client.fetch.limits)) == ((), 1)
    assert list(registry.limits_in_use()) == [*client.fetch.limits]


def test_all_entries_are_replaced_after_what_was_changed_before() -> None:
    registry = registry_of(produce(ANYONE, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(1100, 0)
    registry.alter([produce(ANYONE, 10)], 0)
    registry.replace([QuotaEntry(ANYONE, {PRODUCER_BYTE_RATE: 500})], 50 * SECOND)
    assert produce_limit(registry) is limit
    assert limit.debt_ns(50 * SECOND) == SECOND  # fifty seconds at 10


def test_a_bucket_made_after_changes_has_no_part_in_them() -> None:
    registry = registry_of(produce(ALICE, 7))
    for change in (Change(ANYONE, CONSUMER_BYTE_RATE, 5), produce(ANY_PAIR, 5), produce(ANYONE, 100)):
        registry.alter([change], 0)
    limit = produce_limit(registry, "bob")
    limit.algorithm.record(1005, 0)
    assert produce_limit(registry, "bob") is limit
    assert limit.debt_ns(0) == 200 * SECOND


def test_a_bucket_is_forgotten_as_of_the_rate_that_holds_now() -> None:
    registry = registry_of(produce(ANYONE, 1))
    limit = produce_limit(registry)
    limit.algorithm.record(100_000, 0)  # more than a day's
    registry.alter([produce(ANYONE, 1000)], 0)
    registry.expire(0)
    assert registry.expire(IDLE_NS + 60 * SECOND) == 1


def test_a_bucket_that_nobody_looked_at_takes_over_so_many_changes_and_no_more() -> None:
    """What follows a default costs a bounded time to look up; the oldest changes count as made with the next."""
    registry = registry_of(produce(ANYONE, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(100 + 100 * (MAX_MOMENTS + 10), 0)
    for number in range(1, MAX_MOMENTS + 3):
        registry.alter([produce(ANYONE, 50)], number * SECOND)
    # The last change but MAX_MOMENTS - 1 was made after three seconds: until then at 100, then at 50.
    now_ns = (MAX_MOMENTS + 2) * SECOND
    assert produce_limit(registry) is limit
    assert limit.debt_ns(now_ns) == 2 * (MAX_MOMENTS + 10 - 3) * SECOND - (now_ns - 3 * SECOND)


@pytest.mark.parametrize("entity", [ANYONE, ETL, ANY_PAIR, TOTAL, Entity("somebody")])
def test_a_change_costs_the_same_with_few_and_with_many_limits_in_use(entity: AnyEntity) -> None:
    def cost(clients: int) -> tuple[int, int]:
        registry = registry_of(produce(ANYONE, 100), produce(ETL, 100))
        held = [registry.resolve("alice", f"client-{number}") for number in range(clients)]
        held.append(registry.resolve("alice", "etl"))
        alter = calls_during(lambda: registry.alter([produce(entity, 5)], SECOND))
        registry.resolve("alice", "etl")
        return alter, calls_during(lambda: registry.resolve("alice", "client-7"))

    cost(10)  # fills caches
    assert cost(10) == cost(1000)


def test_a_client_that_is_up_to_date_is_not_brought_up_to_date_again() -> None:
    registry = registry_of(produce(ANYONE, 100))
    held = produce_limit(registry)
    registry.alter([produce(ANYONE, 50)], 0)
    assert held.rate == 100
    client = registry.resolve("alice", "etl")
    assert held.rate == 50
    assert calls_during(lambda: registry.resolve("alice", "etl")) <= 3
    assert client.produce.limits == (held,)


def test_looking_at_all_brings_all_up_to_date_once() -> None:
    registry = Registry([QuotaEntry(ANYONE, {PRODUCER_BYTE_RATE: 100})])
    held = [registry.resolve("alice", f"client-{number}") for number in range(100)]
    assert len(list(registry.limits_in_use())) == len(held)
    before = calls_during(lambda: list(registry.limits_in_use()))
    registry.alter([produce(ANYONE, 50)], 0)
    assert {limit.rate for limit in registry.limits_in_use()} == {50}
    assert calls_during(lambda: list(registry.limits_in_use())) == before


# ---- one step


def told_to(registry: Registry) -> list[frozenset[AnyEntity] | None]:
    told: list[frozenset[AnyEntity] | None] = []
    registry.observers.append(told.append)
    return told


def test_observers_are_told_once_for_each_batch_when_it_is_in_force() -> None:
    registry = registry_of(produce(ETL, 100))
    seen: list[tuple[frozenset[AnyEntity] | None, float, int]] = []
    registry.observers.append(lambda entities: seen.append((entities, produce_limit(registry).rate, len(registry))))
    registry.alter([produce(ETL, 5), Change(ETL, CONSUMER_BYTE_RATE, 5), produce(ALICE, 7)], 0)
    registry.alter([], 0)
    assert seen == [(frozenset({ETL, ALICE}), 7, 2)]


def test_replacing_all_tells_that_all_have_changed() -> None:
    registry = registry_of(produce(ETL, 100))
    told = told_to(registry)
    registry.replace([], 0)
    assert told == [None]


def thresholds_of(registry: Registry) -> dict[str, tuple[object, object]]:
    return {name: (each.total, each.explicit_sum) for name, each in registry.thresholds.items()}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (Change(topic("a"), BYTES_THRESHOLD, 52), ThresholdError),
        (Change(TOTAL, TOTAL_BYTES_THRESHOLD, 88), ThresholdError),
        (Change(TOTAL, TOTAL_BYTES_THRESHOLD, None), ThresholdError),
        (Change(topic("a"), MESSAGES_THRESHOLD, 1), ThresholdError),
        (Change(TOTAL, TOTAL_MESSAGES_THRESHOLD, 0), "must be above zero"),
        (produce(ETL, 0), "must be above zero"),
        (produce(ETL, Fraction(-1, 2)), "must be above zero"),
        (Change(ETL, "no_such_rate", 1), "cannot have a limit"),
        (Change(topic("a"), PRODUCER_BYTE_RATE, 1), "cannot have a limit"),
        (Change(PAIR, PRODUCER_IDS_RATE, 1), "cannot have a limit"),
        (Change(Named(Kind.TOPIC, DEFAULT), BYTES_THRESHOLD, 1), "cannot have a limit"),
        (Change(ETL, CONNECTIONS, 1), "cannot have a limit"),
    ],
)
def test_a_batch_of_which_one_change_cannot_be_made_changes_nothing(
    wrong: Change, expected: type[ThresholdError] | str
) -> None:
    registry = registry_of(
        produce(ANYONE, 100),
        produce(ETL, 100),
        Change(TOTAL, TOTAL_BYTES_THRESHOLD, 100),
        Change(topic("a"), BYTES_THRESHOLD, 40),
        Change(topic("b"), BYTES_THRESHOLD, 50),
    )
    limit, generation, told = produce_limit(registry), registry.generation, told_to(registry)
    thresholds, entities = thresholds_of(registry), len(registry)
    changes = [produce(ETL, 5), produce(ANYONE, 5), Change(topic("b"), BYTES_THRESHOLD, 49), wrong]
    raises = pytest.raises(ValueError, match=expected) if isinstance(expected, str) else pytest.raises(expected)
    with raises:
        registry.alter(changes, 0)
    assert (registry.generation, told, len(registry), thresholds_of(registry)) == (generation, [], entities, thresholds)
    assert (limit.rate, produce_limit(registry)) == (100, limit)
    assert produce_limit(registry, client_id="other").rate == 100


def test_thresholds_change_hands_within_a_batch_whatever_their_order() -> None:
    a, b = topic("a"), topic("b")
    registry = registry_of(
        Change(a, BYTES_THRESHOLD, 90), Change(b, BYTES_THRESHOLD, 10), Change(TOTAL, TOTAL_BYTES_THRESHOLD, 100)
    )
    registry.alter([Change(b, BYTES_THRESHOLD, 95), Change(a, BYTES_THRESHOLD, 5)], 0)
    registry.alter([Change(a, BYTES_THRESHOLD, 95), Change(b, BYTES_THRESHOLD, 5)], 0)
    registry.alter([Change(a, BYTES_THRESHOLD, 105), Change(TOTAL, TOTAL_BYTES_THRESHOLD, 200)], 0)
    registry.alter(
        [Change(TOTAL, TOTAL_BYTES_THRESHOLD, 6), Change(a, BYTES_THRESHOLD, 5), Change(b, BYTES_THRESHOLD, 1)], 0
    )
    assert thresholds_of(registry)[BYTES_THRESHOLD] == (6, 6)
    registry.alter(
        [Change(TOTAL, TOTAL_BYTES_THRESHOLD, None), *(Change(each, BYTES_THRESHOLD, None) for each in (a, b))], 0
    )
    assert thresholds_of(registry)[BYTES_THRESHOLD] == (None, 0)


def test_the_last_change_of_a_limit_within_a_batch_counts() -> None:
    registry = registry_of(produce(ETL, 1), produce(ETL, None), produce(ETL, 3))
    assert produce_limit(registry).rate == 3
    a = topic("a")
    registry.alter(
        [Change(TOTAL, TOTAL_BYTES_THRESHOLD, 10), Change(a, BYTES_THRESHOLD, 50), Change(a, BYTES_THRESHOLD, 9)], 0
    )
    assert thresholds_of(registry)[BYTES_THRESHOLD] == (10, 9)


def test_every_limit_can_be_set_for_those_who_can_have_it_and_nobody_else() -> None:
    everybody: list[AnyEntity] = [ETL, ALICE, TOTAL, *(Named(kind, "x") for kind in Kind if kind is not Kind.TOTAL)]
    allowed: dict[str, list[str]] = {name: [] for name in LIMIT_NAMES}
    for name, owners in allowed.items():
        for entity in everybody:
            try:
                check_changes([Change(entity, name, 1)])
            except ValueError:
                continue
            owners.append(str(entity).partition(":")[0])
    clients, records = ["client-id", "user", "total", "resource-group"], ["total", "resource-group", "topic"]
    assert allowed == {
        **dict.fromkeys(LIMIT_NAMES[:4], clients),
        PRODUCER_IDS_RATE: ["user"],
        **dict.fromkeys(LIMIT_NAMES[5:7], records),
        **{name: ["topic"] for name in LIMIT_NAMES[7:9]},
        **{name: ["total"] for name in LIMIT_NAMES[9:11]},
        **{name: ["total", "ip", "listener"] for name in LIMIT_NAMES[11:]},
    }


# ---- what is in flight


def test_who_waits_for_a_limit_that_goes_finds_another_one_or_none() -> None:
    """The proxy lets everybody look again when it is told: nobody waits for a limit that is gone."""
    registry = registry_of(produce(ETL, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(300, 0)
    limit.wait("session", 10)
    woken: list[object] = []
    registry.observers.append(lambda _entities: woken.extend([limit.waiters.pop()] if limit.waiters.waiting else []))
    registry.alter([produce(ETL, None)], 0)
    assert woken == ["session"]
    assert registry.resolve("alice", "etl").produce.admit(10, 0).admitted


def test_a_listener_has_its_limit_under_each_of_its_names() -> None:
    registry = Registry()
    by_port = Named(Kind.LISTENER, "19092")
    registry.alter([Change(by_port, CONNECTION_CREATION_RATE, 10)], 0)
    names = ("bootstrap", "19092")
    limit = registry.place_limit(CONNECTION_CREATION_RATE, Kind.LISTENER, *names)
    assert limit is not None
    assert limit.entity == by_port
    registry.alter([Change(by_port, CONNECTION_CREATION_RATE, 20)], 0)
    assert (limit.rate, registry.place_limit(CONNECTION_CREATION_RATE, Kind.LISTENER, *names)) == (20, limit)
    registry.replace([QuotaEntry(by_port, {CONNECTION_CREATION_RATE: 30})], 0)
    assert (limit.rate, list(registry.limits_in_use())) == (30, [limit])
    registry.alter([Change(Named(Kind.LISTENER, "bootstrap"), CONNECTION_CREATION_RATE, 5)], 0)
    first = registry.place_limit(CONNECTION_CREATION_RATE, Kind.LISTENER, *names)
    assert first is not None
    assert (first.entity, first.rate) == (Named(Kind.LISTENER, "bootstrap"), 5)


def test_another_algorithm_makes_another_limit() -> None:
    registry = Registry([QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 100})])
    limit = produce_limit(registry)
    limit.algorithm.record(1100, 0)
    registry.replace([QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 100}, algorithm=SAMPLED_WINDOW)], 0)
    assert produce_limit(registry) is not limit
    assert produce_limit(registry).debt_ns(0) == 0
    assert [each.algorithm for each in registry.limits_in_use()] == [produce_limit(registry).algorithm]


def test_a_clock_that_goes_back_between_changes_earns_nothing() -> None:
    registry = registry_of(produce(ANYONE, 100))
    limit = produce_limit(registry)
    limit.algorithm.record(300, 10 * SECOND)
    registry.alter([produce(ANYONE, 50)], 5 * SECOND)
    registry.alter([produce(ANYONE, 100)], 8 * SECOND)
    assert produce_limit(registry).debt_ns(10 * SECOND) == 2 * SECOND


def test_changes_leave_nothing_behind() -> None:
    registry = registry_of(produce(ANYONE, 100))

    def some(number: int) -> None:
        registry.alter([produce(ANYONE, number)], number)
        registry.alter([produce(Entity(client_id=f"client-{number}"), 7)], number)
        produce_limit(registry, client_id=f"client-{number}")
        registry.alter([produce(Entity(client_id=f"client-{number}"), None)], number)
        registry.alter([Change(Entity(client_id=f"client-{number}"), CONSUMER_BYTE_RATE, None)], number)

    def forget(hour: int) -> None:
        registry.expire(hour * IDLE_NS)
        registry.expire((hour + 2) * IDLE_NS)

    for number in range(1, 200):
        some(number)
    forget(1)
    tracemalloc.start()
    for number in range(1, 200):
        some(number)
    forget(5)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 199 * 150  # the tables of dicts that were as large; one limit takes twice as much
