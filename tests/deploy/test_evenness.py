"""The contract on evenness, on vectors worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.evenness import bins_per_second, holds, measure, share_holding

S = 1_000_000_000
START = 77 * S + 123_456_789


def seconds(*sizes: int) -> list[tuple[int, int]]:
    """One frame in each second from START on, or none where the size is 0."""
    return [(START + index * S, size) for index, size in enumerate(sizes) if size]


@given(st.lists(st.tuples(st.integers(0, 60 * S), st.integers(1, 10**6)), min_size=1))
def test_no_byte_is_lost(frames: list[tuple[int, int]]) -> None:
    bins = bins_per_second(frames)
    assert sum(bins) == sum(size for _, size in frames)
    assert bins[0] > 0
    assert bins[-1] > 0


def many(per_second: list[int], frame: int = 10) -> list[tuple[int, int]]:
    """Each second's bytes in small frames, so that one request is no tolerance to speak of."""
    return [
        (START + second * S + index, frame) for second, size in enumerate(per_second) for index in range(size // frame)
    ]


def test_the_first_and_the_last_second_are_left_out() -> None:
    run = measure(many([54_000, 1000, 1010, 990, 30]), limit=1000)
    assert run.judged == (1000, 1010, 990)
    assert run.mean == 1000
    assert run.holding == (True, True, True)
    assert run.peak == 54_000
    assert holds([run])


@pytest.mark.parametrize(("size", "close_enough"), [(980, True), (970, False), (1020, True), (1030, False)])
def test_two_percent_of_the_limit(size: int, close_enough: bool) -> None:
    assert measure(many([0 + 1000, size, 1000]), limit=1000).holding == (close_enough,)


def test_one_request_per_connection_where_that_is_more() -> None:
    frames = seconds(1000, 600, 1400, 1000)
    assert measure(frames, limit=1000, connections=1).holding == (True, True)  # requests of up to 1400 bytes
    small = many([1000, 940, 1000], frame=20)
    assert measure(small, limit=1000, connections=2).holding == (False,)
    assert measure(small, limit=1000, connections=3).holding == (True,)


def test_the_mean_has_a_limit_of_its_own() -> None:
    run = measure(many([1000, 990, 990, 990, 1000]), limit=1000)
    assert all(run.holding)
    assert run.mean_error == pytest.approx(-0.01)
    assert not holds([run])


def test_one_bin_in_a_hundred_may_miss_over_all_runs_together() -> None:
    even = measure(many([1000] * 60), limit=1000)  # 58 judged bins
    once = measure(many([1000] * 30 + [1030] + [1000] * 29), limit=1000)
    assert share_holding([even, once]) == pytest.approx(115 / 116)
    assert holds([even, once])
    assert not holds([once])  # 57 of 58
