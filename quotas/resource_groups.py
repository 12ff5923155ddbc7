r"""Resource groups: a name for a set of users, client ids and topics, and which groups a client or a topic is in.

Pulsar's resource groups bundle namespaces and tenants (PIP-385 names them); Kafka has neither, so here the members are
named one by one or by what their names begin with. What a group may do is a `quotas.entry.QuotaEntry`; this module
knows only who is in it.

A member is written as a pattern:

    spark-etl     this name
    spark-*       every name that begins with "spark-", "spark-" itself among them
    *             every name, the empty one too: a client that sends no client id does not get round its group
    a\*           the name "a*": a backslash takes the star's meaning away
    a\\*          every name that begins with "a\": and a backslash's own

A star is at the end or after a backslash, and a backslash is before a star or a backslash; all else is refused.

Membership is a union: a client is in a group when its user or its client id matches one pattern of it, a topic when its
name does. One may be in any number of groups; the limits of all of them hold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

_SPECIAL: Final = ("\\", "*")


class Pattern(NamedTuple):
    """A pattern that was read: the name itself, or, where `is_prefix`, what the name begins with."""

    text: str
    is_prefix: bool


class PatternError(ValueError):
    """`message` says what is wrong with the text, which it quotes, and how to write what was meant."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Problem(NamedTuple):
    """One thing that is wrong with a group. `key` is its place in the group's table of the quotas file ("name",
    "client-id[2]"), "" for the group as a whole.
    """

    key: str
    message: str


class GroupError(ValueError):
    """A group that cannot be; `problems` is everything that is wrong with it, in the order of its fields."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(f"{key}: {message}" if key else message for key, message in self.problems)


def parse_pattern(text: str) -> Pattern:
    """What a pattern means; see the module for how it is written. Raises PatternError."""
    if not text:
        raise PatternError("an empty name matches nobody; * stands for everyone")
    literal: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "*":
            if position < len(text):
                raise PatternError(f"a * stands only at the end, not as in {text!r}; write \\* for a star in a name")
            return Pattern("".join(literal), is_prefix=True)
        if char == "\\":
            char = text[position : position + 1]
            position += 1
            if char not in _SPECIAL:
                raise PatternError(
                    f"a backslash stands before * or \\, not as in {text!r}; write \\\\ for one in a name"
                )
        literal.append(char)
    return Pattern("".join(literal), is_prefix=False)


def pattern_problem(text: str) -> str | None:
    """What is wrong with a pattern, as a sentence; None when it can be used."""
    try:
        parse_pattern(text)
    except PatternError as error:
        return error.message
    return None


def group_problems(
    name: str, users: Iterable[str] = (), client_ids: Iterable[str] = (), topics: Iterable[str] = ()
) -> tuple[Problem, ...]:
    """Everything that is wrong with a group of this name and these patterns."""
    problems = [] if name else [Problem("name", "a resource group needs a name")]
    members = [
        (f"{key}[{index}]", text)
        for key, texts in (("user", users), ("client-id", client_ids), ("topic", topics))
        for index, text in enumerate(texts)
    ]
    if not members:
        problems.append(Problem("", "a resource group without members: give it a user, a client-id or a topic"))
    for place, text in members:
        message = pattern_problem(text)
        if message is not None:
            problems.append(Problem(place, message))
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A name and the patterns of its members, as they were written. Raises GroupError for what cannot be used."""

    name: str
    users: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = group_problems(self.name, self.users, self.client_ids, self.topics)
        if problems:
            raise GroupError(problems)


