"""The tables of `top`: aligned, and names that clients choose are text."""

from typing import Any

import pytest

from proxy.admin.tables import CLIENTS, LIMITS, Columns, table

CLIENT = {
    "client_id": "etl",
    "user": "ANONYMOUS",
    "connections": 2,
    "produce_bytes_per_second": 1_990_000,
    "fetch_bytes_per_second": 0,
    "requests_per_second": 20.25,
    "bytes_per_request": 98_300,
    "states": {"limit": 0.9123, "broker": 0.05},
    "used_ratio": 0.995,
    "verdict": "limit",
}
LIMIT = {
    "limit": "producer_byte_rate",
    "entity": "client-id:etl",
    "limit_value": 2_000_000,
    "source": "--quota",
    "rate_10s": None,
    "rate_60s": 1_990_000.0,
    "used_ratio_60s": 0.995,
    "waiting_ratio": 0.91,
    "queued_connections": 2,
    "client_count": 1,
}
#: Escape, bell, both kinds of line ends, the reader's own direction, a line separator, C1's CSI, half a surrogate pair.
HOSTILE = "\x1b[2J\x07\r\n\u202e\u2028\x9b31m\udc80<b>"


def test_names_stand_left_and_figures_right() -> None:
    shown = table(CLIENTS, [CLIENT, {**CLIENT, "client_id": "a", "user": "", "connections": 100, "used_ratio": None}])
    heading, first, second = shown.splitlines()
    assert " ".join(heading.split()) == "CLIENT USER CONN IN/S OUT/S REQ/S REQ AVG LIMIT BROKER USED VERDICT"
    assert " ".join(first.split()) == "etl ANONYMOUS 2 1.99 MB 0 B 20.25 98.3 kB 91% 5% 100% limit"
    assert second.startswith("a       -           100  ")
    assert heading.index("VERDICT") == first.index("limit") == second.index("limit")
    assert table(LIMITS, [LIMIT] * 5, most=3).splitlines()[-1] == "... and 2 more"


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (CLIENTS, {**CLIENT, "client_id": HOSTILE, "user": HOSTILE}),
        (CLIENTS, {**CLIENT, "client_id": 500 * HOSTILE}),
        (LIMITS, {**LIMIT, "entity": f"client-id:{HOSTILE}"}),
    ],
)
def test_what_a_client_calls_itself_is_one_short_line_of_text(columns: Columns, row: dict[str, Any]) -> None:
    ordinary = table(columns, [CLIENT if columns is CLIENTS else LIMIT])
    shown = table(columns, [row])
    assert shown.count("\n") == 2
    assert all(line.isprintable() for line in shown.splitlines())
    assert max(map(len, shown.splitlines())) < max(map(len, ordinary.splitlines())) + 60
    assert "\\u001b[2J" in shown
