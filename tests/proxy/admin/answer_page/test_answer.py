"""The answer to "Is it the proxy?", one situation after the other, and what the page draws of the same rows."""

import json
from collections import Counter
from typing import Any, NamedTuple

import pytest

from proxy.admin.answer_page.answer import MOST_ANSWERS, Load, answers, awaited
from proxy.admin.answer_page.rows import broker_row, client_row, limit_row
from proxy.admin.explain import explain, refused, without_broker
from proxy.admin.tables import with_verdicts
from proxy.admin.verdict import Known
from tests.docs.pages import ROOT, rows
from tests.proxy.admin.test_explain import BROKER, DOWN, FROZEN, LIMIT, NEVER, SLOW, client

pytestmark = pytest.mark.claim(
    "limits",
    "transcripts, log lines and names in troubleshooting; what explain concludes; whether it is "
    "the proxy, the worst cause first",
)

Rows = list[dict[str, Any]]
KEY = {"limit": "producer_byte_rate", "entity": "client-id:etl"}
FILE_LIMIT: dict[str, Any] = {**LIMIT, "source": "quotas.toml:3", "line": [1_990_000.0], "rate_10s": 1_990_000.0}
FLEET_LIMIT = {**FILE_LIMIT, "fleet": "team", "fleet_members": 4, "fleet_value": 8_000_000}
REFUSES_LOGIN = {**DOWN, "failing": "login_refused", "hint": "see sasl.jaas.config in --command-config FILE"}
TLS = refused({"peer": "10.0.0.7:1", "reason": "tls_handshake"})


def row(name: str, states: dict[str, float], **changes: Any) -> dict[str, Any]:
    return client(states, client_id=name, **{"buffered_bytes": 0, "software": "", "line": [9.0, 9.0], **changes})


