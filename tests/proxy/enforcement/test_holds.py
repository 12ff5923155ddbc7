"""Held frames, in the queue of the limit that each waits for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.enforcement.holds import Hold, Holds
from quotas.admission.limit import Ticket
from tests.proxy.enforcement.test_measures import Scene, hold_of

NS_PER_SECOND = 1_000_000_000


def test_holds_are_served_in_turn_when_the_debt_is_paid() -> None:
    scene = Scene()
    holds, limit, now_ns = Holds(), scene.limit, scene.now_ns
    limit.algorithm.record(1_000, now_ns)
    first, second = hold_of(limit), hold_of(limit)
    holds.add(first, 0)
    holds.add(second, 0)
    assert list(holds.limits) == list(holds.changed) == [limit]
    assert holds.next(limit, now_ns) is None
    assert holds.due_ns(limit, now_ns) == NS_PER_SECOND
    now_ns += NS_PER_SECOND
    assert holds.next(limit, now_ns) is first
    assert list(holds.limits) == [limit]
    assert holds.next(limit, now_ns) is second
    assert holds.limits == {}
    assert holds.next(limit, now_ns) is None
    assert holds.due_ns(limit, now_ns) is None


@given(st.lists(st.sampled_from(["add", "remove", "next", "all"]), max_size=40))
def test_limits_with_waiters_are_known(events: list[str]) -> None:
    scene = Scene()
    holds, limit = Holds(), scene.limit
    held: list[Hold] = []
    for each in events:
        if each == "add":
            held.append(hold_of(limit, 100 + len(held)))
            holds.add(held[-1], 0)
        elif each == "remove" and held:
            holds.remove(held.pop(len(held) // 2))
            assert limit in holds.changed or held
        elif each == "next":
            served = holds.next(limit, scene.now_ns)
            assert (served is None) == (not held)
            if served is not None:
                held.remove(served)
        elif each == "all":
            assert set(map(id, holds.take_all(limit))) == set(map(id, held))
            held.clear()
        assert bool(holds.limits) == bool(held)
        assert limit.waiters.waiting == len(held)
        assert limit.waiters.queued == sum(hold.units for hold in held)


def test_what_a_ticket_was_charged_is_given_back_and_told() -> None:
    scene = Scene()
    holds, limit = Holds(), scene.limit
    ticket = Ticket()
    ticket.turn = limit
    ticket.claim(500, scene.now_ns)
    assert limit.debt_ns(scene.now_ns) == NS_PER_SECOND // 2
    holds.add(hold_of(limit), 0)
    holds.changed.clear()
    holds.give_up(ticket, scene.now_ns)
    assert limit.debt_ns(scene.now_ns) == 0
    assert list(holds.changed) == [limit]


def test_credit_for_a_limit_without_waiters_changes_nothing() -> None:
    scene = Scene()
    holds = Holds()
    holds.credit_returned((scene.limit,))
    assert holds.changed == {}
