"""The live limits: found, shared, changed while running, and forgotten."""

import tracemalloc
from fractions import Fraction

import pytest

from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.entity import DEFAULT, TOTAL, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import (
    BYTES_IN_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    PRODUCER_IDS_RATE,
    REQUEST_RATE,
    TOTAL_BYTES_THRESHOLD,
)
from quotas.limit_options import LimitOptions
from quotas.registry.client_table import MAX_RECENT
from quotas.registry.idle import IDLE_NS
from quotas.registry.registry import Registry
from quotas.resource_groups import ResourceGroup
from tests.quotas.cost import calls_during

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
ANYONE = Entity(client_id=DEFAULT)
ETL = Entity(client_id="etl")


def entry(entity: Entity, produce: int | None = None, fetch: int | None = None, burst: int | None = None) -> QuotaEntry:
    rates = {PRODUCER_BYTE_RATE: produce, CONSUMER_BYTE_RATE: fetch}
    limits = {name: rate for name, rate in rates.items() if rate is not None}
    return QuotaEntry(entity, limits, LimitOptions(burst_seconds=burst))


def produce_limit(registry: Registry, user: str = "alice", client_id: str = "etl") -> Limit:
    (limit,) = registry.resolve(user, client_id).produce.limits
    return limit


@pytest.mark.parametrize(("share", "rate"), [(0.1, 3), (1, 30), (Fraction(1, 3), 10), (2.5, 75)])
def test_a_share_scales_every_rate_as_it_is_written(share: float | Fraction, rate: int) -> None:
    assert produce_limit(Registry([entry(ETL, produce=30)], share=share)).rate == rate


@pytest.mark.parametrize("share", [0, -1, 0.0])
def test_a_share_is_above_zero(share: float) -> None:
    with pytest.raises(ValueError, match="share must be above zero"):
        Registry(share=share)


# ---- live changes


def test_debts_are_forgotten_in_steps_and_no_client_sees_an_old_one() -> None:
    """Limits without debt, and the producer ids that are known, stay."""
    names = [PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, PRODUCER_IDS_RATE]
    registry = Registry([QuotaEntry(Entity(DEFAULT), dict.fromkeys(names, 1))])
    clients = [registry.resolve(f"u{number}", "etl") for number in range(5)]
    before = [(client.produce.limits[0], client.fetch.limits[0], client.producer_ids) for client in clients]
    for owing, _, producer_ids in before:
        owing.algorithm.record(100, 0)
        assert producer_ids is not None
        producer_ids.limit.algorithm.record(100, 0)
    registry.forget_debts(0, most=1)
    for client, (owing, other, producer_ids) in zip(clients, before, strict=True):
        assert registry.resolve(*client.key) is client
        assert client.produce.limits[0] is not owing
        assert client.produce.limits[0].debt_ns(0) == 0
        assert client.fetch.limits[0] is other
        assert client.producer_ids is not None
        assert producer_ids is not None
        assert client.producer_ids.limit is producer_ids.limit
    while registry.refresh(1):
        pass
    now = produce_limit(registry, "u0")
    now.algorithm.record(100, 0)
    registry.replace([entry(Entity(DEFAULT), produce=1)], 0)
    assert produce_limit(registry, "u0") is now, "a later change keeps debts again"


def test_new_producer_ids_and_thresholds_of_a_dry_run_are_forgotten() -> None:
    thresholds = QuotaEntry(TOTAL, {TOTAL_BYTES_THRESHOLD: 100})
    registry = Registry([QuotaEntry(Entity("alice"), {PRODUCER_IDS_RATE: 2}), thresholds])
    client = registry.resolve("alice", "etl")
    assert client.producer_ids is not None
    known = client.producer_ids.known
    for now_ns in (0, 6 * SECOND):
        known.record(3, now_ns)
        known.remember(range(3), now_ns)
        (topic,) = registry.topic("rows", now_ns).bytes_in
        registry.topics.accepted("rows", 10_000, 1, now_ns)
    now_ns = 12 * SECOND
    assert known.debt_ns(now_ns)
    assert topic.debt_ns(now_ns)
    registry.forget_debts(now_ns, most=10)
    assert (known.debt_ns(now_ns), topic.debt_ns(now_ns)) == (0, 0)
    assert known.unknown(range(4), now_ns) == (3,), "known ids stay known"
    for _ in range(2):
        registry.topics.accepted("rows", 10_000, 1, now_ns)
        now_ns += 6 * SECOND
    assert topic.debt_ns(now_ns), "measured anew"


