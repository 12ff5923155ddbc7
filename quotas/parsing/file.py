"""The quotas file: `[[quota]]` and `[[resource-group]]` tables, as TOML gives them, to entries and every error."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from quotas.entity import DEFAULT_NAME
from quotas.limit_kinds import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from quotas.parsing.entry import Reading, read_entry
from quotas.parsing.moving import items_of
from quotas.parsing.names import EXEMPT_KEYS, MEMBER_KEYS, RESOURCE_GROUP, TOTAL_KEY, Resolve
from quotas.parsing.text import Item
from quotas.problems import Problem, did_you_mean
from quotas.slips import within_quotes

QUOTA: Final = "quota"
_SECTIONS: Final = (QUOTA, RESOURCE_GROUP)
_GROUP_NAME: Final = "name"
_OF_BROKERS: Final = frozenset(("producer", "consumer"))
"""As in the property quota.producer.default of brokers before Kafka 3."""
_DOTTED: Final = ("bytes", "messages", TOTAL_KEY)
"""The first parts of dotted limit names. Without quotes such a key makes nested tables."""
_MOVING: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
_TABLES: Final = (*_DOTTED, *_MOVING)


class FileEntries(NamedTuple):
    """What was parsed of a file: its tables in order, and in their places all else that is wrong."""

    placed: tuple[Reading, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Those of all tables, in order."""
        return tuple([error for reading in self.placed for error in reading.errors])


def load_quotas(
    data: Mapping[str, object], resolve: Resolve | None = None, *, settings: tuple[str, ...] = ()
) -> FileEntries:
    """The entries of a parsed quotas file, and every error of a single entry (of several: `quotas.parsing.batch`).

    `resolve` finds the address of a host name. `settings` are keys above all tables, which the caller reads.
    """
    known = (*_SECTIONS, *settings)
    placed: list[Reading] = []
    for section, tables in data.items():
        if section in settings:
            continue
        if section not in _SECTIONS:
            placed.append(_wrong(section, f"unknown key {section!r}", did_you_mean(section, known)))
        elif not isinstance(tables, list):
            hint = f"write [[{section}]], with two brackets"
            if isinstance(tables, dict) and not _OF_BROKERS.isdisjoint(tables):  # quota.producer.default=1048576
                hint += ', then client-id = "<default>" and producer_byte_rate or consumer_byte_rate'
            placed.append(_wrong(section, "expected a list of tables", hint))
        else:
            for index, table in enumerate(tables):
                placed.append(_read_table(section, f"{section}[{index}]", table, resolve, settings))
    return FileEntries(tuple(placed))


def _wrong(place: str, message: str, hint: str | None = None) -> Reading:
    return Reading(place, errors=(Problem(place, message, hint),))


def _read_table(section: str, place: str, table: object, resolve: Resolve | None, settings: tuple[str, ...]) -> Reading:
    if not isinstance(table, dict):
        return _wrong(place, f"expected a table, not {table!r}")
    own = {key: value for key, value in table.items() if key not in settings}
    reading = read_entry(place, list(_items(section, own)), resolve)
    misplaced = tuple(_misplaced(section, place, table, settings))
    return reading._replace(errors=misplaced + reading.errors)


def _misplaced(section: str, place: str, table: Mapping[str, object], settings: tuple[str, ...]) -> Iterator[Problem]:
    """Errors for a setting of the file inside a table, and for a group in a [[quota]] table."""
    for key in settings:
        if key in table:
            hint = "write it above the first table: below a table, TOML makes it part of that table"
            yield Problem(f"{place}.{key}", f"{key} is for the whole file", hint)
    if section == QUOTA and RESOURCE_GROUP in table:
        hint = "write a [[resource-group]] table with name, user, client-id or topic, and the limits of the group"
        yield Problem(f"{place}.{RESOURCE_GROUP}", "a resource-group needs its own table", hint)


def _items(section: str, table: Mapping[str, object]) -> Iterator[Item]:
    is_group = RESOURCE_GROUP in {section, *table}
    repeatable = EXEMPT_KEYS + MEMBER_KEYS * is_group
    if section == RESOURCE_GROUP:
        yield _item(RESOURCE_GROUP, table.get(_GROUP_NAME, ""), _GROUP_NAME)
    for key, value in table.items():
        if section == RESOURCE_GROUP and key == _GROUP_NAME:
            continue
        if key in repeatable and isinstance(value, list):
            for index, member in enumerate(value):
                yield _item(key, member, f"{key}[{index}]")
        elif key in _TABLES and isinstance(value, dict):
            yield from items_of(key, value) if key in _MOVING else _dotted(key, value)
        else:
            yield _item(key, value)


def _item(key: str, value: object, label: str = "") -> Item:
    """A quoted `"<default>"` within the quotes of TOML is a real name, as is one that looks like a slip."""
    name = DEFAULT_NAME if value == f'"{DEFAULT_NAME}"' else within_quotes(value)
    return Item(key, value if name is None else name, name is not None, label)


def _dotted(key: str, table: Mapping[str, object]) -> Iterator[Item]:
    """The values in nested tables, each with its dotted key."""
    if key == TOTAL_KEY:  # TOML does not allow total = true beside total.bytes...
        yield _item(key, True)
    pending: list[tuple[str, object]] = [(key, table)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [(f"{path}.{inner}", found) for inner, found in reversed(value.items())]
        else:
            yield _item(path, value)
