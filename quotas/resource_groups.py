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

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from quotas.problems import InvalidValue

_LITERAL: Final = r"(?:[^\\*]|\\[\\*])*"
"""A name, with a backslash before each star and backslash."""


class Pattern(NamedTuple):
    """A parsed pattern: a name, or a prefix if `is_prefix`."""

    text: str
    is_prefix: bool


def parse_pattern(text: str) -> Pattern:
    """Parse a pattern (syntax: see the module). Raises InvalidValue."""
    if not text:
        raise InvalidValue("an empty name matches nothing; * matches every name")
    found = re.fullmatch(rf"({_LITERAL})(\*?)", text)
    if found is not None:
        return Pattern(re.sub(r"\\(.)", r"\1", found[1]), is_prefix=bool(found[2]))
    if re.match(rf"{_LITERAL}\*", text):
        raise InvalidValue(f"* is allowed only at the end, not as in {text!r}; write \\* for a star in a name")
    raise InvalidValue(f"a backslash is allowed only before * or \\, not as in {text!r}; write \\\\ for one in a name")


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A name and the patterns of its members, as written."""

    name: str
    users: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    @property
    def has_clients(self) -> bool:
        return bool(self.users or self.client_ids)


class GroupIndex:
    """All groups, found by member, in order. Of two groups of one name the later counts, in the place of the first.
    Raises InvalidValue for a pattern that is wrong.

    A look-up costs one dict access for the name, one for each prefix length up to the name's, and its results,
    independent of the number of groups.
    """

    __slots__ = ("_client_ids", "_names", "_topics", "_users")

    def __init__(self, groups: Iterable[ResourceGroup] = ()) -> None:
        by_name = {group.name: group for group in groups}
        self._names = tuple(by_name)
        self._users = _Members(group.users for group in by_name.values())
        self._client_ids = _Members(group.client_ids for group in by_name.values())
        self._topics = _Members(group.topics for group in by_name.values())

    def groups_of_client(self, user: str, client_id: str) -> tuple[str, ...]:
        """The names of the groups that contain the user or the client id, in order."""
        return self._in_order(self._users.places_of(user) | self._client_ids.places_of(client_id))

    def groups_of_topic(self, topic: str) -> tuple[str, ...]:
        """The names of the groups that contain the topic, in order."""
        return self._in_order(self._topics.places_of(topic))

    def _in_order(self, places: set[int]) -> tuple[str, ...]:
        return tuple([self._names[place] for place in sorted(places)])


class _Members:
    """The patterns of one kind of member, and the places of the groups that have them."""

    __slots__ = ("_exact", "_lengths", "_prefixes")

    def __init__(self, members: Iterable[tuple[str, ...]]) -> None:
        """The patterns of each group."""
        self._exact: dict[str, set[int]] = {}
        self._prefixes: dict[str, set[int]] = {}
        for place, texts in enumerate(members):
            for pattern in map(parse_pattern, texts):
                found = self._prefixes if pattern.is_prefix else self._exact
                found.setdefault(pattern.text, set()).add(place)
        self._lengths = sorted({len(text) for text in self._prefixes})

    def places_of(self, name: str) -> set[int]:
        """A new set."""
        places = set(self._exact.get(name, ()))
        for length in self._lengths:
            if length > len(name):
                break
            places.update(self._prefixes.get(name[:length], ()))
        return places
