"""Tables of clients, limits and brokers, for `top` and for pages with `Accept: text/plain`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from proxy.admin.explain import Finding
from proxy.admin.plain_text import aligned, amount_of, bytes_of, percent_of, seconds_of
from proxy.observability.logs import one_line

Row = Mapping[str, Any]
Columns = Sequence[tuple[str, Callable[[Row], str]]]
#: Longer names are cut, so that a row fits on a line of a terminal.
_WIDTH: Final = 28


def _name(text: str) -> str:
    text = one_line(text) or "-"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _times(row: Row) -> str:
    return f"{seconds_of(row['p50_seconds'])} / {seconds_of(row['p99_seconds'])}" if row["count"] else ""


def _bounds(moves: Row) -> str:
    return f"{bytes_of(moves['least'])} and {bytes_of(moves['most'])}"


CLIENTS: Final[Columns] = (
    ("CLIENT", lambda row: _name(row["client_id"])),
    ("USER", lambda row: _name(row["user"])),
    ("CONN", lambda row: str(row["connections"])),
    ("IN/S", lambda row: bytes_of(row["produce_bytes_per_second"])),
    ("OUT/S", lambda row: bytes_of(row["fetch_bytes_per_second"])),
    ("REQ/S", lambda row: f"{row['requests_per_second']:.4g}"),
    ("REQ AVG", lambda row: bytes_of(row["bytes_per_request"])),
    ("LIMIT", lambda row: percent_of(row["states"].get("limit"))),
    ("BROKER", lambda row: percent_of(row["states"].get("broker"))),
    ("USED", lambda row: percent_of(row.get("used_ratio"))),
    ("VERDICT", lambda row: row.get("verdict", "")),
)
LIMITS: Final[Columns] = (
    ("LIMIT", lambda row: row["limit"]),
    ("ENTITY", lambda row: _name(row["entity"])),
    ("VALUE/S", lambda row: amount_of(row["limit"], row["limit_value"])),
    ("REQ MIN", lambda row: bytes_of(row["request_cost"]) if row.get("request_cost") else ""),
    ("10 S", lambda row: "" if row["rate_10s"] is None else amount_of(row["limit"], row["rate_10s"])),
    ("60 S", lambda row: "" if row["rate_60s"] is None else amount_of(row["limit"], row["rate_60s"])),
    ("USED", lambda row: percent_of(row["used_ratio_60s"])),
    ("WAITING", lambda row: percent_of(row["waiting_ratio"])),
    ("CONN", lambda row: str(row["queued_connections"])),
    ("CLIENTS", lambda row: str(row["client_count"])),
    ("BETWEEN", lambda row: _bounds(row["moves"]) if "moves" in row else ""),
    ("SOURCE", lambda row: _name(row["source"])),
)
BROKERS: Final[Columns] = (
    ("BROKER", lambda row: row["address"]),
    ("CONN", lambda row: str(row["connections"])),
    ("OPEN", lambda row: str(row["in_flight"])),
    ("OLDEST", lambda row: seconds_of(row["oldest_request_seconds"]) if row["oldest_request_seconds"] else ""),
    ("PRODUCE p50 / p99", lambda row: _times(row["produce"])),
    ("OTHERS p50 / p99", lambda row: _times(row["others"])),
    ("FAILING", lambda row: row["failing"] or ""),
)

TABLES: Final = {"clients": CLIENTS, "limits": LIMITS, "brokers": BROKERS}


def with_verdicts(clients: Sequence[Row], findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The rows of clients, with the verdict of `explain` and the used share of the nearest limit."""
    return [
        {
            **row,
            "verdict": each.verdict,
            "used_ratio": max(
                (ratio for limit in each.limits if (ratio := limit["used_ratio_60s"]) is not None), default=None
            ),
        }
        for row, each in zip(clients, findings, strict=True)
    ]


def table(columns: Columns, rows: Sequence[Row], most: int = 1_000) -> str:
    """One aligned line for each row below the headings, with names on the left and figures on the right."""
    cells = [[heading for heading, _ in columns], *([cell(row) for _, cell in columns] for row in rows[:most])]
    last = len(columns) - 1
    return aligned(cells, [1 < number < last for number in range(len(columns))], len(rows) - most)
