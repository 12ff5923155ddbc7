"""The one-minute rate against Yammer's Meter ticked from a list of all records, and what a bound on it guarantees."""

import math
from collections.abc import Iterable
from copy import deepcopy
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quotas.algorithms.ewma import ALPHA, MEAN_NS, TICK_NS, Ewma, Meter
from tests.quotas.asking import admit, spend

SECOND = 1_000_000_000


def slow_rate(records: Iterable[tuple[int, int]], now_ns: int) -> float:
    """Yammer's EWMA.oneMinuteEWMA, ticked one by one from the first record on; records are (time, amount)."""
    waiting = list(records)
    if not waiting:
        return 0.0
    alpha = 1 - math.exp(-5 / 60 / 1)
    mean, is_initialised = 0.0, False
    tick_ns = waiting[0][0] + 5 * SECOND
    while tick_ns <= now_ns:
        uncounted = sum(amount for at_ns, amount in waiting if at_ns < tick_ns)
        waiting = [record for record in waiting if record[0] >= tick_ns]
        instant = uncounted / 5
        mean = max(0.0, mean + alpha * (instant - mean)) if is_initialised else max(0.0, instant)
        is_initialised = True
        tick_ns += 5 * SECOND
    return mean


elapsed = st.one_of(
    st.integers(0, SECOND),
    st.integers(0, 20 * SECOND),
    st.integers(0, 8).map(lambda ticks: ticks * TICK_NS),
    st.integers(0, 600 * SECOND),
    st.integers(-10 * SECOND, 0),
)
amounts = st.one_of(st.integers(0, 1000), st.integers(0, 1 << 54))
schedules = st.lists(st.tuples(elapsed, amounts), max_size=30)
rates = st.one_of(
    st.integers(1, 1000), st.integers(1, 1 << 53), st.fractions(Fraction(1, 1000), 1000, max_denominator=1000)
)


@given(schedules, elapsed)
def test_agrees_with_yammers_meter_ticked_one_by_one(schedule: list[tuple[int, int]], asked_after_ns: int) -> None:
    """A meter on this schedule (elapsed ns, amount) has the rate of the slow one, at each step and at the end."""
    meter = Meter()
    records: list[tuple[int, int]] = []
    now_ns = latest_ns = 0
    for elapsed_ns, amount in schedule:
        now_ns += elapsed_ns
        latest_ns = max(latest_ns, now_ns) if records else now_ns
        meter.record(amount, now_ns)
        records.append((latest_ns, amount))
        assert meter.one_minute_rate(now_ns) == pytest.approx(slow_rate(records, latest_ns), rel=1e-9, abs=1e-3)
        assert meter.last_ns == latest_ns
    asked_ns = now_ns + asked_after_ns
    expected = slow_rate(records, max(asked_ns, latest_ns) if records else asked_ns)
    assert meter.one_minute_rate(asked_ns) == pytest.approx(expected, rel=1e-9, abs=1e-3)
    assert meter.count == sum(amount for _, amount in records)


@given(schedules, rates, elapsed)
def test_the_wait_ends_at_the_first_tick_that_finds_the_rate_at_most_the_bound(
    schedule: list[tuple[int, int]], bound: int | Fraction, asked_after_ns: int
) -> None:
    meter = Meter()
    now_ns = 0
    for elapsed_ns, amount in schedule:
        now_ns += elapsed_ns
        meter.record(amount, now_ns)
    now_ns = max(now_ns + asked_after_ns, meter.last_ns)
    wait_ns = meter.ns_until_at_most(bound, now_ns)
    limit = float(bound)
    if meter.one_minute_rate(now_ns) <= limit:
        assert wait_ns == 0
        return
    assert meter.one_minute_rate(now_ns + wait_ns) <= limit
    for earlier_ns in range(wait_ns - 1, 0, -TICK_NS):
        assert meter.one_minute_rate(now_ns + earlier_ns) > limit
    meter.record(0, now_ns + wait_ns)  # which changes nothing: whoever waited finds what was promised
    assert meter.ns_until_at_most(bound, now_ns + wait_ns) == 0


def test_a_bound_of_nothing_is_met_within_a_day() -> None:
    """A topic whose share of the total is nothing."""
    meter = Meter()
    meter.record(1 << 60, 0)
    wait_ns = meter.ns_until_at_most(0, TICK_NS)
    assert 12 * 3600 * SECOND < wait_ns < 24 * 3600 * SECOND
    assert meter.one_minute_rate(TICK_NS + wait_ns) == 0


