"""New connections by default: sampled windows that pass at most one window's worth at once."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quotas.algorithms.paced_window import PacedWindow
from quotas.algorithms.sampled_window import SampledWindow

SECOND = 1_000_000_000
MS = 1_000_000

RATES = st.integers(1, 200)
ARRIVALS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 60)), min_size=1, max_size=5)
"""Milliseconds since the ones before, and how many come at once."""


def windows(rate: int, samples: int = 11, window_ns: int = SECOND) -> tuple[PacedWindow, SampledWindow]:
    return (
        PacedWindow(rate, samples=samples, window_ns=window_ns, first_window=True),
        SampledWindow(rate, samples=samples, window_ns=window_ns, first_window=True),
    )


def served(window: SampledWindow, arrivals: list[tuple[int, int]]) -> list[int]:
    """When each connection is served, in ns."""
    now_ns, times = 0, []
    for pause_ms, count in arrivals:
        now_ns += pause_ms * MS
        times += [now_ns + window.record(1, now_ns) for _ in range(count)]
    return times


@pytest.mark.parametrize("before_s", [1, 5, 12, 60, 3000])
def test_a_storm_after_an_earlier_connection_is_even(before_s: int) -> None:
    """An executor start-up storm: the driver has connected before."""
    paced, plain = windows(100)
    arrivals = [(0, 1), (before_s * 1000, 500)]
    times = served(paced, arrivals)[1:]
    start_ns = before_s * SECOND
    seconds = [sum(start_ns + nth * SECOND <= at < start_ns + (nth + 1) * SECOND for at in times) for nth in range(4)]
    assert seconds[0] <= 201
    assert seconds[1:] == [100, 100, 100]
    if before_s > 5:
        assert max(served(plain, arrivals)) == start_ns, "sampled windows alone let all of them in at once"


@given(RATES, ARRIVALS, st.integers(2, 11), st.sampled_from([SECOND // 4, SECOND, 3 * SECOND]))
@example(1, [(0, 2)], 2, SECOND // 4)
def test_in_any_time_no_more_than_the_rate_one_window_and_one_is_served(
    rate: int, arrivals: list[tuple[int, int]], samples: int, window_ns: int
) -> None:
    paced, plain = windows(rate, samples, window_ns)
    times = sorted(served(paced, arrivals))
    burst = max(rate * window_ns / SECOND, 1)
    for first in range(len(times)):
        for nth in range(first, len(times)):
            assert nth - first + 1 <= rate * (times[nth] - times[first]) / SECOND + burst + 1 + 1e-6
    assert all(at >= before for at, before in zip(served(windows(rate, samples, window_ns)[0], arrivals),
                                                  served(plain, arrivals), strict=True))  # fmt: skip


@given(RATES, st.sampled_from([SECOND // 4, SECOND]), st.integers(1, 200))
def test_evenly_spaced_ones_at_up_to_nine_tenths_of_the_rate_never_wait(rate: int, window_ns: int, count: int) -> None:
    paced, _ = windows(rate, window_ns=window_ns)
    space_ns = -(-SECOND * 10 // (9 * rate))
    assert [paced.record(1, nth * space_ns) for nth in range(count)] == [0] * count


def test_with_one_more_the_longer_of_both_waits_applies() -> None:
    paced, plain = windows(10)
    for each in (paced, plain):
        each.record(1, 0)
        for _ in range(10):
            each.record(1, 60 * SECOND)
    assert (paced.debt_ns(60 * SECOND, 1), plain.debt_ns(60 * SECOND, 1)) == (SECOND // 10, 0)


def test_at_another_rate_the_debt_is_paid_at_that_rate() -> None:
    paced, _ = windows(10)
    for _ in range(21):
        paced.record(1, 100 * SECOND)
    paced.record(1, 200 * SECOND)
    for _ in range(29):
        paced.record(1, 200 * SECOND)
    assert paced.debt_ns(200 * SECOND) == 2 * SECOND
    paced.set_rate(20, 0, 200 * SECOND)
    assert paced.debt_ns(200 * SECOND) == SECOND
