"""A record of the quotas topic: the quotas of one entity, who set them, from where, and when.

    key     client-id=etl
    value   {"version":1,"entity":{"client-id":"etl"},"quota":{"producer_byte_rate":60000000},
             "by":"alice","from":"pod-7","at":"2026-11-29T07:40:12Z"}

    version  of this format: 1. A later one may add fields, which this one ignores
    entity   keys of a quota entry with their names; null is `<default>`
    quota    its limits and options, as in a quotas file; the members of a resource group and exempt clients are lists.
             Empty: the entity has no quotas any more. A record with a null value follows, with which the topic forgets
             the entity in the end
    kafka    limits that Kafka's quota API has set and that are not enforced here: request_percentage
    by, from, at
             what the author says about itself. Anyone who can write to the topic can say anything

The key is the entity as in a SPEC: it says which record replaces which, and `entity` is what counts. Anyone who can
write to the topic can write anything, so sizes are checked before anything is parsed, and keys before hints are looked
for.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from quotas.entity import DEFAULT_NAME, AnyEntity, Default, Entity, Name
from quotas.entry import QuotaEntry
from quotas.limit_kinds import LIMIT_NAMES, PRODUCER_BYTE_RATE
from quotas.parsing.entry import read_entry
from quotas.parsing.limits import UNLIMITED, check_combination
from quotas.parsing.moving import OBSERVE, TARGET, YIELD_TO
from quotas.parsing.names import CLIENT_ID, ENTITY_KEYS, EXEMPT_KEYS, MEMBER_KEYS, TOTAL_KEY, USER
from quotas.parsing.options import OPTION_KEYS, PROCESS, REJECT
from quotas.parsing.text import Item
from quotas.problems import InvalidValue, InvalidValues
from quotas.time_units import NS_PER_MS

VERSION: Final = 1
MAX_RECORD_BYTES: Final = 16_384
"""Of a value, and of a key: 300 members of a resource group. Parsing takes at most 3 ms."""
MAX_TEXT: Final = 1_024
"""Characters of a name or another text."""
REQUEST_PERCENTAGE: Final = "request_percentage"
_SURROGATES: Final = re.compile("[\\ud800-\\udfff]")
"""Halves of pairs, which no client can have in its name, and no text for people."""
_QUOTA_KEYS: Final = frozenset((*LIMIT_NAMES, *OPTION_KEYS, *MEMBER_KEYS, *EXEMPT_KEYS))
REPEATED: Final = (*MEMBER_KEYS, *EXEMPT_KEYS)
"""Keys whose values are lists: members of a resource group, and exempt clients."""

Fields = dict[str, Any]
"""Limits and options of an entry by key, as in a quotas file."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who has written a record, from where, and when (ISO 8601, UTC)."""

    by: str = ""
    origin: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """The quotas of one entity. `entry`: None without limits that are enforced here. `kafka`: see the module."""

    entity: AnyEntity
    entry: QuotaEntry | None = None
    kafka: Mapping[str, float] = field(default_factory=dict)
    author: Author = field(default=Author(), compare=False)

    @property
    def fields(self) -> Fields:
        """Its limits and options, those that are not enforced here included; empty: it removes the entity."""
        return (fields_of(self.entry) if self.entry is not None else {}) | dict(self.kafka)


def encode(record: Record) -> tuple[bytes, bytes]:
    """The key and the value. Raises InvalidValue for a record that readers would refuse."""
    text = json.dumps(as_json(record), ensure_ascii=False, separators=(",", ":"))
    key, value = key_of(record.entity), text.encode("utf-8", "surrogatepass")
    if parse(key, value) != record:
        raise InvalidValue(f"{record.entity} does not fit into a record")
    return key, value


def as_json(record: Record) -> Fields:
    """The value of the record."""
    author = record.author
    quota = {} if record.entry is None else fields_of(record.entry)
    about = {"by": author.by[:MAX_TEXT], "from": author.origin[:MAX_TEXT], "at": author.at}
    head = {"version": VERSION, "entity": names_of(record.entity), "quota": quota}
    return head | ({"kafka": dict(record.kafka)} if record.kafka else {}) | about


def key_of(entity: AnyEntity) -> bytes:
    """The key of the records of an entity."""
    return entity.spec.encode("utf-8", "surrogatepass")


