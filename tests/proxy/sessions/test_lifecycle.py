"""A test for each cell of the transition table: state, event, and whether something is under way."""

import pytest

from proxy.sessions.lifecycle import TRANSITIONS, Event, State, next_state

CONNECTING, OPEN, DRAINING, LINGERING, FLUSHING, CLOSED = State
E = Event

#: What each cell must lead to, written down a second time: while busy, and when idle.
EXPECTED = {
    (CONNECTING, E.BROKER_CONNECTED): (OPEN, OPEN),
    (CONNECTING, E.CLIENT_ENDED): (CLOSED, CLOSED),
    (CONNECTING, E.OVER): (CLOSED, CLOSED),
    (CONNECTING, E.DRAIN): (CLOSED, CLOSED),
    (CONNECTING, E.PROGRESS): (CONNECTING, CONNECTING),
    (OPEN, E.BROKER_CONNECTED): (OPEN, OPEN),
    (OPEN, E.CLIENT_ENDED): (FLUSHING, CLOSED),
    (OPEN, E.OVER): (CLOSED, CLOSED),
    (OPEN, E.DRAIN): (DRAINING, DRAINING),
    (OPEN, E.PROGRESS): (OPEN, OPEN),
    (DRAINING, E.BROKER_CONNECTED): (DRAINING, DRAINING),
    (DRAINING, E.CLIENT_ENDED): (FLUSHING, CLOSED),
    (DRAINING, E.OVER): (CLOSED, CLOSED),
    (DRAINING, E.DRAIN): (DRAINING, DRAINING),
    (DRAINING, E.PROGRESS): (DRAINING, LINGERING),
    (LINGERING, E.BROKER_CONNECTED): (LINGERING, LINGERING),
    (LINGERING, E.CLIENT_ENDED): (FLUSHING, CLOSED),
    (LINGERING, E.OVER): (CLOSED, CLOSED),
    (LINGERING, E.DRAIN): (LINGERING, LINGERING),
    (LINGERING, E.PROGRESS): (LINGERING, LINGERING),
    (FLUSHING, E.BROKER_CONNECTED): (FLUSHING, FLUSHING),
    (FLUSHING, E.CLIENT_ENDED): (FLUSHING, FLUSHING),
    (FLUSHING, E.OVER): (CLOSED, CLOSED),
    (FLUSHING, E.DRAIN): (FLUSHING, FLUSHING),
    (FLUSHING, E.PROGRESS): (FLUSHING, FLUSHING),
    **{(CLOSED, event): (CLOSED, CLOSED) for event in Event},
}


def test_each_state_and_event_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set(EXPECTED) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event"), EXPECTED, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
def test_each_cell(state: State, event: Event, is_busy: bool) -> None:
    while_busy, when_idle = EXPECTED[state, event]
    assert next_state(state, event, is_busy=is_busy) is (while_busy if is_busy else when_idle)
