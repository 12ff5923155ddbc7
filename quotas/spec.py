"""What an operator writes: `--quota SPEC` and the `[[quota]]` tables of the quotas file, with every error in it.

    SPEC      key=value[,key=value...]; a value may stand in double quotes, with \\" and \\\\ inside
    entity    user, client-id; the bare value <default> is Kafka's default entity ("<default>" in quotes is a real name)
    limits    producer_byte_rate, consumer_byte_rate: bytes per second, plain or with a unit, "/s" may follow
    options   mode, algorithm, burst_seconds

A file says the same with tables; there `'"<default>"'` is the real name. What belongs to a later version is refused by
name: a limit that is accepted is enforced.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from quotas.entity import DEFAULT, DEFAULT_NAME, Entity
from quotas.entry import LIMIT_NAMES, QuotaEntry
from quotas.rates import RateError, parse_number, parse_rate, whole_rate
from quotas.spec_text import SpecSyntaxError, split_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    from quotas.entity import Name

__all__ = ["QuotaEntry", "SpecError", "SpecErrors", "duplicates", "load_quotas", "parse_spec"]

MAX_BURST_SECONDS: Final = 3600
"""An hour: a bucket that was idle as long is forgotten and starts full, so a larger burst could be had for nothing."""

_ENTITY_KEYS: Final = ("user", "client-id")
_MODES: Final = ("auto", "notify")
_ALGORITHMS: Final = ("token-bucket",)
_OPTION_KEYS: Final = ("mode", "algorithm", "burst_seconds")
_KEYS: Final = (*LIMIT_NAMES, *_ENTITY_KEYS, *_OPTION_KEYS)

_LATER_ENTITIES: Final = ("ip", "topic", "resource-group", "listener", "total")
_LATER_KEYS: Final = (
    *("request_rate", "controller_mutation_rate", "connection_creation_rate", "connections"),
    *("producer_ids_rate", "bytes_in_rate", "messages_in_rate"),
    "action",
)
_LATER_VALUES: Final = {"mode": ("delay", "pause"), "algorithm": ("sampled-window", "ewma")}
_REQUEST_PERCENTAGE: Final = (
    "request_percentage is a share of the broker's threads, which a proxy cannot know; "
    "request_rate, which counts requests, takes its place in a later version"
)


@dataclass(frozen=True, slots=True)
class SpecError:
    """One thing that is wrong.

    place       "" for a SPEC (the caller knows which), else the path in the file: "quota[2].producer_byte_rat"
    message     what is wrong
    suggestion  what was probably meant
    allowed     what would be right, where that is a list
    advice      what to do, where it is not
    """

    place: str
    message: str
    suggestion: str | None = None
    allowed: tuple[str, ...] = ()
    advice: str | None = None

    @property
    def hint(self) -> str | None:
        """The line below the message: suggestion, advice and what is allowed."""
        parts = []
        if self.suggestion is not None:
            parts.append(f"did you mean {self.suggestion!r}?")
        if self.advice is not None:
            parts.append(self.advice)
        if self.allowed:
            parts.append(f"allowed: {', '.join(self.allowed)}")
        return " ".join(parts) or None

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return text if self.hint is None else f"{text}\n  {self.hint}"


class SpecErrors(ValueError):
    """Everything that is wrong with a SPEC or a file, in the order of the text."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(errors)
        super().__init__(*self.errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def parse_spec(text: str) -> QuotaEntry:
    """One SPEC. Raises SpecErrors, whose places are empty."""
    reading = _Reading("")
    try:
        items = split_spec(text)
    except SpecSyntaxError as error:
        raise SpecErrors([SpecError("", error.message, advice=error.advice)]) from error
    for item in items:
        if item.key in reading.seen:
            reading.refuse("", f"{item.key!r} is given twice")
        else:
            reading.take(item.key, item.value, real_name=item.quoted)
    return _finished(reading)


def load_quotas(data: Mapping[str, object]) -> list[QuotaEntry]:
    """The entries of a parsed quotas file, in its order. Raises SpecErrors with every error in it."""
    errors: list[SpecError] = []
    entries: list[QuotaEntry] = []
    for key, value in data.items():
        if key == "quota":
            errors += _load_tables(value, entries)
        elif key == "resource-group":
            errors.append(_later(key, key, ("quota",)))
        else:
            errors.append(SpecError(key, f"unknown key {key!r}", _closest(key, ("quota",)), ("quota",)))
    if errors:
        raise SpecErrors(errors)
    return entries


def duplicates(placed: Iterable[tuple[str, Entity]]) -> list[SpecError]:
    """One error for each entity that an earlier one equals; each comes with its place ("--quota '...'", "quota[3]")."""
    first: dict[Entity, str] = {}
    errors = []
    for place, entity in placed:
        if entity in first:
            advice = "put all limits of an entity into one entry"
            errors.append(SpecError(place, f"{entity} has an entry already: {first[entity]}", advice=advice))
        else:
            first[entity] = place
    return errors


def _load_tables(tables: object, entries: list[QuotaEntry]) -> list[SpecError]:
    if not isinstance(tables, list):
        return [SpecError("quota", "expected a list of tables", advice="write [[quota]], with two brackets")]
    errors: list[SpecError] = []
    placed: list[tuple[str, Entity]] = []
    for index, table in enumerate(tables):
        place = f"quota[{index}]"
        if not isinstance(table, dict):
            errors.append(SpecError(place, f"expected a table, not {table!r}"))
            continue
        reading = _Reading(place)
        for key, value in table.items():
            real_name = value == f'"{DEFAULT_NAME}"'
            reading.take(key, DEFAULT_NAME if real_name else value, real_name=real_name)
        if reading.names:
            placed.append((place, reading.entity()))
        try:
            entries.append(_finished(reading))
        except SpecErrors as found:
            errors += found.errors
    return errors + duplicates(placed)


def _finished(reading: _Reading) -> QuotaEntry:
    if not reading.seen.intersection((*_ENTITY_KEYS, *_LATER_ENTITIES)):
        # Kafka's words.
        reading.refuse("", "Invalid empty client quota entity", advice="say whom it is for;", allowed=_ENTITY_KEYS)
    if not reading.limits_named:
        reading.refuse("", "no limit given", allowed=LIMIT_NAMES)
    if reading.errors:
        raise SpecErrors(reading.errors)
    return QuotaEntry(
        reading.entity(),
        reading.limits,
        reading.options.get("mode"),
        reading.options.get("algorithm"),
        reading.burst_seconds,
    )


@dataclass(slots=True)
class _Reading:
    """One entry while it is read key by key; `place` is where the entry stands, "" for a SPEC."""

    place: str
    seen: set[str] = field(default_factory=set)
    names: dict[str, Name] = field(default_factory=dict)
    limits: dict[str, int | Fraction] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    burst_seconds: Fraction | None = None
    limits_named: bool = False
    errors: list[SpecError] = field(default_factory=list)

    def take(self, key: str, value: object, *, real_name: bool) -> None:
        """`real_name`: the value is a name even when it reads <default>."""
        self.seen.add(key)
        if key in _ENTITY_KEYS:
            self._take_name(key, value, real_name=real_name)
        elif key == "burst_seconds":
            self._take_burst(key, value)
        elif key in _OPTION_KEYS:
            self._take_choice(key, value)
        elif key in LIMIT_NAMES:
            self.limits_named = True
            self._take_limit(key, value)
        elif key in _LATER_ENTITIES or key in _LATER_KEYS:
            self.limits_named = self.limits_named or key.endswith("_rate") or key == "connections"
            self.errors.append(_later(self._at(key), key, _KEYS))
        elif key == "request_percentage":
            self.limits_named = True
            self.refuse(key, _REQUEST_PERCENTAGE, allowed=LIMIT_NAMES)
        else:
            self.limits_named = True  # one error is enough for it
            suggestion = _closest(key, _KEYS)
            # In a SPEC an unknown key is as likely the second half of a certificate's name.
            advice = None if suggestion or self.place else "a value with a comma stands in double quotes;"
            self.refuse(key, f"unknown limit {key!r}", suggestion=suggestion, advice=advice, allowed=_KEYS)

    def entity(self) -> Entity:
        """ValueError when no usable name was read."""
        return Entity(self.names.get("user"), self.names.get("client-id"))

    def refuse(
        self,
        key: str,
        message: str,
        *,
        suggestion: str | None = None,
        allowed: tuple[str, ...] = (),
        advice: str | None = None,
    ) -> None:
        self.errors.append(SpecError(self._at(key), message, suggestion, allowed, advice))

    def _at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place and key else self.place

    def _take_name(self, key: str, value: object, *, real_name: bool) -> None:
        if not isinstance(value, str):
            self.refuse(key, f"expected a name in quotes, not {value!r}")
        elif not value:
            self.refuse(key, f"Empty {key} not supported", advice=f"{DEFAULT_NAME} stands for everyone without one")
        else:
            self.names[key] = DEFAULT if value == DEFAULT_NAME and not real_name else value

    def _take_limit(self, key: str, value: object) -> None:
        try:
            self.limits[key] = whole_rate(key, parse_rate(value))
        except RateError as error:
            self.refuse(key, error.message, suggestion=error.suggestion, allowed=error.allowed)

    def _take_burst(self, key: str, value: object) -> None:
        try:
            seconds = parse_number(value)
        except RateError as error:
            self.refuse(key, error.message, advice="seconds of the rate, for example 0.5")
            return
        if not 0 < seconds <= MAX_BURST_SECONDS:
            self.refuse(key, f"burst_seconds must be greater than 0 and at most {MAX_BURST_SECONDS}, not {value}")
        else:
            self.burst_seconds = seconds

    def _take_choice(self, key: str, value: object) -> None:
        allowed = _MODES if key == "mode" else _ALGORITHMS
        if value in _LATER_VALUES[key]:
            self.refuse(key, f"{key} {value!r} is not available in this version", allowed=allowed)
        elif not isinstance(value, str) or value not in allowed:
            self.refuse(key, f"unknown {key} {value!r}", suggestion=_closest(str(value), allowed), allowed=allowed)
        else:
            self.options[key] = value


def _later(place: str, key: str, allowed: tuple[str, ...]) -> SpecError:
    return SpecError(place, f"{key!r} is not available in this version", allowed=allowed)


def _closest(word: str, known: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(word, known, n=1)), None)
