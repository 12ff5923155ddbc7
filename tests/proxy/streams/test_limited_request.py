"""A test for each cell of the table of a request's life, and what a held request is charged, counts and reports."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from proxy.enforcement.throttle_actions import Reply
from proxy.streams.limited_request import TRANSITIONS, Life, LifeEvent, LimitedRequest
from proxy.streams.pending import Responses
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, fetch, fetched, produce, produce_records, produced
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import holder, replace_quotas, wait

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


@pytest.mark.parametrize("acks", [0, 1])
def test_the_request_that_takes_a_limit_into_debt_goes_on_to_its_end(acks: int) -> None:
    """Its client is told once: after its end, with the debt that is left then."""
    world = World([without_burst(OWN)])
    pair, other = Pair(world), Pair(world)
    sent = produce(1, 40_000, acks=acks)
    for at in range(0, len(sent), 10_000):
        pair.client_sends(sent[at : at + 10_000])
        assert pair.to_broker == sent[: at + 10_000]
        assert world.throttled() == (
            {} if at + 10_000 < len(sent) or not acks else {("etl", "producer_byte_rate", "notify"): 1}
        )
        world.clock.pass_seconds(0.001)
    other.client_sends(produce(2, 10))
    assert other.is_held
    if acks:
        pair.broker_sends(produced(1))
        assert pair.received() == [produced(1, throttle_ms=36)]


def test_a_batch_before_it_is_part_of_no_frame() -> None:
    """Requests that pass together leave no debt; then one is the first that overdraws, and no other passes."""
    world = World([parse_spec(OWN)])
    pair, other = Pair(world), Pair(world)
    pair.client_sends(produce(1, 500_000), produce(2, 400_000), produce(3, 300_000)[:200_000])
    assert world.debts() == {NAMES[OWN]: pytest.approx(0.1, abs=0.001)}
    other.client_sends(produce(1, 10))
    assert other.is_held
    pair.client_sends(produce(3, 300_000)[200_000:])
    assert len(pair.sent()) == 3


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


def test_a_request_that_waits_is_charged_to_the_limits_that_are_left() -> None:
    world = World([without_burst(spec) for spec in (OWN, TOPIC, TOTAL)])
    all_limits_known(world)
    debtor(world, OWN, 10)
    pair = Pair(world)
    sent = rows(1, 300)
    pair.client_sends(sent)
    assert holder(pair) == NAMES[OWN]
    before = world.passed()
    replace_quotas(world, [without_burst(OWN), without_burst(TOTAL)])
    assert holder(pair) == NAMES[OWN]
    wait(world, 10)
    assert pair.sent() == [sent]
    del before[NAMES[TOPIC]]
    assert world.passed() == {key: units + len(sent) - 4 for key, units in before.items()}


@pytest.mark.parametrize("request_of", [produce, fetch], ids=["produce", "fetch"])
def test_the_list_of_throttled_clients_has_its_place(request_of: Callable[..., bytes]) -> None:
    """Limit, time that it has waited, and time until it passes, behind those before it."""
    world = World([without_burst("client-id=etl,producer_byte_rate=1MB,consumer_byte_rate=1MB")])
    first = Pair(world)
    if request_of is produce:
        first.client_sends(produce(0, 100_000 - 19))
    else:
        first.client_sends(fetch(0))
        first.broker_sends(fetched(0, size=100_000 - 13))
    pairs = [Pair(world), Pair(world)]
    for pair in pairs:
        pair.client_sends(request_of(1))
        world.clock.pass_seconds(0.01)
    found = [pair.session.throttle_status for pair in pairs]
    assert [each and (each.mode, each.waited_seconds) for each in found] == [("pause", 0.02), ("pause", 0.01)]
    assert all(each is not None and 0.08 <= each.remaining_seconds < 0.1 for each in found)


def test_responses_go_on_while_a_request_after_them_is_held_in_its_middle() -> None:
    """The fetch had its turn, and the Produce request is the next in flight: it waits with its own rest."""
    world = World([without_burst("client-id=etl,producer_byte_rate=1MB,consumer_byte_rate=1MB")])
    pair, other = Pair(world), Pair(world)
    sent = produce(2, 50_000)
    pair.client_sends(fetch(1), sent[:10_000])
    other.client_sends(fetch(1))
    other.broker_sends(fetched(1, size=1_000))
    pair.broker_sends(fetched(1, size=1_000))
    assert pair.held_response is not None
    world.clock.pass_seconds(0.01)
    other.client_sends(produce(2, 1_000_000))
    pair.client_sends(sent[10_000:])
    assert pair.held is not None
    wait(world)
    assert len(pair.received()) == 1
    wait(world, 1)
    pair.broker_sends(produced(2))
    assert len(pair.received()) == 2
