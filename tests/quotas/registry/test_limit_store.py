"""How many limits clients can have by default entries, and which are kept."""

import pytest

from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import ALGORITHMS, AlgorithmSettings
from quotas.connections import ConnectionQuotas
from quotas.entity import DEFAULT, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONNECTION_CREATION_RATE, PRODUCER_BYTE_RATE, PRODUCER_IDS_RATE
from quotas.registry import limit_store
from quotas.registry.idle import IDLE_NS
from quotas.registry.registry import Registry
from tests.quotas.cost import calls_during

pytestmark = pytest.mark.pure

SECOND = 1_000_000_000
ANY_CLIENT, ANY_USER = Entity(None, DEFAULT), Entity(DEFAULT)
RATE = 1_000


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(limit_store, "MAX_OF_DEFAULTS", 12)
    return 12


def registry_of(*more: QuotaEntry, algorithm: str = "token-bucket") -> Registry:
    entries = [QuotaEntry(ANY_CLIENT, {PRODUCER_BYTE_RATE: RATE}), *more]
    return Registry(entries, settings=AlgorithmSettings(algorithm=algorithm))


def limit_of(registry: Registry, client_id: str, now_ns: int) -> Limit:
    (limit,) = registry.resolve("u", client_id, now_ns).produce.limits
    return limit


def flood(registry: Registry, number: int, now_ns: int, *, amount: int = 1) -> None:
    for each in range(number):
        limit_of(registry, f"client-{now_ns}-{each}", now_ns).algorithm.record(amount, now_ns)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_invented_names_do_not_add_limits_without_end(most: int, algorithm: str) -> None:
    registry = registry_of(algorithm=algorithm)
    for number in range(1_000):
        flood(registry, 1, number)
        assert len(list(registry.limits_in_use())) <= 2 * most
    assert len(list(registry.limits_in_use())) == most
    registry.expire(0)
    assert registry.expire(IDLE_NS + 61 * SECOND) <= 1_000
    assert list(registry.limits_in_use()) == []
    assert not registry._store._of_defaults
    assert not any(registry._store._idle._due.values())


def test_addresses_do_not_add_limits_without_end(most: int) -> None:
    registry = Registry([QuotaEntry(Named(EntityKind.IP, DEFAULT), {CONNECTION_CREATION_RATE: 1_000})])
    connections = ConnectionQuotas(registry, SECOND)
    for number in range(1_000):
        connections.record(f"2001:db8::{number:x}", ("bootstrap",), number)
        assert len(list(registry.limits_in_use())) <= 2 * most


def test_a_client_in_debt_keeps_its_limit(most: int) -> None:
    registry = registry_of()
    kept = limit_of(registry, "etl", 0)
    kept.algorithm.record(100 * RATE, 0)
    flood(registry, 1_000, SECOND)
    assert limit_of(registry, "etl", SECOND) is kept
    flood(registry, 1_000, 101 * SECOND)
    assert not registry.is_in_use(kept)


def test_a_limit_with_waiters_is_kept(most: int) -> None:
    registry = registry_of()
    kept = limit_of(registry, "etl", 0)
    kept.enqueue("session", 10)
    flood(registry, 100, SECOND)
    assert registry.is_in_use(kept)


def test_known_producer_ids_are_kept(most: int) -> None:
    registry = Registry([QuotaEntry(ANY_USER, {PRODUCER_IDS_RATE: 10, PRODUCER_BYTE_RATE: RATE})])
    ids = registry.resolve("alice", "c", 0).producer_ids
    assert ids is not None
    ids.known.remember([7], 0)
    for number in range(100):
        registry.resolve(f"user-{number}", "c", 1)
    assert registry.is_in_use(ids.limit)


def test_where_no_limit_can_go_the_bound_is_exceeded_and_each_new_one_costs_the_same(most: int) -> None:
    registry = registry_of()
    flood(registry, most, 0, amount=100 * RATE)
    few = calls_during(lambda: flood(registry, 1, 1, amount=100 * RATE))
    flood(registry, 100, 2, amount=100 * RATE)
    assert len(list(registry.limits_in_use())) == most + 101
    assert calls_during(lambda: flood(registry, 1, 3, amount=100 * RATE)) < 2 * few
    flood(registry, 300, 200 * SECOND, amount=0)
    assert len(list(registry.limits_in_use())) == most
