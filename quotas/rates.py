"""Parses numbers exactly: "5MB", "1.5 MiB/s", 5000000, 0.1 (one tenth, not the nearest double)."""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Final, Literal

from quotas.problems import InvalidValue, did_you_mean

UNITS: Final = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
"""Units of bytes."""

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1

SMALLEST_RATE: Final = Fraction(1, 1_000_000)
"""One unit in eleven and a half days."""

NO_LIMIT: Final = "write unlimited if no limit should apply"

# Bounded digits: no input makes this process compute 10 ** 999999999.
_NUMBER: Final = re.compile(
    r"(?P<number>[+-]?(?:\d(?:_?\d){0,39}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?)", re.ASCII
)
_RATE: Final = re.compile(_NUMBER.pattern + r"\s*(?P<unit>[A-Za-z]*)\s*(?:/\s*(?P<per>[A-Za-z]+))?", re.ASCII)
#: The small b of "Mbps" is the bit; "MBps" are bytes. Of "Mb" no one knows.
_BITS: Final = re.compile(r"([kKmMgG]i?)?((?i:bits?)(?:ps)?|bps|b)", re.ASCII)
_SECONDS: Final = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "day": 86_400,
}
_BY_LOWER_CASE: Final = {name.lower(): name for name in UNITS}


def exact(number: float | Fraction) -> Fraction:
    """The number as written: 0.1 is one tenth. ValueError for infinities and NaN."""
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"expected a finite number, not {number}")
    return Fraction(str(number)) if isinstance(number, float) else Fraction(number)


def of_double(value: float) -> Fraction:
    """A quota that a broker or its client keeps as a double: as written, but the largest long as itself, although its
    double is larger by one. It is how Kafka writes unlimited. ValueError for infinities and NaN.
    """
    return Fraction(LONG_MAX) if value == float(LONG_MAX) else exact(value)


def parse_number(value: object) -> Fraction:
    """A plain number, as text or number. Raises InvalidValue."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value.strip())
        if found is not None:
            return Fraction(found["number"].replace("_", ""))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            return exact(value)
    raise InvalidValue(f"expected a number, not {value!r}")


def parse_rate(value: object, *, is_bytes: bool = True) -> Fraction:
    """Units per second, from a number or text with or without a unit of bytes; "/s" may follow. Raises InvalidValue."""
    if not isinstance(value, str):
        return parse_number(value)
    found = _RATE.fullmatch(value.strip())
    if found is None:
        what = "rate per second such as 5000000, 5MB or 5MiB/s" if is_bytes else "number per second such as 20 or 20/s"
        raise InvalidValue(f"expected a {what}, not {value!r}")
    unit, number = found["unit"], found["number"].replace("_", "")
    if unit and not is_bytes:
        raise InvalidValue(
            f"expected a number per second without a unit, not {value!r}: this limit does not count bytes"
        )
    check_bytes(number, unit)
    unit = re.sub("(?<=B)ps$", "", unit)
    if unit and unit not in UNITS:
        raise InvalidValue(f"unknown unit {unit!r}", did_you_mean(unit, UNITS))
    rate, per = Fraction(number) * UNITS.get(unit, 1), found["per"] or "s"
    if _SECONDS.get(per) != 1:
        raise _of_time(rate, per, in_bytes if unit else lambda each: f"{float(each):g}")
    return rate


def check_bytes(number: str, unit: str) -> None:
    """Raise InvalidValue for a unit of bits, or one that may be of bits."""
    bits = _BITS.fullmatch(unit)
    if bits is not None:
        raise _of_bits(number, bits)


def _of_time(rate: Fraction, per: str, written: Callable[[Fraction], str]) -> InvalidValue:
    """A rate per minute, or another time than a second."""
    seconds = _SECONDS.get(per)
    return InvalidValue(
        f"limits are per second, not per {per}", f"write {written(rate / seconds)}" if seconds else None
    )


def _of_bits(number: str, unit: re.Match[str]) -> InvalidValue:
    """Bits where bytes count; or a small b, which may be either."""
    name = _BY_LOWER_CASE[f"{unit[1] or ''}b".lower()]
    in_bits = f"{number} {unit[1] or ''}bit/s is {in_bytes(Fraction(number) * UNITS[name] / 8)}"
    if unit[2] != "b":
        return InvalidValue(f"{unit[0]!r} is a unit of bits, and limits count bytes", f"{in_bits}: a byte has 8 bits")
    return InvalidValue(f"{unit[0]!r} may be bits or bytes", f"write {number}{name} if these are bytes; {in_bits}")


def in_bytes(size: Fraction) -> str:
    """As a rate is written: 5000000 is 5MB."""
    unit = next((name for name in ("GB", "MB", "kB") if size >= UNITS[name]), "B")
    return f"{float(size / UNITS[unit]):g}{unit}"


def kafka_rate(name: str, rate: Fraction, kafka_type: Literal["INT", "LONG", "DOUBLE"]) -> int | Fraction:
    """Kafka's rules for a quota of this type, with Kafka's messages (ClientQuotaControlManager), as InvalidValue.

    A DOUBLE must also be from `SMALLEST_RATE` to `LONG_MAX`, so that every wait can be computed.
    """
    if rate <= 0:
        hint = "to block a client, use an ACL of the brokers; connections=0 blocks an address"
        raise InvalidValue(f"Quota {name} must be greater than 0", NO_LIMIT if rate else hint)
    if kafka_type == "DOUBLE":
        if not SMALLEST_RATE <= rate <= LONG_MAX:
            raise InvalidValue(f"{name} must be from {float(SMALLEST_RATE):f} to {LONG_MAX}")
        return rate.numerator if rate.denominator == 1 else rate
    if rate > (LONG_MAX if kafka_type == "LONG" else INT_MAX):
        raise InvalidValue(
            f"Proposed value for {name} is too large for {'a' if kafka_type == 'LONG' else 'an'} {kafka_type}."
        )
    whole = round(rate)
    if whole == 0 or abs(rate - whole) > Fraction(1, 1_000_000):
        raise InvalidValue(f"{name} cannot be a fractional value.")
    return whole
