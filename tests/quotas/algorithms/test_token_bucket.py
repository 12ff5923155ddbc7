"""The bucket against a slow model in fractions, Kafka's vectors, and the extremes."""

from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.token_bucket import TokenBucket
from tests.quotas.asking import admit

SECOND = 1_000_000_000
TEN_YEARS = 10 * 365 * 86_400 * SECOND
MB = 1_000_000


class SlowBucket:
    """The obvious model: tokens as a fraction of units, nothing shared with the real one."""

    def __init__(self, rate: int | Fraction, burst_ns: int) -> None:
        self.rate = Fraction(rate)
        self.burst = self.rate * burst_ns / SECOND
        self.tokens = self.burst
        self.now_ns: int | None = None

    def pass_time(self, now_ns: int) -> None:
        if self.now_ns is not None and now_ns > self.now_ns:
            self.tokens = min(self.burst, self.tokens + self.rate * (now_ns - self.now_ns) / SECOND)
        self.now_ns = now_ns if self.now_ns is None else max(self.now_ns, now_ns)

    def debt_ns(self, reserved: int = 0) -> int:
        wait = (reserved - self.tokens) / self.rate * SECOND
        return max(0, -(-wait.numerator // wait.denominator))

    def headroom(self) -> int:
        return max(0, self.tokens.numerator // self.tokens.denominator)


@dataclass(frozen=True)
class Step:
    do: str
    elapsed_ns: int
    amount: int
    beside: int


rates = st.one_of(
    st.integers(1, 1 << 53),
    st.sampled_from([1, 5 * MB, 1 << 53]),
    st.fractions(Fraction(1, 1_000_000), 1000, max_denominator=1_000_000),
)
bursts_ns = st.one_of(st.integers(0, 10 * SECOND), st.just(SECOND))
elapsed = st.one_of(
    st.integers(0, 3 * SECOND),
    st.integers(0, 1000),
    st.integers(-SECOND, 0),
    st.just(TEN_YEARS),
)
amounts = st.one_of(st.integers(0, 1 << 21), st.integers(0, 1 << 54))
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["admit", "admit", "spend", "record", "ask"]),
        elapsed,
        amounts,
        amounts,
    ),
    max_size=40,
)


@given(rates, bursts_ns, steps)
def test_agrees_with_the_slow_model_exactly(rate: int | Fraction, burst_ns: int, schedule: list[Step]) -> None:
    check_against_the_slow_model(rate, burst_ns, schedule)


def check_against_the_slow_model(rate: int | Fraction, burst_ns: int, schedule: list[Step]) -> None:
    """Every answer of a bucket on this schedule is the model's."""
    bucket, model = TokenBucket(rate, burst_ns), SlowBucket(rate, burst_ns)
    now_ns = 0
    for step in schedule:
        now_ns += step.elapsed_ns
        asked = copy(model)  # asking does not move the bucket's time
        asked.pass_time(now_ns)
        if step.do == "ask":
            assert (bucket.debt_ns(now_ns), bucket.headroom(now_ns)) == (asked.debt_ns(), asked.headroom())
            assert bucket.debt_ns(now_ns, step.amount) == asked.debt_ns(step.amount)
            continue
        if step.do == "admit" and asked.debt_ns():
            assert admit(bucket, step.amount, now_ns) == -asked.debt_ns()
            continue
        model.pass_time(now_ns)
        if step.do == "spend":
            left = model.tokens - step.amount - step.beside
            model.tokens -= step.amount if left >= 0 else 0
            assert bucket.spend(step.amount, step.beside, now_ns) == (floor(left) if left >= 0 else -1)
        else:
            model.tokens -= step.amount
            charge = bucket.record if step.do == "record" else partial(admit, bucket)
            assert charge(step.amount, now_ns) == model.debt_ns()
        assert bucket.debt_ns(now_ns) == model.debt_ns()
        assert bucket.headroom(now_ns) == model.headroom()


@given(st.lists(st.tuples(rates, bursts_ns, elapsed, amounts), min_size=1, max_size=20))
def test_live_changes_of_rate_keep_the_level_in_units(changes: list[tuple[int | Fraction, int, int, int]]) -> None:
    rate, burst_ns, _, _ = changes[0]
    bucket, model = TokenBucket(rate, burst_ns), SlowBucket(rate, burst_ns)
    now_ns = 0
    for rounds, (rate, burst_ns, elapsed_ns, amount) in enumerate(changes, start=1):
        now_ns += elapsed_ns
        model.pass_time(now_ns)
        model.rate, model.burst = Fraction(rate), Fraction(rate) * burst_ns / SECOND
        model.tokens = min(model.burst, model.tokens)
        bucket.set_rate(rate, burst_ns, now_ns)
        model.tokens -= amount
        bucket.record(amount, now_ns)
        # Each change rounds down by less than a billionth of a unit, never up.
        slack_ns = Fraction(rounds) / model.rate + 1
        assert 0 <= bucket.debt_ns(now_ns) - model.debt_ns() <= slack_ns
        assert model.headroom() - 1 <= bucket.headroom(now_ns) <= model.headroom()


@given(rates, bursts_ns, st.integers(0, TEN_YEARS), amounts, st.integers(0, TEN_YEARS))
def test_asking_changes_nothing(
    rate: int | Fraction, burst_ns: int, start_ns: int, amount: int, asked_after_ns: int
) -> None:
    bucket, untouched = TokenBucket(rate, burst_ns), TokenBucket(rate, burst_ns)
    bucket.record(amount, start_ns)
    untouched.record(amount, start_ns)
    bucket.debt_ns(start_ns + asked_after_ns)
    bucket.headroom(start_ns + asked_after_ns)
    assert bucket.last_ns == start_ns
    assert admit(bucket, 1, start_ns) == admit(untouched, 1, start_ns)


