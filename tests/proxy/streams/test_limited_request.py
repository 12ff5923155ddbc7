"""A test for each cell of the table of a request's life, and what a held request is charged, counts and reports."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from proxy.enforcement.throttle_actions import Reply
from proxy.streams.limited_request import TRANSITIONS, Life, LifeEvent, LimitedRequest
from proxy.streams.pending import Responses
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, fetch, fetched, produce, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import holder, wait

PASSING, HELD, REFUSED, OVER = Life
E = LifeEvent

#: What each cell leads to, written down a second time. All others are defects.
EXPECTED: dict[tuple[Life, LifeEvent], Life] = {
    (PASSING, E.WAIT): HELD,
    (PASSING, E.REFUSE): REFUSED,
    (PASSING, E.END): OVER,
    (HELD, E.RELEASE): PASSING,
    (REFUSED, E.END): OVER,
    **{(state, E.CLOSE): OVER for state in Life},
}


class Request(LimitedRequest):
    """Of a client that is not looked at."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), Reply.NOTICE, 100)

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        raise NotImplementedError


def test_each_state_and_event_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Life)
    assert {event for row in TRANSITIONS.values() for event in row} == set(LifeEvent)


@pytest.mark.pure  # of an abstract class
@pytest.mark.parametrize("state", Life, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("event", LifeEvent, ids=lambda each: each.name.lower())
def test_each_cell(state: Life, event: LifeEvent) -> None:
    request = Request()
    request.state = state
    expected = EXPECTED.get((state, event))
    if expected is None:
        with pytest.raises(KeyError):
            request.on(event)
        assert request.state is state
    else:
        request.on(event)
        assert request.state is expected
    assert request.is_held == (request.state is HELD)


# ---- holds
OWN, TOPIC, TOTAL = (
    "client-id=etl,producer_byte_rate=1MB",
    "topic=rows,bytes_in_rate=1MB",
    "total,producer_byte_rate=1MB",
)
NAMES = {
    OWN: ("client-id:etl", "producer_byte_rate"),
    TOPIC: ("topic:rows", "bytes_in_rate"),
    TOTAL: ("total", "producer_byte_rate"),
}


def rows(number: int, size: int, client_id: str = "etl") -> bytes:
    return produce_records(number, {"rows": [batch(1, size)]}, client_id=client_id)


def debtor(world: World, spec: str, seconds: float) -> None:
    """Take this limit alone into debt for so long."""
    limit = next(each for each in world.registry.limits_in_use() if (str(each.entity), each.name) == NAMES[spec])
    limit.algorithm.record(round(seconds * 1e6), world.clock())
    limit.last_charged_by = 0


def all_limits_known(world: World) -> None:
    Pair(world).client_sends(rows(0, 61))
    wait(world, 1)


def test_a_request_waits_at_each_limit_in_turn_the_own_ones_first() -> None:
    """Each is charged when the request passes it, and the first one counts all of its holds as one."""
    world = World([without_burst(spec) for spec in (TOTAL, TOPIC, OWN)])
    all_limits_known(world)
    for seconds, spec in enumerate((OWN, TOPIC, TOTAL), 1):
        debtor(world, spec, seconds)
    pair = Pair(world)
    sent = rows(1, 300)
    pair.client_sends(sent)
    assert pair.held is not None
    before = world.passed()
    began_ns = world.clock()
    charges = {OWN: len(sent) - 4, TOPIC: 300, TOTAL: len(sent) - 4}
    for at, spec in enumerate((OWN, TOPIC, TOTAL)):
        assert holder(pair) == NAMES[spec]
        assert world.passed() == before | {
            NAMES[each]: before[NAMES[each]] + charges[each] for each in list(charges)[:at]
        }
        assert [str(each.entity) for each in world.queues] == [NAMES[spec][0]], "it waits at one limit at a time"
        wait(world, 1)
    assert pair.sent() == [sent]
    assert world.passed() == before | {NAMES[each]: before[NAMES[each]] + charges[each] for each in charges}
    [histogram] = [
        each
        for (name, mode), each in world.metrics.entities.of("ANONYMOUS", "etl").throttles.items()
        if mode == "pause"
    ]
    assert (histogram.count, histogram.sum_seconds) == (1, (world.clock() - began_ns) / 1e9)


@pytest.mark.parametrize("hang_up", [True, False])
def test_a_request_that_leaves_while_it_is_held_is_charged_for_what_passed(hang_up: bool) -> None:
    world = World([without_burst(OWN)])
    pair, other, next_one = Pair(world), Pair(world), Pair(world)
    sent = produce(1, 60_000)
    pair.client_sends(sent[:20_004])
    world.clock.pass_seconds(0.1)
    other.client_sends(produce(1, 50_000))
    pair.client_sends(sent[20_004:30_004])
    assert pair.is_held
    next_one.client_sends(produce(1, 100))
    if hang_up:
        pair.hang_up()
    pass_holds(world)
    assert len(next_one.sent()) == 1
    assert world.passed()[NAMES[OWN]] == sum(len(each.to_broker) - 4 for each in (pair, other, next_one))
    assert len(pair.to_broker) == (20_004 if hang_up else 30_004)
    pair.hang_up()
    assert world.throttled()["etl", "producer_byte_rate", "pause"] == 2, "each once"
    assert (world.queues, world.shared.wakeups._owners) == ([], {})


@pytest.mark.parametrize("request_of", [produce, fetch], ids=["produce", "fetch"])
def test_the_list_of_throttled_clients_has_its_place(request_of: Callable[..., bytes]) -> None:
    """Limit, time that it has waited, and time until it passes, behind those before it."""
    world = World([without_burst("client-id=etl,producer_byte_rate=1MB,consumer_byte_rate=1MB")])
    first = Pair(world)
    if request_of is produce:
        first.client_sends(produce(0, 100_000 - 19))
    else:
        first.exchange(fetch(0), fetched(0, size=100_000 - 13))
    pairs = [Pair(world), Pair(world)]
    for pair in pairs:
        pair.client_sends(request_of(1))
        world.clock.pass_seconds(0.01)
    found = [pair.session.throttle_status for pair in pairs]
    assert [each and (each.mode, each.waited_seconds) for each in found] == [("pause", 0.02), ("pause", 0.01)]
    assert all(each is not None and 0.08 <= each.remaining_seconds < 0.1 for each in found)
