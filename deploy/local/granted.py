"""What all members of a fleet might use of one limit together, at each moment, from the `fleet_lent` lines of their
logs (`--log-level debug`). All are on one host, so that their times are of one clock. Nothing is sampled.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

FOREVER_NS = 1 << 63


@dataclass(frozen=True, slots=True)
class Grant:
    """What a member may use from some moment between `asked_ns` and `set_ns` on: `rate` until `until_ns`, then `floor`.

    limit: its name and its entity.
    """

    limit: str
    rate: float
    floor: float
    until_ns: int
    asked_ns: int
    set_ns: int


def grants_in(log: Iterable[str]) -> dict[str, list[Grant]]:
    """By member, of the lines of a log in JSON, or of several that were put together."""
    return grants_of(json.loads(line) for line in log if '"fleet_lent"' in line)


def grants_of(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Grant]]:
    """By member, of the events of a log."""
    found: dict[str, list[Grant]] = {}
    for fields in events:
        if fields["event"] == "fleet_lent":
            limit = f"{fields['entity']} {fields['limit']}"
            values = (fields[name] for name in ("rate", "floor", "until_ns", "asked_ns", "set_ns"))
            found.setdefault(fields["member"], []).append(Grant(limit, *values))
    return found


def most_granted(members: Iterable[Sequence[Grant]], since_ns: int = 0) -> tuple[float, int]:
    """The largest sum at a moment from `since_ns` on, and the first such moment; (0, since_ns) without members."""
    most, most_ns = 0.0, since_ns
    for at_ns, end_ns, total in _sums(members):
        if end_ns > since_ns and total > most:
            most, most_ns = total, max(at_ns, since_ns)
    return most, most_ns


def reached_ns(members: Iterable[Sequence[Grant]], rate: float, since_ns: int) -> int | None:
    """The first moment from `since_ns` on at which the sum is `rate` or more; None: there is none."""
    moments = (max(at_ns, since_ns) for at_ns, end_ns, total in _sums(members) if end_ns > since_ns and total >= rate)
    return next(moments, None)


def _sums(members: Iterable[Sequence[Grant]]) -> Iterator[tuple[int, int, float]]:
    """From when until when all together might use what."""
    steps = [(at_ns, number, rate) for number, each in enumerate(members) for at_ns, rate in _steps(each)]
    steps.sort(key=lambda step: step[0])
    rates: dict[int, float] = {}
    for (at_ns, number, rate), (end_ns, *_) in pairwise([*steps, (FOREVER_NS, 0, 0.0)]):
        rates[number] = rate
        if end_ns > at_ns:
            yield at_ns, end_ns, round(sum(rates.values()), 3)  # they are whole thousandths, and floats


def _steps(changes: Sequence[Grant]) -> Iterator[tuple[int, float]]:
    """From when on one member may use what. While a rate is set, the old one may be in force, or the new one."""
    before = 0.0
    ends = [each.asked_ns for each in changes[1:]]
    for each, end_ns in zip(changes, [*ends, FOREVER_NS], strict=True):
        yield each.asked_ns, max(before, each.rate)
        yield each.set_ns, each.rate
        before = each.rate
        if each.until_ns < end_ns:
            yield max(each.until_ns, each.set_ns), each.floor
            before = each.floor