def test_kafkas_vector_testrecord() -> None:
    """TokenBucketTest.testRecord: quota 5, 10 samples of 2 s; tokens 100, 40, 45, -5."""
    bucket = TokenBucket(5, 10 * 2 * SECOND)
    assert bucket.headroom(0) == 100
    bucket.record(60, 0)
    assert bucket.headroom(0) == 40
    bucket.record(5, 2 * SECOND)
    assert bucket.headroom(2 * SECOND) == 45
    bucket.record(60, 4 * SECOND)
    assert bucket.headroom(4 * SECOND) == 0
    assert bucket.debt_ns(4 * SECOND) == SECOND  # 5 tokens at 5 a second


@pytest.mark.parametrize(("tokens", "wait_ms"), [(0, 0), (-5, 500), (-10, 1000)])
def test_kafkas_vector_throttle_time(tokens: int, wait_ms: int) -> None:
    """ControllerMutationQuotaManagerTest: tokens 0, -5, -10 at quota 10 throttle for 0, 500, 1000 ms."""
    bucket = TokenBucket(10, SECOND)
    bucket.record(10 - tokens, 0)
    assert bucket.debt_ns(0) == wait_ms * 1_000_000


def test_a_debt_that_overflows_kafkas_throttle_is_kept() -> None:
    """Quota 1 byte/s, one request of 2.2 MB: Kafka's int32 wraps and nothing is throttled."""
    bucket = TokenBucket(1)
    assert admit(bucket, 2_200_000, 0) == 2_199_999 * SECOND
    assert admit(bucket, 1, 0) == -2_199_999 * SECOND
    assert admit(bucket, 1, 2_199_999 * SECOND - 1) == -1
    assert admit(bucket, 1, 2_199_999 * SECOND) == SECOND


def test_starts_full_and_passes_at_exactly_zero() -> None:
    bucket = TokenBucket(5 * MB)
    assert bucket.headroom(17) == 5 * MB
    assert admit(bucket, 5 * MB, 17) == 0
    assert admit(bucket, 1, 17) == 200  # level was 0: out of debt; one byte takes 200 ns
    assert admit(bucket, 1, 17) == -200


def test_all_that_is_there_can_be_spent_and_no_more() -> None:
    bucket = TokenBucket(100)
    assert bucket.spend(101, 0, 0) == -1
    assert bucket.spend(40, 61, 0) == -1
    assert bucket.spend(40, 60, 0) == 0
    assert bucket.headroom(0) == 60, "what must fit beside is not charged"
    assert bucket.spend(60, 0, 0) == 0
    assert bucket.spend(1, 0, 0) == -1
    assert bucket.debt_ns(0) == 0


def test_what_is_reserved_counts_as_charged_and_above_the_burst_for_as_long_as_it_is() -> None:
    bucket = TokenBucket(100)
    assert (bucket.debt_ns(0, 100), bucket.debt_ns(0, 101)) == (0, SECOND // 100)
    bucket.record(50, 0)
    assert (bucket.debt_ns(0, 100), bucket.debt_ns(SECOND // 2, 100)) == (SECOND // 2, 0)
    assert bucket.debt_ns(TEN_YEARS, 150) == SECOND // 2


def test_a_wait_is_rounded_up_and_ends_at_its_time() -> None:
    bucket = TokenBucket(3, 0)
    assert bucket.record(1, 0) == 333_333_334
    assert bucket.debt_ns(333_333_333) == 1
    assert bucket.debt_ns(333_333_334) == 0


def test_ten_idle_years_earn_one_burst() -> None:
    bucket = TokenBucket(1 << 53)
    bucket.record(1 << 60, 0)
    assert bucket.headroom(TEN_YEARS) == 1 << 53


def test_a_clock_that_jumps_back_earns_nothing_and_costs_nothing() -> None:
    bucket = TokenBucket(1000, 0)
    bucket.record(1000, 10 * SECOND)
    assert bucket.debt_ns(10 * SECOND) == SECOND
    assert bucket.record(0, 2 * SECOND) == SECOND
    assert bucket.record(0, 9 * SECOND) == SECOND  # nothing for the seven seconds that were lived twice
    assert bucket.record(0, 10 * SECOND + SECOND // 2) == SECOND // 2


def test_time_before_a_change_earns_at_the_old_rate() -> None:
    bucket = TokenBucket(100, SECOND)
    bucket.record(300, 0)  # 200 in debt
    bucket.set_rate(1000, SECOND, SECOND)  # one second at 100: 100 in debt
    assert bucket.debt_ns(SECOND) == SECOND // 10
    bucket.set_rate(10, SECOND, SECOND)
    assert bucket.debt_ns(SECOND) == 10 * SECOND


def test_credit_is_cut_to_the_new_burst_and_not_raised() -> None:
    bucket = TokenBucket(100)
    bucket.set_rate(1000, SECOND, 0)
    assert bucket.headroom(0) == 100
    bucket.set_rate(10, SECOND, 0)
    assert bucket.headroom(0) == 10


@pytest.mark.parametrize("rate", [0, -1, Fraction(-1, 3)])
def test_a_rate_is_above_zero(rate: int | Fraction) -> None:
    with pytest.raises(ValueError, match="rate must be above zero"):
        TokenBucket(rate)


def test_a_burst_is_not_below_zero() -> None:
    with pytest.raises(ValueError, match="burst_ns must not be below zero"):
        TokenBucket(1, -1)