def held(name: str, states: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    return row(name, states or {"limit": 1.0}, waits=[{**KEY, "seconds": 55.0, "lasting_seconds": 300}], **changes)


HEALTHY = row("job", {"client": 0.9, "broker": 0.1})
STUCK = row("flights", {"broker": 1.0}, brokers=["b3:9092"], oldest_request_seconds=7.0)
SLOWED = row("orders", {"broker": 1.0}, brokers=["b1:9092", "b2:9092"])


def answered(clients: Rows, brokers: Rows = [BROKER], *, limit: Any = FILE_LIMIT, **more: Any) -> list[str]:  # noqa: B006
    load, failed = more.get("load", Load()), more.get("refused", [])
    found = [explain(each, Known([limit], brokers, [], [])) for each in clients]
    return [str(each) for each in answers(with_verdicts(clients, found), [limit], brokers, failed, load)]


class Situation(NamedTuple):
    says: str
    clients: Rows
    more: dict[str, Any]


def when(says: str, *clients: dict[str, Any], **more: Any) -> Situation:
    return Situation(says, list(clients), more)


OUT_OF_MEMORY = "Yes: this proxy has no memory left (--max-buffered-bytes)"
SITUATIONS = [
    when("No: no client is connected, and no client has sent a request in the last minute", brokers=[]),
    when("No: nothing waits; 11 clients, and brokers answer within 3 ms", *11 * [HEALTHY]),
    when(
        "No: nothing waits; 2 clients. Limits are not enforced now: this is a dry run, or they are switched off",
        *[HEALTHY, HEALTHY],
        brokers=[],
        load=Load(enforces=False),
    ),
    when("No: broker b3:9092 has not answered for 7 s; 1 client waits", HEALTHY, STUCK, brokers=[BROKER, FROZEN]),
    when(
        "No: brokers b3:9092 and b4:9092 have not answered for 12 s; 2 clients wait",
        *[STUCK, STUCK],
        brokers=[FROZEN, {**FROZEN, "address": "b4:9092", "oldest_request_seconds": 12.0}],
    ),
    when(
        "No: broker b5:9092 cannot be used (connect_refused): nothing listens there; 1 client waits",
        row("flights", {"broker": 1.0}, brokers=[], connections=0),
        brokers=[DOWN],
    ),
    when(
        "Yes: broker b5:9092 cannot be used (login_refused): see sasl.jaas.config in --command-config FILE;"
        " no client waits",
        HEALTHY,
        brokers=[REFUSES_LOGIN],
    ),
    when("No: broker b2:9092 takes 400 ms to answer; 1 client waits", SLOWED, brokers=[BROKER, SLOW]),
    when(
        "No: nothing waits; 1 client, and brokers answer within 400 ms",
        {**SLOWED, "connections": 0},
        brokers=[BROKER, SLOW],
    ),
    when(
        "Yes, as configured: etl is held to 2 MB/s by producer_byte_rate of client-id:etl (quotas.toml:3)", held("etl")
    ),
    when(
        "Yes, as configured: a, b and c are held to 2 MB/s here, a share of 8 MB/s for the fleet team,"
        " by producer_byte_rate of client-id:etl (quotas.toml:3)",
        *map(held, "abc"),
        limit=FLEET_LIMIT,
    ),
    when(
        "Yes, as configured: 12 clients are held by producer_byte_rate of client-id:etl",
        *(held(f"job-{number}") for number in range(12)),
        limit={**FILE_LIMIT, "entity": "gone"},
    ),
    when("No: a broker quota throttles billing", row("billing", {"broker_quota": 1.0})),
    when("No: responses are waiting for reports to read them", row("reports", {"slow_reader": 1.0})),
    when(
        f"{OUT_OF_MEMORY}; 1 client waits; reports holds the most, 41 MB",
        row("etl", {"proxy": 1.0}),
        row("reports", {"data": 1.0}, buffered_bytes=41_000_000),
    ),
    when(f"{OUT_OF_MEMORY}, or has to log in; 2 clients wait", row("a", {"proxy": 1.0}), row("b", {"proxy": 1.0})),
    when(
        "Yes: this proxy is the bottleneck: its event loop is busy 97% of the time."
        " One process uses one core: run several; 1 client waits",
        HEALTHY,
        load=Load(late_seconds=0.08, busy_ratio=0.97),
    ),
    when(
        "Yes: this proxy gets too little CPU time: its event loop is 80 ms late, and busy only 20% of the time;"
        " 1 client waits",
        HEALTHY,
        load=Load(late_seconds=0.08, busy_ratio=0.2),
    ),
    when("No: a connection from 10.0.0.7:1 failed: tls_handshake", brokers=[], refused=[TLS]),
    when(
        "No: 2 connections are waiting for a broker, the oldest for 8 s: no broker answers",
        brokers=[],
        refused=[without_broker(2, 8.0)],
    ),
]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_one_cause(situation: Situation) -> None:
    assert answered(situation.clients, **situation.more) == [situation.says]


def test_many_brokers_are_counted() -> None:
    dead = [{**FROZEN, "address": f"b{number}:9092"} for number in range(20)]
    assert answered([STUCK], dead) == ["No: brokers b0:9092 and 19 more have not answered for 7 s; 1 client waits"]


def test_the_docs_have_answers_that_are_given() -> None:
    listed = {
        each[0] for each in rows((ROOT / "docs/alerts.md").read_text(encoding="utf-8")) if each[0][:3] in {"No:", "Yes"}
    }
    assert len(listed) >= 8
    assert listed <= {each.says for each in SITUATIONS}


def test_the_worst_comes_first_and_what_nobody_waits_for_last() -> None:
    clients = [held("etl"), SLOWED, STUCK, row("slow", {"slow_reader": 1.0})]
    found = answered(clients, [BROKER, SLOW, FROZEN, REFUSES_LOGIN], load=Load(busy_ratio=0.95), refused=[TLS])
    assert len(found) == MOST_ANSWERS
    first = ("this proxy is the bottleneck", "b3:9092 has not answered", "b2:9092 takes", "etl is held", "slow")
    assert all(words in line for words, line in zip(first, found, strict=True))
    for lines, one, other in (
        (answered([held("etl")], [BROKER, REFUSES_LOGIN]), "held to", "login_refused"),
        (answered([HEALTHY], refused=[TLS]), "nothing waits", "tls_handshake"),
    ):
        assert one in lines[0]
        assert other in lines[1]


# ---- the rows that the page draws
def drawn(clients: Rows, brokers: Rows) -> tuple[Rows, Rows]:
    found = [explain(each, Known([FILE_LIMIT], brokers, [], [])) for each in clients]
    rows = with_verdicts(clients, found)
    limits = {(FILE_LIMIT["limit"], FILE_LIMIT["entity"]): FILE_LIMIT}
    shown = [client_row(each, finding, limits) for each, finding in zip(rows, found, strict=True)]
    waiting = Counter(address for each in rows for address in awaited(each, brokers))
    at = [
        broker_row({"connections": 1, "in_flight": 1, "line": [], **each}, waiting[each["address"]]) for each in brokers
    ]
    json.dumps([shown, at])
    return sorted(shown, key=lambda each: each["order"]), sorted(at, key=lambda each: each["order"])


def test_who_waits_most_comes_first() -> None:
    clients = [HEALTHY, held("some", {"limit": 0.3, "broker": 0.7}), held("most"), SLOWED, STUCK]
    shown, _ = drawn(clients, [BROKER, SLOW, FROZEN])
    assert [each["name"] for each in shown] == ["flights", "orders", "most", "some", "job"]
    assert [each["cells"][0] for each in shown] == [
        "silent broker",
        "slow broker 100%",
        "at a limit 100%",
        "at a limit 30%",
        "nothing",
    ]
    assert [each["level"] for each in shown] == ["bad", "bad", "held", "held", "ok"]
    assert all(len(each["sort"]) == len(each["cells"]) for each in shown)


def test_brokers_that_do_not_answer_come_first_and_unknown_times_are_no_zeros() -> None:
    idle = {**BROKER, "address": "b9:9092", "produce": NEVER}
    _, shown = drawn([STUCK], [BROKER, idle, SLOW, {**FROZEN, "line": [0.004, None]}])
    assert [each["name"] for each in shown] == ["b3:9092", "b2:9092", "b1:9092", "b9:9092"]
    assert shown[0]["cells"] == ["no answer for 7 s", "was 3 ms", "unknown", "1"]
    assert (shown[0]["level"], shown[0]["chart"]["now"]) == ("bad", "no answer for 7 s")
    assert shown[0]["chart"]["points"] == [1.0, None]
    assert shown[2]["cells"][:3] == ["answers", "3 ms", "unknown"]
    assert shown[3]["cells"][:3] == ["answers", "unknown", "unknown"]


def test_the_chart_of_a_client_has_its_limit_by_name() -> None:
    (shown,), _ = drawn([held("etl", line=[1_000_000, 2_000_000])], [BROKER])
    assert shown["chart"] == {
        "what": "bytes a second",
        "points": [0.5, 1.0],
        "top": "2 MB/s",
        "mark": 1.0,
        "limit": "producer_byte_rate of client-id:etl, shared by 2 clients: 2 MB/s",
    }
    (far,), _ = drawn([row("etl", {"client": 1.0}, line=[1_000])], [BROKER])
    assert (far["chart"]["points"], far["chart"]["mark"]) == ([1.0], None)
    assert far["chart"]["limit"].endswith("2 MB/s, above this chart")
    (free,), _ = drawn([row("etl", {"client": 1.0}, limits=[])], [BROKER])
    assert (free["chart"]["mark"], free["chart"]["limit"]) == (None, "")


def test_a_limit_that_counts_no_bytes_has_a_chart_of_its_own_use() -> None:
    requests = {**FILE_LIMIT, "limit": "request_rate", "limit_value": 10, "line": [5.0]}
    key = ("request_rate", "client-id:etl")
    waits = [{"limit": key[0], "entity": key[1], "seconds": 5.0, "lasting_seconds": 10}]
    each = row("etl", {"limit": 1.0}, waits=waits)
    found = explain(each, Known([requests], [BROKER], [], []))
    shown = client_row({**each, "verdict": found.verdict, "used_ratio": 0.5}, found, {key: requests})
    assert shown["chart"] == limit_row(requests)["chart"]
    assert (shown["chart"]["points"], shown["chart"]["mark"], shown["chart"]["top"]) == ([0.5], 1.0, "10/s")
