"""Which limits an entry may have, by the entity keys it has, and what their values must look like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, TypeAlias

from quotas.entity import Kind
from quotas.limit_kinds import (
    BYTES_IN_RATE,
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    LIMIT_KINDS,
    LIMIT_NAMES,
    PRODUCER_IDS_RATE,
    Client,
    LimitKind,
)
from quotas.parsing.errors import Refusal
from quotas.parsing.names import CLIENT_ID, ENTITY_KEYS, IP, MEMBER_KEYS, RESOURCE_GROUP, USER
from quotas.rates import RateError, any_rate, parse_number, parse_plain_rate, parse_rate, whole_rate

_Whose: TypeAlias = Kind | Client

_HOW_MANY: Final = (CONNECTIONS, PRODUCER_IDS_RATE)
"""No rates per second: so many at a time, so many within a window."""

_INT: Final = (CONNECTIONS, CONNECTION_CREATION_RATE)
"""Kafka's type of connection_creation_rate, and of max.connections; its other whole quotas are of type LONG."""

_KEYS_OF: Final[dict[_Whose, tuple[str, ...]]] = {
    Client.ANY: (USER, CLIENT_ID),
    Client.USER: ("user without client-id",),
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What an entry may hold.

    is_group      it is a resource group: user, client-id and topic are its members
    entity_keys   those that it may have; all of them while it is not clear whom it is for
    limits        the names of the limits it may have; all of them in that case
    is_clear      whether the entity keys go together
    """

    is_group: bool
    entity_keys: tuple[str, ...]
    limits: tuple[str, ...]
    is_clear: bool

    def check(self, name: str) -> LimitKind:
        """The limit of this name, if the entry may have it. Raises Refusal, with Kafka's words, if not."""
        kind = LIMIT_KINDS[name]
        if name in self.limits:
            return kind
        if self.is_group and Kind.RESOURCE_GROUP in kind.scopes:
            advice = f"a group of topics alone holds no clients: use {BYTES_IN_RATE}"
        else:
            *others, last = owners_of(kind)
            advice = f"it is a limit of {', '.join(others)} or {last}" if others else f"it is a limit of {last}"
        raise Refusal(f"Invalid configuration key {name}", advice=advice, allowed=self.limits)


def scope_of(keys: Iterable[str]) -> Scope:
    """The scope of an entry that has these keys."""
    return _scope_of(frozenset(keys).intersection(ENTITY_KEYS))


@cache
def _scope_of(given: frozenset[str]) -> Scope:
    """One for each set of entity keys, of which there are 128: a file may have a million entries."""
    is_group = RESOURCE_GROUP in given
    whose, entity_keys = _scopes_and_keys(given)
    if not whose:
        return Scope(is_group, entity_keys, LIMIT_NAMES, is_clear=False)
    limits = [kind for kind in LIMIT_KINDS.values() if not whose.isdisjoint(kind.scopes)]
    if is_group and given == {RESOURCE_GROUP, Kind.TOPIC.value}:
        limits = [kind for kind in limits if is_about_records(kind)]
    return Scope(is_group, entity_keys, tuple(kind.name for kind in limits), is_clear=True)


def _scopes_and_keys(given: frozenset[str]) -> tuple[set[_Whose], tuple[str, ...]]:
    """The scopes whose limits an entry with these entity keys may have, none if they do not go together, and the entity
    keys that it may have.
    """
    if RESOURCE_GROUP in given and given <= {RESOURCE_GROUP, *MEMBER_KEYS}:
        return {Kind.RESOURCE_GROUP}, MEMBER_KEYS
    if given and given <= {USER, CLIENT_ID}:
        return ({Client.ANY} if CLIENT_ID in given else {Client.ANY, Client.USER}), (USER, CLIENT_ID)
    if len(given) == 1:
        return {Kind(*given)}, tuple(given)
    return set(), ENTITY_KEYS


def check_combination(keys: Iterable[str]) -> None:
    """Whether the entity keys among these go together, at least one of them. Raises Refusal, with Kafka's words."""
    scope, given = scope_of(keys), [key for key in ENTITY_KEYS if key in keys]
    if not given:
        raise Refusal("Invalid empty client quota entity", advice="say whom it is for", allowed=ENTITY_KEYS)
    if scope.is_clear:
        return
    if IP in given and set(given) <= {IP, USER, CLIENT_ID}:
        raise Refusal("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    raise Refusal(
        f"Invalid quota entity combination, {' and '.join(given)}",
        advice="each has an entry of its own; only user and client-id go together, and with topic within a "
        "resource-group",
    )


def read_limit(kind: LimitKind, value: object) -> int | Fraction:
    """The value of a limit: units per second, or how many. Raises Refusal."""
    try:
        if kind.is_bytes:
            rate = parse_rate(value)
        elif kind.name in _HOW_MANY:
            rate = parse_number(value)
        else:
            rate = parse_plain_rate(value)
        if kind.whole:
            return whole_rate(kind.name, rate, "INT" if kind.name in _INT else "LONG")
        return any_rate(kind.name, rate)
    except RateError as error:
        raise Refusal(error.message, suggestion=error.suggestion, allowed=error.allowed) from error


def owners_of(kind: LimitKind) -> tuple[str, ...]:
    """Whose it may be, as entity keys."""
    return tuple(key for one in kind.scopes for key in _KEYS_OF.get(one, (one.value,)))


def is_about_records(kind: LimitKind) -> bool:
    """Whether it counts what is produced to topics, by any client."""
    return Kind.TOPIC in kind.scopes or kind.name.startswith("total.")
