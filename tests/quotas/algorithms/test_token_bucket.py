"""The bucket against a slow model in fractions, Kafka's vectors, and the extremes."""

from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.token_bucket import AMPLE, TokenBucket
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

    def debt_ns(self, more: int = 0) -> int:
        wait = (more - self.tokens) / self.rate * SECOND
        return max(0, -(-wait.numerator // wait.denominator))

    def headroom(self) -> int:
        return max(0, self.tokens.numerator // self.tokens.denominator)


@dataclass(frozen=True)
class Step:
    do: str
    elapsed_ns: int
    amount: int


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
    ),
    max_size=40,
)


@pytest.mark.claim("limits", "the bound of token-bucket")
@given(rates, bursts_ns, steps)
def test_agrees_with_the_slow_model_exactly(rate: int | Fraction, burst_ns: int, schedule: list[Step]) -> None:
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
            left = model.tokens - step.amount
            model.tokens -= step.amount if left >= 0 else 0
            assert bucket.spend(step.amount, now_ns) == (min(floor(left), AMPLE) if left >= 0 else -1)
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


def test_a_debt_that_overflows_kafkas_throttle_is_kept() -> None:
    """Quota 1 byte/s, one request of 2.2 MB: Kafka's int32 wraps and nothing is throttled."""
    bucket = TokenBucket(1)
    assert admit(bucket, 2_200_000, 0) == 2_199_999 * SECOND
    assert admit(bucket, 1, 0) == -2_199_999 * SECOND
    assert admit(bucket, 1, 2_199_999 * SECOND - 1) == -1
    assert admit(bucket, 1, 2_199_999 * SECOND) == SECOND
