"""How many limits clients can have by default entries, and that a client loses nothing by that."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quotas.admission.client_limits import ClientLimits
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import SAMPLED_WINDOW, AlgorithmSettings
from quotas.entity import DEFAULT, Entity
from quotas.entry import QuotaEntry
from quotas.limit_kinds import PRODUCER_BYTE_RATE, REQUEST_RATE
from quotas.registry import limit_store
from quotas.registry.idle import IDLE_NS
from quotas.registry.registry import Registry

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


class Session:
    """A connection: it looks its limits up again only when the registry has changed."""

    def __init__(self, registry: Registry, user: str, client_id: str) -> None:
        self.registry, self.user, self.client_id = registry, user, client_id
        self.generation = -2
        self.limits: ClientLimits | None = None

    def sends(self, amount: int, now_ns: int) -> tuple[bool, int, bool]:
        """Whether it passes, the wait, and whether the limit is the client's own."""
        if self.limits is None or self.generation != self.registry.generation:
            self.limits = self.registry.resolve(self.user, self.client_id, now_ns)
            self.generation = self.registry.generation
        decision = self.limits.produce.admit(amount, now_ns)
        (limit,) = self.limits.produce.limits
        return decision.admitted, decision.wait_ns, limit.entity != ANY_USER


def test_invented_names_do_not_add_limits_without_end(most: int) -> None:
    registry = registry_of()
    for number in range(1_000):
        limit_of(registry, f"client-{number}", number)
        assert len(list(registry.limits_in_use())) <= most
    assert registry.generation < 1_000 // (most // 4) + 1, "each generation costs all sessions a look-up"
    registry.expire(0)
    assert registry.expire(IDLE_NS + 61 * SECOND) <= most
    assert list(registry.limits_in_use()) == []
    assert not registry._store._of_defaults
    assert not registry._store._idle._slots


def test_a_client_in_debt_keeps_its_limit(most: int) -> None:
    registry = registry_of()
    kept = limit_of(registry, "etl", 0)
    kept.algorithm.record(100 * RATE, 0)
    for number in range(100):
        limit_of(registry, f"client-{number}", number)
    assert limit_of(registry, "etl", SECOND) is kept


def test_a_client_with_credit_used_keeps_its_limit_until_that_is_back(most: int) -> None:
    registry = registry_of()
    kept = limit_of(registry, "etl", 0)
    kept.algorithm.record(RATE // 2, 0)
    for number in range(100):
        limit_of(registry, f"early-{number}", SECOND // 2 - 1)
    assert registry.is_in_use(kept)
    for number in range(100):
        limit_of(registry, f"late-{number}", SECOND // 2)
    assert not registry.is_in_use(kept)


def test_a_limit_with_waiters_is_kept(most: int) -> None:
    registry = registry_of()
    kept = limit_of(registry, "etl", 0)
    kept.enqueue("session", 10)
    for number in range(100):
        limit_of(registry, f"client-{number}", SECOND)
    assert registry.is_in_use(kept)


def test_where_no_limit_can_go_new_clients_share_one(most: int) -> None:
    registry = registry_of(QuotaEntry(Entity(None, "own"), {PRODUCER_BYTE_RATE: 7}))
    for number in range(most):
        limit_of(registry, f"client-{number}", 0).algorithm.record(10 * RATE, 0)
    shared = limit_of(registry, "one more", 1)
    assert (shared.entity, shared.rate) == (ANY_CLIENT, RATE)
    assert limit_of(registry, "another", 1) is shared
    assert limit_of(registry, "own", 1).rate == 7
    registry.replace([QuotaEntry(ANY_CLIENT, {PRODUCER_BYTE_RATE: 2 * RATE})], 1)
    assert limit_of(registry, "another", 20 * SECOND).entity == Entity(None, "another"), "there is room again"


def test_sampled_windows_are_dropped_when_they_have_expired_for_long(most: int) -> None:
    registry = registry_of(algorithm=SAMPLED_WINDOW)
    kept = limit_of(registry, "etl", 0)
    kept.algorithm.record(1, 0)
    for now_ns, is_kept in ((599 * SECOND, True), (600 * SECOND, False)):
        for number in range(100):
            limit_of(registry, f"client-{number}-{is_kept}", now_ns)
        assert registry.is_in_use(kept) == is_kept


def test_without_a_time_nothing_is_dropped(most: int) -> None:
    registry = registry_of()
    for number in range(100):
        registry.resolve("u", f"client-{number}")
    assert len(list(registry.limits_in_use())) == 100


uses = st.lists(
    st.tuples(st.integers(0, 39), st.integers(0, 2 * RATE), st.integers(0, SECOND // 4)), min_size=30, max_size=200
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(uses)
def test_what_is_dropped_changes_no_decision(most: int, uses: list[tuple[int, int, int]]) -> None:
    """Two clients of each of forty users, against a registry where each user has an entry, so that nothing is dropped:
    until users have to share.
    """
    bounded = Registry([QuotaEntry(ANY_USER, {PRODUCER_BYTE_RATE: RATE, REQUEST_RATE: 1_000})])
    free = Registry([QuotaEntry(Entity(f"user-{number}"), {PRODUCER_BYTE_RATE: RATE}) for number in range(40)])
    here = [Session(bounded, f"user-{number // 2}", str(number)) for number in range(80)]
    there = [Session(free, f"user-{number // 2}", str(number)) for number in range(80)]
    now_ns = 0
    for number, (client, amount, elapsed_ns) in enumerate(uses):
        now_ns += elapsed_ns
        at = 2 * client + number % 2
        admitted, wait_ns, is_own = here[at].sends(amount, now_ns)
        if not is_own:
            return
        assert (admitted, wait_ns) == there[at].sends(amount, now_ns)[:2]
        assert len(bounded._store._of_defaults) <= most


def test_a_limit_in_use_in_this_generation_stays_one_for_all_clients_of_a_user(most: int) -> None:
    registry = Registry([QuotaEntry(ANY_USER, {PRODUCER_BYTE_RATE: RATE})])
    registry.resolve("alice", "a", 0)
    for number in range(most - 1):
        registry.resolve(f"user-{number}", "c", 0)
    (kept,) = registry.resolve("alice", "a", 0).produce.limits
    assert registry.generation == 1
    registry.resolve("one more", "c", 0)
    assert registry.resolve("alice", "b", 0).produce.limits == (kept,)
