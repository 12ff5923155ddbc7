"""Kafka's eight levels: which one applies, and whose bucket it fills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import DEFAULT, Entity, Name
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from quotas.registry.override import Compactor
from quotas.registry.precedence import QuotaTable


def table_of(entries: list[QuotaEntry]) -> QuotaTable:
    compactor, table = Compactor(), QuotaTable()
    for each in entries:
        table.put(configured_entity(each), compactor.compact(each))
    return table


def configured_entity(each: QuotaEntry) -> Entity:
    assert isinstance(each.entity, Entity)
    return each.entity


names = st.sampled_from(["u", "v", "<default>", "1:u"])
configured: st.SearchStrategy[Name | None] = st.one_of(names, st.just(DEFAULT), st.none())
configured_entities = st.tuples(configured, configured).filter(lambda pair: pair != (None, None))


def slow_find(entries: list[QuotaEntry], limit: str, user: str, client_id: str) -> tuple[Entity, Entity] | None:
    """Every level in turn, every entry in turn: (origin, bucket)."""
    pair = Entity(user or "-", client_id)
    order: list[tuple[Entity, Entity]] = []
    if user:
        order += [(pair, pair), (Entity(user, DEFAULT), pair)]
        order += [(Entity(user), Entity(user))]
        order += [(Entity(DEFAULT, client_id), pair), (Entity(DEFAULT, DEFAULT), pair)]
        order += [(Entity(DEFAULT), Entity(user))]
    order += [(Entity(None, name), Entity(None, client_id)) for name in (client_id, DEFAULT)]
    for origin, bucket in order:
        for one in entries:
            if one.entity == origin and limit in one.limits:
                return origin, bucket
            if one.entity == origin and limit in one.unlimited:
                return None
    return None


limit_names = st.sets(st.sampled_from([PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE]))


@pytest.mark.claim("security", "a client without a client id is limited by <default>, as any other; Kafka lets it pass")
@given(
    st.lists(st.tuples(configured_entities, limit_names, limit_names), unique_by=lambda each: each[0]),
    st.one_of(names, st.just("")),
    st.one_of(names, st.just("")),
)
def test_agrees_with_a_search_of_everything(
    wanted: list[tuple[tuple[Name | None, Name | None], set[str], set[str]]], user: str, client_id: str
) -> None:
    entries = [
        QuotaEntry(
            Entity(*entity), {limit: 10 * number + len(limit) for limit in limits - lifted}, unlimited=tuple(lifted)
        )
        for number, (entity, limits, lifted) in enumerate(wanted, start=1)
    ]
    table = table_of(entries)
    found, _ = table.find(user, client_id)
    for limit in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE):
        applies = found.get(limit)
        expected = slow_find(entries, limit, user, client_id)
        assert (None if applies is None else (applies.origin, applies.entity)) == expected
        if applies is not None:
            assert applies.rate == next(one.limits[limit] for one in entries if one.entity == applies.origin)
            if applies.entity == Entity(user, client_id):
                assert table.find_for_bucket(limit, applies.entity) == applies
