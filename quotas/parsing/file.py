"""The quotas file: `[[quota]]` and `[[resource-group]]` tables, as TOML gives them, to entries and every error."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final, NamedTuple

from quotas.entity import DEFAULT_NAME, AnyEntity, Kind, Named
from quotas.entry import QuotaEntry
from quotas.parsing.entry import read_entry
from quotas.parsing.errors import Refusal, SpecError, closest
from quotas.parsing.names import EXEMPT_KEYS, MEMBER_KEYS, RESOURCE_GROUP, TOTAL_KEY, Resolve
from quotas.parsing.text import Item

QUOTA: Final = "quota"
_SECTIONS: Final = (QUOTA, RESOURCE_GROUP)
_GROUP_NAME: Final = "name"
_DOTTED: Final = ("bytes", "messages", TOTAL_KEY)
"""The first parts of dotted limit names. Without quotes such a key makes nested tables."""


class Placed(NamedTuple):
    """What was parsed of one table.

    place    its place in the file: "quota[2]"
    entity   None if it is not clear, or if this is not a table
    entry    None with errors
    limits   those that could be parsed, in spite of other errors
    """

    place: str
    entity: AnyEntity | None = None
    entry: QuotaEntry | None = None
    limits: Mapping[str, int | Fraction] = MappingProxyType({})


class FileEntries(NamedTuple):
    """What was parsed of a file: its tables in order, and the errors of each.

    `placed` omits groups without a name: no check of several tables depends on them.
    """

    placed: tuple[Placed, ...]
    errors: tuple[SpecError, ...]


def load_quotas(
    data: Mapping[str, object], resolve: Resolve | None = None, *, settings: tuple[str, ...] = ()
) -> FileEntries:
    """The entries of a parsed quotas file, and every error of a single entry (of several: `quotas.parsing.batch`).

    `resolve` finds the address of a host name. `settings` are keys above all tables, which the caller reads.
    """
    known = (*_SECTIONS, *settings)
    errors: list[SpecError] = []
    placed: list[Placed] = []
    for section, tables in data.items():
        if section in settings:
            continue
        if section not in _SECTIONS:
            errors.append(SpecError(section, f"unknown key {section!r}", closest(section, known), known))
            placed.append(Placed(section))
        elif not isinstance(tables, list):
            advice = f"write [[{section}]], with two brackets"
            errors.append(SpecError(section, "expected a list of tables", advice=advice))
            placed.append(Placed(section))
        else:
            for index, table in enumerate(tables):
                errors += _load_table(section, f"{section}[{index}]", table, placed, resolve, settings)
    return FileEntries(tuple(placed), tuple(errors))


def _load_table(
    section: str, place: str, table: object, placed: list[Placed], resolve: Resolve | None, settings: tuple[str, ...]
) -> list[SpecError]:
    if not isinstance(table, dict):
        placed.append(Placed(place))
        return [SpecError(place, f"expected a table, not {table!r}")]
    own = {key: value for key, value in table.items() if key not in settings}
    reading = read_entry(place, list(_items(section, own)), resolve)
    if section == QUOTA or (isinstance(reading.entity, Named) and reading.entity.kind is Kind.RESOURCE_GROUP):
        placed.append(Placed(place, reading.entity, reading.entry, reading.limits))
    return [*_misplaced(section, place, table, settings), *reading.errors]


def _misplaced(section: str, place: str, table: Mapping[str, object], settings: tuple[str, ...]) -> Iterator[SpecError]:
    """Errors for a setting of the file inside a table, and for a group in a [[quota]] table or without a name."""
    for key in settings:
        if key in table:
            advice = "write it above the first table: below a table, TOML makes it part of that table"
            yield Refusal(f"{key} is for the whole file", advice=advice).at(f"{place}.{key}")
    if section == QUOTA and RESOURCE_GROUP in table:
        advice = "write a [[resource-group]] table with name, user, client-id or topic, and the limits of the group"
        yield Refusal("a resource-group has a table of its own", advice=advice).at(f"{place}.{RESOURCE_GROUP}")
    if section == RESOURCE_GROUP and _GROUP_NAME not in table:
        yield Refusal("a resource-group needs a name", advice=f'as in {_GROUP_NAME} = "etl"').at(place)


def _items(section: str, table: Mapping[str, object]) -> Iterator[Item]:
    is_group = RESOURCE_GROUP in {section, *table}
    repeatable = EXEMPT_KEYS + MEMBER_KEYS * is_group
    for key, value in table.items():
        if section == RESOURCE_GROUP and key == _GROUP_NAME:
            yield _item(RESOURCE_GROUP, value, key)
        elif key in repeatable and isinstance(value, list):
            for index, member in enumerate(value):
                yield _item(key, member, f"{key}[{index}]")
        elif key in _DOTTED and isinstance(value, dict):
            if key == TOTAL_KEY:  # TOML does not allow total = true beside total.bytes...
                yield _item(key, True)
            yield from _dotted(key, value)
        else:
            yield _item(key, value)


def _item(key: str, value: object, label: str = "") -> Item:
    """A quoted `"<default>"` within the quotes of TOML is a real name."""
    if value == f'"{DEFAULT_NAME}"':
        return Item(key, DEFAULT_NAME, True, label)
    return Item(key, value, False, label)


def _dotted(key: str, table: Mapping[str, object]) -> Iterator[Item]:
    """The values in nested tables, each with its dotted key."""
    pending: list[tuple[str, object]] = [(key, table)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [(f"{path}.{inner}", found) for inner, found in reversed(value.items())]
        else:
            yield _item(path, value)
