"""Any number of sources of quotas: which limits apply, and which source each is of."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from proxy.config.quota_sources import CLUSTER, TOPIC, Quotas, QuotaSources, merged
from quotas.entity import DEFAULT, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_RATE
from quotas.resource_groups import ResourceGroup

ETL, ANYONE, GROUP = Entity(client_id="etl"), Entity(client_id=DEFAULT), Named(EntityKind.RESOURCE_GROUP, "team")
RATES = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_RATE)


def test_the_cluster_is_the_weakest_source() -> None:
    own = Quotas({"--quota": (QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 10}),), "file": ()}, 0.5, dry_run=True)
    others = QuotaEntry(ANYONE, {REQUEST_RATE: 3})
    quotas = own.over({CLUSTER: (QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 1, CONSUMER_BYTE_RATE: 2}), others)})
    assert (quotas.share, quotas.dry_run) == (0.5, True)
    assert quotas.sources[CLUSTER] == (QuotaEntry(ETL, {CONSUMER_BYTE_RATE: 2}), others)
    assert list(quotas.own_entries) == list(own.entries)
    assert {"configured", "exemptions"} <= vars(quotas).keys(), "prepared, outside of the event loop"


def test_the_topic_lowers_limits_of_flags_and_raises_none() -> None:
    own = Quotas({"--quota": (QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 10, CONSUMER_BYTE_RATE: 10}),)}, 1.0)
    quotas = own.over({TOPIC: (QuotaEntry(ETL, {PRODUCER_BYTE_RATE: 3, CONSUMER_BYTE_RATE: 30}),)})
    found, _ = quotas.configured.clients.find("", "etl")
    rates = {name: (each.rate, each.source) for name, each in found.items()}
    assert rates == {PRODUCER_BYTE_RATE: (3, TOPIC), CONSUMER_BYTE_RATE: (10, "--quota")}


def test_the_members_of_a_group_are_those_of_the_strongest_source() -> None:
    by_source = {
        name: (QuotaEntry(GROUP, {rate: 1}, group=ResourceGroup("team", users=(name,))),)
        for name, rate in zip(("cluster", "flags", "file"), RATES, strict=True)
    }
    groups = {name: entry.group for name, (entry,) in merged(by_source).items()}
    assert groups == dict.fromkeys(by_source, ResourceGroup("team", users=("file",)))


@st.composite
def sources_of(draw: st.DrawFn) -> QuotaSources:
    """Sources with an entry at most for each entity, each with a limit or one that it lifts."""

    def entry(entity: Entity) -> QuotaEntry:
        limits = draw(st.dictionaries(st.sampled_from(RATES), st.integers(1, 9), max_size=3))
        lifted = tuple(name for name in RATES if name not in limits and (not limits or draw(st.booleans())))
        return QuotaEntry(entity, limits, unlimited=lifted)

    def source() -> tuple[QuotaEntry, ...]:
        return tuple(map(entry, draw(st.lists(st.sampled_from([ETL, ANYONE, Entity("a")]), unique=True))))

    return {name: source() for name in draw(st.lists(st.sampled_from("abcde"), unique=True, min_size=1))}


@given(sources_of())
def test_each_limit_has_the_source_that_is_searched_for_from_the_strongest_on(sources: QuotaSources) -> None:
    """Whether the sources are merged or not, and also if they are merged again with a weakest one."""
    expected: dict[tuple[Entity, str], tuple[int | Fraction | None, str]] = {}
    for source, entries in sources.items():
        for entry in entries:
            assert isinstance(entry.entity, Entity)
            expected |= {(entry.entity, name): (None, source) for name in entry.unlimited}
            expected |= {(entry.entity, name): (rate, source) for name, rate in entry.limits.items()}
    found = merged(sources)
    left = [
        ((entry.entity, name), (entry.limits.get(name), source))
        for source, entries in found.items()
        for entry in entries
        for name in (*entry.limits, *entry.unlimited)
    ]
    assert (dict(left), len(left)) == (expected, len(expected)), "each once"
    weakest, *others = sources
    assert merged({weakest: sources[weakest], **merged({name: sources[name] for name in others})}) == found
    for client in ("etl", "other"):
        each = [Quotas(one, 1).configured.clients.find("a", client) for one in (sources, found)]
        assert each[0] == each[1]
