"""How sessions end, without sockets: what reaches the other side, in each state of `proxy.sessions.lifecycle`.

`test_session` has what depends on the kernel.
"""

from typing import NamedTuple

import pytest

from proxy.sessions.ending import FLUSH_TIMEOUT_SECONDS
from proxy.sessions.lifecycle import State
from proxy.streams.memory import READ_SIZE
from tests.proxy.conversation import without_burst
from tests.proxy.frames import (
    api_versions,
    fetch,
    fetched,
    heartbeat,
    heartbeat_answer,
    produce,
    produced,
    produced_widely,
)
from tests.proxy.sessions.steps import (
    IS_HELD,
    QuietPair,
    Step,
    asks,
    broker_breaks,
    broker_ends,
    broker_takes,
    client_breaks,
    client_ends,
    client_has_gone,
    client_takes,
    drains,
    finds,
    is_in,
    passes,
    play,
    says,
)
from tests.proxy.streams.pair import Pair, World, frames_of, pass_holds

OPEN, DRAINING, LINGERING, FLUSHING, CLOSED = map(is_in, list(State)[1:])
#: To the client, or to the broker, nothing follows what it has received.
CLIENT_HAS_END = finds(lambda pair: pair.client.has_end)
BROKER_HAS_END = finds(lambda pair: pair.broker.has_end)
BROKER_HAS_NO_END = finds(lambda pair: not pair.broker.has_end)


class Case(NamedTuple):
    """Steps, and what each side has received when it has ended its own stream, too."""

    steps: list[Step]
    to_client: bytes = b""
    to_broker: bytes = b""


LONG, SLOW = produce(1, 1_000), produce(1, 20_000, acks=0)
BEGUN = [asks(produce(1)), asks(produce(2))]
CASES = {
    "a client ends with nothing under way": Case(
        [asks(heartbeat(1)), says(heartbeat_answer(1)), client_ends, CLOSED], heartbeat_answer(1), heartbeat(1)
    ),
    # A broker that finds the end of the stream drops the responses that it has not sent.
    "a client half-closes and still gets its answers": Case(
        [
            *(asks(heartbeat(1), produce(2)), client_ends, FLUSHING, says(heartbeat_answer(1) + produced(2)[:10])),
            *(BROKER_HAS_NO_END, says(produced(2)[10:]), BROKER_HAS_END),
        ],
        heartbeat_answer(1) + produced(2),
        heartbeat(1) + produce(2),
    ),
    "a drain with nothing under way": Case([drains, LINGERING, CLIENT_HAS_END]),
    "a drain behind data without a response": Case(
        [asks(produce(1, acks=0)), drains, LINGERING, client_ends, FLUSHING], to_broker=produce(1, acks=0)
    ),
    "a drain waits until all is answered, and begins no request": Case(
        [
            *(asks(produce(1), heartbeat(2)), drains, asks(produce(3)), says(produced(1)), DRAINING),
            *(says(heartbeat_answer(2)), LINGERING, CLIENT_HAS_END),
        ],
        produced(1) + heartbeat_answer(2),
        produce(1) + heartbeat(2),
    ),
    "a drain completes the request that was begun": Case(
        [asks(LONG[:400]), drains, asks(LONG[400:] + heartbeat(2)), DRAINING, says(produced(1)), LINGERING],
        produced(1),
        LONG,
    ),
    # acks=0, and a broker that reads slowly: nothing is answered.
    "a drain keeps a request that the broker has not taken": Case(
        [broker_takes(5), asks(SLOW), drains, LINGERING, broker_takes(None), client_ends, BROKER_HAS_END],
        to_broker=SLOW,
    ),
    "a drain keeps a response that the client has not taken": Case(
        [
            client_takes(5),
            asks(heartbeat(1)),
            says(heartbeat_answer(1)),
            drains,
            DRAINING,
            client_takes(None),
            LINGERING,
        ],
        heartbeat_answer(1),
        heartbeat(1),
    ),
    # It may have ended its stream alone, and receives the response in flight.
    "a client that goes during a drain": Case(
        [asks(heartbeat(1)), drains, client_has_gone, says(heartbeat_answer(1))], heartbeat_answer(1), heartbeat(1)
    ),
    "a client ends during a drain": Case(
        [asks(heartbeat(1)), drains, client_ends, FLUSHING, says(heartbeat_answer(1))],
        heartbeat_answer(1),
        heartbeat(1),
    ),
    "a client ends in a request that was begun": Case([asks(LONG[:400]), drains, client_ends], to_broker=LONG[:400]),
    "a client that ends its stream is drained": Case(
        [asks(produce(1)), client_ends, drains, FLUSHING, says(produced(1)), BROKER_HAS_END], produced(1), produce(1)
    ),
    "data without a response passes while the proxy waits for the end of the client": Case(
        [drains, LINGERING, asks(produce(1, acks=0) + heartbeat(2)), client_ends, BROKER_HAS_END],
        to_broker=produce(1, acks=0),
    ),
}


