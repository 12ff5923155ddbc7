"""What members might use together, on histories worked out by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.granted import Grant, grants_in, most_granted

LATER = 1 << 62


def grant(rate: float, at_ns: int, until_ns: int = LATER, took_ns: int = 0) -> Grant:
    return Grant("total producer_byte_rate", rate, 1, until_ns, at_ns, at_ns + took_ns)


def test_a_lease_ends_with_the_floor_unless_it_was_renewed() -> None:
    other = [grant(40, 0), grant(99, 150)]
    assert most_granted([[grant(60, 0, 150)], other]) == (100, 0)
    assert most_granted([[grant(60, 0, 151)], other]) == (159, 150)
    assert most_granted([[grant(60, 0, 150), grant(60, 120)], other]) == (159, 150)


def test_lines_of_a_log_are_read_by_member() -> None:
    fields = {"event": "fleet_lent", "limit": "request_rate", "entity": "user:a", "rate": 5.5, "floor": 1.0}
    times = {"until_ns": LATER, "asked_ns": 3, "set_ns": 4}
    lines = [json.dumps(fields | times | {"member": name}) for name in ("a", "b", "a")]
    found = grants_in(["not JSON", '{"event": "listening"}', *lines])
    assert found == {"a": [Grant("user:a request_rate", 5.5, 1, LATER, 3, 4)] * 2, "b": [found["a"][0]]}


@given(st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 60)), min_size=1), max_size=3))
def test_it_is_the_sum_at_each_nanosecond(drawn: list[list[tuple[int, int, int]]]) -> None:
    members = [[grant(rate, at, until) for at, rate, until in sorted(each)] for each in drawn]

    def rate_at(changes: list[Grant], now_ns: int) -> float:
        last = [each for each in changes if each.asked_ns <= now_ns][-1:]
        return sum(each.floor if now_ns >= each.until_ns else each.rate for each in last)

    expected = max(sum(rate_at(each, now_ns) for each in members) for now_ns in range(120))
    assert most_granted(members)[0] == pytest.approx(expected)
