"""What the page for browsers shows, as text and figures between 0 and 1, so that its script only draws. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from proxy.admin.explain import Finding, name_of
from proxy.admin.plain_text import amount_of, bytes_of, percent_of, seconds_of
from proxy.admin.verdict import Row, answers_none, is_silent
from proxy.observability.logs import one_line

#: What holds a client, as a cell shows it. Clients with another verdict are not held.
_HOLDS: Final = {
    "proxy": "memory of this proxy",
    "broker": "slow broker",
    "broker_quota": "broker quota",
    "limit": "at a limit",
    "slow_reader": "not reading responses",
}
_RANKS: Final = tuple(_HOLDS)
#: Smaller shares of a client's time are not visible in a bar.
_LEAST_SHARE: Final = 0.005
#: A limit that is higher than usage by this factor is not drawn: at that scale, the line of usage would be flat.
_OFF_THE_CHART: Final = 4

Shown = dict[str, Any]


def client_row(row: Row, finding: Finding, limits: Mapping[tuple[str, str], Row]) -> Shown:
    """`row` has its verdict. Sorted by `order`, the clients that wait most come first."""
    level, rank, holds = _holds(finding)
    held = finding.states.get(finding.verdict, 0) if level != "ok" else 0
    rate, used = row["produce_bytes_per_second"] + row["fetch_bytes_per_second"], row["used_ratio"]
    return {
        "name": name_of(row),
        "level": level,
        "cells": [holds, "", f"{bytes_of(rate)}/s", percent_of(used), str(row["connections"])],
        "sort": [held, held, rate, used or 0, row["connections"]],
        "order": [rank, -round(held, 1), -rate, row["client_id"]],
        "parts": {state: part for state, part in finding.states.items() if part >= _LEAST_SHARE},
        "text": [*filter(None, [one_line(row["software"])]), *finding.sentences],
        "chart": _client_chart(row, limits),
    }


def _holds(finding: Finding) -> tuple[str, int, str]:
    """Returns the level of a client, its rank in the list, and what holds it."""
    verdict = finding.verdict
    if verdict not in _HOLDS:
        return "ok", len(_RANKS), "nothing"
    if verdict == "broker" and any(map(answers_none, finding.brokers)):
        return "bad", -1, "silent broker" if any(map(is_silent, finding.brokers)) else "failing broker"
    words = f"{_HOLDS[verdict]} {finding.states.get(verdict, 0):.0%}"
    return "held" if verdict == "limit" else "bad", _RANKS.index(verdict), words


def _client_chart(row: Row, limits: Mapping[tuple[str, str], Row]) -> Shown:
    """A chart of its bytes with its nearest limit, or a chart of that limit if the limit does not count bytes."""
    nearest = _nearest(row, limits)
    if nearest is not None and "byte" not in nearest["limit"]:
        return _limit_chart(nearest)
    return _chart("bytes a second", row["line"], lambda value: f"{bytes_of(value)}/s", nearest)


def _nearest(row: Row, limits: Mapping[tuple[str, str], Row]) -> Row | None:
    """The limit that a client waited for most; otherwise the limit with the highest usage, if one is used."""
    waits = [limits.get((each["limit"], each["entity"])) for each in row["waits"]]
    used = [each for key in row["limits"] if (each := limits.get(tuple(key))) and each["used_ratio_60s"]]
    used.sort(key=lambda each: -each["used_ratio_60s"])
    return next(filter(None, [*waits, *used]), None)


def limit_row(row: Row) -> Shown:
    amount, waiting, used = _amounts(row), row["queued_connections"], row["used_ratio_60s"]
    shared = ", ".join(map(name_of, row["clients"])) + ", …" * (row["client_count"] > len(row["clients"]))
    fleet = f"this proxy's share of {amount(row['fleet_value'])} for the fleet {row['fleet']}" if "fleet" in row else ""
    text = (row["source"] and f"from {one_line(row['source'])}", shared and f"clients: {shared}", fleet)
    return {
        "name": f"{one_line(row['entity'])} {row['limit']}",
        "level": "held" if waiting else "ok",
        "cells": [amount(row["limit_value"]), percent_of(used), str(waiting), str(row["client_count"])],
        "sort": [row["limit_value"] or 0, used or 0, waiting, row["client_count"]],
        "order": [-waiting, -(used or 0), row["entity"], row["limit"]],
        "text": list(filter(None, text)),
        "chart": _limit_chart(row),
    }


def _limit_chart(row: Row) -> Shown:
    return _chart(f"used of {row['limit']}", row["line"], _amounts(row), row)


def broker_row(row: Row, waiting: int) -> Shown:
    """Sorted by `order`, brokers that do not answer come first. `waiting` counts the clients that wait for this
    broker.
    """
    is_bad, silent = answers_none(row), row["oldest_request_seconds"] if is_silent(row) else 0
    status = "answers" if not is_bad else f"no answer for {silent:.0f} s" if silent else f"failing: {row['failing']}"
    produce, others = _times(row["produce"], is_known=not is_bad), _times(row["others"], is_known=not is_bad)
    slow = [row["produce"]["p50_seconds"] or 0, row["others"]["p50_seconds"] or 0]
    return {
        "name": row["address"],
        "level": "bad" if is_bad else "ok",
        "cells": [status, produce.partition(",")[0], others.partition(",")[0], str(waiting)],
        "sort": [silent, *slow, waiting],
        "order": [not is_bad, -waiting, -max(slow), row["address"]],
        "text": [
            f"Produce requests: {produce}; others: {others}",
            f"{row['connections']} connections, {row['in_flight']} unanswered requests",
            *([f"{row['hint'][0].upper()}{row['hint'][1:]}"] if row["hint"] else []),
        ],
        "chart": _chart("mean time to answer", row["line"], seconds_of) | {"now": status if silent else ""},
    }


def _times(times: Row, *, is_known: bool) -> str:
    """The figures of a broker that does not answer are from before it stopped."""
    if not times["count"]:
        return "unknown"
    median = seconds_of(times["p50_seconds"])
    return f"{median}, 99 % within {seconds_of(times['p99_seconds'])}" if is_known else f"was {median}"


def _chart(what: str, line: Sequence[float | None], write: Callable[[float], str], limit: Row | None = None) -> Shown:
    """`points` and `mark` (the limit) are fractions of `top`. A limit far above the points has no mark."""
    most = max(filter(None, line), default=0.0)
    mark: float = (limit or {}).get("limit_value") or 0
    is_near = 0 < mark <= most * _OFF_THE_CHART
    top = max(most, mark * is_near) or 1
    return {
        "what": what,
        "points": [None if each is None else round(each / top, 2) for each in line],
        "top": write(top) if most else "",
        "mark": round(mark / top, 2) if is_near else None,
        "limit": f"{_named(limit)}: {write(mark)}{'' if is_near else ', above this chart'}" if limit else "",
    }


def _named(limit: Row) -> str:
    shared = f", shared by {limit['client_count']} clients" if limit["client_count"] > 1 else ""
    return f"{limit['limit']} of {one_line(limit['entity'])}{shared}"


def _amounts(limit: Row) -> Callable[[float], str]:
    return lambda value: f"{amount_of(limit['limit'], value)}/s"