@pytest.mark.parametrize("cuts", [(), (7,)])
@pytest.mark.parametrize("case", CASES)
def test_what_reaches_the_other_side(case: str, cuts: tuple[int, ...]) -> None:
    steps, to_client, to_broker = CASES[case]
    pair = QuietPair(World(), cuts=cuts)
    play(pair, steps)
    for end in (client_ends, broker_ends):
        if pair.session.state is not State.CLOSED:
            end(pair)
    assert pair.session.state is State.CLOSED
    assert (bytes(pair.to_client), bytes(pair.to_broker)) == (to_client, to_broker)
    assert pair.world.memory.used == pair.world.memory.buffered_bytes == 0


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (fetch(1, 4), fetched(1, 4, 3 * READ_SIZE)),
        (fetch(1, 12), fetched(1, 12, 3 * READ_SIZE)),
        (fetch(1, 4), fetched(1, 4, 10)),
        (produce(1, version=12), produced_widely(1, 12, READ_SIZE)),
    ],
    ids=["long", "long v12", "short", "kept whole"],
)
def test_a_drain_ends_behind_a_response_of_any_length(sent: bytes, answer: bytes) -> None:
    """The last bytes of a long one come in reads of their own, behind everything that is looked at."""
    pair = Pair(World())
    play(pair, [asks(sent), drains, says(answer), LINGERING, CLIENT_HAS_END])
    assert pair.to_client == answer


@pytest.mark.parametrize("begins", [drains, client_ends], ids=["draining", "flushing"])
@pytest.mark.parametrize("who", ["the client", "the broker ends", "the broker breaks"])
def test_one_side_fails_before_all_is_answered(begins: Step, who: str) -> None:
    pair = QuietPair(World())
    play(pair, [*BEGUN, begins, finds(lambda pair: pair.session.state in {State.DRAINING, State.FLUSHING})])
    if who == "the client":
        play(pair, [client_breaks, says(produced(1)), BROKER_HAS_END, says(produced(2)), broker_ends])
    else:
        play(pair, [broker_breaks, says(produced(1))] if who == "the broker breaks" else [broker_ends])
    play(pair, [CLOSED])
    assert pair.world.memory.used == 0


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (fetch(1, 4), fetched(1, 4, 5_000)),
        (produce(1, version=12), produced(1, 12)),
        (produce(1, version=12), produced_widely(1, 12, READ_SIZE)),
    ],
    ids=["passed on in part", "kept", "collected"],
)
def test_the_proxys_own_answer_waits_for_a_response_that_has_begun(sent: bytes, answer: bytes) -> None:
    pair = Pair(World())
    play(pair, [asks(sent), says(answer[:30]), asks(api_versions(2, 99)), says(answer[30:])])
    response, own = pair.received()
    assert (response, own[4:8]) == (answer, b"\x00\x00\x00\x02")


# ---- what is held
def hold(*more: bytes, rate: int = 1_000) -> Pair:
    """A pair whose second request waits for a limit. The first one is answered."""
    pair = QuietPair(World([without_burst(f"client-id=etl,producer_byte_rate={rate}")]))
    play(pair, [asks(produce(1)), says(produced(1)), asks(*more), IS_HELD])
    return pair


def dropped(pair: Pair) -> int:
    return pair.world.metrics.connections.dropped_frames


def test_a_held_request_of_a_client_that_has_gone_is_dropped() -> None:
    """The client will send it again: to pass it on would duplicate it."""
    pair = hold(produce(2))
    play(pair, [client_has_gone, broker_ends, CLOSED])
    assert (frames_of(pair.to_broker), dropped(pair)) == ([produce(1)], 1)
    assert pair.world.shared.wakeups._timers == {}


def test_a_held_request_without_a_response_is_delivered_after_its_client_has_gone() -> None:
    sent = produce(2, 70_000, acks=0), produce(3, 80, acks=0)
    pair = hold(*sent, rate=1_000_000)
    play(pair, [client_has_gone])
    pass_holds(pair.world)
    play(pair, [client_ends, BROKER_HAS_END, broker_ends, CLOSED])
    assert (frames_of(pair.to_broker), dropped(pair)) == ([produce(1), *sent], 0)


def test_a_held_request_without_a_response_waits_for_its_turn_for_30_s_after_its_client_has_gone() -> None:
    pair = hold(produce(2, acks=0), rate=1)
    play(pair, [client_has_gone, passes(FLUSH_TIMEOUT_SECONDS), CLOSED])
    assert (frames_of(pair.to_broker), dropped(pair)) == ([produce(1)], 1)
    assert pair.world.shared.wakeups._timers == {}


def test_a_drain_drops_a_held_request_that_the_client_sends_again() -> None:
    pair = hold(produce(2))
    play(pair, [drains, LINGERING, CLIENT_HAS_END, client_ends, CLOSED])
    assert (frames_of(pair.to_broker), pair.world.shared.wakeups._timers) == ([produce(1)], {})


def test_a_drain_waits_for_a_held_request_after_all_responses() -> None:
    pair = hold(produce(2, 300, acks=0))
    play(pair, [drains, LINGERING])
    pass_holds(pair.world)
    play(pair, [client_ends, BROKER_HAS_END, broker_ends, CLOSED])
    assert frames_of(pair.to_broker) == [produce(1), produce(2, 300, acks=0)]


def test_a_drain_closes_a_connection_whose_request_is_held_in_its_middle() -> None:
    """Another client took the limit into debt, while this one was slow."""
    world = World([without_burst("client-id=etl,producer_byte_rate=1MB")])
    slow, other = QuietPair(world), Pair(world)
    sent = produce(2, 90_000)
    slow.client_sends(sent[:10_000])
    world.clock.pass_seconds(1)
    other.client_sends(produce(1, 10_000))
    play(slow, [asks(sent[10_000:20_000]), IS_HELD, drains, CLOSED])
    assert slow.to_broker == sent[:10_000]
