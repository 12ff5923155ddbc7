"""Everything that is configured: found by entity, changed one limit at a time."""

from fractions import Fraction

from quotas.entity import DEFAULT, AnyEntity, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import (
    BYTES_IN_RATE,
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    MESSAGES_IN_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_RATE,
)
from quotas.limit_options import LimitOptions
from quotas.registry.configured import Configured
from quotas.resource_groups import ResourceGroup

ETL = Entity(client_id="etl")


def configured_of(*entries: QuotaEntry) -> Configured:
    return Configured({"": entries})


def rates(
    configured: Configured, kind: EntityKind, *names: str
) -> dict[str, tuple[int | Fraction, AnyEntity, AnyEntity]]:
    found = configured.find(kind, *names)
    return {name: (applies.rate, applies.entity, applies.origin) for name, applies in found.items()}


def test_one_that_goes_by_several_names_has_the_limits_of_all_the_first_first() -> None:
    bootstrap, port = Named(EntityKind.LISTENER, "bootstrap"), Named(EntityKind.LISTENER, "19092")
    any_listener = Named(EntityKind.LISTENER, DEFAULT)
    configured = configured_of(
        QuotaEntry(port, {CONNECTIONS: 1, CONNECTION_CREATION_RATE: 2}), QuotaEntry(bootstrap, {CONNECTIONS: 3})
    )
    assert rates(configured, EntityKind.LISTENER, "bootstrap", "19092") == {
        CONNECTIONS: (3, bootstrap, bootstrap),
        CONNECTION_CREATION_RATE: (2, port, port),
    }
    by_default = configured_of(QuotaEntry(any_listener, {CONNECTIONS: 4}))
    assert rates(by_default, EntityKind.LISTENER, "bootstrap", "19092") == {CONNECTIONS: (4, bootstrap, any_listener)}


def test_of_an_entity_given_twice_the_limits_are_merged() -> None:
    group = Named(EntityKind.RESOURCE_GROUP, "etl")
    weaker = (
        QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 1, BYTES_IN_RATE: 2, REQUEST_RATE: 3}, LimitOptions(mode="delay")),
        QuotaEntry(Entity(None, DEFAULT), {REQUEST_RATE: 9, MESSAGES_IN_RATE: 9}),
        QuotaEntry(group, {PRODUCER_BYTE_RATE: 2}, group=ResourceGroup("etl", users=("alice",))),
    )
    stronger = (
        QuotaEntry(ETL, {BYTES_IN_RATE: 3}, LimitOptions(algorithm="ewma"), unlimited=(REQUEST_RATE,)),
        QuotaEntry(group, {BYTES_IN_RATE: 4}, group=ResourceGroup("etl", users=("bob",))),
    )
    configured = Configured({"weaker": weaker, "stronger": stronger})
    found, _ = configured.clients.find("", "etl")
    assert {
        name: (each.rate, each.options.mode, each.options.algorithm, each.source) for name, each in found.items()
    } == {
        PRODUCER_BYTE_RATE: (1, "delay", None, "weaker"),
        BYTES_IN_RATE: (3, None, "ewma", "stronger"),
        MESSAGES_IN_RATE: (9, None, None, "weaker"),
    }
    of_group = configured.find(EntityKind.RESOURCE_GROUP, "etl")
    assert {name: each.source for name, each in of_group.items()} == {
        PRODUCER_BYTE_RATE: "weaker",
        BYTES_IN_RATE: "stronger",
    }
    assert configured.limits_of(EntityKind.RESOURCE_GROUP, "etl") == {PRODUCER_BYTE_RATE: 2, BYTES_IN_RATE: 4}
    assert configured.groups.groups_of_client("alice", "") == ()
    assert configured.groups.groups_of_client("bob", "") == ("etl",)
