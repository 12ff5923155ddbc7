"""The options of an entry: their values, and whether each has an effect."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from quotas.algorithms.algorithm import ALGORITHMS, TOKEN_BUCKET
from quotas.limit_kinds import LIMIT_KINDS, PRODUCER_BYTE_RATE, LimitKind, Measure
from quotas.modes import MODES
from quotas.parsing.limits import holds_clients, is_about_records
from quotas.parsing.moving import YIELD_KEYS, Moving
from quotas.problems import InvalidValue, did_you_mean
from quotas.rates import parse_number, parse_rate

MAX_BURST_SECONDS: Final = 3600
"""An hour: a bucket that was idle for longer is removed and starts full, so a larger burst would be free."""

MAX_REQUEST_COST: Final = 1 << 20
"""The largest request of a Java producer with its default `max.request.size`: a higher cost would charge all of its
requests alike.
"""

REQUEST_COST: Final = "request_cost"
OPTION_KEYS: Final = ("mode", "action", "algorithm", "burst_seconds", "scope", REQUEST_COST, *YIELD_KEYS)

REJECT: Final = "reject"
PROCESS: Final = "process"
CHOICES: Final = {"mode": MODES, "action": ("throttle", REJECT), "algorithm": ALGORITHMS, "scope": ("fleet", PROCESS)}
"""The options whose values are words."""
_PER_PROCESS: Final = {Measure.OWN, Measure.CONNECTION_RATE}


@dataclass(slots=True)
class GivenOptions:
    """The keys of all options, and the values of those that could be parsed, named as in `LimitOptions`."""

    given: list[str]
    values: dict[str, Any]
    moving: Moving = field(default_factory=Moving)

    def take(self, key: str, value: object) -> None:
        """Parse one of `OPTION_KEYS`. Raises InvalidValue."""
        if key in YIELD_KEYS:
            self.moving.take(key, value)
            return
        self.given.append(key)
        if key == "burst_seconds":
            self.values[key] = _burst_seconds(value)
            return
        if key == REQUEST_COST:
            self.values[key] = parse_request_cost(value)
            return
        allowed = CHOICES[key]
        if not isinstance(value, str) or value not in allowed:
            raise InvalidValue(f"unknown {key} {value!r}", did_you_mean(str(value), allowed))
        named = {"action": ("rejects", value == REJECT), "scope": ("is_per_process", value == PROCESS)}
        name, parsed = named.get(key, (key, value))
        self.values[name] = parsed

    def problems(self, kinds: Sequence[LimitKind], *, is_topic: bool) -> Iterator[tuple[str, InvalidValue]]:
        """The options without effect on these limits, which are all of the entry, perhaps a topic's: key and error."""
        names = ", ".join(kind.name for kind in kinds)
        for key in self.given:
            hint = self._why_no_effect(key, kinds)
            if hint is not None:
                yield key, InvalidValue(f"{key} has no effect on {names}", hint)
        if self.values.get("rejects") and not is_topic and not any(kind.name.startswith("total.") for kind in kinds):
            message = "action=reject refuses records by their topic"
            yield "action", InvalidValue(message, "it applies to topics, and to the thresholds of the total")
        algorithm = self.values.get("algorithm", TOKEN_BUCKET)
        if "burst_seconds" in self.values and algorithm != TOKEN_BUCKET:
            message = f"burst_seconds is the size of a token bucket, and {algorithm} has none"
            yield "burst_seconds", InvalidValue(message, "leave out one of the two")

    def _why_no_effect(self, key: str, kinds: Sequence[LimitKind]) -> str | None:
        """Why an option has no effect; None if it has one."""
        measures = {kind.measure for kind in kinds}
        if key == "action":
            if not any(map(is_about_records, kinds)):
                return f"it is for {', '.join(name for name, kind in LIMIT_KINDS.items() if is_about_records(kind))}"
        elif key == "mode":
            if not any(map(holds_clients, kinds)):
                return "connections over a limit are delayed or closed, without a throttle notice"
        elif key == REQUEST_COST:
            if all(kind.name != PRODUCER_BYTE_RATE for kind in kinds):
                return f"it is the least that {PRODUCER_BYTE_RATE} charges for a request"
        elif key == "scope":
            if measures <= _PER_PROCESS:
                return "such limits always apply to one process"
        else:
            return self._why_no_bucket(key, measures)
        return None

    def _why_no_bucket(self, key: str, measures: set[Measure]) -> str | None:
        if measures == {Measure.OWN}:
            return "this limit has its own algorithm"
        if key == "burst_seconds" and "algorithm" not in self.given and measures <= _PER_PROCESS:
            return f"at most one window's worth passes at once: for another burst add algorithm={TOKEN_BUCKET}"
        return None


def _burst_seconds(value: object) -> Fraction:
    try:
        seconds = parse_number(value)
    except InvalidValue as error:
        raise InvalidValue(error.message, "seconds of the rate, for example 0.5") from error
    if not 0 < seconds <= MAX_BURST_SECONDS:
        raise InvalidValue(f"burst_seconds must be greater than 0 and at most {MAX_BURST_SECONDS}, not {value}")
    return seconds


def parse_request_cost(value: object) -> int:
    """Bytes, in the units of rates; KB is kB, since no other unit of bytes is written like it. Raises InvalidValue."""
    text = re.sub(r"(?<=[\d\s])KB$", "kB", value.strip()) if isinstance(value, str) else value
    try:
        size = parse_rate(text)
    except InvalidValue as error:
        raise InvalidValue(f"expected a number of bytes such as 16KB, not {value!r}", error.hint) from error
    if not 1 <= size <= MAX_REQUEST_COST or size.denominator != 1 or "/" in str(value):
        raise InvalidValue(f"request_cost must be a whole number of bytes from 1 to {MAX_REQUEST_COST}, not {value}")
    return int(size)
