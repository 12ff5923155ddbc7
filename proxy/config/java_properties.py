"""What the values of Kafka's client files may be: references to values elsewhere, and JAAS entries.

No error contains a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.config.files import read_file
from quotas.problems import InvalidValue

#: As ConfigTransformer has it: a provider, a path for some of them, and a key.
_REFERENCE: Final = re.compile(r"\$\{([^}:]*):(?:([^}]*?):)?([^}]*?)\}")


def resolved(text: str, files: list[Path]) -> str:
    """The text with references replaced, as by Kafka's config providers `env`, `file` and `dir`, which need no
    declaration. The files that were read are added to `files`. Raises InvalidValue, which has
    the place of a value that is not there.
    """
    return _REFERENCE.sub(lambda match: _value_of(match[1], match[2] or "", match[3], files), text)


def _value_of(provider: str, path: str, key: str, files: list[Path]) -> str:
    if provider == "env":
        value = os.environ.get(key)
        if value is None:
            raise InvalidValue(f"the environment variable {key} is not set")
        return value
    if provider not in {"file", "dir"} or not path:
        allowed = "allowed: ${env:NAME}, ${file:PATH:KEY}, ${dir:PATH:FILE}"
        raise InvalidValue(f"${{{provider}:...}} is not a reference; {allowed}")
    from javaproperties import loads

    file = Path(path) / key if provider == "dir" else Path(path)
    files.append(file)
    try:
        text = read_file(file).decode("utf-8-sig")
        return text.rstrip("\r\n") if provider == "dir" else loads(text)[key]
    except KeyError:
        raise InvalidValue(f"{file} has no key {key}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not a text in UTF-8 with valid escapes"
        raise InvalidValue(f"{file}: {reason}") from None


#: The tokens of java.io.StreamTokenizer with the settings of Kafka's JaasConfig. A string ends with its line. One slash
#: begins a comment, too, and skips the next character, even if that is the end of the line.
_TOKEN: Final = re.compile(
    r"""[\0- ]+ | /\*(?:.*?\*/|.*) | /.?[^\n\r]*
    | -?(?=[.0-9])[0-9]*\.?[0-9]* (?P<number>)
    | (?P<word>[A-Za-z_$\xa0-\U0010ffff][-.\w$\xa0-\U0010ffff]*)
    | (?P<quote>["'])(?P<string>(?:\\(?:.|\Z)|(?!(?P=quote))[^\\\n\r])*)(?P=quote)?
    | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.|\Z)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "": "\uffff"}
_END: Final = ("", None)
_FLAGS: Final = {"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"}


def jaas_options(text: str) -> dict[str, str]:
    """The options of `sasl.jaas.config`, read the way Kafka's JaasConfig does. Raises InvalidValue where Kafka does."""
    tokens = _jaas_tokens(text)
    (_, module), (_, flag) = next(tokens, _END), next(tokens, _END)
    if not module or (flag or "").upper() not in _FLAGS:
        raise InvalidValue("does not begin with a module and a flag such as required")
    options = {}
    for sign, name in iter(lambda: next(tokens, _END), (";", None)):
        if sign == _END[0]:
            raise InvalidValue("does not end with a semicolon")
        equals, (_, value) = next(tokens, _END)[0], next(tokens, _END)
        if equals != "=" or value is None:
            raise InvalidValue("has an option without = and a value")
        if name is not None:
            options[name] = value
    if next(tokens, _END) != _END:
        raise InvalidValue("has more than one module")
    return options


def _jaas_tokens(text: str) -> Iterator[tuple[str, str | None]]:
    """A sign and None, or a kind of token and its text; that of a number does not count."""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "string":
            yield kind, _ESCAPE.sub(_unescaped, match["string"])
        elif kind is not None:
            yield (match[0] if kind == "sign" else kind), (match[0] if kind == "word" else None)


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what, 8)) if what[:1] in "01234567" and what else _ESCAPED.get(what, what)
