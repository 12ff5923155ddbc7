"""The syntax of SPEC: `key=value[,key="value, with a comma"...]`. `total` alone is short for `total=true`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# A bare value ends at the comma and contains no quote; a quoted one escapes quotes and backslashes: \" and \\.
_ITEM: Final = re.compile(
    r'\s*(?:(?P<alone>total)|(?P<key>[^=,"\s]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\["\\])*)"|(?P<bare>[^,"]*)))\s*(?:,|$)'
)
_ESCAPE: Final = re.compile(r"\\(.)")


class Item(NamedTuple):
    """One `key=value`; `quoted`: the value was in double quotes, which are removed."""

    key: str
    value: str
    quoted: bool


class SpecSyntaxError(ValueError):
    """A syntax error at `offset`; `advice` is how to correct it."""

    def __init__(self, message: str, advice: str, offset: int) -> None:
        super().__init__(message, advice, offset)
        self.message = message
        self.advice = advice
        self.offset = offset


def split_spec(text: str) -> list[Item]:
    """The items of a SPEC in order. Raises SpecSyntaxError at the first error."""
    items: list[Item] = []
    position = 0
    while position < len(text) or text.endswith(",") or not items:
        found = _ITEM.match(text, position)
        if found is None:
            raise _error_at(text, position)
        quoted = found["quoted"]
        if found["alone"] is not None:
            items.append(Item(found["alone"], "true", False))
        elif quoted is not None:
            items.append(Item(found["key"], _ESCAPE.sub(r"\1", quoted), True))
        else:
            items.append(Item(found["key"], found["bare"].strip(), False))
        position = found.end()
    return items


def _error_at(text: str, position: int) -> SpecSyntaxError:
    rest = text[position:].strip()
    if not rest:
        what = "a comma at the end" if position else "nothing to read"
        return SpecSyntaxError(f"expected key=value, found {what}", "for example client-id=etl", position)
    if rest.count('"') % 2:
        return SpecSyntaxError(
            f"a double quote is missing in {rest!r}",
            'put the whole value in double quotes, and write \\" for a quote within it',
            position,
        )
    if '"' in rest.split(",", 1)[0]:
        return SpecSyntaxError(
            f"expected key=value, found {rest!r}",
            'quotes go around the whole value, as in user="CN=etl,O=acme"',
            position,
        )
    item = rest.split(",", 1)[0]
    return SpecSyntaxError(
        f"expected key=value, found {item!r}" if item else "expected key=value, found two commas in a row",
        'put a value with a comma in double quotes, as in user="CN=etl,O=acme"',
        position,
    )