@given(rates, schedules)
def test_the_bound_decides_as_the_meter_says(rate: int | Fraction, schedule: list[tuple[int, int]]) -> None:
    ewma, meter = Ewma(rate), Meter()
    assert (ewma.rate, ewma.burst_ns) == (rate, MEAN_NS)
    now_ns = 0
    for at, (elapsed_ns, amount) in enumerate(schedule):
        now_ns += elapsed_ns
        held_ns = meter.ns_until_at_most(rate, now_ns)
        assert ewma.debt_ns(now_ns) == ewma.debt_ns(now_ns, amount) == held_ns
        if at % 3 == 0 and held_ns:
            assert admit(ewma, amount, now_ns) == -held_ns
            assert ewma.headroom(now_ns) == 0
            assert spend(ewma, 0, now_ns) == -1
            assert ewma.last_ns == meter.last_ns
            continue
        meter.record(amount, now_ns)
        assert (admit(ewma, amount, now_ns) if at % 3 == 0 else ewma.record(amount, now_ns)) == meter.ns_until_at_most(
            rate, now_ns
        )


@given(rates, schedules, st.integers(0, 4 * TICK_NS))
@pytest.mark.pure
def test_what_fits_is_found_within_the_bound_by_the_next_tick_and_one_more_is_not(
    rate: int | Fraction, schedule: list[tuple[int, int]], idle_ns: int
) -> None:
    ewma = Ewma(rate)
    ewma.record(0, 0)
    now_ns = 0
    for elapsed_ns, amount in schedule:
        now_ns = max(now_ns + elapsed_ns, ewma.last_ns)
        ewma.record(amount, now_ns)
    now_ns += idle_ns
    next_tick_ns = (now_ns // TICK_NS + 1) * TICK_NS
    room = ewma.headroom(now_ns)
    assume(room)
    assert spend(ewma, room + 1, now_ns) == -1
    over, most = deepcopy(ewma), deepcopy(ewma)
    assert spend(most, room, now_ns) == 0
    assert most.debt_ns(next_tick_ns) == 0
    over.record(room + 2 + int(rate) // (1 << 30), now_ns)  # more than a double rounds away
    assert over.debt_ns(next_tick_ns) > 0


def test_what_fits_leaves_no_debt_by_a_rounding() -> None:
    for step in range(200):
        ewma = Ewma((1 << 53) - 997 * step)
        ewma.record(step << 45, 0)
        now_ns = 20 * TICK_NS
        assert spend(ewma, ewma.headroom(now_ns), now_ns) == 0
        assert ewma.debt_ns(now_ns + TICK_NS) == 0


def fast_client(ewma: Ewma, shares: Iterable[tuple[int, int]], most_per_s: int) -> list[int]:
    """What passes in each tick interval of a client that tries, in every one of them, frames of so many percent of the
    most that can arrive; the first interval begins at 0."""
    passed = []
    for tick, (first, second) in enumerate(shares):
        frames = (5 * most_per_s * first // 200, 5 * most_per_s * second // 200)
        answers = [admit(ewma, frame, tick * TICK_NS + at * SECOND) for at, frame in enumerate(frames)]
        assert answers[0] == 0 or answers[0] == answers[1] - SECOND  # nothing changes between two ticks
        passed.append(sum(frame for frame, answer in zip(frames, answers, strict=True) if answer == 0))
    return passed


percents = st.one_of(st.just(100), st.integers(0, 100))


@pytest.mark.claim("limits", "the bound of ewma")
@given(st.integers(1, 1000), st.integers(1, 50), st.lists(st.tuples(percents, percents), min_size=2, max_size=80))
def test_what_passes_in_any_time_after_the_first_tick_is_bounded(
    bound: int, times: int, shares: list[tuple[int, int]]
) -> None:
    most_per_s = bound * times
    ewma = Ewma(bound)
    passed = fast_client(ewma, shares, most_per_s)
    peak = bound + ALPHA * (most_per_s - bound)
    for start in range(1, len(passed)):
        for end in range(start + 1, len(passed) + 1):
            assert sum(passed[start:end]) <= peak * ((end - start) * 5 + 5 / ALPHA) * (1 + 1e-9)
    for tick in range(1, len(passed)):
        rate = slow_rate([(at * TICK_NS, amount) for at, amount in enumerate(passed[:tick])], tick * TICK_NS)
        assert rate <= max(peak, passed[0] / 5) * (1 + 1e-9)
        assert not passed[tick] or rate <= bound * (1 + 1e-9)
