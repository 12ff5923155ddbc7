"""A quotas file in YAML, JSON or Java properties where TOML is expected: its first entry as TOML, for the error's hint.

Only keys of quotas are shown: the file may be another one, with secrets.
"""

import json
import re
from typing import Any, Final

from quotas.limit_kinds import LIMIT_NAMES
from quotas.parsing.names import ENTITY_KEYS, EXEMPT_KEYS
from quotas.parsing.options import OPTION_KEYS
from quotas.slips import slip_in

_KEYS: Final = frozenset((*LIMIT_NAMES, *ENTITY_KEYS, *EXEMPT_KEYS, *OPTION_KEYS, "name"))
_PAIR: Final = re.compile(r"^[ \t-]*([\w.-]+)[ \t]*([=:])[ \t]*(\S.*?)[ \t\r]*$", re.MULTILINE)
_LITERAL: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?|true|false")


def in_toml(text: str) -> str | None:
    """What to write; None if the text has none of these formats."""
    found: dict[str, Any] = {}

    def keep(pairs: list[tuple[str, Any]]) -> None:
        found.update({} if found else {key: value for key, value in pairs if key in _KEYS})

    name, is_toml = "JSON", "[[" in text
    try:
        json.loads(text, object_pairs_hook=keep)
    except (ValueError, RecursionError):
        name = _read_lines(text, found, is_toml=is_toml)
    values = [f"{key} = {_value(value)}" for key, value in found.items()]
    if is_toml or not values:
        return f"put the value in quotes: {values[0]}" if values and not slip_in(values[0]) else None
    table = "[[resource-group]]" if "name" in found else "[[quota]]"
    return "\n".join([f"it is {name}; its first entry as TOML:", table, *values])


def _read_lines(text: str, found: dict[str, Any], *, is_toml: bool) -> str:
    """Find the first entry of a text with a key in each line; of TOML, what is wrong in it. Returns the format."""
    name = ""
    # A --quota text has its pairs on one line.
    for key, sign, value in _PAIR.findall(text if is_toml else re.sub(r",(?=\s*[a-z][\w.-]*\s*=)", "\n", text)):
        if key in found:
            break
        is_right = is_toml and (value[0] in "\"'[{" or _LITERAL.fullmatch(value))
        if key in _KEYS and not is_right:
            found[key] = value.strip("\"'")
            name = "YAML" if sign == ":" else "properties"
    return name


def _value(value: object) -> str:
    is_literal = isinstance(value, str) and _LITERAL.fullmatch(value)
    return str(value) if is_literal else json.dumps(value, ensure_ascii=False)
