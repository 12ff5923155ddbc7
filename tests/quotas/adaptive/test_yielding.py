"""The rule for a rate that uses what protected clients leave: each sentence of its module, in a virtual second."""

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.adaptive.yielding import (
    ABSENT_NS,
    SILENT_NS,
    Signal,
    State,
    Terms,
    Window,
    Yielding,
    advertised,
    agreed,
    evened_out,
)
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

MB = 1_000_000
TARGET_NS = 50 * NS_PER_MS
TERMS = Terms(1 * MB, 200 * MB, TARGET_NS)
GOOD, SLOW = Window(100), Window(100, 3, 3 * TARGET_NS, near=3)


def yielding(rate: float = 100 * MB) -> Yielding:
    return Yielding(TERMS, rate, 0)


def after(rule: Yielding, *windows: Mapping[str, Window], used: bool = True, since: int = 0) -> float:
    """The rate after one of these windows each second."""
    for second, each in enumerate(windows, since + 1):
        rule.decide(each, second * NS_PER_SECOND, is_used=used)
    return rule.rate


@pytest.mark.parametrize(
    ("window", "exceeds"),
    [
        (Window(19, 19, 1), None),
        (Window(20, 2, 1), False),
        (Window(20, 3, 1), True),
        (Window(300, 3, 1), False),
        (Window(299, 3, 1), True),
    ],
)
def test_a_window_exceeds_with_more_than_1_percent_and_3_above_the_target(window: Window, exceeds: bool | None) -> None:
    assert window.exceeds is exceeds


def test_only_requests_that_were_sent_after_the_last_cut_count() -> None:
    signal = Signal(TARGET_NS)
    signal.take(1_000, TARGET_NS)
    signal.answered(1_000, 2 * TARGET_NS)
    signal.answered(1_001, 2 * TARGET_NS)
    signal.answered(1_001, TARGET_NS // 2)
    signal.waits(7)
    assert signal.take(0, TARGET_NS) == Window(2, 1, TARGET_NS, 7, 1)
    assert signal.take(0, TARGET_NS) == Window()


def test_three_of_six_windows_cut_once_a_second_by_the_excess() -> None:
    rule = yielding()
    assert after(rule, *[{"1": each} for each in (SLOW, GOOD, GOOD, SLOW, GOOD)], used=False) == 100 * MB
    assert after(rule, {"1": SLOW}, used=False, since=5) == 75 * MB  # the excess is the target
    rule.decide({"1": SLOW}, 6_500_000_000, is_used=False)
    assert rule.rate == 75 * MB
    half = Window(100, 10, 5 * TARGET_NS)
    assert after(rule, {"1": half}, since=7) == pytest.approx(75 * MB * 0.875)
    assert rule.cause is not None
    assert rule.cause.broker == "1"


def test_one_slow_broker_is_enough_and_few_requests_to_each_broker_count_together() -> None:
    few, slow = Window(7), Window(7, 7, 7 * TARGET_NS)
    assert after(yielding(), *[{"1": GOOD, "2": SLOW, "3": Window(10_000)}] * 3) == 75 * MB
    assert after(yielding(), *[{"1": slow, "2": slow, "3": few}] * 3) == 75 * MB
    assert after(yielding(), *[{"1": slow, "2": slow}] * 30) == 100 * MB


def test_a_rate_is_raised_only_if_it_is_used_and_windows_decide() -> None:
    assert after(yielding(), {"1": GOOD}) == pytest.approx(115 * MB)
    assert after(yielding(), {"1": GOOD}, used=False) == 100 * MB
    assert after(yielding(), {"1": Window(19)}) == 100 * MB
    assert after(yielding(), {"1": GOOD, "2": SLOW}) == 100 * MB
    assert after(yielding(199 * MB), {"1": GOOD}) == 200 * MB


def test_after_a_cut_it_is_raised_when_there_is_room_or_after_a_rest() -> None:
    rule, near = yielding(), Window(100, near=10)
    after(rule, *[{"1": SLOW}] * 3)
    assert after(rule, *[{"1": near}] * 59, since=3) == 75 * MB
    assert after(rule, {"1": near}, since=62) == 78 * MB
    after(other := yielding(), *[{"1": SLOW}] * 3)
    assert after(other, {"1": GOOD}, since=3) == 78 * MB


def test_it_climbs_while_there_is_room_and_no_cut_in_the_minute_before() -> None:
    rule, near = yielding(10 * MB), {"1": Window(100, near=10)}
    assert after(rule, *[{"1": GOOD}] * 5) == pytest.approx(10 * MB * 1.15**5)
    assert after(rule, near, since=5) == pytest.approx(10 * MB * 1.15**5 * 1.04)
    rule = yielding(10 * MB)
    after(rule, *[{"1": SLOW}] * 3)
    assert after(rule, *[{"1": GOOD}] * 59, since=3) == pytest.approx(7.5 * MB * 1.04**59)
    assert after(rule, {"1": GOOD}, since=62) == pytest.approx(7.5 * MB * 1.04**59 * 1.15)
    slow_at_floor = yielding(1 * MB)
    after(slow_at_floor, *[{"1": SLOW}] * 3)
    assert after(slow_at_floor, {"1": GOOD}, since=3) == pytest.approx(1.15 * MB), "nothing was cut"


def test_silence_with_requests_outstanding_is_the_lower_bound() -> None:
    rule = yielding()
    assert after(rule, {"1": GOOD, "2": Window(waits_ns=SILENT_NS - 1)}, used=False) == 100 * MB
    assert after(rule, {"1": GOOD, "2": Window(1, waits_ns=SILENT_NS)}, used=False) == 100 * MB
    assert after(rule, {"1": GOOD, "2": Window(waits_ns=SILENT_NS)}, used=False) == 1 * MB
    assert rule.state is State.FLOOR


def test_without_protected_clients_it_drifts_to_its_upper_bound() -> None:
    rule = yielding()
    assert after(rule, {"1": Window(1)}, used=False) == 100 * MB
    present = ABSENT_NS // NS_PER_SECOND
    assert after(rule, *[{"1": Window()}] * (present - 1), used=False, since=1) == 100 * MB
    assert after(rule, {}, used=False, since=present) == 101 * MB
    assert after(rule, *[{}] * 100, used=False, since=present + 1) == 200 * MB


def test_if_leaders_move_windows_are_forgotten_and_the_rate_stays() -> None:
    rule = yielding()
    after(rule, *[{"1": GOOD, "2": SLOW}] * 2, used=False)
    moved = {"1": GOOD, "2": Window(), "3": SLOW}
    assert after(rule, moved, *[{"1": GOOD, "3": GOOD}] * 5, since=2) == 100 * MB
    assert after(rule, {"1": GOOD, "3": GOOD}, since=8) == pytest.approx(115 * MB)
    assert after(rule, *[{"1": SLOW, "3": GOOD}, {"1": GOOD}, {"1": SLOW}, {"1": SLOW}], since=9) < 115 * MB


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from(["1", "2", "3"]),
                st.builds(
                    lambda count, above, excess, waits: Window(
                        count, min(count, above), min(count, above) * excess, waits
                    ),
                    *[st.integers(0, 1_000)] * 2,
                    st.integers(1, 10**12),
                    st.integers(0, 10**11),
                ),
            ),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_a_rate_stays_between_its_bounds_and_moves_by_a_quarter_or_15_percent(
    seconds: list[tuple[dict[str, Window], bool]],
) -> None:
    rule = yielding()
    for second, (windows, used) in enumerate(seconds):
        before = rule.rate
        rule.decide(windows, second * NS_PER_SECOND, is_used=used)
        assert TERMS.least <= rule.rate <= TERMS.most
        assert rule.rate <= before * 1.15 + 1
        assert rule.state is State.FLOOR or rule.rate >= before * 0.75 - 1
        assert used or rule.rate <= before * 1.01 + 1


