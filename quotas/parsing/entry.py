"""Parses one entry, from a SPEC or a table of a file: the entry, or every error in it."""

import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final, NamedTuple

from quotas.entity import DEFAULT_NAME, TOTAL, AnyEntity, Default, Entity, EntityKind, Name, Named
from quotas.entry import QuotaEntry
from quotas.exemption import Exemption
from quotas.limit_kinds import (
    BYTES_THRESHOLD,
    LIMIT_KINDS,
    LIMIT_NAMES,
    MESSAGES_THRESHOLD,
    PRODUCER_BYTE_RATE,
    REQUEST_RATE,
)
from quotas.limit_options import LimitOptions
from quotas.parsing import names
from quotas.parsing.limits import UNLIMITED, check_combination, check_unlimited, holds_clients, read_limit, scope_of
from quotas.parsing.moving import YIELD_KEYS, is_range, read_range
from quotas.parsing.names import Resolve, entity_name
from quotas.parsing.options import OPTION_KEYS, REQUEST_COST, GivenOptions
from quotas.parsing.text import Item
from quotas.problems import InvalidValue, Problem, closest, did_you_mean
from quotas.resource_groups import ResourceGroup, parse_pattern
from quotas.slips import slip_in

_KEYS: Final = (*LIMIT_NAMES, *names.ENTITY_KEYS, *OPTION_KEYS, *names.EXEMPT_KEYS)
_NO_LIMITS: Final = frozenset((*names.ENTITY_KEYS, *OPTION_KEYS, *names.EXEMPT_KEYS))
_NEXT_KEY: Final = re.compile(rf"[;\s]\s*({'|'.join(map(re.escape, _KEYS))})\s*=")
_REQUEST_PERCENTAGE: Final = (
    "request_percentage is a share of the broker's threads, which a proxy cannot measure; "
    f"use {REQUEST_RATE}, which counts requests"
)
_CONSUMER_GROUP: Final = re.compile(r"(?:consumer)?[-_.]?group(?:[-_.]?(?:id|name))?", re.IGNORECASE)
_NAMED: Final = frozenset((*names.ENTITY_KEYS, *names.EXEMPT_KEYS)) - {names.TOTAL_KEY}
_ENTRIES: Final = "each needs its own entry{}: another --quota, or in the environment, what follows a ';'"


class Reading(NamedTuple):
    """What was parsed of one entry.

    place    its place in the file: "quota[2]"; "" for a SPEC
    entity   None if it is not clear
    entry    None with errors
    limits   those that could be parsed despite other errors
    """

    place: str
    entity: AnyEntity | None = None
    entry: QuotaEntry | None = None
    limits: Mapping[str, int | Fraction] = MappingProxyType({})
    errors: tuple[Problem, ...] = ()


def read_entry(place: str, items: Sequence[Item], resolve: Resolve | None = None) -> Reading:
    """Parse the items of one entry, in order; `place` is its place in the file, "" for a SPEC."""
    reader = _Reader(place, items, resolve)
    for item in items:
        reader.take(item)
    reader.check_limits_and_options()
    reader.check_moving()
    entity = reader.entity()
    group = reader.group()
    if entity is None or reader.errors:
        return Reading(place, entity, None, reader.limits, tuple(reader.errors))
    given = reader.options
    options = LimitOptions(exempt=reader.exemption(), yields=given.moving.yields, **given.values)
    entry = QuotaEntry(entity, reader.limits, options, group, tuple(reader.unlimited), reader.host)
    return Reading(place, entity, entry, reader.limits)


