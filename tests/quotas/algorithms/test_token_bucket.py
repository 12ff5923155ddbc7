"""The bucket against a slow model in fractions, Kafka's vectors, and the extremes."""

from copy import copy
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.token_bucket import TokenBucket

SECOND = 1_000_000_000
TEN_YEARS = 10 * 365 * 86_400 * SECOND
MB = 1_000_000


class SlowBucket:
    """The obvious model: tokens as a fraction of units, nothing shared with the real one."""

    def __init__(self, rate: int | Fraction, burst_ns: int) -> None:
        self.rate = Fraction(rate)
        self.burst = self.rate * burst_ns / SECOND
        self.tokens = self.burst
        self.claims: tuple[tuple[int, int], ...] = ()  # amounts, and when
        self.now_ns: int | None = None

    @property
    def most(self) -> Fraction:
        return max(Fraction(0), self.burst - self.claimed)

    @property
    def claimed(self) -> int:
        return sum(amount for amount, _ in self.claims)

    def pass_time(self, now_ns: int) -> None:
        if self.now_ns is not None and now_ns > self.now_ns:
            self.tokens = min(self.most, self.tokens + self.rate * (now_ns - self.now_ns) / SECOND)
        self.now_ns = now_ns if self.now_ns is None else max(self.now_ns, now_ns)

    def debt_ns(self) -> int:
        wait = -self.tokens / self.rate * SECOND
        return max(0, -(-wait.numerator // wait.denominator))

    def wait_ns(self, amount: int) -> int:
        wait = (min(Fraction(amount), self.most) - self.tokens) / self.rate * SECOND
        return max(0, -(-wait.numerator // wait.denominator))

    def headroom(self) -> int:
        return max(0, self.tokens.numerator // self.tokens.denominator)


@dataclass(frozen=True)
class Step:
    do: str
    elapsed_ns: int
    amount: int


CLAIMS = ("claim", "settle", "unclaim")

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
        st.sampled_from(["admit", "admit", "spend", "record", "ask", *CLAIMS, *CLAIMS]),
        elapsed,
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
        if step.do == "ask":  # of a copy: asking does not move the bucket's time
            asked = copy(model)
            asked.pass_time(now_ns)
            assert (bucket.debt_ns(now_ns), bucket.headroom(now_ns)) == (asked.debt_ns(), asked.headroom())
            assert bucket.wait_ns(step.amount, now_ns) == asked.wait_ns(step.amount)
            continue
        if step.do == "claim" and 0 < model.claimed > model.burst - step.amount:
            assert not bucket.claim(step.amount, now_ns)
            continue
        if step.do in {"settle", "unclaim"} and not model.claims:
            continue
        model.pass_time(now_ns)
        if step.do == "admit":
            was_in_debt_ns = model.debt_ns()
            answer = bucket.admit(step.amount, now_ns)
            if was_in_debt_ns:
                assert answer == -was_in_debt_ns
            else:
                model.tokens -= step.amount
                assert answer == model.debt_ns()
        elif step.do == "spend":
            fits = model.tokens >= step.amount
            model.tokens -= step.amount if fits else 0
            assert bucket.spend(step.amount, now_ns) == (model.headroom() if fits else -1)
        elif step.do == "claim":
            assert bucket.claim(step.amount, now_ns)
            model.tokens -= step.amount
            model.claims += ((step.amount, bucket.last_ns),)
            assert model.tokens <= model.most  # or more could pass now than the burst allows
        elif step.do in CLAIMS:
            (amount, claimed_ns), *claims = model.claims
            if step.do == "unclaim" and model.claimed <= model.burst:
                bucket.unclaim(amount, claimed_ns, now_ns)
                model.tokens += amount
            else:
                bucket.settle(amount, now_ns)
            model.claims = tuple(claims)
        else:
            model.tokens -= step.amount
            assert bucket.record(step.amount, now_ns) == model.debt_ns()
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
    assert bucket.admit(1, start_ns) == untouched.admit(1, start_ns)


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
    assert bucket.admit(2_200_000, 0) == 2_199_999 * SECOND
    assert bucket.admit(1, 0) == -2_199_999 * SECOND
    assert bucket.admit(1, 2_199_999 * SECOND - 1) == -1
    assert bucket.admit(1, 2_199_999 * SECOND) == SECOND


def test_starts_full_and_passes_at_exactly_zero() -> None:
    bucket = TokenBucket(5 * MB)
    assert bucket.headroom(17) == 5 * MB
    assert bucket.admit(5 * MB, 17) == 0
    assert bucket.admit(1, 17) == 200  # level was 0: out of debt; one byte takes 200 ns
    assert bucket.admit(1, 17) == -200


def test_all_that_is_there_can_be_spent_and_no_more() -> None:
    bucket = TokenBucket(100)
    assert bucket.spend(101, 0) == -1
    assert bucket.spend(100, 0) == 0
    assert bucket.spend(1, 0) == -1
    assert bucket.debt_ns(0) == 0


def test_a_wait_is_rounded_up_and_ends_at_its_time() -> None:
    bucket = TokenBucket(3, 0)
    assert bucket.record(1, 0) == 333_333_334
    assert bucket.debt_ns(333_333_333) == 1
    assert bucket.debt_ns(333_333_334) == 0


def test_what_is_claimed_is_charged_and_leaves_less_to_fill_up() -> None:
    bucket = TokenBucket(100)
    assert bucket.claim(60, 0)
    assert bucket.headroom(10 * SECOND) == 40
    assert not bucket.claim(41, 10 * SECOND)
    assert bucket.claim(40, 10 * SECOND)
    assert bucket.headroom(20 * SECOND) == 0
    bucket.settle(60, 20 * SECOND)
    assert bucket.headroom(20 * SECOND) == 0  # the frame passes with what it was charged
    assert bucket.headroom(21 * SECOND) == 60
    bucket.unclaim(40, 10 * SECOND, 21 * SECOND)
    assert bucket.headroom(21 * SECOND) == 100


def test_a_frame_larger_than_the_burst_claims_alone() -> None:
    bucket = TokenBucket(100)
    assert bucket.claim(300, 0)
    assert bucket.debt_ns(0) == 2 * SECOND
    assert not bucket.claim(1, 2 * SECOND)
    assert bucket.headroom(10 * SECOND) == 0
    bucket.settle(300, 10 * SECOND)
    assert bucket.headroom(11 * SECOND) == 100


@given(rates, bursts_ns, amounts, st.lists(amounts, max_size=3), elapsed)
def test_claims_taken_back_never_were(
    rate: int | Fraction, burst_ns: int, spent: int, claims: list[int], elapsed_ns: int
) -> None:
    bucket, untouched = TokenBucket(rate, burst_ns), TokenBucket(rate, burst_ns)
    bucket.record(spent, 0)
    untouched.record(spent, 0)
    now_ns = abs(elapsed_ns)
    for amount in [amount for amount in claims if bucket.claim(amount, 0)]:
        bucket.unclaim(amount, 0, now_ns)
    assert bucket.debt_ns(now_ns) == untouched.debt_ns(now_ns)
    assert bucket.headroom(now_ns) == untouched.headroom(now_ns)


def test_claims_outlast_a_change_of_rate_in_units() -> None:
    bucket = TokenBucket(100)
    assert bucket.claim(60, 0)
    bucket.set_rate(Fraction(200, 3), 3 * SECOND, 0)
    assert bucket.headroom(100 * SECOND) == 140
    bucket.set_rate(10, SECOND, 100 * SECOND)
    assert bucket.headroom(100 * SECOND) == 0  # more is claimed than the new burst
    bucket.unclaim(60, 0, 100 * SECOND)
    assert bucket.headroom(100 * SECOND) == 10


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


def test_refund_gives_back_but_never_beyond_the_burst() -> None:
    bucket = TokenBucket(100)
    bucket.record(60, 0)
    bucket.refund(10, 0, 0)
    assert bucket.headroom(0) == 50
    bucket.refund(1000, 0, 0)
    assert bucket.headroom(0) == 100


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
