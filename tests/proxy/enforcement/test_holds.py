"""Held frames, in the queue of the limit that each waits for; and reservations that lapse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.enforcement.data_frame import DataFrame, FrameEvent
from proxy.enforcement.holds import _CHECKED_AT_ONCE, LAPSE_NS, LEAST_PORTION, Holds
from quotas.admission.passage import Passage
from quotas.parsing.parse import parse_spec
from tests.proxy.enforcement.test_measures import Scene, held_by

NS_PER_SECOND = 1_000_000_000


def test_frames_are_served_in_turn_when_the_debt_is_paid() -> None:
    scene = Scene()
    holds, limit, now_ns = Holds(), scene.limit, scene.now_ns
    limit.algorithm.record(1_000, now_ns)
    first, second = held_by(limit), held_by(limit)
    holds.add(first)
    holds.add(second)
    assert list(holds.limits) == list(holds.changed) == [limit]
    assert holds.next(limit, now_ns) is None
    now_ns += NS_PER_SECOND
    assert holds.next(limit, now_ns) is first
    assert list(holds.limits) == [limit]
    assert holds.next(limit, now_ns) is second
    assert holds.limits == {}
    assert holds.next(limit, now_ns) is None


@given(st.lists(st.sampled_from(["add", "remove", "next", "all"]), max_size=40))
def test_limits_with_waiters_are_known(events: list[str]) -> None:
    scene = Scene()
    holds, limit = Holds(), scene.limit
    held: list[DataFrame] = []
    for each in events:
        if each == "add":
            held.append(held_by(limit, 100 + len(held)))
            holds.add(held[-1])
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
        assert limit.waiters.queued == sum(frame.units for frame in held)


def test_the_end_of_a_frame_releases_what_its_ticket_reserves() -> None:
    scene = Scene(quota=parse_spec("client-id=etl,producer_byte_rate=1000"))
    holds, limit, now_ns = Holds(), scene.limit, scene.now_ns
    limit.algorithm.record(500, now_ns)
    frame = held_by(limit)
    frame.ticket.at_limit = limit
    frame.ticket.reserve(700)
    assert limit.debt_ns(now_ns) == NS_PER_SECOND // 5
    holds.add(held_by(limit))
    holds.changed.clear()
    holds.end(frame, FrameEvent.CLOSE)
    assert (limit.debt_ns(now_ns), limit.reserved) == (0, 0)
    assert list(holds.changed) == [limit], "its waiters are due sooner"


def test_the_end_of_a_frame_is_the_end_of_its_passage() -> None:
    scene = Scene()
    holds, limit, now_ns = Holds(), scene.limit, scene.now_ns
    frame = DataFrame(100, answered=True)
    frame.pass_on(Passage({limit: 100}, 100), now_ns)
    assert frame.passage is not None
    holds.reserve(frame.passage, now_ns)
    holds.add(held_by(limit))
    holds.changed.clear()
    holds.end(frame, FrameEvent.CLOSE)
    assert limit.reserved == 0
    assert list(holds.changed) == [limit]
    holds.lapse(now_ns + 10 * LAPSE_NS)  # it is not checked any more


def test_credit_for_a_limit_without_waiters_changes_nothing() -> None:
    scene = Scene()
    holds = Holds()
    holds.credit_returned((scene.limit,))
    assert holds.changed == {}


# ---- reservations that lapse


@pytest.mark.parametrize("keeps_up", [False, True])
def test_a_reservation_is_checked_each_second_and_lapses_once(keeps_up: bool) -> None:
    scene = Scene()
    holds, limit, now_ns = Holds(), scene.limit, scene.now_ns
    holds.add(held_by(limit))
    holds.changed.clear()
    passage = Passage({limit: 200_000}, 200_000)
    passage.passed(50_000, now_ns)  # before it was there to be checked
    holds.reserve(passage, now_ns)
    for second in (1, 2, 3) if keeps_up else (1,):
        passage.passed(LEAST_PORTION if keeps_up else LEAST_PORTION - 1, now_ns)
        holds.lapse(now_ns + second * LAPSE_NS - 1)
        assert passage.is_reserved
        holds.lapse(now_ns + second * LAPSE_NS)
    left = 150_000 - 3 * LEAST_PORTION if keeps_up else 150_001 - LEAST_PORTION
    assert (passage.left, passage.left_bytes) == ({limit: left}, left)
    assert (limit.reserved, list(holds.changed)) == ((left, []) if keeps_up else (0, [limit]))
    holds.release(passage)
    holds.lapse(now_ns + 9 * LAPSE_NS)  # it is not checked any more
    assert (limit.reserved, list(holds.changed)) == (0, [limit])


def test_one_call_checks_a_bounded_number_and_the_next_ones_the_rest() -> None:
    scene = Scene()
    holds, now_ns = Holds(), scene.now_ns
    passages = [Passage({scene.limit: 50_000}, 50_000) for _ in range(2 * _CHECKED_AT_ONCE)]
    for at, passage in enumerate(passages):
        holds.reserve(passage, now_ns)
        passage.passed(0 if at % 2 else LEAST_PORTION, now_ns)
    for calls in (1, 2, 2):
        holds.lapse(now_ns + LAPSE_NS)
        assert sum(not passage.is_reserved for passage in passages) == calls * _CHECKED_AT_ONCE // 2
    assert [passage.is_reserved for passage in passages[:4]] == [True, False, True, False]
