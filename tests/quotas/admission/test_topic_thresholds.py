"""The rules of seed 004, one by one, and what was decided where it is silent."""

from collections.abc import Iterable
from fractions import Fraction

import pytest

from quotas.admission.decision import ADMITTED
from quotas.admission.limit import Limit
from quotas.admission.limit_set import limit_set
from quotas.admission.topic_thresholds import ThresholdError, Thresholds, TopicThreshold, check_thresholds
from quotas.algorithms.algorithm import UNLIMITED
from quotas.entity import Kind, Named
from tests.quotas.admission.thresholds import set_topic, set_total
from tests.quotas.asking import admit

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


def test_a_topic_above_its_threshold_passes_while_the_total_is_not_exceeded() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"greedy": 10})
    greedy = busy(thresholds, "greedy", 900)
    assert greedy.debt_ns(600 * SECOND) == 0
    assert admit(greedy, 5, 600 * SECOND) == 0


def test_a_topic_within_its_threshold_passes_while_the_total_is_exceeded() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"modest": 200, "greedy": 10})
    modest, greedy = busy(thresholds, "modest", 100), busy(thresholds, "greedy", 2000)
    assert admit(modest, 5, 600 * SECOND) == 0
    wait_ns = -admit(greedy, 5, 600 * SECOND)
    assert wait_ns > 0
    assert greedy.debt_ns(600 * SECOND) == wait_ns


def test_refused_amounts_are_not_recorded() -> None:
    thresholds = Thresholds(BYTES)
    set_total(thresholds, 1000)
    greedy = busy(thresholds, "greedy", 2000)
    before = (greedy.accepted.count, thresholds.accepted.count)
    assert admit(greedy, 5, 600 * SECOND) < 0
    assert greedy.spend(5, 0, 600 * SECOND) == -1
    assert (greedy.accepted.count, thresholds.accepted.count) == before
    assert (thresholds.throttled.count, thresholds.erroneous.count) == (0, 0)  # the caller says so, once


def test_each_accepted_amount_counts_once_on_the_topic_and_once_on_the_total() -> None:
    thresholds = Thresholds(BYTES)
    set_total(thresholds, 1000)
    a, b = thresholds.topic("a"), thresholds.topic("b")
    a.record_accepted(300, 0)
    b.record_accepted(4000, 0)
    assert (a.accepted.count, b.accepted.count, thresholds.accepted.count) == (300, 4000, 4300)


def test_a_request_that_passes_records_nothing() -> None:
    thresholds = Thresholds(BYTES)
    set_total(thresholds, 1000)
    topic = thresholds.topic("a")
    assert (topic.record(10**9, 0), topic.spend(5000, 0, 0), topic.spend(1, 0, 0)) == (0, 0, 4999)
    assert (topic.accepted.count, thresholds.accepted.count) == (0, 0)


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


def test_errors_alone_hold_no_topic() -> None:
    thresholds = Thresholds(BYTES)
    set_total(thresholds, 10)
    topic = thresholds.topic("orders")
    for second in range(60):
        assert admit(topic, 1000, second * SECOND) == 0
        thresholds.erroneous.record(1000, second * SECOND + SECOND // 100)


def test_only_topics_that_exist_lower_the_share_of_others() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"a": 400})
    for name in "abcd":
        thresholds.topic(name)
    assert (thresholds.share, thresholds.topic("b").rate) == (600, 600)
    for name in ("b", "b", "a", "c", "never used"):
        thresholds.confirm(name)
    assert [thresholds.topic(name).rate for name in "abcd"] == [400, 300, 300, 300]
    thresholds.forget("b")
    thresholds.forget("d")
    thresholds.topic("b")
    assert thresholds.share == 600
    set_topic(thresholds, "c", 200)
    assert thresholds.share == 400
    set_topic(thresholds, "c", None)
    set_topic(thresholds, "a", None)
    assert thresholds.share == 500


