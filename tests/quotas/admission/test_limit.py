"""Sets of limits: check all, then charge; waiters go first; and the conservation law, over whole conversations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.frame import worst_debt
from quotas.admission.limit import Limit
from quotas.admission.limit_set import NO_DEBT, NO_LIMITS, LimitSet, limit_set
from quotas.algorithms.algorithm import UNLIMITED, Algorithm
from quotas.algorithms.ewma import Ewma
from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import AMPLE, TokenBucket
from quotas.entity import Entity

SECOND = 1_000_000_000
MB = 1_000_000
ETL = Entity(client_id="etl")


def limit_of(rate: int, burst_ns: int = SECOND, name: str = "producer_byte_rate") -> Limit:
    return Limit(name, ETL, TokenBucket(rate, burst_ns))


def passes(limits: LimitSet, amount: int, now_ns: int) -> bool:
    """Whether one request passes alone; it is charged then, and leaves a debt or none."""
    if worst_debt(limits.limits, now_ns)[1] is not None:
        return False
    return limits.charge(amount, now_ns) == NO_DEBT


def test_the_longest_debt_is_named() -> None:
    a, b, c = (limit_of(rate, 0, f"limit_{rate}") for rate in (100, 10, 1_000_000))
    limits = limit_set((a, b, c))
    assert limits.charge(50, 0) == (5 * SECOND, b)
    assert limits.charge(0, SECOND // 4) == (5 * SECOND - SECOND // 4, b)
    assert limits.charge(0, 5 * SECOND) == NO_DEBT


@pytest.mark.parametrize("number", [1, 2])
def test_newcomers_queue_up_behind_those_who_wait(number: int) -> None:
    limits = limit_set(tuple(limit_of(100, name=f"limit_{index}") for index in range(number)))
    last = limits.limits[-1]
    last.enqueue("early", 50)
    assert worst_debt(limits.limits, 0) == (0, last)
    assert limits.headroom(0) == 0
    assert limits.spend(0, 0) == limits.spend(1, 0) == -1
    assert limits.limits[0].algorithm.headroom(0) == 100, "nothing is spent"
    last.waiters.discard("early")
    assert worst_debt(limits.limits, 0) == NO_DEBT


def test_what_is_earned_is_what_the_slowest_earns() -> None:
    limits = limit_set((limit_of(1000), limit_of(300)))
    assert limits.earned(SECOND // 100) == 3
    assert NO_LIMITS.earned(SECOND) == UNLIMITED


def test_the_soft_mark_is_what_twenty_milliseconds_earn_and_at_most_half_the_burst() -> None:
    for limit, mark in ((limit_of(1000), 20), (limit_of(1000, SECOND // 100), 5)):
        room = limit.headroom(0)
        limit.algorithm.record(room - mark, 0)
        assert limit.soft_wait_ns(0) == 0
        limit.algorithm.record(3, 0)
        assert limit.soft_wait_ns(0) == 3_000_000
    assert limit_of(1000, 0).soft_wait_ns(0) == 0


@given(
    st.lists(st.integers(1, 10 * MB), max_size=3),
    st.lists(st.tuples(st.integers(0, SECOND), st.integers(1, 20), st.integers(0, MB)), max_size=20),
)
def test_spending_for_many_is_admitting_one_by_one(rates: list[int], runs: list[tuple[int, int, int]]) -> None:
    together, one_by_one = (limit_set(tuple(limit_of(rate) for rate in rates)) for _ in range(2))
    now_ns = 0
    for elapsed_ns, count, size in runs:
        now_ns += elapsed_ns
        room = one_by_one.headroom(now_ns)
        left = together.spend(count * size, now_ns)
        if left >= 0:
            assert all(passes(one_by_one, size, now_ns) for _ in range(count))
            assert min(left, AMPLE) == min(one_by_one.headroom(now_ns), AMPLE)
        else:
            assert room < count * size or not passes(one_by_one, 0, now_ns)
            assert together.headroom(now_ns) == room
            together.charge(count * size, now_ns)
            one_by_one.charge(count * size, now_ns)


def test_control_requests_are_charged_to_the_limits_out_of_debt_and_the_worst_is_named() -> None:
    fast, slow = Limit("fast", ETL, TokenBucket(100)), Limit("slow", ETL, TokenBucket(10))
    limits = limit_set((fast, slow))
    assert limits.charge_control(5, 0) == NO_DEBT
    assert limits.charge_control(20, 0) == (SECOND * 15 // 10, slow)
    assert limits.charge_control(90, 0) == (SECOND * 15 // 10, slow)
    assert (fast.debt_ns(0), slow.debt_ns(0)) == (SECOND * 15 // 100, SECOND * 15 // 10)
    assert NO_LIMITS.charge_control(10**15, 0) == NO_DEBT


def test_a_flood_of_control_requests_does_not_keep_a_frame_waiting() -> None:
    limit = Limit("request_rate", ETL, TokenBucket(10))
    limits = limit_set((limit,))
    limits.charge(20, 0)
    frame = object()
    limit.enqueue(frame, 1)
    half = SECOND // 2
    assert limits.charge_control(1, half) == (half, limit), "its responses still carry the throttle time"
    assert limits.charge_control(1, SECOND) == NO_DEBT
    assert limit.waiters.pop() is frame
    assert limits.charge_control(1, SECOND)[0] == SECOND // 10


@pytest.mark.parametrize(
    "algorithm", [TokenBucket(20), Ewma(20), SampledWindow(20, samples=11, window_ns=SECOND, first_window=True)]
)
def test_a_flood_of_control_requests_leaves_at_most_the_debt_of_one(algorithm: Algorithm) -> None:
    """500 a second for a minute, under 20 a second."""
    limits = limit_set((Limit("request_rate", ETL, algorithm),))
    for event in range(30_000):
        assert limits.charge_control(1, event * SECOND // 500)[0] <= SECOND // 20 + SECOND
    assert max(algorithm.debt_ns(at * SECOND // 10) for at in range(600, 1200)) <= SECOND // 20
