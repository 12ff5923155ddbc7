"""What one member finds out about the limits of another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.fleet.digest import SAME, LimitNames
from quotas.fleet.record import is_fact

names = st.sets(st.text(st.characters(codec=None), max_size=20), max_size=20)


@given(names, names)
def test_a_digest_never_claims_what_is_not_so(here: set[str], there: set[str]) -> None:
    mine, theirs = LimitNames(here), LimitNames(there)
    assert is_fact("limits", theirs.digest)
    assert (mine.digest == theirs.digest) is (here == there)
    found = mine.compared(theirs.digest)
    assert set(found.names) <= here - there
    assert found.lacks <= len(here - there)
    assert found.extra <= len(there - here)
    assert found.lacks + found.extra > 0 or len(here - there) == len(there - here)


@given(names, st.data())
def test_one_limit_that_is_missing_is_named_and_so_are_all(here: set[str], data: st.DataObject) -> None:
    assert LimitNames(here).compared(LimitNames().digest) == (tuple(sorted(here)), len(here), 0)
    if here:
        missing = data.draw(st.sampled_from(sorted(here)))
        there = LimitNames(here - {missing})
        assert LimitNames(here).compared(there.digest) == ((missing,), 1, 0)
        assert there.compared(LimitNames(here).digest) == ((), 0, 1)


@pytest.mark.parametrize("digest", [None, 7, "", "1", "1:2:3:4:5", "1" * 50, "-1" + ":000000000000" * 4, "x"])
def test_anything_else_is_no_digest(digest: object) -> None:
    assert LimitNames(["a"]).compared(digest) == SAME
