"""The syntax of SPEC: `key=value[,key="value, with a comma"...]`. `total` alone is short for `total=true`."""

import re
from dataclasses import dataclass
from typing import Final

from quotas.problems import InvalidValue
from quotas.slips import slip_in

# A bare value ends at the comma and contains no quote; a quoted one escapes quotes and backslashes: \" and \\.
_ITEM: Final = re.compile(
    r'\s*(?:(?P<alone>total)|(?P<key>[^=,"\s]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\["\\])*)"|(?P<bare>[^,"]*)))\s*(?:,|$)'
)
_ESCAPE: Final = re.compile(r"\\(.)")
_KAFKA_CONFIGS: Final = re.compile(
    r"(?:^|\s)--(?:entity-(?:type|name|default)|(?:user|client|ip)-defaults|add-config)\b"
)


#: Where a value in double quotes is as its user wants it.
_QUOTED: Final = re.compile(r'=\s*"(?:[^"\\]|\\.)*"')
#: The rest of a number behind a comma.
_DIGITS: Final = re.compile(r"\d+[A-Za-z/]*")


@dataclass(frozen=True, slots=True)
class Item:
    """One key and its value.

    real_name   the value is a name even if it is <default>: it was in double quotes, which are removed
    label       the key in the file, if another: "client-id[2]" for the third of a list
    """

    key: str
    value: object
    real_name: bool = False
    label: str = ""

    @property
    def place(self) -> str:
        return self.label or self.key


def split_spec(text: str) -> list[Item]:
    """The items of a SPEC in order. Raises InvalidValue at the first error."""
    if _KAFKA_CONFIGS.search(text.partition('"')[0]):
        hint = "write client-id=NAME (user=, ip=), or client-id=<default>, then what follows --add-config"
        raise InvalidValue("expected key=value, found flags of kafka-configs.sh", hint)
    slip = slip_in(_QUOTED.sub("=", text.strip()))
    if slip is not None:
        raise InvalidValue(
            "expected key=value in plain characters", f"{slip}; a name in double quotes is taken as written"
        )
    items: list[Item] = []
    position = 0
    while position < len(text) or text.endswith(",") or not items:
        found = _ITEM.match(text, position)
        if found is None:
            raise _error_at(text, position)
        quoted = found["quoted"]
        if found["alone"] is not None:
            items.append(Item(found["alone"], "true"))
        elif quoted is not None:
            items.append(Item(found["key"], _ESCAPE.sub(r"\1", quoted), True))
        else:
            items.append(Item(found["key"], found["bare"].strip()))
        position = found.end()
    return items


def _error_at(text: str, position: int) -> InvalidValue:
    rest = text[position:].strip()
    if not rest:
        what = "a comma at the end" if position else "nothing to read"
        return InvalidValue(f"expected key=value, found {what}", "for example client-id=etl")
    if rest.count('"') % 2:
        hint = 'put the whole value in double quotes, and write \\" for a quote within it'
        return InvalidValue(f"a double quote is missing in {rest!r}", hint)
    item = rest.split(",", 1)[0]
    if '"' in item:
        hint = 'quotes go around the whole value, as in user="CN=etl,O=acme"'
        return InvalidValue(f"expected key=value, found {rest!r}", hint)
    if _DIGITS.fullmatch(item) and text[:position].rstrip(", ")[-1:].isdigit():
        return InvalidValue(
            f"expected key=value, found {item!r}", "write a number without commas, as in 5000000 or 5.5MB"
        )
    found = repr(item) if item else "two commas in a row"
    hint = 'for example producer_byte_rate=5MB; put a value with a comma in double quotes, as in user="CN=etl,O=acme"'
    return InvalidValue(f"expected key=value, found {found}", hint)