def test_rates_for_one_target_become_equal_and_their_sum_stays() -> None:
    rates = [90.0 * MB, 10.0 * MB]
    for _ in range(60):
        rates = evened_out(rates)
    assert sum(rates) == pytest.approx(100 * MB)
    assert rates[0] == pytest.approx(rates[1], rel=0.1)


def test_the_lowest_rate_of_a_fleet_applies_and_the_others_stay_near_it() -> None:
    assert agreed(50, [40, 60, -70], watches=True) == (40, 50)
    assert agreed(60, [40], watches=True) == (40, 50)
    assert agreed(30, [40], watches=True) == (30, 30)
    assert agreed(10, [40], watches=False) == (40, 50)  # it only uses the limit
    assert agreed(200, [-80], watches=True) == (100, 100)  # the first one that watches
    assert agreed(10, [-80], watches=False) == (80, 80)
    assert agreed(10, [], watches=False) == (10, 10)


@given(st.floats(MB, 200 * MB), st.lists(st.integers(-200 * MB, 200 * MB).filter(bool), max_size=5))
def test_a_member_advertises_what_holds_the_rate_down(own: float, others: list[int]) -> None:
    lowest = min((each for each in others if each > 0), default=None)
    watching = advertised(own, others, watches=True, uses=True)
    assert watching == (int(own) if lowest is None or own < 1.2 * lowest else None)
    using = advertised(own, others, watches=False, uses=True)
    assert using is not None
    assert Fraction(int(own)) / Fraction(112, 100) <= -using <= own
    assert advertised(own, others, watches=False, uses=False) is None
