"""What the members of a fleet answer, as one table and as sentences."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admin.fleet_members import MemberAnswer
from proxy.admin.fleet_view import columns_of, explanation, members_of, merged, short_names, unanswered
from proxy.admin.tables import TABLES, table
from tests.proxy.admin import rows

pytestmark = pytest.mark.claim("fleet", "one table over all members, with clients summed, and who did not answer")

LIMITED = [{"limit": "producer_byte_rate", "entity": "client-id:etl", "seconds": 30.0}]


def client(verdict: str, **changes: Any) -> dict[str, Any]:
    row = rows.client("etl", {"limit": 0.8, "client": 0.2}, 1_000, 10.0)
    return row | {"verdict": verdict, "used_ratio": 0.5, "waits": LIMITED if verdict == "limit" else []} | changes


def answer(number: int, page: Any = None, problem: str = "") -> MemberAnswer:
    return MemberAnswer(f"pod-{number}/{number:016x}", f"10.0.0.{number}:19404", page, problem)


def test_a_client_is_summed_over_all_members() -> None:
    verdicts = ["broker"] + ["limit"] * 31 + ["none"] * 8
    answers = [answer(number, [client(verdict)]) for number, verdict in enumerate(verdicts)]
    answers = [*answers, answer(99, problem="no answer within 2 s")]
    lines = list(explanation(merged("clients", answers), answers, as_json=False))
    assert lines == [
        "40 of 41 members answered",
        "",
        "etl is at its limit in 31 of 40 proxies; pod-0 alone waits for a slow broker",
        "  40 connections: 400 kB/s in, 0 B/s out, 400 requests a second",
        "  it waits for producer_byte_rate of client-id:etl in 31 of 40 proxies",
        "  why in pod-0: kafka-quota-proxy explain etl --proxy 10.0.0.0:19404",
        "",
        "pod-99/0000000000000063 (10.0.0.99:19404): no answer within 2 s",
    ]
    [row] = merged("clients", answers)
    assert (row["members"], row["connections"], row["used_ratio"], row["bytes_per_request"]) == (40, 40, 0.5, 1_000)
    assert row["states"]["limit"] == pytest.approx(0.8)
    assert table(columns_of("clients"), [row]).splitlines()[1].split()[-3:] == ["limit", "31/40", "40"]


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["none", "data"], "etl: neither a proxy nor a broker holds it back in 2 proxies"),
        (["broker"], "etl: pod-0 alone waits for a slow broker"),
        (["proxy", "none", "proxy"], "etl waits for the proxy in 2 of 3 proxies (pod-0, pod-2)"),
        (
            ["limit", "slow_reader"],
            "etl: pod-0 alone is at its limit; pod-1 alone does not read its responses fast enough",
        ),
    ],
)
def test_verdicts_in_one_sentence(verdicts: list[str], expected: str) -> None:
    answers = [answer(number, [client(verdict)]) for number, verdict in enumerate(verdicts)]
    assert list(explanation(merged("clients", answers), answers, as_json=False))[2] == expected


def test_a_limit_that_the_fleet_shares_counts_once_and_others_once_for_each_member() -> None:
    own = {"limit": "request_rate", "entity": "total", "limit_value": 10, "rate_60s": 5.0, "rate_10s": None}
    shared = {"limit": "producer_byte_rate", "entity": "total", "limit_value": 1, "rate_60s": 400.0} | {
        "fleet_value": 1_000
    }
    found = merged("limits", [answer(number, [own, shared]) for number in range(2)])
    assert [(row["limit"], row["limit_value"], row["rate_60s"], row["used_ratio_60s"]) for row in found] == [
        ("producer_byte_rate", 1_000, 800, 0.8),
        ("request_rate", 20, 10, 0.5),
    ]


def test_a_broker_is_as_slow_as_the_member_that_waits_longest_finds_it() -> None:
    def broker(seconds: float) -> dict[str, Any]:
        times = {"count": 3, "p50_seconds": seconds, "p99_seconds": 2 * seconds}
        return {
            "address": "b:9092",
            "connections": 2,
            "in_flight": 1,
            "oldest_request_seconds": 0.1,
            "failing": None,
        } | {"produce": times, "others": times}

    [row] = merged("brokers", [answer(1, [broker(0.01)]), answer(2, [broker(0.5)])])
    assert (row["connections"], row["produce"]["p50_seconds"], row["others"]["count"]) == (4, 0.5, 6)


def test_the_state_of_each_member() -> None:
    page = {"joined": True, "members": 2, "shared_limits": 3, "delivery_seconds": 0.012}
    lines = list(
        members_of([answer(1, page), answer(2, page | {"joined": False}), answer(3, problem="gone")], as_json=False)
    )
    assert [" ".join(line.split()) for line in "\n".join(lines).splitlines()] == [
        "MEMBER ADDRESS JOINED SEES LIMITS RECORD",
        "pod-1/0000000000000001 10.0.0.1:19404 yes 2 3 12 ms",
        "pod-2/0000000000000002 10.0.0.2:19404 no 2 3 12 ms",
        "pod-3/0000000000000003 (10.0.0.3:19404): gone",
    ]


def test_a_member_is_called_by_its_host_if_that_is_its_own() -> None:
    names = ["a/1", "a/2", "b/3", "4"]
    assert short_names(MemberAnswer(name, "") for name in names) == {"a/1": "a/1", "a/2": "a/2", "b/3": "b", "4": "4"}


KEYS = [
    "client_id",
    "user",
    "verdict",
    "states",
    "waits",
    "limit",
    "entity",
    "connections",
    "address",
    "produce",
    "failing",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("\x1b[2J\n"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=25,
)


@given(st.lists(JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON), max_size=4), max_size=3))
def test_no_answer_is_a_command_to_a_terminal_or_an_error(pages: list[Any]) -> None:
    answers = [answer(number, page) for number, page in enumerate(pages)] + [answer(9, problem="\x1b[2J")]
    lines = [
        *explanation(merged("clients", answers), answers, as_json=False),
        *members_of(answers, as_json=False),
        *unanswered(answers),
    ]
    list(explanation(merged("clients", answers), answers, as_json=True))
    lines += [table(columns_of(what), merged(what, answers)) for what in TABLES]
    assert all(part.isprintable() for line in lines for part in line.split("\n"))
