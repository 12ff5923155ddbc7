"""A test for each cell of the table of a data frame's life, and what it reserves and still has to ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.enforcement.data_frame import TRANSITIONS, DataFrame, FrameEvent, Life
from quotas.admission.limit import Limit
from quotas.admission.passage import Passage
from tests.proxy.enforcement.test_measures import Scene

NEW, HELD, RELEASED, PASSING, DONE, DROPPED = Life
E = FrameEvent

#: What each cell leads to, written down a second time; None: a defect.
EXPECTED: dict[tuple[Life, FrameEvent], Life | None] = {
    (NEW, E.IN_DEBT): HELD,
    (NEW, E.RELEASE): None,
    (NEW, E.ADMITTED): PASSING,
    (NEW, E.END): DONE,
    (NEW, E.CLOSE): DROPPED,
    (HELD, E.IN_DEBT): None,
    (HELD, E.RELEASE): RELEASED,
    (HELD, E.ADMITTED): None,
    (HELD, E.END): None,
    (HELD, E.CLOSE): DROPPED,
    (RELEASED, E.IN_DEBT): HELD,
    (RELEASED, E.RELEASE): None,
    (RELEASED, E.ADMITTED): PASSING,
    (RELEASED, E.END): DONE,
    (RELEASED, E.CLOSE): DROPPED,
    (PASSING, E.IN_DEBT): HELD,
    (PASSING, E.RELEASE): None,
    (PASSING, E.ADMITTED): PASSING,
    (PASSING, E.END): DONE,
    (PASSING, E.CLOSE): DROPPED,
    **{(state, event): None for state in (DONE, DROPPED) for event in FrameEvent},
}


def test_each_state_and_event_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Life)
    assert {event for row in TRANSITIONS.values() for event in row} == set(FrameEvent)
    assert set(EXPECTED) == {(state, event) for state in Life for event in FrameEvent}


@pytest.mark.parametrize(("state", "event"), EXPECTED, ids=lambda each: each.name.lower())
def test_each_cell(state: Life, event: FrameEvent) -> None:
    frame = DataFrame(1, answered=True)
    frame.state = state
    expected = EXPECTED[state, event]
    if expected is None:
        with pytest.raises(KeyError):
            frame.on(event)
        assert frame.state is state
    else:
        frame.on(event)
        assert frame.state is expected


def test_every_frame_ends_and_may_be_dropped_at_any_time() -> None:
    for state in Life:
        assert (E.CLOSE in TRANSITIONS[state]) == (state not in (DONE, DROPPED))


# ---- holds


def test_the_holds_of_a_frame_are_one_hold() -> None:
    """At one limit after another, and again for the rest: the first one counts it, and all of its time."""
    first, second = limits()
    frame = DataFrame(100, answered=True)
    frame.hold(first, 100, 1_000)
    frame.on(E.RELEASE)
    frame.hold(second, 100, 3_000)
    assert (frame.limit, frame.since_ns, frame.counted_by) == (second, 1_000, first)
    frame.on(E.RELEASE)
    frame.pass_on(Passage({second: 100}, 100), 4_000)
    assert frame.held_ns == 3_000
    frame.lapse()
    frame.hold(second, 100, 9_000)
    frame.on(E.RELEASE)
    frame.pass_on(Passage({}, 60), 9_500)
    assert (frame.held_ns, frame.counted_by) == (3_500, first)


# ---- what it reserves, and what it still has to ask for


def test_a_frame_that_lapses_reserves_nothing_and_has_the_rest_to_ask_for() -> None:
    first, second = limits()
    frame = DataFrame(100, answered=True)
    frame.pass_on(passage := Passage({first: 100, second: 7}, 100), 0)
    passage.passed(40, 0)
    assert frame.reserved_bytes == 60
    passage.end()
    assert (first.reserved, second.reserved, frame.reserved_bytes) == (0, 0, 0)
    frame.lapse()
    assert (frame.rest, frame.rest_bytes, frame.passage) == ({first: 60, second: 5}, 60, None)
    portion = frame.portion(30)
    assert portion == {first: 30, second: 2}
    frame.take(portion, 30)
    assert (frame.portion(30), frame.portion(99)) == ({first: 30, second: 3}, {first: 30, second: 3})


@pytest.mark.parametrize("is_rest", [False, True])
def test_what_is_found_late_is_reserved_or_belongs_to_the_rest(is_rest: bool) -> None:
    first, second = limits()
    frame = DataFrame(100, answered=True)
    frame.pass_on(Passage({first: 50}, 50), 0)
    if is_rest:
        frame.rest_bytes = 50  # a portion passes, more is to come
    frame.add({first: 3, second: 4}, 0)
    assert (first.reserved, second.reserved) == ((50, 0) if is_rest else (53, 4))
    assert frame.rest == ({first: 3, second: 4} if is_rest else {})
    frame.add({first: 1}, 0)
    assert second not in frame.rest, "what was found before has arrived"
    assert (first.reserved, second.reserved, charged(first), charged(second)) == (50 if is_rest else 51, 0, 3, 4)
    assert frame.passage is not None
    frame.passage.end()
    assert (first.reserved, second.reserved) == (0, 0)


@given(
    st.integers(1, 10_000),
    st.tuples(st.integers(0, 20_000), st.integers(0, 300)),
    st.lists(st.tuples(st.integers(1, 4_000), st.integers(0, 4_000), st.integers(0, 50)), max_size=12),
)
def test_the_portions_are_the_rest(size: int, units: tuple[int, int], steps: list[tuple[int, int, int]]) -> None:
    """Whatever is taken, passes in part, lapses again, or is found meanwhile: each unit is charged once."""
    first, second = limits()
    frame = DataFrame(size, answered=True)
    frame.pass_on(Passage({first: units[0], second: units[1]}, size), 0)
    found, passed_bytes = 0, 0
    for portion_bytes, passing, late in [*steps, (size, size, 0)]:
        if frame.passage is not None:
            frame.passage.end()
            frame.lapse()
        taken = min(portion_bytes, frame.rest_bytes)
        portion = frame.portion(taken)
        frame.take(portion, taken)
        passage = Passage(portion, taken)
        frame.pass_on(passage, 0)
        if late and frame.rest_bytes:
            frame.add({second: late}, 0)
            found += late
        passed_bytes += min(passing, taken)
        passage.passed(passing, 0)
        left = [frame.rest.get(limit, 0) + limit.reserved for limit in (first, second)]
        assert frame.rest_bytes + passage.left_bytes == size - passed_bytes
        assert [charged(limit) + units_left for limit, units_left in zip((first, second), left, strict=True)] == [
            units[0],
            units[1] + found,
        ]
        assert min(*frame.rest.values(), 0) == 0
    assert passed_bytes == size
    assert (charged(first), charged(second)) == (units[0], units[1] + found)


def limits() -> tuple[Limit, Limit]:
    limits = Scene().who.limits
    return limits.produce.limits[0], limits.requests.limits[0]


def charged(limit: Limit) -> int:
    """Of a limit without a burst: what it was charged at one time."""
    return round(limit.algorithm.debt_ns(0, 0) * limit.rate / 1_000_000_000)
