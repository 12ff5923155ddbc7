"""The rules of seed 004, one by one, and what was decided where it is silent."""

from collections.abc import Iterable
from fractions import Fraction

import pytest

from quotas.admission.topic_thresholds import ThresholdError, Thresholds, check_thresholds
from tests.quotas.admission.thresholds import set_topic, set_total

MB = 1_000_000
BYTES = "bytes.in.per.sec.threshold"


def confirmed(thresholds: Thresholds, topics: Iterable[str]) -> None:
    """Topics that are in use and exist."""
    for topic in topics:
        thresholds.topic(topic)
        thresholds.confirm(topic)


def test_a_change_beyond_the_total_is_refused_with_both_numbers_and_changes_nothing() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(10 * MB, {"a": 6 * MB, "b": 4 * MB})
    with pytest.raises(ThresholdError) as raised:
        set_topic(thresholds, "b", 6 * MB)
    assert (raised.value.explicit_sum, raised.value.total, raised.value.limit_name) == (12 * MB, 10 * MB, BYTES)
    assert str(raised.value) == (
        "bytes.in.per.sec.threshold of all topics sums to 12000000, above "
        "total.bytes.in.per.sec.threshold=10000000: raise the total, or lower the thresholds of topics"
    )
    with pytest.raises(ThresholdError) as raised:
        set_total(thresholds, 9 * MB)
    assert (raised.value.explicit_sum, raised.value.total) == (10 * MB, 9 * MB)
    with pytest.raises(ThresholdError) as raised:
        thresholds.replace(5 * MB, {"a": Fraction(5 * MB) + Fraction(1, 2)})
    assert "sums to 5000000.5, above" in str(raised.value)
    assert (thresholds.total, thresholds.share) == (10 * MB, 0)
    assert (thresholds.threshold_of("a"), thresholds.threshold_of("b")) == (6 * MB, 4 * MB)


@pytest.mark.parametrize("value", [0, -1, Fraction(-1, 2)])
def test_a_threshold_is_above_zero(value: int | Fraction) -> None:
    thresholds = Thresholds(BYTES)
    set_total(thresholds, 10)
    with pytest.raises(ValueError, match=r"bytes\.in\.per\.sec\.threshold of topic 'a' must be above zero"):
        set_topic(thresholds, "a", value)
    with pytest.raises(ValueError, match=r"total\.bytes\.in\.per\.sec\.threshold must be above zero"):
        set_total(thresholds, value)
    with pytest.raises(ValueError, match=r"bytes\.in\.per\.sec\.threshold of topic 'a' must be above zero"):
        check_thresholds(BYTES, 10, {"a": value})
    with pytest.raises(ValueError, match=r"total\.bytes\.in\.per\.sec\.threshold must be above zero"):
        check_thresholds(BYTES, value, {})
    assert (thresholds.total, thresholds.share) == (10, 10)


def test_a_forgotten_topic_that_is_still_in_use_takes_no_share_and_counts_for_the_total() -> None:
    thresholds = Thresholds(BYTES)
    set_total(thresholds, 1000)
    old = thresholds.topic("orders")
    confirmed(thresholds, ["orders", "payments"])
    thresholds.forget("orders")
    old.record_accepted(5000, 0)
    assert (thresholds.share, thresholds.accepted.count, len(thresholds._known)) == (1000, 5000, 1)
    new = thresholds.topic("orders")
    assert new is not old
    thresholds.confirm("orders")
    assert (new.accepted.count, thresholds.share) == (0, 500)
