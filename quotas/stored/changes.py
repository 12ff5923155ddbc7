"""What a change of some limits makes of a record, and what two sets of quotas differ in."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from quotas.entity import AnyEntity, Default
from quotas.limit_kinds import LIMIT_NAMES
from quotas.parsing.names import ENTITY_KEYS, RESOURCE_GROUP, TOTAL_KEY, Resolve, entity_name
from quotas.parsing.text import Item
from quotas.problems import InvalidValue
from quotas.stored.record import REPEATED, REQUEST_PERCENTAGE, Author, Fields, Record, encode, entry_of, names_of


def edited(record: Record, given: Fields, removed: Collection[str], author: Author) -> Record:
    """The record with these limits and options set, and those removed. Options without any limit are dropped. Raises
    InvalidValues.
    """
    fields = {key: value for key, value in record.fields.items() if key not in removed} | given
    kafka = {key: fields.pop(key) for key in (REQUEST_PERCENTAGE,) if key in fields}
    quota = fields if not fields.keys().isdisjoint(LIMIT_NAMES) else {}
    _, entry = entry_of(names_of(record.entity), quota)
    made = Record(record.entity, entry, kafka, author)
    encode(made)
    return made


def parts_of(items: Iterable[Item], resolve: Resolve) -> tuple[Fields, Fields]:
    """The names of an entity in a SPEC, and the rest of it, as in a record. Raises InvalidValue."""
    items = list(items)
    is_group = any(item.key == RESOURCE_GROUP for item in items)
    keys = (RESOURCE_GROUP,) if is_group else ENTITY_KEYS
    names, rest = Fields(), Fields()
    for item in items:
        value = item.value
        if item.key not in keys:
            if item.key in rest and item.key not in REPEATED:
                raise InvalidValue(f"{item.key!r} is given twice")
            rest[item.key] = [*rest.get(item.key, ()), value] if item.key in REPEATED else value
        else:
            name = entity_name(item.key, value, real_name=item.real_name, resolve=resolve)
            names[item.key] = True if item.key == TOTAL_KEY else None if isinstance(name, Default) else name
    return names, rest


def removal(record: Record, author: Author) -> Record:
    """The record that removes this one's entity."""
    return replace(record, entry=None, kafka={}, author=author)


def differences(before: Mapping[AnyEntity, Record], after: Mapping[AnyEntity, Record]) -> Iterator[Record]:
    """The records that make `after` of `before`, by entity: first removals, which make room in a full topic, then new
    and changed ones.
    """
    for entity in sorted({*before, *after}, key=lambda each: (each in after, str(each))):
        old, new = before.get(entity), after.get(entity)
        if new is None and old is not None:
            yield removal(old, old.author)
        elif new is not None and (old is None or old.fields != new.fields):
            yield new


def lines_of(before: Record | None, after: Record) -> Iterator[str]:
    """A change for people, one line for each limit or option: set (+), removed (-) or changed (~)."""
    old, new = before.fields if before is not None else {}, after.fields
    for key in sorted({*old, *new}):
        if key not in old:
            yield f"+ {after.entity.spec} {key}={written(new[key])}"
        elif key not in new:
            yield f"- {after.entity.spec} {key}={written(old[key])}"
        elif old[key] != new[key]:
            yield f"~ {after.entity.spec} {key}={written(old[key])} -> {written(new[key])}"


def shown(record: Record) -> str:
    """The limits and options of a record for people, as arguments of `quotas set`."""
    fields = [f"{key}={written(value)}" for key, value in record.fields.items()]
    left_out = f" ({', '.join(record.kafka)} is not enforced)" if record.kafka else ""
    return " ".join([record.entity.spec, *fields]) + left_out


def written(value: object) -> str:
    """A value the way people write it."""
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
