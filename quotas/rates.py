"""Numbers as people write them, read exactly: "5MB", "1.5 MiB/s", 5000000, 0.1 (one tenth, not the nearest double)."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

UNITS: Final = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
"""Decimal and binary units of bytes; a plain number has none."""

LONG_MAX: Final = (1 << 63) - 1

# At most three digits of exponent and forty of the rest: nobody makes this process compute 10 ** 999999999.
_NUMBER: Final = re.compile(r"(?P<number>[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?)", re.ASCII)
_RATE: Final = re.compile(_NUMBER.pattern + r"\s*(?P<unit>[A-Za-z]*)\s*(?:/\s*s)?", re.ASCII)


class RateError(ValueError):
    """`message` says what is wrong; `suggestion` and `allowed` are empty unless it is the unit."""

    def __init__(self, message: str, *, suggestion: str | None = None, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.allowed = allowed


def exact(number: float | Fraction) -> Fraction:
    """The number as it is written: 0.1 is one tenth. ValueError for what is not finite."""
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"expected a finite number, not {number}")
    return Fraction(str(number)) if isinstance(number, float) else Fraction(number)


def parse_number(value: object) -> Fraction:
    """A plain number, as text or as a number. RateError when it is none."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value.strip())
        if found is not None:
            return Fraction(found["number"])
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return exact(value)
    raise RateError(f"expected a number, not {value!r}")


def parse_rate(value: object) -> Fraction:
    """Units per second, from a number or a text with or without a unit of bytes. RateError when it is none."""
    if not isinstance(value, str):
        return parse_number(value)
    found = _RATE.fullmatch(value.strip())
    if found is None:
        raise RateError(f"expected a rate per second such as 5000000, 5MB or 5MiB/s, not {value!r}")
    unit = found["unit"]
    if unit and unit not in UNITS:
        alike = {known.lower(): known for known in UNITS}
        raise RateError(f"unknown unit {unit!r}", suggestion=alike.get(unit.lower()), allowed=tuple(UNITS))
    return Fraction(found["number"]) * UNITS.get(unit, 1)


def whole_rate(name: str, rate: Fraction) -> int:
    """Kafka's rules for a quota of type LONG, with Kafka's messages (ClientQuotaControlManager), as RateError."""
    if rate <= 0:
        raise RateError(f"Quota {name} must be greater than 0")
    if rate > LONG_MAX:
        raise RateError(f"Proposed value for {name} is too large for a LONG.")
    whole = round(rate)
    if whole == 0 or abs(rate - whole) > Fraction(1, 1_000_000):
        raise RateError(f"{name} cannot be a fractional value.")
    return whole