def test_what_the_share_is() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"a": 300})
    assert thresholds.share == 700  # of the first to come
    confirmed(thresholds, "ab")
    assert thresholds.share == 700
    confirmed(thresholds, "cdd")
    assert thresholds.share == Fraction(700, 3)
    assert thresholds.topic("d").rate == Fraction(700, 3)
    set_topic(thresholds, "d", 100)
    assert (thresholds.share, thresholds.topic("d").rate) == (300, 100)
    set_topic(thresholds, "elsewhere", 200)  # not known yet, deducted all the same
    assert thresholds.share == 200
    set_topic(thresholds, "d", None)
    assert thresholds.share == Fraction(500, 3)
    thresholds.forget("b")
    thresholds.forget("b")
    thresholds.forget("a")
    assert thresholds.share == 250
    assert thresholds.topic("a").rate == 300
    set_total(thresholds, 2000)
    assert thresholds.share == 750
    assert type(thresholds.share) is int


def test_a_batch_divides_among_the_topics_that_are_known() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"a": 100})
    confirmed(thresholds, "abcd")
    thresholds.replace(1000, {"b": 100, "c": 200, "elsewhere": 300})
    assert [thresholds.topic(name).rate for name in "abcd"] == [200, 100, 200, 200]


def test_where_the_explicit_ones_take_all_the_others_wait_for_the_total() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"a": 1000})
    other = busy(thresholds, "other", 1100)
    assert other.rate == 0
    debt_ns = other.debt_ns(600 * SECOND)
    assert 0 < debt_ns == thresholds.accepted.ns_until_at_most(1000, 600 * SECOND)
    assert admit(other, 1, 600 * SECOND + debt_ns) == 0


@pytest.mark.parametrize(("rate_of_b", "first"), [(10_000, "topic"), (10, "total")])
def test_the_debt_ends_with_the_first_of_the_two(rate_of_b: int, first: str) -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"a": 500})
    a, _ = busy(thresholds, "a", 1100), busy(thresholds, "b", rate_of_b)
    now_ns = 600 * SECOND
    topic_ns = a.accepted.ns_until_at_most(500, now_ns)
    total_ns = thresholds.accepted.ns_until_at_most(1000, now_ns)
    assert topic_ns != total_ns
    assert a.debt_ns(now_ns) == (topic_ns if first == "topic" else total_ns) == min(topic_ns, total_ns)


def test_without_a_total_nothing_is_enforced_and_all_is_measured() -> None:
    thresholds = Thresholds(BYTES)
    topic = busy(thresholds, "orders", 5 * MB)
    assert admit(topic, 1, 600 * SECOND) == 0
    assert (topic.rate, topic.headroom(600 * SECOND)) == (UNLIMITED, UNLIMITED)
    assert topic.spend(100, 0, 600 * SECOND) == UNLIMITED - 100
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
    assert (thresholds.share, thresholds.accepted.count, len(thresholds)) == (1000, 5000, 1)
    new = thresholds.topic("orders")
    assert new is not old
    thresholds.confirm("orders")
    assert (new.accepted.count, thresholds.share) == (0, 500)


def test_last_use_is_that_of_the_topic() -> None:
    thresholds = Thresholds(BYTES)
    a, b = thresholds.topic("a"), thresholds.topic("b")
    a.record_accepted(1, 7 * SECOND)
    b.record_accepted(1, 9 * SECOND)
    assert (a.last_ns, b.last_ns) == (7 * SECOND, 9 * SECOND)


def test_it_is_the_algorithm_of_a_limit() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(1000, {"greedy": 200})
    greedy = busy(thresholds, "greedy", 2000)
    limit = Limit(BYTES, Named(Kind.TOPIC, "greedy"), greedy)
    limits = limit_set((limit,))
    now_ns = 600 * SECOND
    held = limits.admit(100, now_ns)
    assert (held.admitted, held.limit, held.wait_ns) == (False, limit, greedy.debt_ns(now_ns))
    assert limits.spend(100, now_ns) == -1
    assert limit.rate == 200
    later_ns = now_ns + held.wait_ns
    assert limits.admit(100, later_ns) is ADMITTED
    assert greedy.accepted.count == thresholds.accepted.count == 600 * 2000