def parse(key: bytes | None, value: bytes) -> Record:
    """The record. Accepts any bytes. Raises InvalidValue: it is not a record of this version, or not a valid one."""
    if key is None or not 0 < len(value) <= MAX_RECORD_BYTES:
        raise InvalidValue(f"it has no key, or not 1 to {MAX_RECORD_BYTES} bytes")
    try:
        found = json.loads(value.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidValue("it is not JSON") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise InvalidValue(f'it is not an object with "version": {VERSION}')
    names, quota, kafka = _part(found, "entity"), _part(found, "quota"), _part(found, "kafka")
    _check(names, quota, kafka)
    try:
        entity, entry = entry_of(names, quota)
    except InvalidValues as error:
        raise InvalidValue(error.problems[0].message) from error
    if key_of(entity) != key:
        raise InvalidValue(f"its key is {key[:MAX_TEXT]!r}, and its entity {entity.spec!r}")
    by, origin, at = (str(found.get(each, ""))[:MAX_TEXT] for each in ("by", "from", "at"))
    return Record(entity, entry, kafka, Author(by, origin, at))


def _check(names: Fields, quota: Fields, kafka: Fields) -> None:
    """Refuse what no parser should search for hints in."""
    unknown = [each for each in quota if each not in _QUOTA_KEYS] + [each for each in names if each not in ENTITY_KEYS]
    unknown += [each for each in kafka if each != REQUEST_PERCENTAGE or not _is_percentage(kafka[each])]
    if unknown:
        raise InvalidValue(f"unknown key, or a wrong value of it: {unknown[0][:MAX_TEXT]!r}")
    if not all(_is_short(each) for each in (*quota.values(), *names.values())):
        raise InvalidValue(f"a value is not a number or a text of at most {MAX_TEXT} characters")


def _part(found: Mapping[str, Any], name: str) -> Fields:
    part = found.get(name, {})
    if not isinstance(part, dict):
        raise InvalidValue(f"{name} is not an object")
    return part


def _is_percentage(value: object) -> bool:
    return type(value) in {int, float} and 0 < float(str(value)) < float("inf")


def _is_short(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) and _is_text(each) for each in value)
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and _is_text(value))


def _is_text(value: str) -> bool:
    return len(value) <= MAX_TEXT and not _SURROGATES.search(value)


def entity_of(names: Fields) -> AnyEntity:
    """The entity with these names. Raises InvalidValues."""
    check_combination(names)
    return entry_of(names, {})[0]


def entry_of(names: Fields, quota: Fields) -> tuple[AnyEntity, QuotaEntry | None]:
    """The entity, and its entry with these limits and options; None: there are none. Raises InvalidValues."""
    reading = read_entry("", list(_items(names, quota)))
    if not quota and reading.entity is not None:
        return reading.entity, None
    if reading.entry is None:
        raise InvalidValues(reading.errors)
    return reading.entry.entity, reading.entry


def _items(names: Fields, quota: Fields) -> Iterator[Item]:
    for key, name in names.items():
        yield Item(key, DEFAULT_NAME if name is None else name, real_name=name is not None)
    for key, value in quota.items():
        if isinstance(value, list):
            yield from (Item(key, each, True, f"{key}[{index}]") for index, each in enumerate(value))
        else:
            yield Item(key, value)


def names_of(entity: AnyEntity) -> Fields:
    """Its names by key, as in a record."""
    if isinstance(entity, Entity):
        found: dict[str, Name | None] = {USER: entity.user, CLIENT_ID: entity.client_id}
        return {key: _name(name) for key, name in found.items() if name is not None}
    key = entity.kind.value
    return {key: True if key == TOTAL_KEY else _name(entity.name)}


def _name(name: Name) -> str | None:
    return None if isinstance(name, Default) else name


def fields_of(entry: QuotaEntry) -> Fields:
    """The limits and options of an entry, as in a quotas file."""
    found: Fields = {name: _number(rate) for name, rate in entry.limits.items()}
    found |= dict.fromkeys(entry.unlimited, UNLIMITED)
    options, group = entry.options, entry.group
    if group is not None:
        found |= zip(MEMBER_KEYS, map(list, (group.users, group.client_ids, group.topics)), strict=True)
    if options.exempt is not None:
        found |= zip(EXEMPT_KEYS, map(list, (options.exempt.users, options.exempt.client_ids)), strict=True)
    found |= {"mode": options.mode, "algorithm": options.algorithm}
    found["burst_seconds"] = None if options.burst_seconds is None else _number(options.burst_seconds)
    found["action"] = None if options.rejects is None else REJECT if options.rejects else "throttle"
    found["request_cost"] = options.request_cost or None
    found["scope"] = PROCESS if options.is_per_process else None
    if options.yields is not None:
        found[PRODUCER_BYTE_RATE] = f"{options.yields.least}..{found[PRODUCER_BYTE_RATE]}"
        found[YIELD_TO], found[TARGET] = options.yields.to, f"{options.yields.target_ns / NS_PER_MS:g}ms"
        found[OBSERVE] = options.yields.is_observed or None
    return {key: value for key, value in found.items() if value not in (None, [])}


def _number(rate: int | Fraction) -> int | float:
    return rate.numerator if isinstance(rate, int) or rate.denominator == 1 else float(rate)
