"""Tickets: a frame that two limits hold is charged to one of them at its turn, and waits only for the other."""

import pytest

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import NO_LIMITS, admit_all, charge_all, limit_set
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
    ticket.turn = limit
    return ticket


def test_at_its_turn_a_frame_that_another_limit_holds_is_charged_ahead() -> None:
    fast, slow = limit_of("fast"), in_debt("slow", rate=10)
    both = limit_set((fast, slow))
    ticket = its_turn(fast)
    assert both.admit(30, 0, ticket) == Decision(False, 10 * SECOND, slow, (slow,))
    assert ticket.claims == {fast: 30}
    assert fast.waiters.claimants == {ticket}
    assert fast.algorithm.headroom(0) == 70
    fast.algorithm.record(170, 9 * SECOND)  # others go on, and leave debt
    assert both.admit(30, 10 * SECOND, its_turn(slow, ticket)) == Decision(True, 3 * SECOND, slow, (slow,))
    assert (ticket.claims, fast.waiters.claimants) == ({}, set())
    assert fast.debt_ns(10 * SECOND) == 0  # not charged a second time
    assert fast.algorithm.headroom(11 * SECOND) == 100  # and the whole burst is there again


def test_a_claim_is_no_part_of_a_decision_until_the_frame_passes() -> None:
    """Then the client is told of the debt that it leaves, at whichever limit that is."""
    fast, slow = limit_of("fast"), in_debt("slow", rate=1000)
    both = limit_set((fast, slow))
    ticket = its_turn(fast)
    assert both.admit(300, 0, ticket).exceeded == (slow,)
    assert both.admit(300, 0, ticket) == Decision(False, SECOND // 10, slow, (slow,))
    assert both.admit(300, SECOND // 10, its_turn(slow, ticket)) == Decision(
        True, 19 * SECOND // 10, fast, (fast, slow)
    )


def test_who_waits_elsewhere_does_not_hold_one_that_has_a_claim() -> None:
    a, b = limit_of("a"), in_debt("b")
    both = limit_set((a, b))
    ticket = its_turn(a)
    both.admit(10, 0, ticket)
    a.enqueue("somebody", 10)
    assert both.admit(10, SECOND, its_turn(b, ticket)).admitted
    assert not both.admit(10, 2 * SECOND, its_turn(b)).admitted  # one without a claim queues up behind


def test_no_claim_where_it_is_not_its_turn_or_where_there_is_debt() -> None:
    a, b = in_debt("a"), in_debt("b")
    both = limit_set((a, b))
    for ticket in (Ticket(), its_turn(a), its_turn(limit_of("gone"))):
        assert both.admit(10, 0, ticket).exceeded == (a, b)
        assert ticket.claims == {}
    assert (a.debt_ns(0), b.debt_ns(0)) == (SECOND, SECOND)


def test_a_frame_given_up_gets_back_what_it_was_charged() -> None:
    a, b, c = limit_of("a"), limit_of("b"), in_debt("c")
    ticket = Ticket()
    for limit in (a, b):
        limit_set((a, b, c)).admit(40, 0, its_turn(limit, ticket))
    assert ticket.claims == {a: 40, b: 40}
    ticket.release(0)
    ticket.release(0)
    assert [limit.algorithm.headroom(0) for limit in (a, b)] == [100, 100]
    assert (ticket.claims, a.waiters.claimants, b.waiters.claimants) == ({}, set(), set())


def test_what_changes_while_it_waits_is_put_right_when_it_passes() -> None:
    """A fetch is charged what the last response brought, and another response may come in the meantime."""
    a, b = limit_of("a"), in_debt("b")
    ticket = its_turn(a)
    limit_set((a, b)).admit(10, 0, ticket)
    assert limit_set((a, b)).admit(35, SECOND, its_turn(b, ticket)).admitted
    a.algorithm.record(0, SECOND)
    assert a.algorithm.headroom(SECOND) == 65


@pytest.mark.parametrize("number", [0, 1, 2])
def test_removed_limits_are_not_charged_at_a_retry(number: int) -> None:
    """Its client is at another level now, or without a quota: what it was charged there was for nothing."""
    gone, held = limit_of("gone"), in_debt("held")
    ticket = its_turn(gone)
    limit_set((gone, held)).admit(40, 0, ticket)
    assert gone.algorithm.headroom(0) == 60
    now_in_force = limit_set(tuple(limit_of(f"new {index}") for index in range(number)))
    assert (now_in_force is NO_LIMITS) == (number == 0)
    assert now_in_force.admit(40, 0, its_turn(held, ticket)) is ADMITTED
    assert gone.algorithm.headroom(0) == 100
    assert [limit.algorithm.headroom(0) for limit in now_in_force.limits] == [60] * number


# ---- where there is no room for another claim


def claims_on(limit: Limit, amounts: list[int]) -> list[Ticket]:
    """One ticket for each amount, in the order in which their frames were held; those of 0 do not claim yet."""
    tickets = [Ticket() for _ in amounts]
    for ticket, amount in zip(tickets, amounts, strict=True):
        if amount:
            its_turn(limit, ticket).claim(amount, 0)
            assert limit in ticket.claims
    return tickets


def test_a_later_frame_does_not_claim_where_earlier_ones_leave_no_room() -> None:
    limit = limit_of("a")
    early, late = claims_on(limit, [70, 0])
    its_turn(limit, late).claim(31, 0)
    assert (early.claims, late.claims) == ({limit: 70}, {})
    its_turn(limit, late).claim(30, 0)
    assert late.claims == {limit: 30}


def test_later_frames_make_room_for_an_earlier_one_the_latest_first_and_no_more_than_it_takes() -> None:
    limit = limit_of("a")
    first, *others = claims_on(limit, [0, 30, 30, 40])
    its_turn(limit, first).claim(30, 0)
    assert [ticket.claims.get(limit) for ticket in (first, *others)] == [30, 30, 30, None]
    assert limit.waiters.claimants == {first, *others[:2]}
    assert limit.algorithm.headroom(0) == 10
    assert limit.algorithm.headroom(100 * SECOND) == 10


def test_they_keep_their_claims_where_that_would_not_help() -> None:
    limit = limit_of("a")
    first, middle, late = claims_on(limit, [60, 0, 40])
    its_turn(limit, middle).claim(41, 0)
    assert (first.claims, middle.claims, late.claims) == ({limit: 60}, {}, {limit: 40})
    assert limit.algorithm.headroom(0) == 0
    assert limit.algorithm.headroom(100 * SECOND) == 0


def test_the_first_frame_may_claim_whatever_its_size() -> None:
    limit = limit_of("a")
    first, *others = claims_on(limit, [0, 50, 50])
    its_turn(limit, first).claim(500, 0)
    assert first.claims == {limit: 500}
    assert limit.waiters.claimants == {first}
    assert limit.debt_ns(0) == 4 * SECOND
    others[0].release(0)
    assert limit.debt_ns(0) == 4 * SECOND


# ---- limits that count different things


def test_each_limit_is_charged_its_own_amount() -> None:
    size, number = limit_of("producer_byte_rate"), limit_of("request_rate", rate=1, burst_ns=SECOND)
    assert admit_all({size: 70, number: 1}, 0) is ADMITTED
    assert admit_all({size: 70, number: 1}, 0) == Decision(True, SECOND, number, (size, number))
    held = admit_all({size: 70, number: 1}, SECOND // 2)
    assert held == Decision(False, SECOND // 2, number, (number,))
    assert size.algorithm.headroom(SECOND // 2) == 10  # refused, not charged
    ticket = its_turn(size)
    assert admit_all({size: 30, number: 1}, SECOND // 2, ticket) == held
    assert ticket.claims == {size: 30}
    assert admit_all({size: 30, number: 1}, SECOND, its_turn(number, ticket)).admitted


def test_charging_checks_no_limit() -> None:
    a, b = in_debt("a"), limit_of("b")
    a.enqueue("somebody", 1)
    assert charge_all({a: 100, b: 100}, 0) == Decision(True, 2 * SECOND, a, (a,))
    assert b.algorithm.headroom(0) == 0
    assert charge_all({}, 0) is ADMITTED


def test_nobody_joins_the_queue_that_all_limits_share_while_they_have_no_waiters() -> None:
    one, other = limit_of("one"), limit_of("other")
    with pytest.raises(TypeError, match=r"Limit\.enqueue"):
        one.waiters.push("session", 1)
    one.enqueue("session", 1)
    assert (one.waiters.waiting, other.waiters.waiting) == (1, 0)
    one.waiters.discard("session")
    other.waiters.discard("session")
    assert one.waiters.waiting == 0


def test_a_late_refund_of_a_claim_reduces_the_window_of_the_claim() -> None:
    window = SampledWindow(100, samples=2, window_ns=SECOND, first_window=True)
    limit, ticket = Limit("a", ETL, window), Ticket()
    ticket.turn = limit
    ticket.claim(60, 0)
    window.record(30, SECOND)
    ticket.release(SECOND + SECOND // 2)
    assert window.headroom(SECOND + SECOND // 2) == 150 - 30


def test_a_frame_that_needs_less_than_it_claimed_gets_the_rest_back() -> None:
    a, b = (Limit(name, ETL, TokenBucket(100)) for name in "ab")
    b.algorithm.record(150, 0)
    ticket = Ticket()
    ticket.turn = a
    assert not admit_all({a: 60, b: 60}, 0, ticket).admitted
    assert ticket.claims == {a: 60}
    assert admit_all({a: 20, b: 20}, SECOND // 2, ticket).admitted
    assert a.algorithm.headroom(SECOND // 2) == 80
