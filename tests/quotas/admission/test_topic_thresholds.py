"""The rules of seed 004, one by one, and what was decided where it is silent."""

from collections.abc import Iterable
from fractions import Fraction

import pytest

from quotas.admission.topic_thresholds import ThresholdError, Thresholds, TopicThreshold, check_thresholds
from quotas.algorithms.algorithm import UNLIMITED
from tests.quotas.admission.thresholds import set_topic, set_total
from tests.quotas.asking import admit, spend

SECOND = 1_000_000_000
MB = 1_000_000
BYTES = "bytes.in.per.sec.threshold"


def busy(thresholds: Thresholds, topic: str, rate: int, *, seconds: int = 600) -> TopicThreshold:
    """A topic that has produced `rate` units a second for so long that its one-minute rate is just that."""
    known = thresholds.topic(topic)
    for second in range(seconds):
        known.record_accepted(rate, second * SECOND)
    return known


def confirmed(thresholds: Thresholds, topics: Iterable[str]) -> None:
    """Topics that are in use and exist."""
    for topic in topics:
        thresholds.topic(topic)
        thresholds.confirm(topic)


def test_a_topic_within_its_threshold_passes_while_the_total_is_exceeded() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"modest": 200, "greedy": 10})
    modest, greedy = busy(thresholds, "modest", 100), busy(thresholds, "greedy", 2000)
    assert admit(modest, 5, 600 * SECOND) == 0
    wait_ns = -admit(greedy, 5, 600 * SECOND)
    assert wait_ns > 0
    assert greedy.debt_ns(600 * SECOND) == wait_ns


def test_accepted_erroneous_and_throttled_have_separate_meters() -> None:
    thresholds = Thresholds(BYTES)
    set_total(thresholds, 1000)
    topic = thresholds.topic("orders")
    topic.record_accepted(700, SECOND)
    thresholds.erroneous.record(340, SECOND)  # MESSAGE_TOO_LARGE
    thresholds.throttled.record(5, SECOND)
    counts = (thresholds.accepted.count, thresholds.erroneous.count, thresholds.throttled.count)
    assert counts == (700, 340, 5)
    at_tick = 6 * SECOND
    assert thresholds.accepted.one_minute_rate(at_tick) == topic.accepted.one_minute_rate(at_tick) == 700 / 5


def test_where_the_explicit_ones_take_all_the_others_wait_for_the_total() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"a": 1000})
    other = busy(thresholds, "other", 1100)
    assert other.rate == 0
    debt_ns = other.debt_ns(600 * SECOND)
    assert 0 < debt_ns == thresholds.accepted.ns_until_at_most(1000, 600 * SECOND)
    assert admit(other, 1, 600 * SECOND + debt_ns) == 0


def test_without_a_total_nothing_is_enforced_and_all_is_measured() -> None:
    thresholds = Thresholds(BYTES)
    topic = busy(thresholds, "orders", 5 * MB)
    assert admit(topic, 1, 600 * SECOND) == 0
    assert (topic.rate, topic.headroom(600 * SECOND)) == (UNLIMITED, UNLIMITED)
    assert spend(topic, 100, 0, 600 * SECOND) == UNLIMITED - 100
    set_total(thresholds, MB)
    assert admit(topic, 1, 600 * SECOND) < 0
    set_total(thresholds, None)
    assert admit(topic, 1, 600 * SECOND) == 0


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


def test_thresholds_without_a_total_are_refused() -> None:
    with pytest.raises(ThresholdError) as raised:
        check_thresholds(BYTES, None, {"a": MB, "b": MB})
    assert (raised.value.explicit_sum, raised.value.total) == (2 * MB, None)
    assert str(raised.value) == (
        "bytes.in.per.sec.threshold of topics (sum 2000000) has no effect without "
        "total.bytes.in.per.sec.threshold: set the total, or remove the thresholds of topics"
    )
    thresholds = Thresholds(BYTES)
    with pytest.raises(ThresholdError):
        set_topic(thresholds, "a", MB)
    thresholds.replace(MB, {"a": MB})
    with pytest.raises(ThresholdError):
        set_total(thresholds, None)
    assert thresholds.total == MB
    thresholds.replace(None, {})
    assert thresholds.total is None


def test_a_batch_is_checked_as_a_whole() -> None:
    assert check_thresholds(BYTES, 10, {"a": 3, "b": 7}) == 10
    assert check_thresholds(BYTES, 10, {}) == 0
    assert check_thresholds(BYTES, None, {}) == 0
    with pytest.raises(ThresholdError):
        check_thresholds(BYTES, 10, {"a": 3, "b": 8})
    thresholds = Thresholds(BYTES)
    thresholds.replace(10, {"a": 9})
    thresholds.replace(10, {"a": 1, "b": 9})  # neither b before a nor a total of its own is in the way
    assert thresholds.threshold_of("b") == 9


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
