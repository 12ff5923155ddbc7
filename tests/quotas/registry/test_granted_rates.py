"""`Registry.set_rate`: one limit earns at another rate for a while, and nothing else changes."""

from dataclasses import replace
from fractions import Fraction

import pytest

from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import EWMA, SAMPLED_WINDOW, AlgorithmSettings
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.entity import DEFAULT, TOTAL, AnyEntity, Entity
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, PRODUCER_IDS_RATE
from quotas.limit_options import LimitOptions
from quotas.registry.registry import Registry
from tests.quotas.cost import calls_during

SECOND = 1_000_000_000
LEASES = AlgorithmSettings(leases=True)
ENTRIES = (
    QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: 100, CONSUMER_BYTE_RATE: 100}),
    QuotaEntry(TOTAL, {PRODUCER_BYTE_RATE: 1_000}),
)


def new() -> Registry:
    return Registry(ENTRIES, settings=LEASES)


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


@pytest.mark.parametrize("leases", [False, True])
def test_without_granted_rates_buckets_are_as_small_as_ever(leases: bool) -> None:
    settings = replace(LEASES, leases=leases)
    limit = own_limit(Registry(ENTRIES, settings=settings))
    assert isinstance(limit.algorithm, LeasedBucket) is leases
    assert settings.class_of(PRODUCER_BYTE_RATE, None) is type(limit.algorithm)


@pytest.mark.parametrize("algorithm", [SAMPLED_WINDOW, EWMA])
def test_only_token_buckets_take_a_lent_rate(algorithm: str) -> None:
    other = Registry(ENTRIES, settings=replace(LEASES, algorithm=algorithm))
    ids = Registry([QuotaEntry(Entity("alice"), {PRODUCER_IDS_RATE: 5})], settings=LEASES)
    known = ids.resolve("alice", "etl").producer_ids
    assert known is not None
    for registry, limit in ((other, own_limit(other)), (ids, known.limit), (new(), own_limit(Registry(ENTRIES)))):
        registry.rate_observers.append(lambda limit: pytest.fail(f"nothing has changed: {limit}"))
        rate = limit.rate
        with pytest.raises(TypeError, match="no rate can be granted"):
            registry.set_rate(limit, 7, SECOND, SECOND, 1, 0)
        assert limit.rate == rate


class Granter:
    """Lends a tenth of each rate; remembers what it was told."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.told: list[tuple[AnyEntity, str, int | Fraction | None]] = []
        registry.grant_by(self)

    def grant(self, limit: Limit, rate: int | Fraction, burst_ns: int | None) -> None:
        self.told.append((limit.entity, limit.name, rate))
        burst_ns = SECOND // 10 if burst_ns is None else burst_ns
        self._registry.set_rate(limit, Fraction(rate, 10), burst_ns, 100 * SECOND, 1, 0)

    def end(self, limit: Limit) -> None:
        self.told.append((limit.entity, limit.name, None))


def entry(rate: int, client_id: str = "etl", *, alone: bool = False, algorithm: str | None = None) -> QuotaEntry:
    return QuotaEntry(
        Entity(client_id=client_id), {PRODUCER_BYTE_RATE: rate}, LimitOptions(is_per_process=alone, algorithm=algorithm)
    )


def test_a_new_limit_has_what_is_lent_to_it_before_anything_passes() -> None:
    registry = Registry([entry(1_000)], settings=LEASES)
    granter = Granter(registry)
    limit = own_limit(registry)
    assert granter.told == [(limit.entity, PRODUCER_BYTE_RATE, 1_000)]
    assert (limit.rate, limit.headroom(0)) == (100, 10), "no byte of the whole, nor of its burst"


def test_a_limit_that_is_configured_anew_earns_nothing_at_its_whole_rate() -> None:
    registry = Registry([entry(1_000)], settings=LEASES)
    granter = Granter(registry)
    limit = own_limit(registry)
    limit.algorithm.record(110, 0)
    registry.replace([entry(2_000)], 5 * SECOND)
    assert granter.told[-1] == (limit.entity, PRODUCER_BYTE_RATE, 2_000)
    assert (limit.rate, limit.debt_ns(0)) == (200, SECOND // 2), "5 s at the rate of then, told late"


@pytest.mark.parametrize("after", [entry(1_000, alone=True), entry(1_000, algorithm=EWMA), None])
def test_nothing_more_is_lent_to_a_limit_that_is_no_longer_shared(after: QuotaEntry | None) -> None:
    registry = Registry([entry(1_000)], settings=LEASES)
    granter = Granter(registry)
    limit = own_limit(registry)
    registry.replace([] if after is None else [after], 0)
    assert (limit.entity, PRODUCER_BYTE_RATE, None) in granter.told
    if after is not None:
        assert own_limit(registry).rate == 1_000


def test_a_limit_that_ends_is_lent_nothing() -> None:
    registry = Registry([entry(1_000)], settings=LEASES)
    granter = Granter(registry)
    limit = own_limit(registry)
    registry.expire(0)
    for hours in (1, 2, 3):
        registry.expire(hours * 3_700 * SECOND)
    assert granter.told[-1] == (limit.entity, PRODUCER_BYTE_RATE, None)
