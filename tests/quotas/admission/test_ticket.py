"""Tickets: a frame that two limits hold reserves of one of them at its turn, and waits only for the other."""

import pytest

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import NO_LIMITS, admit_all, limit_set
from quotas.algorithms.algorithm import Algorithm
from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import Entity

SECOND = 1_000_000_000
ETL = Entity(client_id="etl")


def limit_of(name: str, rate: int = 100, burst_ns: int = SECOND) -> Limit:
    return Limit(name, ETL, TokenBucket(rate, burst_ns))


def in_debt(name: str, rate: int = 100, debt: int = 100) -> Limit:
    limit = limit_of(name, rate, 0)
    limit.algorithm.record(debt, 0)
    return limit


def its_turn(limit: Limit, ticket: Ticket | None = None) -> Ticket:
    ticket = ticket or Ticket()
    ticket.at_limit = limit
    return ticket


def test_at_its_turn_a_frame_that_another_limit_holds_reserves() -> None:
    fast, slow = limit_of("fast"), in_debt("slow", rate=10)
    both = limit_set((fast, slow))
    ticket = its_turn(fast)
    assert both.admit(30, 0, ticket) == Decision(False, 10 * SECOND, slow, (slow,))
    assert (ticket.reserved, fast.reserved) == ({fast: 30}, 30)
    assert (fast.headroom(0), fast.algorithm.headroom(0)) == (70, 100)
    fast.algorithm.record(170, 9 * SECOND)  # others go on, and leave debt
    assert fast.debt_ns(9 * SECOND) == SECOND
    assert both.admit(30, 10 * SECOND, its_turn(slow, ticket)) == Decision(True, 3 * SECOND, slow, (slow,))
    assert (ticket.reserved, fast.reserved) == ({}, 0)
    assert fast.headroom(10 * SECOND) == 0
    assert fast.headroom(11 * SECOND) == 100


