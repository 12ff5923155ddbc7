"""Which limits an entry may have, by its entity keys, and the values of limits."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, TypeAlias

from quotas.entity import EntityKind
from quotas.limit_kinds import (
    BYTES_IN_RATE,
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    LIMIT_KINDS,
    PRODUCER_IDS_RATE,
    THRESHOLDS,
    ClientScope,
    LimitKind,
)
from quotas.parsing.names import CLIENT_ID, ENTITY_KEYS, EXEMPT_KEYS, IP, MEMBER_KEYS, RESOURCE_GROUP, TOTAL_KEY, USER
from quotas.problems import InvalidValue
from quotas.rates import NO_LIMIT, kafka_rate, parse_number, parse_rate

_EntityKind: TypeAlias = EntityKind | ClientScope

UNLIMITED: Final = "unlimited"
_ENDLESS: Final = re.compile(r"(?i)\+?inf(?:inity|inite)?|none")
"""Instead of a rate: weaker entries with this limit do not apply."""

_HOW_MANY: Final = (CONNECTIONS, PRODUCER_IDS_RATE)
"""Numbers, not rates per second: at a time, or within a window."""


_KEYS_OF: Final[dict[_EntityKind, tuple[str, ...]]] = {
    ClientScope.ANY: (USER, CLIENT_ID),
    ClientScope.USER: ("user without client-id",),
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What an entry may contain.

    is_group      it is a resource group: user, client-id and topic are its members
    entity_keys   the allowed ones; all of them unless `is_clear`
    limits        the names of the allowed limits; all of them unless `is_clear`
    exempt_keys   those of its exempt clients, if it may have any
    is_clear      whether the entity keys are a valid combination
    """

    is_group: bool
    entity_keys: tuple[str, ...]
    limits: tuple[str, ...]
    exempt_keys: tuple[str, ...]
    is_clear: bool

    def check(self, name: str) -> LimitKind:
        """The limit of this name. Raises InvalidValue, with Kafka's message, if the entry may not have it."""
        kind = LIMIT_KINDS[name]
        if name in self.limits:
            return kind
        if self.is_group and EntityKind.RESOURCE_GROUP in kind.scopes:
            hint = f"a group with only topics has no clients: use {BYTES_IN_RATE}"
        else:
            *others, last = scope_keys(kind)
            hint = f"it is a limit of {', '.join(others)} or {last}" if others else f"it is a limit of {last}"
        raise InvalidValue(f"Invalid configuration key {name}", hint, allowed=self.limits)


def scope_of(keys: Iterable[str]) -> Scope:
    """The scope of an entry that has these keys."""
    return _scope_of(frozenset(keys).intersection(ENTITY_KEYS))


@cache
def _scope_of(given: frozenset[str]) -> Scope:
    """Cached, since a file may have a million entries; there are 128 sets of entity keys."""
    kinds, entity_keys = _kinds_and_keys(given)
    limits = [kind for kind in LIMIT_KINDS.values() if not kinds or not kinds.isdisjoint(kind.scopes)]
    if given == {RESOURCE_GROUP, EntityKind.TOPIC.value}:
        limits = [kind for kind in limits if is_about_records(kind)]
    lacks_exempt = kinds and kinds.isdisjoint((EntityKind.TOPIC, EntityKind.RESOURCE_GROUP, EntityKind.TOTAL))
    exempt_keys, limit_names = () if lacks_exempt else EXEMPT_KEYS, tuple(kind.name for kind in limits)
    return Scope(RESOURCE_GROUP in given, entity_keys, limit_names, exempt_keys, is_clear=bool(kinds))


def _kinds_and_keys(given: frozenset[str]) -> tuple[set[_EntityKind], tuple[str, ...]]:
    """The scopes of an entry with these entity keys, none if the keys do not go together; and the keys it may have."""
    if RESOURCE_GROUP in given and given <= {RESOURCE_GROUP, *MEMBER_KEYS}:
        return {EntityKind.RESOURCE_GROUP}, MEMBER_KEYS
    if given and given <= {USER, CLIENT_ID}:
        return ({ClientScope.ANY} if CLIENT_ID in given else {ClientScope.ANY, ClientScope.USER}), (USER, CLIENT_ID)
    if len(given) == 1:
        return {EntityKind(*given)}, tuple(given)
    return set(), ENTITY_KEYS


def check_combination(keys: Iterable[str]) -> None:
    """Check that the entity keys among these are a valid combination. Raises InvalidValue, with Kafka's messages."""
    scope, given = scope_of(keys), [key for key in ENTITY_KEYS if key in keys]
    if not given:
        raise InvalidValue("Invalid empty client quota entity", "give its scope", allowed=ENTITY_KEYS)
    if scope.is_clear:
        return
    if IP in given and set(given) <= {IP, USER, CLIENT_ID}:
        raise InvalidValue("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    raise InvalidValue(
        f"Invalid quota entity combination, {' and '.join(given)}",
        "each needs its own entry; only user and client-id can be combined, and in a resource-group also topic",
    )


def read_limit(kind: LimitKind, value: object) -> int | Fraction:
    """The value of a limit: units per second, or a number. Raises InvalidValue."""
    if isinstance(value, str | float) and _ENDLESS.fullmatch(str(value).strip()):
        raise InvalidValue(f"expected a number, not {value!r}", NO_LIMIT)
    rate = parse_number(value) if kind.name in _HOW_MANY else parse_rate(value, is_bytes=kind.is_bytes)
    if kind.name == CONNECTIONS and not rate:
        return 0  # blocks an address, like Kafka's max.connections.per.ip
    return kafka_rate(kind.name, rate, kind.kafka_type)


def check_unlimited(kind: LimitKind, keys: Iterable[str]) -> None:
    """Check that a limit that is `UNLIMITED` in an entry with these keys lifts one. Raises InvalidValue."""
    if kind.name in THRESHOLDS:
        raise InvalidValue(f"{kind.name} cannot be {UNLIMITED}", "a topic without a threshold has a share of the total")
    for key in (TOTAL_KEY, RESOURCE_GROUP):
        if key in keys:
            hint = "leave it out; exempt-client-id and exempt-user name the clients that it neither charges nor holds"
            raise InvalidValue(f"{kind.name} of a {key} lifts no other limit", hint)


def holds_clients(kind: LimitKind) -> bool:
    """Whether it holds requests of clients, not connections."""
    return kind.name not in {CONNECTIONS, CONNECTION_CREATION_RATE}


def scope_keys(kind: LimitKind) -> tuple[str, ...]:
    """The scopes of a limit, as entity keys."""
    return tuple(key for one in kind.scopes for key in _KEYS_OF.get(one, (one.value,)))


def is_about_records(kind: LimitKind) -> bool:
    """Whether it counts records produced to topics."""
    return EntityKind.TOPIC in kind.scopes or kind.name.startswith("total.")
