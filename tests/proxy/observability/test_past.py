"""Windows over counters that only grow."""

from math import nan

import pytest

from proxy.observability.past import SNAPSHOT_NS, Past

S = 1_000_000_000


def test_what_was_counted_in_the_last_minute() -> None:
    past = Past(0, (0, 0))
    for number in range(1, 13):
        past.add(number * SNAPSHOT_NS, (number * 100, number))
    now_ns = 12 * SNAPSHOT_NS + 5 * S
    assert past.last(60, now_ns, (1_250, 12)) == (65, (650, 6))
    assert past.last(10, now_ns, (1_250, 12)) == (15, (150, 1))


def test_the_line_of_a_mean_has_no_figure_where_nothing_was_measured() -> None:
    past = Past(0, (0.0, 0), per=1)
    past.add(SNAPSHOT_NS, (3.0, 6))
    past.add(2 * SNAPSHOT_NS, (3.0, 6))
    past.add(3 * SNAPSHOT_NS, (4.0, 7))
    assert list(past.line) == [pytest.approx(0.5), pytest.approx(nan, nan_ok=True), 1.0]