def test_the_client_gets_the_debt_that_a_frame_leaves_at_whichever_limit() -> None:
    fast, slow = limit_of("fast"), in_debt("slow", rate=1000)
    both = limit_set((fast, slow))
    ticket = its_turn(fast)
    assert both.admit(300, 0, ticket).exceeded == (slow,)
    assert both.admit(300, 0, ticket) == Decision(False, SECOND // 10, slow, (slow,))
    after = both.admit(300, SECOND // 10, its_turn(slow, ticket))
    assert after == Decision(True, 2 * SECOND, fast, (fast, slow))


def test_waiters_and_debt_do_not_hold_a_frame_that_has_reserved() -> None:
    a, b = limit_of("a"), in_debt("b")
    both = limit_set((a, b))
    ticket = its_turn(a)
    both.admit(10, 0, ticket)
    a.enqueue("another", 10)
    a.algorithm.record(300, 0)
    assert both.admit(10, SECOND, its_turn(b, ticket)).admitted
    assert not both.admit(10, 10 * SECOND, its_turn(b)).admitted  # one that has not reserved queues after it


def test_nothing_is_reserved_without_a_turn_or_where_there_is_debt() -> None:
    a, b = in_debt("a"), in_debt("b")
    both = limit_set((a, b))
    for ticket in (Ticket(), its_turn(a), its_turn(limit_of("gone"))):
        assert both.admit(10, 0, ticket).exceeded == (a, b)
        assert ticket.reserved == {}
    assert (a.reserved, b.reserved) == (0, 0)


def test_a_frame_that_goes_releases_what_it_has_reserved() -> None:
    a, b, c = limit_of("a"), limit_of("b"), in_debt("c")
    ticket = Ticket()
    for limit in (a, b):
        limit_set((a, b, c)).admit(40, 0, its_turn(limit, ticket))
    assert ticket.reserved == {a: 40, b: 40}
    ticket.release()
    ticket.release()
    assert [limit.headroom(0) for limit in (a, b)] == [100, 100]
    assert (ticket.reserved, a.waiters.holders, a.waiters.held) == ({}, {}, 0)


def test_a_frame_is_charged_what_it_needs_when_it_passes() -> None:
    """A fetch is charged what the last response brought, and another response may come in the meantime."""
    for needed in (5, 35):
        a, b = limit_of("a"), in_debt("b")
        ticket = its_turn(a)
        limit_set((a, b)).admit(10, 0, ticket)
        assert limit_set((a, b)).admit(needed, SECOND, its_turn(b, ticket)).admitted
        assert a.headroom(SECOND) == 100 - needed


@pytest.mark.parametrize("number", [0, 1, 2])
def test_removed_limits_are_not_charged_at_a_retry(number: int) -> None:
    """Its client is at another level now, or without a quota."""
    gone, held = limit_of("gone"), in_debt("held")
    ticket = its_turn(gone)
    limit_set((gone, held)).admit(40, 0, ticket)
    assert gone.headroom(0) == 60
    now_in_force = limit_set(tuple(limit_of(f"new {index}") for index in range(number)))
    assert (now_in_force is NO_LIMITS) == (number == 0)
    assert now_in_force.admit(40, 0, its_turn(held, ticket)) is ADMITTED
    assert gone.headroom(0) == 100
    assert [limit.headroom(0) for limit in now_in_force.limits] == [60] * number


@pytest.mark.parametrize("amounts", [(60,), (30, 30), (500,)])
def test_what_is_above_a_smaller_burst_is_released_at_the_next_turn(amounts: tuple[int, ...]) -> None:
    """Else the limit would never be out of debt for others."""
    a, b = limit_of("a"), in_debt("b")
    tickets = holders_of(a, list(amounts))
    a.algorithm.set_rate(50, SECOND, 0)
    assert a.debt_ns(100 * SECOND) > 0
    for ticket, amount in zip(tickets, amounts, strict=True):
        assert not admit_all({a: amount, b: amount}, 0, its_turn(b, ticket)).admitted
    assert a.debt_ns(100 * SECOND) == 0


# ---- where there is no room for another reservation


def holders_of(limit: Limit, amounts: list[int]) -> list[Ticket]:
    """One ticket for each amount, in the order in which their frames were held; those of 0 do not reserve yet."""
    tickets = [Ticket() for _ in amounts]
    for ticket, amount in zip(tickets, amounts, strict=True):
        if amount:
            its_turn(limit, ticket).reserve(amount)
            assert limit in ticket.reserved
    return tickets


def test_a_later_frame_does_not_reserve_where_earlier_ones_leave_no_room() -> None:
    limit = limit_of("a")
    early, late = holders_of(limit, [70, 0])
    its_turn(limit, late).reserve(31)
    assert (early.reserved, late.reserved) == ({limit: 70}, {})
    its_turn(limit, late).reserve(30)
    assert (late.reserved, limit.reserved) == ({limit: 30}, 100)


def test_later_frames_make_room_for_an_earlier_one_the_latest_first_and_no_more_than_it_takes() -> None:
    limit = limit_of("a")
    first, *others = holders_of(limit, [0, 30, 30, 40])
    its_turn(limit, first).reserve(30)
    assert [ticket.reserved.get(limit) for ticket in (first, *others)] == [30, 30, 30, None]
    assert (limit.reserved, limit.headroom(0)) == (90, 10)


def test_they_keep_their_reservations_where_that_would_not_help() -> None:
    limit = limit_of("a")
    first, middle, late = holders_of(limit, [60, 0, 40])
    its_turn(limit, middle).reserve(41)
    assert (first.reserved, middle.reserved, late.reserved) == ({limit: 60}, {}, {limit: 40})


def test_a_frame_above_the_burst_reserves_the_burst_and_alone() -> None:
    limit = limit_of("a")
    first, *others = holders_of(limit, [0, 50, 50])
    its_turn(limit, first).reserve(500)
    assert (first.reserved, limit.reserved, limit.debt_ns(0)) == ({limit: 100}, 100, 0)
    assert [ticket.reserved for ticket in others] == [{}, {}]
    its_turn(limit, others[0]).reserve(1)
    assert others[0].reserved == {}


@pytest.mark.parametrize(
    "algorithm", [TokenBucket(100, 0), SampledWindow(100, samples=1, window_ns=SECOND, first_window=True)]
)
def test_without_a_burst_one_frame_at_a_time_passes_without_asking_again(algorithm: Algorithm) -> None:
    limit = Limit("a", ETL, algorithm)
    first, second = holders_of(limit, [10, 0])
    its_turn(limit, second).reserve(10)
    assert (first.reserved, second.reserved, limit.reserved) == ({limit: 0}, {}, 0)


# ---- limits that count different things


def test_nobody_joins_the_queue_that_all_limits_share_while_they_have_no_waiters() -> None:
    one, other = limit_of("one"), limit_of("other")
    with pytest.raises(TypeError, match=r"Limit\.enqueue"):
        one.waiters.push("session", 1)
    one.enqueue("session", 1)
    assert (one.waiters.waiting, other.waiters.waiting) == (1, 0)
    one.waiters.discard("session")
    other.waiters.discard("session")
    assert one.waiters.waiting == 0
