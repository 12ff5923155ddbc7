"""Groups against a slow model that tries every pattern of every group, and how patterns are written."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.problems import InvalidValue
from quotas.resource_groups import GroupIndex, Pattern, ResourceGroup, parse_pattern
from tests.quotas.cost import CountedName, calls_during

# Few letters, so that names and prefixes meet; a star and a backslash, so that escapes do.
names = st.text("ab*\\", max_size=4)
patterns = st.builds(Pattern, names, st.booleans()).filter(lambda pattern: pattern.text or pattern.is_prefix)


def written(pattern: Pattern) -> str:
    """The pattern as an operator writes it."""
    return pattern.text.replace("\\", "\\\\").replace("*", "\\*") + ("*" if pattern.is_prefix else "")


@dataclass(frozen=True)
class Meant:
    """A group as the slow model knows it: with what was meant, never with what was written."""

    name: str
    users: tuple[Pattern, ...]
    client_ids: tuple[Pattern, ...]
    topics: tuple[Pattern, ...]

    def group(self) -> ResourceGroup:
        lists = (tuple(map(written, members)) for members in (self.users, self.client_ids, self.topics))
        return ResourceGroup(self.name, *lists)


def matches(members: tuple[Pattern, ...], name: str) -> bool:
    return any(name.startswith(text) if is_prefix else name == text for text, is_prefix in members)


members = st.lists(patterns, max_size=4).map(tuple)
meant_groups = st.builds(Meant, st.sampled_from("ABCDEF"), members, members, members).filter(
    lambda meant: bool(meant.users or meant.client_ids or meant.topics)
)


@given(st.lists(meant_groups, max_size=20), st.lists(names, max_size=5))
def test_agrees_with_the_slow_model(meant: list[Meant], asked: list[str]) -> None:
    index, model = GroupIndex(one.group() for one in meant), {one.name: one for one in meant}
    for one in asked:
        assert index.groups_of_topic(one) == tuple(n for n, meant in model.items() if matches(meant.topics, one))
        for other in asked:
            assert index.groups_of_client(one, other) == tuple(
                n for n, meant in model.items() if matches(meant.users, one) or matches(meant.client_ids, other)
            )


@given(patterns)
def test_every_pattern_can_be_written(pattern: Pattern) -> None:
    assert parse_pattern(written(pattern)) == pattern


@given(st.text("ab*\\"))
def test_every_text_is_a_pattern_or_a_problem(text: str) -> None:
    try:
        assert written(parse_pattern(text)) == text  # one way to write each
    except InvalidValue as error:
        assert not text or repr(text) in error.message  # noqa: PT017  (either outcome is right)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "an empty name matches nothing; * matches every name"),
        ("a*b", "* is allowed only at the end, not as in 'a*b'; write \\* for a star in a name"),
        ("*a", "* is allowed only at the end, not as in '*a'; write \\* for a star in a name"),
        ("a**", "* is allowed only at the end, not as in 'a**'; write \\* for a star in a name"),
        ("a\\b", "a backslash is allowed only before * or \\, not as in 'a\\\\b'; write \\\\ for one in a name"),
        ("a\\", "a backslash is allowed only before * or \\, not as in 'a\\\\'; write \\\\ for one in a name"),
    ],
)
def test_what_is_no_pattern_says_why(text: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        parse_pattern(text)
    assert raised.value.message == str(raised.value) == problem


def looks_among(count: int) -> int:
    others = (ResourceGroup(f"g{i}", topics=(f"exact-{i:06}", f"prefix-{i:06}-*", f"p{i:06}*")) for i in range(count))
    index = GroupIndex([*others, ResourceGroup("mine", topics=("orders-eu", "orders-*", "o*", "*"))])
    name = CountedName("orders-eu")
    assert index.groups_of_topic(name) == ("mine",)
    return calls_during(lambda: index.groups_of_topic(name))


def test_a_look_up_costs_the_same_with_any_number_of_groups() -> None:
    """One for the name itself, and one for each length of prefix that it reaches: 0, 1 and 7."""
    assert looks_among(1) == looks_among(2000) <= 12
