r"""Resource groups: named sets of users, client ids and topics, and the groups of a client or a topic.

Pulsar's resource groups contain namespaces and tenants (PIP-385); Kafka has neither, so members are names or prefixes.
The limits of a group are a `quotas.entry.QuotaEntry`; this module has the members only.

A member is a pattern:

    spark-etl     this name
    spark-*       every name that begins with "spark-", "spark-" included
    *             every name, the empty one too: a client without a client id cannot bypass its group
    a\*           the name "a*"
    a\\*          every name that begins with "a\"

A star is at the end or after a backslash, and a backslash is before a star or a backslash; all else is refused.

Membership is a union: a client is in a group if its user or its client id matches one of its patterns, a topic if its
name does. The limits of all groups of a client or topic apply.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

_SPECIAL: Final = ("\\", "*")


class Pattern(NamedTuple):
    """A parsed pattern: a name, or a prefix if `is_prefix`."""

    text: str
    is_prefix: bool

    def matches(self, name: str) -> bool:
        """Whether the pattern has this member."""
        return name.startswith(self.text) if self.is_prefix else name == self.text


class PatternError(ValueError):
    """`message` quotes the text and contains the error and the correct form."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Problem(NamedTuple):
    """One error of a group. `key`: its place in the group's table ("name", "client-id[2]"), "" for the whole group."""

    key: str
    message: str


class GroupError(ValueError):
    """`problems`: every error of the group, in the order of its fields."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(f"{key}: {message}" if key else message for key, message in self.problems)


def parse_pattern(text: str) -> Pattern:
    """Parse a pattern (syntax: see the module). Raises PatternError."""
    if not text:
        raise PatternError("an empty name matches nothing; * matches every name")
    literal: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "*":
            if position < len(text):
                raise PatternError(f"* is allowed only at the end, not as in {text!r}; write \\* for a star in a name")
            return Pattern("".join(literal), is_prefix=True)
        if char == "\\":
            char = text[position : position + 1]
            position += 1
            if char not in _SPECIAL:
                raise PatternError(
                    f"a backslash is allowed only before * or \\, not as in {text!r}; write \\\\ for one in a name"
                )
        literal.append(char)
    return Pattern("".join(literal), is_prefix=False)


def pattern_problem(text: str) -> str | None:
    """The error of a pattern; None for a valid one."""
    try:
        parse_pattern(text)
    except PatternError as error:
        return error.message
    return None


def group_problems(
    name: str, users: Iterable[str] = (), client_ids: Iterable[str] = (), topics: Iterable[str] = ()
) -> tuple[Problem, ...]:
    """Every error of a group of this name and these patterns."""
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
    """A name and the patterns of its members, as written. Raises GroupError."""

    name: str
    users: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = group_problems(self.name, self.users, self.client_ids, self.topics)
        if problems:
            raise GroupError(problems)


class GroupIndex:
    """All groups, found by member.

    A look-up costs one dict access for the name, one for each prefix length up to the name's, and its results,
    independent of the number of groups. Adding, replacing and removing cost O(patterns of that group). Groups are
    ordered by their addition; a replaced one keeps its place.

    Raises ValueError if two groups have one name.
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
        """Every group, in order."""
        return iter(self._groups.values())

    def __getitem__(self, name: str) -> ResourceGroup:
        """The group of this name. Raises KeyError."""
        return self._groups[self._places[name]]

    def add(self, group: ResourceGroup) -> None:
        """Add this group after all others. Raises ValueError for a known name."""
        if group.name in self._places:
            raise ValueError(f"there is a resource group {group.name!r} already")
        self._places[group.name] = self._next_place
        self._put(group, self._next_place)
        self._next_place += 1

    def replace(self, group: ResourceGroup) -> None:
        """Replace the group of the same name. Raises KeyError."""
        place = self._places[group.name]
        self._drop(self._groups[place], place)
        self._put(group, place)

    def remove(self, name: str) -> None:
        """Remove this group. Raises KeyError."""
        place = self._places.pop(name)
        self._drop(self._groups.pop(place), place)

    def groups_of_client(self, user: str, client_id: str) -> tuple[str, ...]:
        """The names of the groups that contain the user or the client id, in order."""
        return self._names(self._users.places_of(user) | self._client_ids.places_of(client_id))

    def groups_of_topic(self, topic: str) -> tuple[str, ...]:
        """The names of the groups that contain the topic, in order."""
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
        """A new set."""
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
        """Does nothing if it is not there: a group may contain one member twice."""
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