class _Reader:
    def __init__(self, place: str, items: Sequence[Item], resolve: Resolve | None) -> None:
        self._place = place
        self._items = items
        self._keys = {item.key for item in items}
        self._scope = scope_of(self._keys)
        self._resolve = resolve
        self._seen: set[str] = set()
        self._names: dict[str, Name] = {}
        self._members: dict[str, list[str]] = {key: [] for key in names.MEMBER_KEYS}
        self._exempt: dict[str, list[str]] = {}
        self.host = ""
        self.limits: dict[str, int | Fraction] = {}
        self.unlimited: list[str] = []
        self.options = GivenOptions([], {})
        self.errors: list[Problem] = []

    def take(self, item: Item) -> None:
        """Parse one item. Keys are unique, except the members of a group."""
        try:
            self._take(item)
        except InvalidValue as refusal:
            self._refuse(item.place, _explained(refusal, item))
        self._seen.add(item.key)

    def check_limits_and_options(self) -> None:
        """Check that there is a limit and that each option has an effect."""
        given = self._seen.difference(self.unlimited).intersection(self._scope.limits)
        limits = [kind for name, kind in LIMIT_KINDS.items() if name in given]
        if self._seen <= _NO_LIMITS:  # an unknown limit has its own error
            self._refuse("", _no_limit(self._items, self._scope.limits))
        elif limits:
            is_topic = names.TOPIC in self._keys and not self._scope.is_group
            for key, refusal in self.options.problems(limits, is_topic=is_topic):
                self._refuse(key, refusal)
        elif not self.errors:
            for key in self.options.given:
                message = f"{key} has no effect on limits that are all {UNLIMITED}"
                self._refuse(key, InvalidValue(message, "leave it out"))
        if self._exempt and not self.errors and not any(map(holds_clients, limits)):
            hint = "a connection has no client yet when it is accepted" if limits else None
            self._refuse(next(iter(self._exempt)), InvalidValue("no limit here could hold a client", hint))

    def check_moving(self) -> None:
        """Check that what a rate that moves needs is there; a wrong key may be what is missing."""
        options, is_group = self.options, self._scope.is_group
        if not self.errors:
            for key, refusal in options.moving.problems(is_group=is_group, algorithm=options.values.get("algorithm")):
                self._refuse(key, refusal)

    def entity(self) -> AnyEntity | None:
        """The entity of the entry; None, with an error, if it is not clear."""
        try:
            check_combination(self._keys)
        except InvalidValue as refusal:
            # One fault has one error: `usr=etl` is about to be corrected.
            if self._keys.intersection(names.ENTITY_KEYS) or not any(
                closest(key, names.ENTITY_KEYS) or _CONSUMER_GROUP.fullmatch(key) for key in self._keys
            ):
                self._refuse("", refusal)
            return None
        named_by = {names.RESOURCE_GROUP} if self._scope.is_group else self._keys.intersection(names.ENTITY_KEYS)
        if named_by != self._names.keys():
            return None
        if named_by <= {names.USER, names.CLIENT_ID}:
            return Entity(self._names.get(names.USER), self._names.get(names.CLIENT_ID))
        ((key, name),) = self._names.items()
        if key == names.TOTAL_KEY:
            return TOTAL
        if key == names.TOPIC and isinstance(name, Default):
            self._check_thresholds()
        return Named(EntityKind(key), name)

    def exemption(self) -> Exemption | None:
        """The exempt clients of the entry; None without any."""
        if not self._exempt:
            return None
        return Exemption(*(tuple(self._exempt.get(key, ())) for key in names.EXEMPT_KEYS))

    def group(self) -> ResourceGroup | None:
        """The group of the entry; None without one, and with errors."""
        if not self._scope.is_group or not self._scope.is_clear:
            return None
        if self._keys.isdisjoint(names.MEMBER_KEYS):
            self._refuse("", InvalidValue("a resource group without members: give it a user, a client-id or a topic"))
        if self.errors:
            return None
        return ResourceGroup(str(self._names[names.RESOURCE_GROUP]), *map(tuple, self._members.values()))

    def _take(self, item: Item) -> None:
        key, value = item.key, item.value
        self._check_name(item)
        if self._scope.is_group and key in names.MEMBER_KEYS:
            self._members[key].append(_pattern(item))
        elif key in names.EXEMPT_KEYS:
            self._take_exempt(item)
        elif key in self._seen:
            group = ", or all of them a resource-group" * (key in names.MEMBER_KEYS)
            hint = _ENTRIES.format(group) if self._seen.intersection(names.ENTITY_KEYS) else None
            raise InvalidValue(f"{key!r} is given twice", hint)
        elif key in names.ENTITY_KEYS:
            self._names[key] = name = entity_name(key, value, real_name=item.real_name, resolve=self._resolve)
            if key == names.IP and isinstance(name, str) and names.is_host_name(str(value)):
                self.host = str(value)
        elif key in OPTION_KEYS:
            self.options.take(key, value)
        elif key in LIMIT_KINDS:
            self._take_limit(key, value)
        else:
            raise self._unknown(key)

    def _check_name(self, item: Item) -> None:
        """Refuse a name that is probably a slip, unless it is in double quotes."""
        if item.key in _NAMED and isinstance(item.value, str) and not item.real_name:
            slip = slip_in(item.value)
            if slip is not None:
                quoted = f"in double quotes, {item.key} = '\"...\"'," if self._place else "in double quotes"
                raise InvalidValue(
                    f"{item.value!r} is probably not the name", f"{slip}; {quoted} it is taken as written"
                )

    def _unknown(self, key: str) -> InvalidValue:
        if key == "request_percentage":
            return InvalidValue(_REQUEST_PERCENTAGE, allowed=self._scope.limits)
        if _CONSUMER_GROUP.fullmatch(key):
            hint = "limit its members by client-id or user; a resource-group gives several of them one limit"
            return InvalidValue("a consumer group cannot be limited: requests for data do not contain its name", hint)
        options = [key for key in OPTION_KEYS if key != REQUEST_COST or PRODUCER_BYTE_RATE in self._scope.limits]
        options = [key for key in options if key not in YIELD_KEYS or self._scope.is_group]
        allowed = (*self._scope.limits, *self._scope.entity_keys, *options, *self._scope.exempt_keys)
        # In a SPEC an unknown key may be the second half of a certificate's name.
        otherwise = "" if self._place else "put a value with a comma in double quotes"
        return InvalidValue(f"unknown key {key!r}", did_you_mean(key, allowed, _KEYS, otherwise))

    def _take_limit(self, key: str, value: object) -> None:
        kind = self._scope.check(key)
        if value == UNLIMITED:
            check_unlimited(kind, self._keys)
            self.unlimited.append(key)
        elif is_range(value):
            self.options.moving.least, self.limits[key] = read_range(kind, value)
        else:
            self.limits[key] = read_limit(kind, value)

    def _take_exempt(self, item: Item) -> None:
        if item.key not in self._scope.exempt_keys:
            hint = "it applies to topic, resource-group and total; an entry for a client lifts a limit with "
            hint += f"{UNLIMITED}, as in {REQUEST_RATE}={UNLIMITED}"
            raise InvalidValue(f"{item.key} has no effect here", hint)
        self._exempt.setdefault(item.key, []).append(_pattern(item))

    def _check_thresholds(self) -> None:
        for name in (BYTES_THRESHOLD, MESSAGES_THRESHOLD):
            if name in self._seen:
                message = f"{name} needs the name of a topic, not {DEFAULT_NAME}"
                self._refuse(name, InvalidValue(message, "topics without a threshold share the rest of the total"))

    def _refuse(self, key: str, refusal: InvalidValue) -> None:
        self.errors += refusal.at(f"{self._place}.{key}" if self._place and key else self._place)


