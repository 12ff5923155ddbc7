"""Who a quota is for, and how it reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import DEFAULT, TOTAL, AnyEntity, Entity, EntityKind, Named

names = st.one_of(st.none(), st.just(DEFAULT), st.text(), st.sampled_from(["<default>", 'a"', "a,client-id:b", "\\"]))
entities: st.SearchStrategy[AnyEntity] = st.one_of(
    st.builds(Entity, names, names.filter(lambda name: name is not None)),
    st.builds(Entity, names.filter(lambda name: name is not None)),
    st.builds(
        Named,
        st.sampled_from([kind for kind in EntityKind if kind is not EntityKind.TOTAL]),
        names.filter(lambda name: name is not None),
    ),
    st.just(TOTAL),
)


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (Entity(client_id="etl"), "client-id:etl"),
        (Entity("alice", "etl"), "user:alice,client-id:etl"),
        (Entity("User:alice"), "user:User:alice"),
        (Entity(DEFAULT, DEFAULT), "user:<default>,client-id:<default>"),
        (Entity("<default>"), 'user:"<default>"'),
        (Entity("CN=etl,O=acme"), 'user:"CN=etl,O=acme"'),
        (Entity('the "boss"'), r'user:"the \"boss\""'),
        (Named(EntityKind.TOPIC, "orders"), "topic:orders"),
        (Named(EntityKind.IP, DEFAULT), "ip:<default>"),
        (Named(EntityKind.IP, "::1"), "ip:::1"),
        (Named(EntityKind.LISTENER, "bootstrap"), "listener:bootstrap"),
        (Named(EntityKind.RESOURCE_GROUP, "a, b"), 'resource-group:"a, b"'),
        (TOTAL, "total"),
    ],
)
def test_reads_as(entity: AnyEntity, text: str) -> None:
    assert str(entity) == text


@given(entities, entities)
def test_two_entities_never_read_the_same(one: AnyEntity, other: AnyEntity) -> None:
    """They become metric labels, where two series of one name would be an error."""
    assert (str(one) == str(other)) == (one == other)


def test_nobody_is_no_entity() -> None:
    with pytest.raises(ValueError, match="Invalid empty client quota entity"):
        Entity()
