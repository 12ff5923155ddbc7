"""The text of Kafka's client files: Java properties, references to values elsewhere, and JAAS entries.

No error contains a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROPERTY: Final = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]?\s*(.*)", re.DOTALL)
#: As ConfigTransformer has it: a provider, a path for some of them, and a key.
_REFERENCE: Final = re.compile(r"\$\{([^}:]*):(?:([^}]*?):)?([^}]*?)\}")
_FORMS: Final = "allowed: ${env:NAME}, ${file:PATH:KEY}, ${dir:PATH:FILE}"

_VALUE: Final = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w.$-]+)"""
_OPTION: Final = re.compile(rf"([\w.$-]+)\s*=\s*({_VALUE})", re.DOTALL)
#: With or without the `KafkaClient { ... };` of a JAAS file.
_ENTRY: Final = re.compile(
    rf"(?:\w+\s*\{{)?\s*([\w.$]+)\s+\w+((?:\s+[\w.$-]+\s*=\s*{_VALUE})*)\s*;\s*(?:\}}\s*;?)?", re.DOTALL
)


class Unresolved(ValueError):
    """A reference to a value that is not there. `str()` contains its place."""


def properties(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values of a Java properties file (java.util.Properties.load)."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t]*", r"\1", text.replace("\r\n", "\n"))
    for line in joined.splitlines():
        match = _PROPERTY.match(line.strip())
        if match is not None and match[1][0] not in "#!":
            yield _unescaped(match[1]), _unescaped(match[2])


def _unescaped(text: str) -> str:
    return re.sub(
        r"\\(u[0-9a-fA-F]{4}|.)",
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) > 1 else _ESCAPES.get(match[1], match[1]),
        text,
    )


def is_reference(text: str) -> bool:
    """Whether the text has a reference: its value stands elsewhere."""
    return _REFERENCE.search(text) is not None


def resolved(text: str, files: list[Path]) -> str:
    """The text with references replaced, as by Kafka's config providers `env`, `file` and `dir`, which need no
    declaration. The files that were read are added to `files`. Raises Unresolved.
    """
    return _REFERENCE.sub(lambda match: _value_of(match[1], match[2] or "", match[3], files), text)


def _value_of(provider: str, path: str, key: str, files: list[Path]) -> str:
    if provider == "env":
        value = os.environ.get(key)
        if value is None:
            raise Unresolved(f"the environment variable {key} is not set")
        return value
    if provider not in {"file", "dir"} or not path:
        raise Unresolved(f"${{{provider}:...}} is not a reference; {_FORMS}")
    file = Path(path) / key if provider == "dir" else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise Unresolved(f"{file}: {reason}") from None
    files.append(file)
    if provider == "dir":
        return text.rstrip("\r\n")
    values = dict(properties(text))
    if key not in values:
        raise Unresolved(f"{file} has no key {key}")
    return values[key]


def jaas_entry(text: str) -> tuple[str, dict[str, str]] | None:
    """The login module of `sasl.jaas.config`, without its package, and its options. None: the text is no entry."""
    match = _ENTRY.fullmatch(text.strip())
    if match is None:
        return None
    options = {name: _unquoted(value) for name, value in _OPTION.findall(match[2])}
    return match[1].rpartition(".")[2], options


def _unquoted(value: str) -> str:
    """As java.io.StreamTokenizer."""
    if value[0] not in "\"'":
        return value
    return re.sub(
        r"\\([0-7]{1,3}|.)",
        lambda match: chr(int(match[1], 8)) if match[1].isdigit() else _ESCAPES.get(match[1], match[1]),
        value[1:-1],
        flags=re.DOTALL,
    )