class GroupIndex:
    """All groups, found by member: a look-up costs the same with ten groups and with a million.

    It costs one dict look-up for the name and one for each length that some prefix has and the name reaches, and then
    what it finds. Adding, replacing and removing cost O(patterns of that group). The order of the groups is that in
    which they were added; one that is replaced keeps its place.

    Raises ValueError when two groups have one name.
    """

    __slots__ = ("_client_ids", "_groups", "_next_place", "_places", "_topics", "_users")

    def __init__(self, groups: Iterable[ResourceGroup] = ()) -> None:
        self._places: dict[str, int] = {}
        self._groups: dict[int, ResourceGroup] = {}  # by place, in that order
        self._next_place = 0
        self._users = _Members()
        self._client_ids = _Members()
        self._topics = _Members()
        for group in groups:
            self.add(group)

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ResourceGroup]:
        """Every group, in their order."""
        return iter(self._groups.values())

    def __getitem__(self, name: str) -> ResourceGroup:
        """The group of this name; KeyError when there is none."""
        return self._groups[self._places[name]]

    def add(self, group: ResourceGroup) -> None:
        """Add this group after all others. Raises ValueError when its name is taken."""
        if group.name in self._places:
            raise ValueError(f"there is a resource group {group.name!r} already")
        self._places[group.name] = self._next_place
        self._put(group, self._next_place)
        self._next_place += 1

    def replace(self, group: ResourceGroup) -> None:
        """Put this group in the place of the one of the same name; KeyError when there is none."""
        place = self._places[group.name]
        self._drop(self._groups[place], place)
        self._put(group, place)

    def remove(self, name: str) -> None:
        """Forget this group; KeyError when there is none."""
        place = self._places.pop(name)
        self._drop(self._groups.pop(place), place)

    def groups_of_client(self, user: str, client_id: str) -> tuple[str, ...]:
        """The names of the groups that a client is in by its user or its client id, in the order of the groups."""
        return self._names(self._users.places_of(user) | self._client_ids.places_of(client_id))

    def groups_of_topic(self, topic: str) -> tuple[str, ...]:
        """The names of the groups that a topic is in, in the order of the groups."""
        return self._names(self._topics.places_of(topic))

    def _names(self, places: set[int]) -> tuple[str, ...]:
        return tuple(self._groups[place].name for place in sorted(places))

    def _put(self, group: ResourceGroup, place: int) -> None:
        self._groups[place] = group
        for members, texts in self._members_of(group):
            for text in texts:
                members.add(parse_pattern(text), place)

    def _drop(self, group: ResourceGroup, place: int) -> None:
        for members, texts in self._members_of(group):
            for text in texts:
                members.discard(parse_pattern(text), place)

    def _members_of(self, group: ResourceGroup) -> tuple[tuple[_Members, tuple[str, ...]], ...]:
        return (self._users, group.users), (self._client_ids, group.client_ids), (self._topics, group.topics)


class _Members:
    """The patterns of one kind of member, and the places of the groups that have them."""

    __slots__ = ("_counts", "_exact", "_lengths", "_prefixes")

    def __init__(self) -> None:
        self._exact: dict[str, set[int]] = {}
        self._prefixes: dict[str, set[int]] = {}
        # Lengths of the prefixes, shortest first, and how many prefixes have each.
        self._lengths: list[int] = []
        self._counts: Counter[int] = Counter()

    def places_of(self, name: str) -> set[int]:
        """A set of the caller's own."""
        places = set(self._exact.get(name, ()))
        for length in self._lengths:
            if length > len(name):
                break
            places.update(self._prefixes.get(name[:length], ()))
        return places

    def add(self, pattern: Pattern, place: int) -> None:
        if not pattern.is_prefix:
            self._exact.setdefault(pattern.text, set()).add(place)
            return
        if pattern.text not in self._prefixes:
            self._prefixes[pattern.text] = set()
            length = len(pattern.text)
            if not self._counts[length]:
                insort(self._lengths, length)
            self._counts[length] += 1
        self._prefixes[pattern.text].add(place)

    def discard(self, pattern: Pattern, place: int) -> None:
        """Nothing happens when it is gone: a group may name one member twice."""
        by_text = self._prefixes if pattern.is_prefix else self._exact
        places = by_text.get(pattern.text)
        if places is None:
            return
        places.discard(place)
        if places:
            return
        del by_text[pattern.text]
        if pattern.is_prefix:
            length = len(pattern.text)
            self._counts[length] -= 1
            if not self._counts[length]:
                del self._counts[length]
                del self._lengths[bisect_left(self._lengths, length)]
