"""The first-window rule for any number of windows: an even load never waits, and no first time lets too much pass."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.sampled_window import SampledWindow
from tests.quotas.asking import admit

MS = 1_000_000
SECOND = 1_000_000_000

samples = st.one_of(st.integers(1, 5), st.just(11))
windows_ms = st.one_of(st.sampled_from([1000, 100, 5000]), st.integers(20, 3000))
rates = st.one_of(st.integers(1, 2000), st.fractions(Fraction(1, 10), 100, max_denominator=100))


def new(rate: int | Fraction, samples: int, window_ms: int = 1000) -> SampledWindow:
    return SampledWindow(rate, samples=samples, window_ns=window_ms * MS, first_window=True)


@given(rates, samples, windows_ms, st.integers(1, 9), st.integers(1, 50), st.integers(0, SECOND))
def test_events_at_up_to_nine_tenths_of_the_rate_never_wait(
    rate: int | Fraction, samples: int, window_ms: int, tenths: int, amount: int, phase_ns: int
) -> None:
    window = new(rate, samples, window_ms)
    if amount > rate * window_ms / 1000:
        amount = 1
    spacing_ns = amount * SECOND * 10 / (Fraction(rate) * tenths)
    events = min(400, int(4 * samples * window_ms * MS / spacing_ns) + 20)
    for event in range(events):
        now_ns = phase_ns + int(event * spacing_ns)
        assert window.debt_ns(now_ns) == 0
        assert window.record(amount, now_ns) == 0


@given(
    rates,
    samples,
    windows_ms,
    st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 60)), min_size=1, max_size=60),
    st.booleans(),
)
def test_the_first_time_lets_no_more_pass_than_the_rate_and_one_event(
    rate: int | Fraction, samples: int, window_ms: int, schedule: list[tuple[int, int]], is_charged_first: bool
) -> None:
    """Held until out of debt, as frames are; or recorded and served after the wait asked for, as connections are."""
    window = new(rate, samples, window_ms)
    passed: list[tuple[int, int]] = []
    now_ms = -schedule[0][0]
    for pause_ms, amount in schedule:
        now_ms += pause_ms
        if is_charged_first:
            passed.append((now_ms + -(-window.record(amount, now_ms * MS) // MS), amount))
            continue
        while (answer := admit(window, amount, now_ms * MS)) < 0:
            now_ms += -answer // MS
        passed.append((now_ms, amount))
    passed.sort()
    total, largest = 0, max(amount for _, amount in passed)
    for at_ms, amount in passed:
        total += amount
        allowed = Fraction(rate) / 1000 * (max(at_ms, window_ms) + Fraction(1, 2))
        assert total <= allowed + largest


@pytest.mark.parametrize("samples", [2, 3, 5, 11])
def test_by_kafkas_rule_they_wait_once_fewer_than_ten_seconds_count(samples: int) -> None:
    kafkas = SampledWindow(30, samples=samples, window_ns=SECOND, first_window=False)
    waits_ms = [kafkas.record(25, second * SECOND) // MS for second in range(60)]
    assert max(waits_ms) == {2: 667, 3: 500, 5: 167, 11: 0}[samples]