# ---- all that a client draws on


def test_a_client_draws_on_its_own_limit_those_of_all_its_groups_and_the_total() -> None:
    groups = (
        ResourceGroup("users", users=("alice",)),
        ResourceGroup("ids", client_ids=("et*",)),
        ResourceGroup("others", users=("bob",)),
    )
    everything = {PRODUCER_BYTE_RATE: 5, CONSUMER_BYTE_RATE: 6, REQUEST_RATE: 7, CONTROLLER_MUTATION_RATE: 8}
    registry = Registry(
        [
            *(QuotaEntry(Named(EntityKind.RESOURCE_GROUP, group.name), everything, group=group) for group in groups),
            QuotaEntry(TOTAL, everything),
            QuotaEntry(ETL, everything),
        ]
    )
    client, other = registry.resolve("alice", "etl"), registry.resolve("carol", "etl-2")
    for sets in (client.produce, client.fetch, client.requests, client.mutations):
        assert [str(limit.entity) for limit in sets.limits] == [
            "client-id:etl",
            "resource-group:users",
            "resource-group:ids",
            "total",
        ]
    assert [limit.rate for limit in (client.produce.limits + client.mutations.limits)[::4]] == [5, 8]
    assert (client.walks, registry.learns_topics) == (False, True)
    assert other.produce.limits == client.produce.limits[2:]


def test_producer_ids_are_a_users_over_all_its_clients_scaled_by_the_share() -> None:
    registry = Registry([QuotaEntry(Entity("alice"), {PRODUCER_IDS_RATE: 10})], share=0.5)
    one, other = registry.resolve("alice", "one"), registry.resolve("alice", "other")
    assert one.producer_ids is not None
    assert other.producer_ids is not None
    assert one.producer_ids.known is other.producer_ids.known is one.producer_ids.limit.algorithm
    assert one.producer_ids.known.ids_per_window == 5
    assert (one.walks, registry.learns_topics) == (True, False)
    assert registry.resolve("bob", "one").producer_ids is None
    assert not registry.resolve("bob", "one").walks
    registry.replace([QuotaEntry(Entity("alice"), {PRODUCER_IDS_RATE: 7})], 0)
    assert (one.producer_ids.known.ids_per_window, one.producer_ids.known.headroom(0)) == (3, 3)


# ---- forgetting


def test_a_limit_idle_for_an_hour_is_removed() -> None:
    registry = Registry([entry(ANYONE, produce=100)])
    client = registry.resolve("alice", "etl")
    old = client.produce.limits[0]
    client.produce.charge(10, 0)
    assert registry.expire(0) == 0
    client.produce.charge(10, 10 * MINUTE)
    assert registry.expire(IDLE_NS + 5 * MINUTE) == 0  # idle for 55 minutes only
    generation = registry.generation
    assert registry.expire(IDLE_NS + 12 * MINUTE) == 1
    assert list(registry.limits_in_use()) == []
    assert registry.generation != generation
    assert produce_limit(registry) is not old  # the session that was idle as long looks again: one bucket, not two


def test_a_topic_that_is_forgotten_is_looked_up_again_though_its_limits_are_in_use() -> None:
    registry = Registry([QuotaEntry(TOTAL, {BYTES_IN_RATE: 100})])
    topic = registry.topic("rows", 0)
    registry.expire(0)
    topic.bytes_in[0].algorithm.record(1, IDLE_NS)
    generation = registry.generation
    assert registry.expire(IDLE_NS + 2 * MINUTE) == 0
    assert registry.generation != generation
    assert registry.topic("rows", IDLE_NS + 2 * MINUTE) is not topic


