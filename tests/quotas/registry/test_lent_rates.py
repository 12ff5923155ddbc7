"""`Registry.set_rate`: one limit earns at another rate for a while, and nothing else changes."""

from dataclasses import replace

import pytest

from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import EWMA, SAMPLED_WINDOW, AlgorithmSettings
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.entity import DEFAULT, TOTAL, Entity
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, PRODUCER_IDS_RATE
from quotas.registry.registry import Registry
from tests.quotas.cost import calls_during

SECOND = 1_000_000_000
LENDS = AlgorithmSettings(lends=True)
ENTRIES = (
    QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: 100, CONSUMER_BYTE_RATE: 100}),
    QuotaEntry(TOTAL, {PRODUCER_BYTE_RATE: 1_000}),
)


def new() -> Registry:
    return Registry(ENTRIES, settings=LENDS)


def own_limit(registry: Registry, client_id: str = "etl") -> Limit:
    return registry.resolve("alice", client_id).produce.limits[0]


def test_a_rate_is_lent_to_one_limit_and_no_other_one_nor_a_session_is_touched() -> None:
    registry = new()
    clients = [registry.resolve("alice", name) for name in ("etl", "web")]
    limit, *others = [each for client in clients for each in (*client.produce.limits, *client.fetch.limits)]
    for each in registry.limits_in_use():
        each.algorithm.record(300, 0)
    changes: list[Limit] = []
    generation = registry.generation
    registry.observers.append(lambda: pytest.fail("no limit is to be decided anew"))
    registry.rate_observers.append(changes.append)
    before = [(each, each.rate, each.debt_ns(0), each.headroom(0)) for each in others]

    registry.set_rate(limit, 400, SECOND, 3 * SECOND, 10, 0)

    assert changes == [limit]
    assert (limit.rate, limit.debt_ns(0)) == (400, SECOND // 2), "its debt of 200 stays"
    assert [(each, each.rate, each.debt_ns(0), each.headroom(0)) for each in others] == before
    assert registry.generation == generation
    assert own_limit(registry) is limit
    assert limit.headroom(3 * SECOND) == 400
    assert (limit.headroom(3 * SECOND + 1), limit.rate) == (10, 10)


def test_it_costs_the_same_with_any_number_of_limits() -> None:
    def calls(clients: int) -> int:
        registry = new()
        limits = [own_limit(registry, f"client-{number}") for number in range(clients)]
        return calls_during(lambda: registry.set_rate(limits[-1], 7, SECOND, SECOND, 1, 0))

    assert calls(3) == calls(300) <= 12


def test_a_change_of_the_configuration_ends_a_lease() -> None:
    registry = new()
    limit = own_limit(registry)
    registry.set_rate(limit, 400, SECOND, 100 * SECOND, 10, 0)
    limit.algorithm.record(400, 0)
    registry.replace(ENTRIES, SECOND)
    assert own_limit(registry) is limit
    assert (limit.rate, limit.headroom(SECOND)) == (100, 100), "what was earned is cut to the burst"
    assert limit.headroom(1000 * SECOND) == 100


@pytest.mark.parametrize("lends", [False, True])
def test_without_lent_rates_buckets_are_as_small_as_ever(lends: bool) -> None:
    settings = replace(LENDS, lends=lends)
    limit = own_limit(Registry(ENTRIES, settings=settings))
    assert isinstance(limit.algorithm, LeasedBucket) is lends
    assert settings.is_made_of(limit.algorithm, PRODUCER_BYTE_RATE, None)
    assert not replace(LENDS, lends=not lends).is_made_of(limit.algorithm, PRODUCER_BYTE_RATE, None)


@pytest.mark.parametrize("algorithm", [SAMPLED_WINDOW, EWMA])
def test_only_token_buckets_take_a_lent_rate(algorithm: str) -> None:
    other = Registry(ENTRIES, settings=replace(LENDS, algorithm=algorithm))
    ids = Registry([QuotaEntry(Entity("alice"), {PRODUCER_IDS_RATE: 5})], settings=LENDS)
    known = ids.resolve("alice", "etl").producer_ids
    assert known is not None
    for registry, limit in ((other, own_limit(other)), (ids, known.limit), (new(), own_limit(Registry(ENTRIES)))):
        registry.rate_observers.append(lambda limit: pytest.fail(f"nothing has changed: {limit}"))
        rate = limit.rate
        with pytest.raises(TypeError, match="no rate can be lent"):
            registry.set_rate(limit, 7, SECOND, SECOND, 1, 0)
        assert limit.rate == rate


def test_a_rate_that_cannot_be_lent_is_reported_to_no_one() -> None:
    registry = new()
    registry.rate_observers.append(lambda limit: pytest.fail(f"nothing has changed: {limit}"))
    for rate, floor in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="must be above zero"):
            registry.set_rate(own_limit(registry), rate, SECOND, SECOND, floor, 0)
    assert own_limit(registry).headroom(0) == 100
