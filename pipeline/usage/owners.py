"""Which team owns a piece of usage: rules of a TOML file, tried in order; the first one that matches counts.

Patterns are regular expressions that Python and Java read alike. Usage without a match is "unallocated".
docs/pipeline/README.md#owners has an example.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as f

from pipeline.failures import InputError
from pipeline.usage.schemas import UNALLOCATED

FIELDS: Final = {"user": "user", "client-id": "client_id", "topic": "topic"}
"""Key in the file → column."""
_KEYS: Final = {"team", "labels", "from", "until", *FIELDS}
# What one of the two languages reads otherwise than the other, or not at all.
_UNCOMMON: Final = re.compile(r"\(\?P|\(\?[aLu]|\\[pPAZzGhHvVRXQEkN]|&&|[*+?}]\+|\[\[|\[:")


class OwnersError(InputError):
    """An owners file is wrong; the text contains the rule and what is allowed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. place: "owner[2]". patterns: column → regular expression; labels: label → regular expression."""

    place: str
    team: str
    patterns: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    first: date | None = None
    until: date | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """What the tester found: the team, the rule (None for unallocated), and why each earlier rule did not match."""

    team: str
    rule: Rule | None
    passed_over: Sequence[str]


def load(path: Path) -> list[Rule]:
    """The rules of a file, in its order. Raises OwnersError, OSError."""
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> list[Rule]:
    """The rules of an owners file's text. Raises OwnersError."""
    try:
        tables = tomllib.loads(text).get("owner", [])
    except tomllib.TOMLDecodeError as error:
        raise OwnersError(f"not TOML: {error}") from error
    if not isinstance(tables, list):
        raise OwnersError("owner: write [[owner]], with two brackets")
    return [_rule(f"owner[{index}]", table) for index, table in enumerate(tables)]


def team_of(rules: Sequence[Rule]) -> Column:
    """The team as an expression over user, client_id, topic, labels (canonical JSON) and time. No Python runs."""
    found = f.lit(None).cast("string")
    for rule in reversed(rules):
        found = f.when(_matches(rule), f.lit(rule.team)).otherwise(found)
    return f.coalesce(found, f.lit(UNALLOCATED))


def explain(rules: Sequence[Rule], values: Mapping[str, str | None], labels: Mapping[str, str], day: date) -> Match:
    """Which rule matches these values on a day, and why the ones before it do not. values: by column name."""
    passed_over: list[str] = []
    for rule in rules:
        fault = _mismatch(rule, values, labels, day)
        if not fault:
            return Match(rule.team, rule, passed_over)
        passed_over.append(f"{rule.place} ({rule.team}): {fault}")
    return Match(UNALLOCATED, None, passed_over)


def _mismatch(rule: Rule, values: Mapping[str, str | None], labels: Mapping[str, str], day: date) -> str:
    if rule.first is not None and day < rule.first:
        return f"valid from {rule.first}"
    if rule.until is not None and day >= rule.until:
        return f"valid until {rule.until}"
    wanted = [(name, pattern, values.get(name)) for name, pattern in rule.patterns.items()]
    wanted += [(f"label {name}", pattern, labels.get(name)) for name, pattern in rule.labels.items()]
    for name, pattern, value in wanted:
        if value is None:
            return f"there is no {name}"
        if not re.fullmatch(pattern, value, re.ASCII):
            return f"{name} {value!r} does not match {pattern!r}"
    return ""


def _matches(rule: Rule) -> Column:
    condition = f.lit(True)
    day = f.to_date("time")
    if rule.first is not None:
        condition &= day >= f.lit(rule.first)
    if rule.until is not None:
        condition &= day < f.lit(rule.until)
    for name, pattern in rule.patterns.items():
        condition &= f.col(name).rlike(_whole(pattern))
    for name, pattern in rule.labels.items():
        condition &= f.get_json_object("labels", f"$['{name}']").rlike(_whole(pattern))
    return f.coalesce(condition, f.lit(False))


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})\\z"


def _rule(place: str, table: object) -> Rule:
    if not isinstance(table, dict):
        raise OwnersError(f"{place}: expected a table")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise OwnersError(f"{place}.{unknown[0]}: unknown key; allowed: {', '.join(sorted(_KEYS))}")
    if not isinstance(table.get("team"), str) or not table["team"]:
        raise OwnersError(f"{place}.team: a team's name is needed")
    patterns = {column: _pattern(place, name, table[name]) for name, column in FIELDS.items() if name in table}
    labels = table.get("labels", {})
    if not isinstance(labels, dict):
        raise OwnersError(f"{place}.labels: expected a table of label to pattern")
    if any("'" in name for name in labels):
        raise OwnersError(f"{place}.labels: a label's name has no single quote")
    if not patterns and not labels:
        raise OwnersError(f"{place}: give at least one of {', '.join(FIELDS)}, labels; '.*' matches all")
    return Rule(
        place,
        table["team"],
        patterns,
        {name: _pattern(place, f"labels.{name}", each) for name, each in labels.items()},
        _day(place, "from", table),
        _day(place, "until", table),
    )


def _pattern(place: str, name: str, pattern: object) -> str:
    if not isinstance(pattern, str):
        raise OwnersError(f"{place}.{name}: expected a regular expression in quotes")
    uncommon = _UNCOMMON.search(pattern)
    if uncommon:
        raise OwnersError(f"{place}.{name}: {uncommon[0]!r} does not mean the same to Java and Python")
    try:
        re.compile(pattern, re.ASCII)
    except re.error as error:
        raise OwnersError(f"{place}.{name}: {pattern!r}: {error}") from error
    return pattern


def _day(place: str, name: str, table: Mapping[str, Any]) -> date | None:
    day = table.get(name)
    if day is not None and type(day) is not date:
        raise OwnersError(f"{place}.{name}: expected a day such as 2026-01-31, without quotes")
    return day
