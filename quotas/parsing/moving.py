"""Rates that move: `producer_byte_rate=1MB..200MB` with the options `yield_to`, `target` and `observe`.

In a file they can be one table: `producer_byte_rate = { min = "1MB", max = "200MB", yield-to = "resource-group:online",
target = "50ms" }`.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from quotas.exemption import Exemption
from quotas.limit_kinds import PRODUCER_BYTE_RATE, LimitKind
from quotas.limit_options import Yields
from quotas.parsing.limits import read_limit
from quotas.parsing.names import CLIENT_ID, RESOURCE_GROUP, USER
from quotas.parsing.text import Item
from quotas.problems import InvalidValue
from quotas.resource_groups import parse_pattern
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

YIELD_TO: Final = "yield_to"
TARGET: Final = "target"
OBSERVE: Final = "observe"
YIELD_KEYS: Final = (YIELD_TO, TARGET, OBSERVE)
MAX_TARGET_NS: Final = 60 * NS_PER_SECOND
_BOUNDS: Final = ("min", "max")
_EXAMPLE: Final = "1MB..200MB"
_PROTECTED: Final = f"for example {YIELD_TO}={RESOURCE_GROUP}:online, or {YIELD_TO}={CLIENT_ID}:online-*"
_TARGET: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)", re.ASCII)
_SWITCH: Final = {"true": True, "false": False}


def items_of(key: str, table: Mapping[str, object]) -> Iterator[Item]:
    """The items of a table instead of a rate: the bounds as one value, and the options."""
    yield Item(key, {name: value for name, value in table.items() if name in _BOUNDS})
    for name, value in table.items():
        if name not in _BOUNDS:
            yield Item(name.replace("-", "_"), value, label=f"{key}.{name}")


def is_range(value: object) -> bool:
    """Whether this value of a limit is two bounds."""
    return isinstance(value, dict) or (isinstance(value, str) and ".." in value)


def read_range(kind: LimitKind, value: Any) -> tuple[int | Fraction, int | Fraction]:
    """The lower and the upper bound. Raises InvalidValue."""
    if kind.name != PRODUCER_BYTE_RATE:
        message = f"only {PRODUCER_BYTE_RATE} can move between two bounds"
        raise InvalidValue(message, f"give {kind.name} one rate, as in {kind.name}=5MB")
    if isinstance(value, str):
        value = dict(zip(_BOUNDS, value.split("..", 1), strict=True))
    missing = [name for name in _BOUNDS if value.get(name, "") == ""]
    if missing:
        raise InvalidValue(f"{' and '.join(missing)} is missing", f"write both bounds, as in {_EXAMPLE}")
    try:
        least, most = (read_limit(kind, value[name]) for name in _BOUNDS)
    except InvalidValue as error:
        raise InvalidValue(error.message, error.hint or f"write both bounds, as in {_EXAMPLE}") from error
    if least > most:
        raise InvalidValue(
            f"min {value['min']} is above max {value['max']}", f"write the lower bound first: {_EXAMPLE}"
        )
    return least, most


class Moving:
    """What an entry says about a rate that moves."""

    def __init__(self) -> None:
        self.least: int | Fraction | None = None
        self.given: dict[str, Any] = {}

    def take(self, key: str, value: object) -> None:
        """Parse one of `YIELD_KEYS`. Raises InvalidValue."""
        self.given[key] = None
        self.given[key] = {YIELD_TO: _protected, TARGET: _target, OBSERVE: _switch}[key](value)

    def problems(self, *, is_group: bool, algorithm: str | None) -> Iterator[tuple[str, InvalidValue]]:
        """What is missing or has no effect: keys and errors. `is_group`: the entry is a resource group."""
        if self.least is None:
            for key in self.given:
                hint = f"write {PRODUCER_BYTE_RATE}={_EXAMPLE}"
                yield key, InvalidValue(f"{key} has no effect on a rate without bounds", hint)
            return
        if not is_group:
            yield PRODUCER_BYTE_RATE, InvalidValue("only a resource-group can yield", "make its clients members of one")
        if YIELD_TO not in self.given:
            message = "yield_to is missing: the clients to protect"
            yield TARGET if TARGET in self.given else PRODUCER_BYTE_RATE, InvalidValue(message, _PROTECTED)
        elif TARGET not in self.given:
            message = "target is missing: how long a Produce response of the protected clients should take at most"
            yield PRODUCER_BYTE_RATE, InvalidValue(message, "for example target=50ms")
        if algorithm not in {None, "token-bucket"}:
            yield "algorithm", InvalidValue("a rate that moves needs a token-bucket", "leave algorithm out")

    @property
    def yields(self) -> Yields | None:
        """Without problems."""
        if self.least is None:
            return None
        group, clients = self.given[YIELD_TO]
        is_observed = self.given.get(OBSERVE, False)
        return Yields(int(self.least), self.given[TARGET], group, clients, is_observed=is_observed)


def _protected(value: object) -> tuple[str, Exemption]:
    kind, colon, name = str(value).partition(":")
    if not isinstance(value, str) or not colon or not name or kind not in {RESOURCE_GROUP, CLIENT_ID, USER}:
        raise InvalidValue(f"expected the clients to protect, not {value!r}", _PROTECTED)
    if kind == RESOURCE_GROUP:
        return name, Exemption()
    parse_pattern(name)
    return "", Exemption((name,)) if kind == USER else Exemption((), (name,))


def _target(value: object) -> int:
    found = _TARGET.fullmatch(str(value).strip())
    if found is None:
        raise InvalidValue(f"expected a time with its unit such as 50ms or 0.2s, not {value!r}")
    target_ns = int(Fraction(found[1]) * (NS_PER_MS if found[2] == "ms" else NS_PER_SECOND))
    if not NS_PER_MS <= target_ns <= MAX_TARGET_NS:
        raise InvalidValue(f"target must be from 1ms to {MAX_TARGET_NS // NS_PER_SECOND}s, not {value}")
    return target_ns


def _switch(value: object) -> bool:
    found = _SWITCH.get(str(value).lower())
    if found is None:
        raise InvalidValue(f"expected true or false, not {value!r}")
    return found