def _no_limit(items: Sequence[Item], allowed: Sequence[str]) -> InvalidValue:
    """The error; or a better one, if a value continues with another key after a `;` or a space."""
    refusal = InvalidValue("no limit given", allowed=allowed)
    return next((found for item in items if (found := _explained(refusal, item)) is not refusal), refusal)


def _explained(refusal: InvalidValue, item: Item) -> InvalidValue:
    """The refusal of an item, or what is more likely wrong in it."""
    if item.real_name or not isinstance(item.value, str):
        return refusal
    found = _NEXT_KEY.search(item.value)
    if found is not None:
        hint = "put a comma before it"
        if found[1] in names.ENTITY_KEYS:
            hint += "; if another entry begins there: " + _ENTRIES.format("")
        return InvalidValue(f"{found[1]!r} is in the value of {item.key!r}", hint)
    if item.key in LIMIT_KINDS:
        return refusal.explained(item.value, plain=True)
    return refusal if item.key.isascii() else refusal.explained(item.key, plain=True)


def _pattern(item: Item) -> str:
    """The pattern of a member of a group, or of an exempt client."""
    if not isinstance(item.value, str):
        raise InvalidValue(f"expected a name in quotes, not {item.value!r}")
    if "," in item.value and "=" not in item.value and "[" not in item.label:  # a list in a file has one in each place
        listed = json.dumps([each.strip() for each in item.value.split(",")], ensure_ascii=False)
        raise InvalidValue(
            f"expected one name, not {item.value!r}",
            f"write a list in a file, {item.key} = {listed}; repeat the key in a SPEC",
        )
    if item.value == DEFAULT_NAME and not item.real_name:
        what = "an exempt client" if item.key in names.EXEMPT_KEYS else "a member of a group"
        raise InvalidValue(f"{DEFAULT_NAME} cannot be {what}", f"{item.key}=* matches every name")
    parse_pattern(item.value)
    return item.value
