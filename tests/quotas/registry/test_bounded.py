"""A source that others bound: whatever it has, what the others allow a client is not exceeded."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quotas.entity import DEFAULT, Entity, Name
from quotas.entry import QuotaEntry
from quotas.limit_kinds import PRODUCER_BYTE_RATE
from quotas.limit_options import LimitOptions
from quotas.registry.configured import Configured
from quotas.registry.registry import Registry

names: st.SearchStrategy[Name | None] = st.sampled_from(["u", "c", DEFAULT, None])
pairs = st.tuples(names, names).filter(lambda pair: pair != (None, None))


def client_entry(pair: tuple[Name | None, Name | None], rate: int | None, burst: int | None) -> QuotaEntry:
    """A rate of None lifts the limit."""
    options = LimitOptions(burst_seconds=burst)
    if rate is None:
        return QuotaEntry(Entity(*pair), {}, unlimited=(PRODUCER_BYTE_RATE,))
    return QuotaEntry(Entity(*pair), {PRODUCER_BYTE_RATE: rate}, options)


def of(*limits: tuple[tuple[Name | None, Name | None], int | None]) -> tuple[QuotaEntry, ...]:
    return tuple(client_entry(pair, rate, None) for pair, rate in limits)


entries = st.lists(
    st.builds(client_entry, pairs, st.none() | st.integers(1, 9), st.none() | st.just(3_600)),
    unique_by=lambda each: each.entity,
).map(tuple)


@pytest.mark.claim("kafka-quotas", "whatever is in the topic, flags and file hold what they say of a client")
@given(entries, entries, entries)
@example((), of((("u", "c"), None), (("u", None), 3)), of(((DEFAULT, None), 5)))
@example(of((("u", "c"), None)), of((("u", None), 3)), of(((DEFAULT, None), 5)))
@example((), of((("u", None), 3)), of(((DEFAULT, "c"), None), ((DEFAULT, None), 5)))
@example((), of((("u", "c"), 9), (("u", None), 3)), of(((DEFAULT, None), 5)))
def test_what_the_stronger_sources_allow_a_client_holds(
    weak: tuple[QuotaEntry, ...], bounded: tuple[QuotaEntry, ...], strong: tuple[QuotaEntry, ...]
) -> None:
    """The limit that the client would have without the bounded source applies: its bucket, at its rate or a lower one,
    with its burst. What the bounded source has apart from that applies, too. A bucket is the same for each client that
    shares it, also if a source lifts the limit of one of them.
    """
    alone = Configured({"flags": strong})
    configured = Configured({"cluster": weak, "topic": bounded, "flags": strong}, bounded="topic")
    for user, client_id in (("u", "c"), ("x", "c"), ("u", "x"), ("x", "x")):
        own = alone.clients.find(user, client_id)[0].get(PRODUCER_BYTE_RATE)
        found = [each[PRODUCER_BYTE_RATE] for each in configured.clients.find(user, client_id) if each]
        if own is not None and not any(each.source == "cluster" for each in found):
            same = [each for each in found if each.entity == own.entity]
            assert [each for each in same if each.rate <= own.rate and each.options == own.options], (own, found)
        assert len({each.entity for each in found}) == len(found), "each bucket once"
        assert all(configured.find_for_bucket(PRODUCER_BYTE_RATE, each.entity) == each for each in found)


def test_a_lower_limit_of_the_bounded_source_applies_beside_that_of_flags() -> None:
    def rates(topic: int, own: int) -> list[float]:
        """0: the source has none."""
        of_topic = (QuotaEntry(Entity("u", "c"), {PRODUCER_BYTE_RATE: topic}),) * (topic > 0)
        of_flags = (QuotaEntry(Entity(None, "c"), {PRODUCER_BYTE_RATE: own}),) * (own > 0)
        configured = Configured({"topic": of_topic, "flags": of_flags}, bounded="topic")
        return sorted(float(limit.rate) for limit in Registry(configured).resolve("u", "c").produce.limits)

    assert (rates(2, 9), rates(20, 9), rates(0, 9), rates(2, 0)) == ([2, 9], [9, 20], [9], [2])


@pytest.mark.parametrize(("topic", "own", "rate", "source"), [(2, 9, 2, "topic"), (20, 9, 9, "flags")])
def test_a_limit_of_the_same_entity_is_only_lowered(topic: int, own: int, rate: int, source: str) -> None:
    """With the burst of the stronger source."""
    sources = {"topic": of((("u", "c"), topic)), "flags": (client_entry(("u", "c"), own, 3_600),)}
    [found] = Configured(sources, bounded="topic").clients.find("u", "c")[0].values()
    assert (found.rate, found.source, found.options.burst_seconds) == (rate, source, 3_600)
