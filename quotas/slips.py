"""Slips in a text that an operator wrote: characters of a word processor, quotes that no shell removed, templates.

A name may really be like that. Then it is written in double quotes within the value: `user="etl "`, and in a file
`user = '"etl "'`.
"""

import re
import unicodedata
from typing import Final

_SPELLINGS: Final = (
    (re.compile(r"""\A(["'`]).*\1\Z""", re.DOTALL), "remove the quotes: they are part of the value"),
    (
        re.compile(
            r"\$\{[^}]*\}|\$\([^)]*\)|\{\{.*?\}\}|\A%\w+%\Z|\A\$[A-Z_][A-Z0-9_]*\Z|\A<(?!(?i:default)>)[^<>]+>\Z"
        ),
        "{} is a placeholder that nothing has replaced: write its value",
    ),
    (re.compile(r"\A\s|\s\Z"), "remove the whitespace at its ends"),
)
"""What a whole text may look like, and what to do."""


def plain_form(char: str) -> str | None:
    """What a character is mistaken for: "" for an invisible one; None: it is mistaken for nothing in ASCII."""
    category = unicodedata.category(char)
    if char.isascii():
        return None
    if category in {"Pi", "Pf"} or char in "\u201e\u201a\u2032\u2033":  # quotes, low ones, and primes
        return "'" if char in "\u2018\u2019\u201a\u2032\u2039\u203a" else '"'
    if category == "Pd" or char == "\u2212":  # the minus of mathematics
        return "-"
    if category == "Zs" or "\uff01" <= char <= "\uff5e":  # a wide space, and ASCII as wide as Chinese
        return unicodedata.normalize("NFKC", char)
    return "" if category in {"Cf", "Zl", "Zp"} else None


def slip_in(text: str, *, plain: bool = False) -> str | None:
    """What to correct in a text; None: nothing. `plain`: it should be ASCII."""
    for char in "" if text.isascii() else text:
        form = plain_form(char)
        if form is not None or (plain and not char.isascii()):
            name = f"U+{ord(char):04X}, {unicodedata.name(char, 'unnamed').lower()}"
            shown = f"{char} ({name})" if char.isprintable() else name
            return f"replace {shown} with {form!r}" if form else f"remove {shown}"
    for pattern, hint in _SPELLINGS:
        found = pattern.search(text)
        if found is not None:
            return hint.format(found[0])
    return None


def within_quotes(text: object) -> str | None:
    """The name in double quotes, if it needs them to be taken as written; None: the text is something else."""
    if not isinstance(text, str) or len(text) < 3 or not text.startswith('"') or not text.endswith('"'):
        return None
    return text[1:-1] if slip_in(text[1:-1]) else None
