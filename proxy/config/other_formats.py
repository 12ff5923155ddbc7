"""A quotas file in YAML, JSON or Java properties where TOML is expected: its first entry as TOML, for the error's hint.

Only keys of quotas are shown: the file may be another one, with secrets.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from quotas.limit_kinds import LIMIT_NAMES
from quotas.parsing.names import ENTITY_KEYS, EXEMPT_KEYS
from quotas.parsing.options import OPTION_KEYS

_KEYS: Final = frozenset((*LIMIT_NAMES, *ENTITY_KEYS, *EXEMPT_KEYS, *OPTION_KEYS, "name"))
_YAML: Final = re.compile(r"\s*(-\s+)?([\w.-]+):(?:\s+(.*))?")
_PROPERTY: Final = re.compile(r"\s*([\w.-]+)\s*[=:]\s*([^\s\"'\[{].*?)\s*")
_LITERAL: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?|true|false")


def in_toml(text: str) -> str | None:
    """What to write; None: the text is none of the three."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---"))]
    for name, found in (("JSON", _of_json(text)), ("YAML", _of_yaml(lines)), ("properties", _of_properties(lines))):
        values = [f"{key} = {_value(value)}" for key, value in found.items() if key in _KEYS]
        if values:
            table = "resource-group" if "name" in found else "quota"
            return "\n".join([f"it is {name}; its first entry as TOML:", f"[[{table}]]", *values])
    for match in filter(None, map(_PROPERTY.fullmatch, lines)):
        if match[1] in _KEYS and not _LITERAL.fullmatch(match[2]):
            return f"put the value in quotes: {match[1]} = {_value(match[2])}"
    return None


def _value(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = value.strip("\"'")
    return text if _LITERAL.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _of_json(text: str) -> Mapping[str, object]:
    """The first object that has keys of quotas."""
    try:
        pending = [json.loads(text)]
    except (ValueError, RecursionError):
        return {}
    while pending:
        first = pending.pop(0)
        if isinstance(first, dict):
            if not _KEYS.isdisjoint(first):
                return first
            first = list(first.values())
        pending[:0] = first if isinstance(first, list) else ()
    return {}


def _of_yaml(lines: Iterable[str]) -> Mapping[str, object]:
    """The first item, if all are flat."""
    found: dict[str, object] = {}
    for match in map(_YAML.fullmatch, lines):
        if match is None:
            return {}
        if found and match[1]:
            break
        if match[3]:
            found[match[2]] = match[3]
    return found


def _of_properties(lines: Iterable[str]) -> Mapping[str, object]:
    matches = list(map(_PROPERTY.fullmatch, lines))
    return {match[1]: match[2] for match in matches if match} if all(matches) else {}
