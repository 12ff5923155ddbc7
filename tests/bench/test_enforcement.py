"""The enforcement benchmark: what it counts in each cell, its figures and its picture."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bench.enforcement.outcome import (
    BROKER,
    SELF_LIMITED,
    Outcome,
    figures,
    whole_seconds,
)
from bench.report import markdown
from deploy.local.evenness import BIN_NS

EVEN = Outcome(
    "java",
    "auto",
    bins=(5_500_000, *[5_000_000] * 9),
    timeouts=0,
    duplicates=0,
    rebalances=0,
    alone_ns=tuple(range(10_000, 1_010_000, 10_000)),
    beside_ns=tuple(range(22_000, 2_222_000, 22_000)),
)
PACED = replace(EVEN, enforcement=SELF_LIMITED, bins=(5_000_000,) * 10, beside_ns=(2_000_000,))
BURSTY = replace(
    EVEN,
    enforcement=BROKER,
    bins=(50_000_000, *[0] * 9),
    timeouts=3,
    duplicates=2,
    rebalances=1,
    beside_ns=(9_000_000,),
)


def test_seconds_without_a_frame_count_and_the_one_that_is_not_whole_does_not() -> None:
    frames = [(7 + 2 * BIN_NS, 30), (7, 10), (6 + BIN_NS, 5), (7 + 4 * BIN_NS, 99)]

    assert whole_seconds(frames, 4) == (15, 0, 30, 0)


@given(st.lists(st.tuples(st.integers(0, 9 * BIN_NS), st.integers(1, 10**6)), min_size=1), st.integers(1, 12))
def test_each_byte_of_the_seconds_is_counted_once(frames: list[tuple[int, int]], seconds: int) -> None:
    end_ns = min(frames)[0] + seconds * BIN_NS

    bins = whole_seconds(frames, seconds)

    assert len(bins) == seconds
    assert sum(bins) == sum(size for time_ns, size in frames if time_ns < end_ns)


def test_the_table_has_a_column_for_each_enforcement_with_the_targets_of_the_proxy() -> None:
    lines = markdown(figures([PACED, EVEN, BURSTY])).splitlines()

    assert lines == [
        "| scenario | metric | self-limited | auto | broker's quota |",
        "| --- | --- | --- | --- | --- |",
        "| java | peak second / limit | 1 | 1.1 (≤ 1.12) | 10 |",
        "| java | mean / limit | 1 | 1.01 (≤ 1.01) | 1 |",
        "| java | timeouts | 0 | 0 (≤ 0) | 3 |",
        "| java | duplicates | 0 | 0 (≤ 0) | 2 |",
        "| java | rebalances | 0 | 0 (≤ 0) | 1 |",
        "| java | neighbour's p99, ms | 2 | 2.18 (1.09 ≤ 1.2) | 9 (4.50) |",
        "| java | neighbour's p99, times alone | 2.02 | 2.2 | 9.09 |",
    ]


def test_a_row_without_a_figure_above_zero_is_left_out() -> None:
    table = markdown(figures([PACED, EVEN, replace(BURSTY, rebalances=0)]))

    assert "duplicates" in table
    assert "rebalances" not in table
