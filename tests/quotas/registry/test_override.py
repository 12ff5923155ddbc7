"""Configured entries, kept compact: nothing is lost, and what is equal is shared."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import Entity
from quotas.entry import QuotaEntry
from quotas.exemption import Exemption
from quotas.limit_kinds import LIMIT_NAMES
from quotas.limit_options import LimitOptions
from quotas.registry.override import Applies, Compactor, apply, limits_of

ETL, ALICE = Entity(client_id="etl"), Entity("alice")

rates = st.one_of(st.integers(1, 1 << 53), st.fractions(Fraction(1, 1000), 1000))
limits = st.dictionaries(st.sampled_from(LIMIT_NAMES), rates, min_size=1)
entries = st.builds(
    QuotaEntry,
    st.just(ETL),
    limits,
    st.builds(
        LimitOptions,
        st.sampled_from([None, "auto", "notify"]),
        st.sampled_from([None, "ewma"]),
        st.one_of(st.none(), st.fractions(Fraction(1, 10), 10, max_denominator=1000)),
        exempt=st.sampled_from([None, Exemption(("alice",)), Exemption((), ("spark-*",))]),
    ),
)


@given(st.lists(entries, max_size=5))
def test_an_override_has_the_limits_of_its_entry(given_entries: list[QuotaEntry]) -> None:
    compactor = Compactor()
    for entry, override in [(entry, compactor.compact(entry)) for entry in given_entries]:
        found: dict[str, Applies] = {}
        apply(override, found, set(), ETL, ALICE)
        assert limits_of(override) == entry.limits
        assert found == {name: Applies(rate, entry.options, ETL, ALICE) for name, rate in entry.limits.items()}


def test_what_is_equal_is_one_object() -> None:
    compactor = Compactor()
    one, other = ({"producer_byte_rate": rate, "consumer_byte_rate": 7} for rate in (5, 6))
    first = compactor.compact(QuotaEntry(ETL, one))
    assert compactor.compact(QuotaEntry(ALICE, dict(one))) is first
    assert compactor.compact(QuotaEntry(ALICE, other))[0] is first[0]
