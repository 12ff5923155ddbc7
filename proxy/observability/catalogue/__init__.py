"""What every metric and every event of the log means, and what an operator does about it: texts for people, in TOML.

/metrics takes types, labels and HELP lines from `METRICS`. docs/reference is written from both tables, and tests
compare them with what the code counts and logs.
"""

import tomllib
from importlib.resources import files
from typing import Any, Final, NamedTuple


class MetricInfo(NamedTuple):
    """A metric: "counter", "gauge" or "histogram", its labels, its HELP line, and what to do about it."""

    type: str
    labels: tuple[str, ...]
    text: str
    do: str


class EventInfo(NamedTuple):
    """An event of the log: its level in lower case, what it means, and what to do about it."""

    level: str
    text: str
    do: str


def _tables(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))


METRICS: Final = {
    name: MetricInfo(each["type"], tuple(each.get("labels", ())), each["text"], each.get("do", ""))
    for name, each in _tables("metrics.toml").items()
}
"""By name, without prefix and suffix."""


def events() -> dict[str, EventInfo]:
    """Every event, by name. Read when it is asked for: the proxy itself needs none of them."""
    return {
        name: EventInfo(each["level"], each["text"], each.get("do", ""))
        for name, each in _tables("log_events.toml").items()
    }
