"""The registry against a slow one that brings every bucket up to date after every change."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import DEFAULT, TOTAL, AnyEntity, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import BYTES_IN_RATE, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from quotas.limit_options import LimitOptions
from quotas.registry.registry import Registry
from quotas.resource_groups import ResourceGroup
from tests.quotas.algorithms.test_token_bucket import SlowBucket

SECOND = 1_000_000_000
ALL = 1_000
GROUP = Named(EntityKind.RESOURCE_GROUP, "etl")
MEMBERS = ResourceGroup("etl", users=("u",), client_ids=("c*",))
ANY_TOPIC = Named(EntityKind.TOPIC, DEFAULT)
Key: TypeAlias = tuple[str, AnyEntity]


class Bucket(SlowBucket):
    """One whose rate changes; asking for its debt does not move its time."""

    def set_rate(self, rate: Fraction, burst_ns: int, now_ns: int) -> None:
        self.pass_time(now_ns)
        self.rate, self.burst = rate, rate * burst_ns / SECOND
        self.tokens = min(self.burst, self.tokens)

    def owed_ns(self, now_ns: int) -> int:
        later = copy(self)
        later.pass_time(now_ns)
        return later.debt_ns()


@dataclass
class SlowRegistry:
    """No index, no laziness: O(all) for everything."""

    entries: dict[AnyEntity, dict[str, int]] = field(default_factory=dict)
    bursts: dict[AnyEntity, int] = field(default_factory=dict)
    share: Fraction = Fraction(1)
    has_group: bool = False
    buckets: dict[Key, Bucket] = field(default_factory=dict)

    def replace(
        self, entries: Mapping[AnyEntity, tuple[dict[str, int], int | None]], share: Fraction, now_ns: int
    ) -> None:
        self.entries = {entity: dict(limits) for entity, (limits, _) in entries.items()}
        self.bursts = {entity: burst for entity, (_, burst) in entries.items() if burst is not None}
        self.share = share
        self.has_group = GROUP in entries
        self._tell_all(now_ns)

    def _tell_all(self, now_ns: int) -> None:
        for (name, owner), bucket in list(self.buckets.items()):
            terms = self._terms(name, owner)
            if terms is None:
                del self.buckets[name, owner]
            else:
                bucket.set_rate(*terms, now_ns)

    def _terms(self, name: str, owner: AnyEntity) -> tuple[Fraction, int] | None:
        """The rate and the burst of a bucket; None when nothing fills it any more."""
        for origin, filled in levels(owner):
            if name in self.entries.get(origin, {}):
                if filled != owner:
                    return None
                return self.entries[origin][name] * self.share, self.bursts.get(origin, 1) * SECOND
        return None

    def owners(self, name: str, user: str, client_id: str) -> list[AnyEntity]:
        """Of the buckets that a client draws on, its own first."""
        found: list[AnyEntity] = []
        for origin, filled in levels(Entity(user, client_id), all_levels=True):
            if name in self.entries.get(origin, {}):
                found.append(filled)
                break
        if self.has_group and (user == "u" or client_id.startswith("c")):
            found.append(GROUP)
        found.append(TOTAL)
        return [owner for owner in found if isinstance(owner, Entity) or name in self.entries.get(owner, {})]

    def get(self, name: str, owner: AnyEntity) -> Bucket:
        if (name, owner) not in self.buckets:
            terms = self._terms(name, owner)
            assert terms is not None
            self.buckets[name, owner] = Bucket(*terms)
        return self.buckets[name, owner]


def levels(owner: AnyEntity, *, all_levels: bool = False) -> list[tuple[AnyEntity, AnyEntity]]:
    """What could apply, the strongest first, and whose bucket it fills."""
    if isinstance(owner, Named):
        return [(owner, owner), (Named(owner.kind, DEFAULT), owner)]
    user, client_id = owner.user, owner.client_id
    of_user: list[tuple[AnyEntity, AnyEntity]] = [(Entity(user), Entity(user))] if user is not None else []
    of_any_user: list[tuple[AnyEntity, AnyEntity]] = [(Entity(DEFAULT), Entity(user))] if user is not None else []
    of_client: list[tuple[AnyEntity, AnyEntity]] = []
    if client_id is not None and (user is None or all_levels):
        of_client = [(Entity(None, name), Entity(None, client_id)) for name in (client_id, DEFAULT)]
    if user is None or client_id is None:
        return of_user + of_any_user + of_client
    return [
        (owner, owner),
        (Entity(user, DEFAULT), owner),
        *of_user,
        (Entity(DEFAULT, client_id), owner),
        (Entity(DEFAULT, DEFAULT), owner),
        *of_any_user,
        *of_client,
    ]


@dataclass(frozen=True)
class Replace:
    """`most`: limits that are updated at once."""

    entries: dict[AnyEntity, tuple[dict[str, int], int | None]]
    share: Fraction
    most: int


@dataclass(frozen=True)
class Refresh:
    most: int


@dataclass(frozen=True)
class Use:
    user: str
    client_id: str
    amount: int


@dataclass(frozen=True)
class UseTopic:
    topic: str
    amount: int


@dataclass(frozen=True)
class Look:
    """As a scrape of the metrics does."""


users, client_ids, topics = st.sampled_from("uv"), st.sampled_from(["c", "cc", "d"]), st.sampled_from("pq")
clients: st.SearchStrategy[AnyEntity] = st.one_of(
    st.builds(Entity, st.one_of(users, st.just(DEFAULT))),
    st.builds(Entity, st.none(), st.one_of(client_ids, st.just(DEFAULT))),
    st.builds(Entity, st.one_of(users, st.just(DEFAULT)), st.one_of(client_ids, st.just(DEFAULT))),
    st.sampled_from([GROUP, TOTAL]),
)
of_topics: st.SearchStrategy[AnyEntity] = st.one_of(
    st.builds(Named, st.just(EntityKind.TOPIC), topics), st.just(ANY_TOPIC)
)
names = st.sampled_from([PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE])
rates = st.integers(1, 500).map(lambda half: 2 * half)  # a share of one half leaves whole numbers
bursts = st.sampled_from([None, 2])
entries = st.one_of(
    st.dictionaries(clients, st.tuples(st.dictionaries(names, rates, min_size=1), bursts), max_size=5),
    st.dictionaries(of_topics, st.tuples(st.fixed_dictionaries({BYTES_IN_RATE: rates}), bursts), max_size=2),
)
steps = st.one_of(
    st.builds(Replace, entries, st.sampled_from([Fraction(1), Fraction(1, 2)]), st.integers(0, 3)),
    st.builds(Refresh, st.integers(0, 2)),
    st.builds(Use, users, client_ids, st.integers(0, 3000)),
    st.builds(Use, users, client_ids, st.integers(0, 3000)),
    st.builds(UseTopic, topics, st.integers(0, 3000)),
    st.just(Look()),
)
elapsed = st.one_of(st.integers(0, 5 * SECOND), st.sampled_from([0, SECOND, 60 * SECOND]))


@given(st.lists(st.tuples(elapsed, steps), max_size=30))
def test_agrees_with_a_registry_that_is_always_up_to_date(schedule: list[tuple[int, object]]) -> None:
    registry, model = Registry(), SlowRegistry()
    told: list[None] = []
    registry.observers.append(lambda: told.append(None))
    now_ns = 0
    for elapsed_ns, step in schedule:
        now_ns += elapsed_ns
        told.clear()
        match step:
            case Replace(entries, share, most):
                registry.refresh(ALL)  # a change in the middle of another one would credit the rate before both
                replace(registry, entries, share, now_ns, most)
                model.replace(entries, share, now_ns)
                assert told == [None]
            case Refresh(most):
                registry.refresh(most)
            case Use(user, client_id, amount):
                use(registry, model, user, client_id, amount, now_ns)
            case UseTopic(topic, amount):
                use_topic(registry, model, topic, amount, now_ns)
            case Look():
                look(registry, model, now_ns)
    look(registry, model, now_ns)


def replace(
    registry: Registry,
    entries: dict[AnyEntity, tuple[dict[str, int], int | None]],
    share: Fraction,
    now_ns: int,
    most: int,
) -> None:
    given = [
        QuotaEntry(entity, limits, LimitOptions(burst_seconds=burst), group=MEMBERS if entity == GROUP else None)
        for entity, (limits, burst) in entries.items()
    ]
    registry.replace(given, now_ns, share=share, most=most)


def use(registry: Registry, model: SlowRegistry, user: str, client_id: str, amount: int, now_ns: int) -> None:
    client = registry.resolve(user, client_id)
    for name, limits in ((PRODUCER_BYTE_RATE, client.produce), (CONSUMER_BYTE_RATE, client.fetch)):
        owners = model.owners(name, user, client_id)
        assert [limit.entity for limit in limits.limits] == owners
        for limit, owner in zip(limits.limits, owners, strict=True):
            bucket = model.get(name, owner)
            bucket.pass_time(now_ns)
            bucket.tokens -= amount
            assert limit.algorithm.record(amount, now_ns) == bucket.owed_ns(now_ns)
            assert limit.rate == bucket.rate


def use_topic(registry: Registry, model: SlowRegistry, topic: str, amount: int, now_ns: int) -> None:
    owner = Named(EntityKind.TOPIC, topic)
    limits = registry.topic(topic, now_ns).bytes_in
    applies = any(BYTES_IN_RATE in model.entries.get(entity, {}) for entity in (owner, ANY_TOPIC))
    assert [limit.entity for limit in limits] == [owner] * applies
    for limit in limits:
        bucket = model.get(BYTES_IN_RATE, owner)
        bucket.pass_time(now_ns)
        bucket.tokens -= amount
        assert limit.algorithm.record(amount, now_ns) == bucket.owed_ns(now_ns)


def look(registry: Registry, model: SlowRegistry, now_ns: int) -> None:
    assert not registry.refresh(ALL)
    limits = {(limit.name, limit.entity): limit for limit in registry.limits_in_use()}
    seen = {key: (Fraction(limit.rate), limit.debt_ns(now_ns)) for key, limit in limits.items()}
    assert seen == {key: (bucket.rate, bucket.owed_ns(now_ns)) for key, bucket in model.buckets.items()}
