"""What members might use together, on histories worked out by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.lent import Lent, lent_in, most_lent, reached_ns

LATER = 1 << 62


def lent(rate: float, at_ns: int, until_ns: int = LATER, took_ns: int = 0) -> Lent:
    return Lent("total producer_byte_rate", rate, 1, until_ns, at_ns, at_ns + took_ns)


def test_one_that_rises_after_another_has_fallen_is_within_the_sum() -> None:
    one = [lent(60, 0), lent(10, 100)]
    assert most_lent([one, [lent(40, 0), lent(90, 101)]]) == (100, 0)
    assert most_lent([one, [lent(40, 0), lent(90, 99)]]) == (150, 99)


def test_while_a_rate_is_set_the_higher_one_counts() -> None:
    falls, rises = [lent(60, 0), lent(10, 100, took_ns=5)], [lent(40, 0), lent(90, 200, took_ns=5)]
    assert most_lent([falls, [lent(40, 0), lent(50, 104)]]) == (110, 104)
    assert most_lent([rises, [lent(60, 0), lent(10, 201)]]) == (150, 200)


def test_a_lease_ends_with_the_floor_unless_it_was_renewed() -> None:
    other = [lent(40, 0), lent(99, 150)]
    assert most_lent([[lent(60, 0, 150)], other]) == (100, 0)
    assert most_lent([[lent(60, 0, 151)], other]) == (159, 150)
    assert most_lent([[lent(60, 0, 150), lent(60, 120)], other]) == (159, 150)


def test_what_was_before_does_not_count() -> None:
    members = [[lent(90, 0), lent(30, 100)], [lent(50, 0)]]
    assert most_lent(members, 99) == (140, 99)
    assert most_lent(members, 100) == (80, 100)
    assert most_lent([], 7) == (0, 7)


def test_when_a_sum_is_reached() -> None:
    members = [[lent(60, 0), lent(10, 100, took_ns=5)], [lent(40, 0, 50)]]
    assert reached_ns(members, 100, 0) == 0
    assert reached_ns(members, 61, 49) == 49
    assert reached_ns(members, 61, 50) == 50, "the floor is 1"
    assert reached_ns(members, 62, 50) is None
    assert reached_ns(members, 11, 200) == 200


def test_lines_of_a_log_are_read_by_member() -> None:
    fields = {"event": "fleet_lent", "limit": "request_rate", "entity": "user:a", "rate": 5.5, "floor": 1.0}
    times = {"until_ns": LATER, "asked_ns": 3, "set_ns": 4}
    lines = [json.dumps(fields | times | {"member": name}) for name in ("a", "b", "a")]
    found = lent_in(["not JSON", '{"event": "listening"}', *lines])
    assert found == {"a": [Lent("user:a request_rate", 5.5, 1, LATER, 3, 4)] * 2, "b": [found["a"][0]]}


@given(st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 60)), min_size=1), max_size=3))
def test_it_is_the_sum_at_each_nanosecond(drawn: list[list[tuple[int, int, int]]]) -> None:
    members = [[lent(rate, at, until) for at, rate, until in sorted(each)] for each in drawn]

    def rate_at(changes: list[Lent], now_ns: int) -> float:
        last = [each for each in changes if each.asked_ns <= now_ns][-1:]
        return sum(each.floor if now_ns >= each.until_ns else each.rate for each in last)

    expected = max(sum(rate_at(each, now_ns) for each in members) for now_ns in range(120))
    assert most_lent(members)[0] == pytest.approx(expected)
