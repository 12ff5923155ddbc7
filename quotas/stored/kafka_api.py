"""Kafka's quota API over the records of a topic: which quotas a filter describes, and what alterations make of them.

Rules and messages are those of Kafka's ClientQuotaControlManager and ClientQuotasImage. Described is what Kafka's
entities can express: users, client ids, both, and addresses. What else a record has, like a burst, stays when it is
altered.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from quotas import limit_kinds as kinds
from quotas.entity import AnyEntity, Entity, EntityKind
from quotas.parsing.names import CLIENT_ID, IP, USER, canonical_ip, is_host_name
from quotas.problems import InvalidValue, InvalidValues
from quotas.rates import kafka_rate, of_double
from quotas.stored.changes import edited
from quotas.stored.record import MAX_TEXT, REQUEST_PERCENTAGE, Author, Fields, Record, entity_of, names_of

_OF_CLIENTS: Final = (
    kinds.PRODUCER_BYTE_RATE,
    kinds.CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    kinds.CONTROLLER_MUTATION_RATE,
)
_OF_ADDRESSES: Final = (kinds.CONNECTION_CREATION_RATE,)
_TYPES: Final = (USER, CLIENT_ID, IP)
_MATCHES: Final = ("EXACT", "DEFAULT", "SPECIFIED")
_EXACT, _DEFAULT, _ANY = range(3)

Names = Sequence[tuple[str, str | None]]
Component = tuple[str, int, str | None]
Operation = tuple[str, float, bool]
Described = tuple[Mapping[str, str | None], Mapping[str, float]]
"""The quotas of one entity: names by type, None for the default, and values by key."""


class UnsupportedType(InvalidValue):
    """A filter asks for a type of entity that Kafka does not have."""


def described(records: Mapping[AnyEntity, Record], components: Sequence[Component], *, strict: bool) -> list[Described]:
    """The quotas of the entities that match all components and, if `strict`, have no further types. Raises
    InvalidValue.
    """
    _check(components)
    kinds_wanted = {kind for kind, _, _ in components}
    wanted = list(map(_canonical, components))
    found: list[Described] = []
    for record in records.values():
        if not _is_of_kafka(record.entity):
            continue
        names = names_of(record.entity)
        if strict and not names.keys() <= kinds_wanted:
            continue
        if all(kind in names and _matches(names[kind], match_type, match) for kind, match_type, match in wanted):
            values = dict(_values(record))
            if values:
                found.append((names, values))
    return found


def _is_of_kafka(entity: AnyEntity) -> bool:
    return isinstance(entity, Entity) or entity.kind is EntityKind.IP


def _values(record: Record) -> Iterator[tuple[str, float]]:
    keys = _OF_CLIENTS if isinstance(record.entity, Entity) else _OF_ADDRESSES
    limits = {} if record.entry is None else record.entry.limits
    yield from ((key, float(limits[key])) for key in keys if key in limits)
    yield from ((key, float(value)) for key, value in record.kafka.items())


def _canonical(component: Component) -> Component:
    """With an address as it is stored, since strict tools look for the one that they have written."""
    kind, match_type, match = component
    return kind, match_type, canonical_ip(match) or match if kind == IP and match else match


def _matches(name: str | None, match_type: int, match: str | None) -> bool:
    return match_type == _ANY or name == (match if match_type == _EXACT else None)


def _check(components: Sequence[Component]) -> None:
    given = Counter(kind for kind, _, _ in components)
    for kind, match_type, match in components:
        if not kind:
            raise InvalidValue("Invalid empty entity type.")
        if given[kind] > 1:
            raise InvalidValue(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise UnsupportedType(f"Unsupported entity type {kind}")
        if match_type not in (_EXACT, _DEFAULT, _ANY):
            raise InvalidValue(f"Unknown match type {match_type}")
        if (match_type == _EXACT) != (match is not None):
            what = "set match string to null" if match is None else "also specified a match string"
            raise InvalidValue(f"Request specified MATCH_TYPE_{_MATCHES[match_type]}, but {what}.")
    if IP in given and len(given) > 1:
        message = "Invalid entity filter component combination. "
        raise InvalidValue(f"{message}IP filter component should not be used with user or clientId filter component.")


class Altered(NamedTuple):
    """What became of the changes of one entity: the record to write, None if nothing changes, or why it is refused."""

    entity: Names
    outcome: Record | InvalidValue | None


def altered(
    records: Mapping[AnyEntity, Record], alterations: Sequence[tuple[Names, Sequence[Operation]]], author: Author
) -> list[Altered]:
    """The outcome for each entity, in order. An entity that is there twice is refused, and neither change is made."""
    given = Counter(_key(names) for names, _ in alterations)
    found: dict[object, Altered] = {}
    for names, operations in alterations:
        outcome: Record | InvalidValue | None
        try:
            outcome = _altered(records, names, operations, author)
        except InvalidValue as error:
            outcome = error
        except InvalidValues as errors:
            outcome = InvalidValue(errors.problems[0].message)
        if given[_key(names)] > 1:
            outcome = InvalidValue(f"Ignoring duplicate entity {dict(names)}")
        found[_key(names)] = Altered(names, outcome)
    return list(found.values())


def _key(names: Names) -> object:
    return tuple(sorted(names, key=lambda each: each[0]))


def _altered(
    records: Mapping[AnyEntity, Record], names: Names, operations: Sequence[Operation], author: Author
) -> Record | None:
    entity = _entity(names)
    before = records.get(entity) or Record(entity)
    keys = _OF_CLIENTS if isinstance(entity, Entity) else _OF_ADDRESSES
    given: Fields = {}
    removed: set[str] = set()
    for key, value, remove in operations:
        if key in removed or key in given:
            raise InvalidValue(f"Duplicate quota key {key} not allowed")
        if remove:
            removed.add(key)
        elif key in keys:
            given[key] = _rate(key, value)
        else:
            raise InvalidValue(f"Invalid configuration key {key}")
    # Brokers accept the removal of any key, and so do tools that remove all they know.
    after = edited(before, given, removed.intersection(keys), author)
    return None if after.fields == before.fields else after


def _entity(names: Names) -> AnyEntity:
    """With Kafka's errors."""
    if not names:
        raise InvalidValue("Invalid empty client quota entity")
    for kind, _ in names:
        if kind not in _TYPES:
            raise InvalidValue(f"Unhandled client quota entity type: {kind}")
    if len(dict(names)) < len(names):
        raise InvalidValue("Invalid quota entity combination, a type is given twice")
    for kind, name in names:
        if name is not None:
            _check_name(kind, name)
    try:
        return entity_of(dict(names))
    except InvalidValue:
        raise
    except InvalidValues as error:
        raise InvalidValue(error.problems[0].message) from error


def _check_name(kind: str, name: str) -> None:
    """The last two rules are not Kafka's."""
    if not name:
        raise InvalidValue(f"Empty {kind} not supported")
    if len(name) > MAX_TEXT:
        message = f"The name of the {kind} has {len(name)} characters, and this proxy keeps at most {MAX_TEXT}"
        raise InvalidValue(message)
    if kind == IP and is_host_name(name):
        raise InvalidValue(f"{name} is not an IP address, and this proxy resolves no host names in its quotas topic")


def _rate(key: str, value: float) -> int | float:
    """By the rules of Kafka for its type."""
    kafka_type: Literal["INT", "LONG", "DOUBLE"] = "DOUBLE"
    if key in kinds.LIMIT_KINDS:
        kafka_type = kinds.LIMIT_KINDS[key].kafka_type
    if not math.isfinite(value):
        raise InvalidValue(f"Proposed value for {key} is not a finite number.")
    rate = kafka_rate(key, of_double(value), kafka_type)
    return rate if isinstance(rate, int) else float(rate)
