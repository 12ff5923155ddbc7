"""Which team owns a piece of usage: rules of a TOML file, tried in order; the first one that matches counts.

Patterns are regular expressions that Python and Java read alike. Usage without a match is "unallocated".
docs/pipeline/README.md#owners has an example.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

from pipeline.failures import InputError
from pipeline.usage.schemas import UNALLOCATED
from pipeline.usage.strict_toml import Table, parsed, text_of

FIELDS: Final = {"user": "user", "client-id": "client_id", "topic": "topic"}
"""Key in the file → column."""
# What one of the two languages reads otherwise than the other, or not at all.
_UNCOMMON: Final = re.compile(r"\(\?P|\(\?[aLu]|\\[pPAZzGhHvVRXQEkN]|&&|[*+?}]\+|\[\[|\[:")


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
    """The rules of a file, in its order. Raises InputError, OSError."""
    return parse(text_of(path))


def parse(text: str) -> list[Rule]:
    """The rules of an owners file's text. Raises InputError."""
    file = parsed(text)
    rules = [_rule(table) for table in file.tables("owner")]
    file.end()
    return rules


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


def _rule(table: Table) -> Rule:
    place, team = table.place, table.text("team", "", needs="a team's name is needed")
    given = {column: (name, table.take(name)) for name, column in FIELDS.items()}
    patterns = {column: _pattern(place, *each) for column, each in given.items() if each[1] is not None}
    labels = table.take("labels", {})
    first, until = table.days(needs_first=False)
    table.end()
    if not isinstance(labels, dict):
        raise InputError(f"{place}.labels: expected a table of label to pattern")
    if any("'" in name for name in labels):
        raise InputError(f"{place}.labels: a label's name has no single quote")
    if not patterns and not labels:
        raise InputError(f"{place}: give at least one of {', '.join(FIELDS)}, labels; '.*' matches all")
    of_labels = {name: _pattern(place, f"labels.{name}", each) for name, each in labels.items()}
    return Rule(place, team, patterns, of_labels, first, until)


def _pattern(place: str, name: str, pattern: object) -> str:
    if not isinstance(pattern, str):
        raise InputError(f"{place}.{name}: expected a regular expression in quotes")
    uncommon = _UNCOMMON.search(pattern)
    if uncommon:
        raise InputError(f"{place}.{name}: {uncommon[0]!r} does not mean the same to Java and Python")
    try:
        re.compile(pattern, re.ASCII)
    except re.error as error:
        raise InputError(f"{place}.{name}: {pattern!r}: {error}") from error
    return pattern
