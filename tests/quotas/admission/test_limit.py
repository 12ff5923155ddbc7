"""Sets of limits: check all, then charge; waiters go first; and the conservation law, over whole conversations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit
from quotas.admission.limit_set import NO_LIMITS, limit_set
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


def test_without_limits_everything_passes() -> None:
    assert limit_set(()) is NO_LIMITS
    assert NO_LIMITS.admit(1 << 60, 0) is ADMITTED
    assert NO_LIMITS.charge(1 << 60, 0) is ADMITTED
    assert NO_LIMITS.headroom(0) == UNLIMITED


def test_a_frame_that_finds_no_debt_passes_and_the_next_one_waits() -> None:
    limit = limit_of(5 * MB)
    limits = limit_set((limit,))
    assert limits.admit(5 * MB, 0) is ADMITTED
    overdraw = limits.admit(MB, 0)
    assert (overdraw.admitted, overdraw.wait_ns, overdraw.limit, overdraw.exceeded) == (
        True,
        SECOND // 5,
        limit,
        (limit,),
    )
    assert limits.admit(1, 0) == Decision(False, SECOND // 5, limit, (limit,))
    assert limits.admit(0, SECOND // 5 - 1) == Decision(False, 1, limit, (limit,))
    assert limits.admit(0, SECOND // 5) is ADMITTED


def test_one_limit_in_debt_keeps_the_others_unharmed() -> None:
    """linkerd2's local_rate_limit charges the total before it asks the identity: refused clients drain the total."""
    total, own = limit_of(10 * MB, name="total"), limit_of(MB, name="own")
    limits = limit_set((total, own))
    assert limits.admit(2 * MB, 0).wait_ns == SECOND
    for _ in range(100):
        assert limits.admit(2 * MB, 0) == Decision(False, SECOND, own, (own,))
    assert total.algorithm.headroom(0) == 8 * MB


def test_the_decision_names_the_longest_wait_and_all_that_are_exceeded() -> None:
    a, b, c = (limit_of(rate, 0, f"limit_{rate}") for rate in (100, 10, 1_000_000))
    limits = limit_set((a, b, c))
    after = limits.admit(50, 0)
    assert after == Decision(True, 5 * SECOND, b, (a, b, c))
    held = limits.admit(50, SECOND // 4)
    assert held == Decision(False, 5 * SECOND - SECOND // 4, b, (a, b))
    assert limit_set((b, a)).admit(0, SECOND // 4) == Decision(False, 5 * SECOND - SECOND // 4, b, (b, a))
    assert limit_set((b, a)).charge(0, SECOND // 4) == Decision(True, 5 * SECOND - SECOND // 4, b, (b, a))


@pytest.mark.parametrize("number", [1, 2])
def test_newcomers_queue_up_behind_those_who_wait(number: int) -> None:
    limits = limit_set(tuple(limit_of(100, 0, f"limit_{index}") for index in range(number)))
    first = limits.limits[0]
    limits.admit(100, 0)
    first.enqueue("early", 50)
    late = limits.admit(10, SECOND)
    assert late == Decision(False, 0, first, (first,))
    assert limits.headroom(SECOND) == 0
    assert first.algorithm.headroom(SECOND) == 0, "and nothing was charged"
    first.waiters.discard("early")
    assert limits.admit(10, SECOND).admitted


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
            assert all(one_by_one.admit(size, now_ns) is ADMITTED for _ in range(count))
            assert min(left, AMPLE) == min(one_by_one.headroom(now_ns), AMPLE)
        else:
            assert room < count * size or not one_by_one.admit(0, now_ns).admitted
            assert together.headroom(now_ns) == room
            together.charge(count * size, now_ns)
            one_by_one.charge(count * size, now_ns)


@pytest.mark.parametrize("number", [1, 2])
def test_nothing_is_spent_past_those_who_wait(number: int) -> None:
    limits = limit_set(tuple(limit_of(100, name=f"limit_{index}") for index in range(number)))
    limits.limits[-1].enqueue("early", 50)
    assert limits.spend(0, 0) == -1
    assert limits.spend(1, 0) == -1
    assert limits.limits[0].algorithm.headroom(0) == 100


def test_control_requests_are_charged_to_the_limits_out_of_debt_and_the_worst_is_named() -> None:
    fast, slow = Limit("fast", ETL, TokenBucket(100)), Limit("slow", ETL, TokenBucket(10))
    limits = limit_set((fast, slow))
    assert limits.charge_control(5, 0) is ADMITTED
    assert limits.charge_control(20, 0) == Decision(True, SECOND * 15 // 10, slow, (slow,))
    assert limits.charge_control(90, 0) == Decision(True, SECOND * 15 // 10, slow, (fast, slow))
    assert (fast.debt_ns(0), slow.debt_ns(0)) == (SECOND * 15 // 100, SECOND * 15 // 10)
    assert NO_LIMITS.charge_control(10**15, 0) is ADMITTED


def test_a_flood_of_control_requests_does_not_keep_a_frame_waiting() -> None:
    limit = Limit("request_rate", ETL, TokenBucket(10))
    limits = limit_set((limit,))
    limits.charge(20, 0)
    frame = object()
    limit.enqueue(frame, 1)
    half = SECOND // 2
    decision = limits.charge_control(1, half)
    assert (decision.wait_ns, decision.limit) == (half, limit), "its responses still carry the throttle time"
    assert limits.charge_control(1, SECOND) is ADMITTED
    assert limit.waiters.pop() is frame
    assert limits.charge_control(1, SECOND).wait_ns == SECOND // 10


@pytest.mark.parametrize(
    "algorithm", [TokenBucket(20), Ewma(20), SampledWindow(20, samples=11, window_ns=SECOND, first_window=True)]
)
def test_a_flood_of_control_requests_leaves_at_most_the_debt_of_one(algorithm: Algorithm) -> None:
    """500 a second for a minute, under 20 a second."""
    limits = limit_set((Limit("request_rate", ETL, algorithm),))
    for event in range(30_000):
        assert limits.charge_control(1, event * SECOND // 500).wait_ns <= SECOND // 20 + SECOND
    assert max(algorithm.debt_ns(at * SECOND // 10) for at in range(600, 1200)) <= SECOND // 20