def test_producer_ids_are_known_for_any_length_of_their_window() -> None:
    day = AlgorithmSettings(producer_ids_window_ns=24 * IDLE_NS)
    registry = Registry([QuotaEntry(Entity("alice"), {PRODUCER_IDS_RATE: 10})], settings=day)
    client = registry.resolve("alice", "etl")
    assert client.producer_ids is not None
    known = client.producer_ids.known
    known.remember([1, 2, 3], 0)
    known.record(3, 0)
    registry.expire(0)
    for hour in range(1, 24):
        assert registry.expire(hour * IDLE_NS) == 0
    assert known.unknown([1, 2, 3, 4], 23 * IDLE_NS) == (4,)
    forgotten = [registry.expire(hour * IDLE_NS) for hour in range(24, 60)]
    assert sum(forgotten) == 1


def test_a_search_for_idle_limits_costs_what_is_due() -> None:
    """Each limit is looked at once an hour: the calls of a minute in which none is due are the same for any number."""

    def calls(clients: int) -> int:
        registry = Registry([entry(ANYONE, produce=100)])
        for number in range(clients):
            registry.resolve("alice", f"client-{number}").produce.charge(1, 0)
        registry.expire(0)
        registry.replace([entry(ANYONE, produce=50)], MINUTE)
        return calls_during(lambda: registry.expire(2 * MINUTE))

    assert calls(5) == calls(500)


def test_invented_client_ids_are_bounded_and_a_client_in_use_stays_the_same_object() -> None:
    registry = Registry([entry(Entity("alice"), produce=100)])
    client, generation = registry.resolve("alice", "etl"), registry.generation
    clients = registry._clients
    for number in range(3 * MAX_RECENT):
        registry.resolve("alice", f"random-{number}")
        if generation != registry.generation:  # as each session does before its next request
            assert registry.resolve("alice", "etl") is client
            generation = registry.generation
    assert MAX_RECENT < len(clients) <= 2 * MAX_RECENT
    assert client.generation == registry.generation
    assert len(list(registry.limits_in_use())) == 1


def test_a_client_that_no_session_uses_for_two_hours_is_dropped_and_its_sessions_share_a_new_one() -> None:
    registry = Registry([entry(Entity("alice"), produce=100)])
    client = registry.resolve("alice", "etl")
    registry.expire(0)
    registry.expire(IDLE_NS)
    assert client.generation != registry.generation  # each session resolves it again
    assert registry.resolve("alice", "etl") is client
    registry.expire(2 * IDLE_NS)
    registry.expire(3 * IDLE_NS)
    assert len(registry._clients) == 0
    assert client.generation != registry.generation
    again = registry.resolve("alice", "etl")
    assert again is not client
    assert registry.resolve("alice", "etl") is again


@pytest.mark.parametrize("pairs", [False, True])
def test_an_override_that_never_spoke_costs_at_most_250_bytes(pairs: bool) -> None:
    count = 20_000
    tracemalloc.start()
    registry = Registry(
        entry(
            Entity(f"user-{number}", "etl") if pairs else Entity(client_id=f"client-{number}"),
            1000 + number,
            number + 1,
        )
        for number in range(count)
    )
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not list(registry.limits_in_use())
    assert used / count <= 250


def test_a_client_and_its_bucket_in_use_cost_at_most_800_bytes() -> None:
    """Each client has a rate of its own; the names are the sessions'."""
    count = 10_000
    names = [f"client-{number}" for number in range(count)]
    registry = Registry(entry(Entity(client_id=name), 1000 + number) for number, name in enumerate(names))
    tracemalloc.start()
    for name in names:
        registry.resolve("alice", name).produce.charge(500, SECOND)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(list(registry.limits_in_use())) == count
    assert used / count <= 800
