"""The enforcement benchmark: what it counts in each cell, its figures and its picture."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.enforcement.neighbour import latencies_ns
from bench.enforcement.outcome import (
    BROKER,
    SELF_LIMITED,
    Outcome,
    duplicates_in,
    figures,
    rebalances_in,
    timeouts_in,
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


@pytest.mark.parametrize(
    "line",
    [
        b"Got error produce response: [Error 7] RequestTimedOutError",
        b"%5|1.8|REQTMOUT|a#producer-1| [thrd:b]: b/1: Timed out ProduceRequest in flight (after 10318ms, timeout #0)",
        b"_MSG_TIMED_OUT KafkaError{code=_MSG_TIMED_OUT,val=-192}",
        b"[thread] INFO o.a.k.NetworkClient - [Producer clientId=a] Disconnecting from node 1 due to request timeout.",
        b"org.apache.kafka.common.errors.TimeoutException: Expiring 10 record(s) for t-0:120000 ms has passed",
    ],
)
def test_a_timeout_is_found_in_the_output_of_each_client(line: bytes) -> None:
    assert timeouts_in(b"started\n" + line + b"\n") == 1


def test_duplicates_are_the_records_after_the_first() -> None:
    assert duplicates_in([b"1", b"2", b"1", b"3", b"1", b"3"]) == 3


def test_rebalances_are_those_of_the_group() -> None:
    lines = [
        "[id=1] Preparing to rebalance group java-auto-0 in state PreparingRebalance with old generation 1",
        "[id=1] Stabilized group java-auto-0 generation 2 with 1 members.",
        "[id=1] Preparing to rebalance group java-auto-01 in state PreparingRebalance with old generation 0",
    ]

    assert rebalances_in("\n".join(lines), "java-auto-0") == 1


def test_latencies_are_those_acknowledged_in_the_time_and_an_incomplete_line_is_left_out() -> None:
    lines = b"99 1\n100 2\n%6|log of librdkafka\n199 3\n200 4\n150 5"

    assert latencies_ns(lines, 100, 200) == (2, 3)


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


def test_of_several_rounds_the_worst_counts() -> None:
    """Of latencies the median: one slow round is the machine's."""
    rounds = [EVEN, replace(EVEN, timeouts=4, bins=(6_000_000,) * 10), replace(EVEN, beside_ns=(99_000_000,))]

    found = {(figure.metric, figure.unit): figure for figure in figures(rounds)}

    assert found["timeouts", ""].value == 4
    assert found["timeouts", ""].met is False
    assert found["mean / limit", ""].value == pytest.approx(1.2)
    assert found["mean / limit", ""].met is False
    assert found["neighbour's p99", "ms"].value == pytest.approx(2.178)
