"""A bucket whose rate is granted: against a slow model in fractions, over any schedule of rates, leases and times."""

from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import floor, inf
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.algorithms.token_bucket import AMPLE
from tests.quotas.algorithms.slow_lease import FOR_EVER, SlowLease

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Step:
    """`lease_ns`: how long the rate is granted; below 0: it was over before it was set."""

    do: str
    elapsed_ns: int
    amount: int
    rate: int | Fraction
    burst_ns: int
    lease_ns: int
    floor: int | Fraction


Schedule: TypeAlias = list[Step]

whole = st.sampled_from([1, 10, 1_000, 5_000_000]) | st.integers(1, 1 << 40)
fractions = st.fractions(Fraction(1, 1_000), 1_000, max_denominator=1_000_000)
bursts_ns = st.sampled_from([0, SECOND // 10, SECOND]) | st.integers(0, 5 * SECOND)
times_ns = st.sampled_from([0, 0, SECOND // 4]) | st.integers(0, 3 * SECOND) | st.integers(0, 3)


def schedules(rates: st.SearchStrategy[int] | st.SearchStrategy[Fraction]) -> st.SearchStrategy[Schedule]:
    step = st.builds(
        Step,
        st.sampled_from(["grant", "grant", "set", "record", "admit", "admit", "admit", "spend", "ask"]),
        times_ns,
        st.integers(0, 2_000) | st.integers(0, 1 << 42),
        rates,
        bursts_ns,
        times_ns | st.integers(-SECOND, 0),
        rates,
    )
    return st.lists(step, max_size=25)


def do(bucket: LeasedBucket, step: Step, now_ns: int) -> int:
    """Take this step. Returns what it charges."""
    match step.do:
        case "grant":
            bucket.grant(step.rate, step.burst_ns, now_ns + step.lease_ns, step.floor, now_ns)
        case "set":
            bucket.set_rate(step.rate, step.burst_ns, now_ns)
        case "record":
            bucket.record(step.amount, now_ns)
            return step.amount
        case "admit" if not bucket.debt_ns(now_ns):
            bucket.record(step.amount, now_ns)
            return step.amount
        case "spend" if bucket.spend(step.amount, now_ns) >= 0:
            return step.amount
    return 0


def in_model(model: SlowLease, step: Step, now_ns: int) -> None:
    """The same step. Charges are the bucket's."""
    model.pass_time(now_ns)
    if step.do == "grant":
        model.grant(step.rate, step.burst_ns, now_ns + step.lease_ns, step.floor, now_ns)
    elif step.do == "set":
        model.grant(step.rate, step.burst_ns, FOR_EVER, step.rate, now_ns)
    model.pass_time(now_ns)  # the lease may be over at once


@pytest.mark.pure  # it copies a bucket
@given(whole, bursts_ns, schedules(whole))
def test_agrees_with_the_slow_model_exactly(rate: int, burst_ns: int, schedule: Schedule) -> None:
    bucket, model = LeasedBucket(rate, burst_ns), SlowLease(rate, burst_ns)
    now_ns = charged = 0
    for step in schedule:
        now_ns += step.elapsed_ns
        in_model(model, step, now_ns)
        room = floor(model.tokens) - step.amount
        if step.do == "spend":
            assert copy(bucket).spend(step.amount, now_ns) == (min(room, AMPLE) if model.tokens >= step.amount else -1)
        if step.do == "record":
            later = copy(model)
            later.tokens -= step.amount
            assert copy(bucket).record(step.amount, now_ns) == later.debt_ns()
        amount = do(bucket, step, now_ns)
        charged += amount
        model.tokens -= amount
        assert bucket.debt_ns(now_ns) == model.debt_ns()
        assert bucket.headroom(now_ns) == max(0, floor(model.tokens))
        more = copy(model)
        more.tokens -= step.amount
        assert bucket.debt_ns(now_ns, step.amount) == more.debt_ns()
        assert bucket.passed == charged


@given(fractions, bursts_ns, schedules(fractions))
def test_rates_that_are_no_whole_numbers_are_rounded_down_at_each_change(
    rate: Fraction, burst_ns: int, schedule: Schedule
) -> None:
    bucket, model = LeasedBucket(rate, burst_ns), SlowLease(rate, burst_ns)
    now_ns = 0
    for changes, step in enumerate(schedule, 2):
        now_ns += step.elapsed_ns
        in_model(model, step, now_ns)
        model.tokens -= do(bucket, step, now_ns)
        # By less than a billionth of a unit each; at the end of a lease once more.
        slack_ns = 2 * changes / min(model.rate, model.floor) + 1
        assert 0 <= bucket.debt_ns(now_ns) - model.debt_ns() <= slack_ns
        assert floor(model.tokens) - 1 <= bucket.headroom(now_ns) or model.tokens <= 0
        assert bucket.headroom(now_ns) <= max(0, floor(model.tokens))


few = st.sampled_from([10, 100, 1_000])
often = st.lists(
    st.builds(
        Step,
        st.sampled_from(["grant", "grant", "grant", "set"]),
        st.sampled_from([SECOND // 5, SECOND, 3 * SECOND]),
        st.integers(1, 100),
        few | fractions,
        bursts_ns,
        st.sampled_from([-1, 0, SECOND // 3, SECOND, 2 * SECOND]),
        few | fractions,
    ),
    min_size=2,
    max_size=10,
)


@given(few, bursts_ns, often)
def test_in_any_time_the_integral_of_the_rate_the_burst_and_one_charge_pass(
    rate: int, burst_ns: int, schedule: Schedule
) -> None:
    """Of a client that looks ten times between two changes, and charges more than fits. The burst is that at the
    beginning of the time.
    """
    bucket, model = LeasedBucket(rate, burst_ns), SlowLease(rate, burst_ns)
    now_ns = charged = 0
    most: Fraction | float = inf  # that may be charged, less the integral, whenever the time began
    for step in schedule:
        do(bucket, step, now_ns)
        in_model(model, step, now_ns)
        for _ in range(10):
            model.pass_time(now_ns)
            if not bucket.debt_ns(now_ns):
                most = min(most, charged - model.earned + model.burst)
                assert charged - model.earned <= most, "the next charge comes on top"
                amount = bucket.headroom(now_ns) + step.amount
                bucket.record(amount, now_ns)
                charged += amount
            now_ns += step.elapsed_ns // 10


@pytest.mark.pure  # it copies a bucket
@given(few, bursts_ns, schedules(few), st.lists(st.integers(0, 30 * SECOND), max_size=20))
def test_the_end_of_a_lease_is_found_whenever_it_is_asked(
    rate: int, burst_ns: int, schedule: Schedule, looks: list[int]
) -> None:
    """Questions between two steps, or none: the answers are the same."""
    asked, unasked = LeasedBucket(rate, burst_ns), LeasedBucket(rate, burst_ns)
    times = list(accumulate(step.elapsed_ns for step in schedule))
    events: list[tuple[int, Step | None]] = [(at_ns, None) for at_ns in looks]
    events += zip(times, schedule, strict=True)
    for at_ns, step in sorted(events, key=lambda each: each[0]):
        if step is not None:
            assert do(asked, step, at_ns) == do(unasked, step, at_ns)
        now = copy(unasked)
        assert (asked.debt_ns(at_ns), asked.headroom(at_ns)) == (now.debt_ns(at_ns), now.headroom(at_ns))
        assert asked.rate == now.rate


@pytest.mark.parametrize(
    ("rate", "burst_ns", "floor_rate"), [(0, 1, 1), (1, 1, 0), (1, -1, 1), (1, 1, Fraction(-1, 2))]
)
def test_what_cannot_be_lent_changes_nothing(rate: int, burst_ns: int, floor_rate: int | Fraction) -> None:
    bucket = LeasedBucket(1_000, SECOND)
    bucket.grant(500, SECOND, SECOND, 10, 0)
    with pytest.raises(ValueError, match="must"):
        bucket.grant(rate, burst_ns, 9 * SECOND, floor_rate, 2 * SECOND)
    assert (bucket.headroom(SECOND), bucket.rate) == (500, 500)
    assert bucket.headroom(SECOND + 1) == 10
