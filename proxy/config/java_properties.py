"""What the values of Kafka's client files may be: references to values elsewhere, and JAAS entries.

No error contains a value.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Final

import javaproperties

from proxy.config.files import read_file
from quotas.problems import Refusal

#: As ConfigTransformer has it: a provider, a path for some of them, and a key.
_REFERENCE: Final = re.compile(r"\$\{([^}:]*):(?:([^}]*?):)?([^}]*?)\}")


def resolved(text: str, files: list[Path]) -> str:
    """The text with references replaced, as by Kafka's config providers `env`, `file` and `dir`, which need no
    declaration. The files that were read are added to `files`. Raises Refusal, which has
    the place of a value that is not there.
    """
    return _REFERENCE.sub(lambda match: _value_of(match[1], match[2] or "", match[3], files), text)


def _value_of(provider: str, path: str, key: str, files: list[Path]) -> str:
    if provider == "env":
        value = os.environ.get(key)
        if value is None:
            raise Refusal(f"the environment variable {key} is not set")
        return value
    if provider not in {"file", "dir"} or not path:
        allowed = "allowed: ${env:NAME}, ${file:PATH:KEY}, ${dir:PATH:FILE}"
        raise Refusal(f"${{{provider}:...}} is not a reference; {allowed}")
    file = Path(path) / key if provider == "dir" else Path(path)
    files.append(file)
    try:
        text = read_file(file).decode("utf-8")
        return text.rstrip("\r\n") if provider == "dir" else javaproperties.loads(text)[key]
    except KeyError:
        raise Refusal(f"{file} has no key {key}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not a text in UTF-8 with valid escapes"
        raise Refusal(f"{file}: {reason}") from None


def jaas_options(text: str) -> dict[str, str] | None:
    """The options of `sasl.jaas.config`; None: the text is no entry `MODULE FLAG NAME="VALUE"...;`."""
    tokens = shlex.shlex(text, posix=True)
    tokens.commenters = ""
    tokens.wordchars += ".$-"
    tokens.escapedquotes = "\"'"
    try:
        _, _, *rest, end = tokens
    except ValueError:
        return None
    is_entry = end == ";" and len(rest) % 3 == 0 and set(rest[1::3]) <= {"="}
    return dict(zip(rest[::3], rest[2::3], strict=True)) if is_entry else None
