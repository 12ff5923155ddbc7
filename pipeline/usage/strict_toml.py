"""One strict reader for the files that people write by hand: owners, and prices with invoices and budgets.

A key that nobody asked for, a value of another type and a table with the wrong number of brackets are errors with their
place: a misspelt `until` would otherwise charge for ever.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pipeline.failures import InputError

END_OF_TIME: Final = date(9999, 1, 1)


def text_of(path: Path) -> str:
    """The text of a file. Raises InputError, and OSError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}: save the file as UTF-8") from error


def parsed(text: str) -> "Table":
    """The file as one table. Raises InputError."""
    try:
        return Table("", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}") from error


@dataclass(slots=True)
class Table:
    """A TOML table whose keys are taken one by one; `end` refuses the rest. Each method raises InputError.

    place: "price[2]", or "" for the whole file.
    """

    place: str
    values: dict[str, Any]
    known: list[str] = field(default_factory=list)

    def at(self, key: str) -> str:
        """The place of a key."""
        return f"{self.place}.{key}" if self.place else key

    def take(self, key: str, default: Any = None) -> Any:
        self.known.append(key)
        return self.values.get(key, default)

    def text(self, key: str, default: str | None = None, *, needs: str = "expected text in quotes") -> str:
        """needs: what the error asks for."""
        value = self.take(key, default)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{self.at(key)}: {needs}")
        return value

    def one_of(self, key: str, allowed: Sequence[str], default: str | None = None, *, kind: str = "") -> str:
        value = self.take(key, default)
        if value not in allowed:
            raise InputError(f"{self.at(key)}: {value!r} is {kind or 'none'}; allowed: {', '.join(allowed)}")
        return str(value)

    def decimal(self, key: str, places: int, default: str | None = None) -> Decimal:
        """An amount from 0 to below 10^8 with at most so many decimal places."""
        value = self.take(key, default)
        if not isinstance(value, str):
            raise InputError(f"{self.at(key)}: write the amount in quotes, so that it stays a decimal")
        try:
            amount = Decimal(value)
        except InvalidOperation as error:
            raise InputError(f"{self.at(key)}: {value!r} is no decimal number") from error
        if not amount.is_finite() or amount < 0 or amount >= 10**8:
            raise InputError(f"{self.at(key)}: {value!r} is negative or too large")
        if amount != round(amount, places):
            raise InputError(f"{self.at(key)}: {value!r} has more than {places} decimal places")
        return amount

    def days(self, *, needs_first: bool) -> tuple[date | None, date | None]:
        """`from` and `until`: the first day, and the day after the last one."""
        first, until = self.take("from"), self.take("until")
        for key, day, is_needed in (("from", first, needs_first), ("until", until, False)):
            if type(day) is not date and (is_needed or day is not None):
                raise InputError(f"{self.at(key)}: expected a day such as 2026-01-31, without quotes")
        if first is not None and until is not None and first >= until:
            raise InputError(f"{self.at('until')}: {until} is not after {first}, the day that it begins")
        return first, until

    def tables(self, key: str) -> "list[Table]":
        """The tables `[[key]]`, each named "key[0]", "key[1]", …"""
        found = self.take(key, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise InputError(f"{self.at(key)}: write [[{key}]], with two brackets")
        return [Table(f"{self.at(key)}[{index}]", each) for index, each in enumerate(found)]

    def end(self) -> None:
        """Refuse keys that were not taken."""
        for key in sorted(set(self.values) - set(self.known)):
            near = get_close_matches(key, self.known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{self.at(key)}: unknown key; {hint}allowed: {', '.join(sorted(self.known))}")
