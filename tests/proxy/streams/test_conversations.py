"""Each handler in conversations without sockets: whole, cut anywhere, broken off, and with bytes of others after it."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import FETCH
from proxy.sessions.pump_set import IN_FLIGHT
from quotas.entity import EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import REAL_HOST, produce, produced
from tests.proxy.streams.exchanges import HANDLED, NOISE, Exchange, unchanged
from tests.proxy.streams.pair import Pair, World, correlation_ids, pass_holds

pytestmark = pytest.mark.claim("limits", "the bound of token-bucket")

ROOMY = parse_spec("client-id=etl,producer_byte_rate=1GB,consumer_byte_rate=1GB,request_rate=1000")
ALL_LIMITS = [
    without_burst(
        "client-id=etl,producer_byte_rate=5000,consumer_byte_rate=5000,request_rate=20,controller_mutation_rate=5"
    ),
    without_burst("topic=topic-1,bytes_in_rate=900,messages_in_rate=9"),
    without_burst("total,producer_byte_rate=20000"),
]
EACH_ALONE = [
    [without_burst("client-id=etl,producer_byte_rate=5000,consumer_byte_rate=5000,controller_mutation_rate=5")],
    [without_burst("client-id=etl,request_rate=20")],
    [without_burst("topic=topic-1,bytes_in_rate=900")],
    [without_burst("topic=topic-1,messages_in_rate=9")],
    [without_burst("total,producer_byte_rate=20000")],
]

EACH = HANDLED | NOISE
#: Clients of this version of Fetch, and later ones, wait for a throttle time themselves.
FIRST_NOTIFIED = 8

exchanges = st.lists(st.tuples(st.sampled_from(sorted(HANDLED)), st.integers(0, 100_000)), min_size=1, max_size=10)
cuts = st.lists(st.integers(1, 400), max_size=8)


def of(drawn: list[tuple[str, int]]) -> list[Exchange]:
    """The exchanges, with correlation ids of their own."""
    return [HANDLED[name](number * 100 + at) for at, (name, number) in enumerate(drawn)]


def converse(pair: Pair, said: list[Exchange], *, in_turn: bool) -> None:
    """All requests, then all responses; or one after the other."""
    if in_turn:
        for each in said:
            pair.client_sends(each.request)
            pass_holds(pair.world)
            answer_what_came(pair, said)
    else:
        pair.client_sends(*(each.request for each in said))
        pass_holds(pair.world)
    while pair.response_stream.in_flight or pair.requests.paused & IN_FLIGHT:
        answer_what_came(pair, said)
        pass_holds(pair.world)
    pass_holds(pair.world)


def answer_what_came(pair: Pair, said: list[Exchange]) -> None:
    """The broker answers what has reached it and has no response yet. Fetch responses that may be delayed come whole: a
    delay is for what has arrived.
    """
    responses = {each.correlation_id: each.response for each in said}
    fetches = {each.correlation_id: int.from_bytes(each.request[6:8]) for each in said if api_of(each) == FETCH}
    delayed = {number for number, version in fetches.items() if version < FIRST_NOTIFIED}
    sent = correlation_ids(pair.sent(), requests=True)
    for number in pair.in_flight:
        if responses[number] and number in sent:
            cuts = pair.cuts
            if number in delayed:
                pair.cuts = ()
            pair.broker_sends(responses[number])
            pair.cuts = cuts
            pass_holds(pair.world)
        while pair.response_stream.delay is not None:
            pair.end_delay()


def api_of(exchange: Exchange) -> int:
    return int.from_bytes(exchange.request[4:6])


def outcome(pair: Pair) -> dict[str, Any]:
    world = pair.world
    return {
        "broker": bytes(pair.to_broker),
        "client": bytes(pair.to_client),
        "in flight": len(pair.response_stream.in_flight),
        "owed": pair.response_stream.answers.owed_bytes,
        "levels": world.levels(),
        "counts": world.counts(),
        "time": world.clock(),
    }


MANNERS: dict[str, Callable[[World], Pair]] = {
    "whole": Pair,
    "byte by byte": lambda world: Pair(world, cuts=[1]),
    "broken off after each step": lambda world: Pair(world, breaks=True),
    "cut and broken off": lambda world: Pair(world, cuts=[7, 61], breaks=True),
}


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("quotas", [[], [ROOMY]], ids=["no limit", "room in the limit"])
@pytest.mark.parametrize("manner", MANNERS)
def test_each_handler(name: str, quotas: list[QuotaEntry], manner: str) -> None:
    """What broker and client receive; a heartbeat before and after each exchange shows that frames stay apart."""
    pair = MANNERS[manner](World(quotas))
    said = []
    for number in range(0, 7 * 11, 11):  # with a stride of 11 each exchange occurs in all of its versions
        said += [EACH["forward"](number), EACH[name](number + 1), EACH["forward"](number + 2)]
    forwarded = b"".join(each.forwarded for each in said)
    pair.client_sends(*(each.request for each in said))
    assert pair.to_broker == forwarded or ("fetch" in name and quotas), "a limited fetch may ask for less"
    pair.broker_sends(*(each.response for each in said))
    assert len(pair.to_broker) == len(forwarded)
    received = pair.received()
    assert correlation_ids(received, requests=False) == [
        each.correlation_id for each in said if each.response or not each.forwarded
    ]
    by_number = dict(zip(correlation_ids(received, requests=False), received, strict=True))
    for each in said:
        if each.returned:
            assert by_number[each.correlation_id] == each.returned
    assert REAL_HOST.encode() not in pair.to_client
    assert not pair.response_stream.in_flight
    assert (pair.response_stream.answers.owed_bytes, pair.world.memory.buffered_bytes) == (0, 0)
    assert pair.request_stream.remaining == pair.response_stream.remaining == 0


@given(drawn=exchanges, sizes=cuts, breaks=st.booleans(), in_turn=st.booleans(), limits=st.sampled_from(EACH_ALONE))
def test_any_cut_is_as_the_whole(
    drawn: list[tuple[str, int]], sizes: list[int], breaks: bool, in_turn: bool, limits: list[QuotaEntry]
) -> None:
    """The same bytes, charges, metrics and waits, with limits that hold, refuse and raise throttle times: one for each
    kind of request.
    """
    said = of(drawn)
    whole, in_pieces = Pair(World(limits)), Pair(World(limits), cuts=sizes, breaks=breaks)
    for pair in (whole, in_pieces):
        converse(pair, said, in_turn=in_turn)
    received = [outcome(whole), outcome(in_pieces)]
    if isinstance(limits[0].entity, Named) and limits[0].entity.kind is EntityKind.TOPIC:
        # A throttle time covers what has not arrived of a held request: as if all of that were for the topic, too.
        for each in received:
            each["client"] = len(each["client"])
    assert received[0] == received[1]
    assert in_pieces.world.memory.buffered_bytes == 0
    assert not whole.response_stream.in_flight


@given(drawn=exchanges, sizes=cuts, breaks=st.booleans(), in_turn=st.booleans())
def test_with_several_limits_any_cut_passes_and_is_charged_the_same(
    drawn: list[tuple[str, int]], sizes: list[int], breaks: bool, in_turn: bool
) -> None:
    """Not at the same times: each read is charged when it passes, and what comes after it waits for the next limit."""
    said = of(drawn)
    outcomes = []
    for manner in ({}, {"cuts": sizes, "breaks": breaks}):
        pair = Pair(World(ALL_LIMITS), **manner)  # type: ignore[arg-type]
        converse(pair, said, in_turn=in_turn)
        world = pair.world
        counts = {key: count for key, count in world.counts().items() if key != "throttled"}
        received = correlation_ids(pair.received(), requests=False)
        # Requests that are never held count only while nothing is in debt, which depends on the times.
        passed = {key: count for key, count in world.passed().items() if key[1] != "request_rate"}
        outcomes.append((bytes(pair.to_broker), len(pair.to_client), received, passed, counts))
        assert (pair.in_flight, world.memory.buffered_bytes) == ([], 0)
    assert outcomes[0] == outcomes[1]


@given(
    name=st.sampled_from(sorted(EACH)),
    at=st.integers(0, 40),
    number=st.integers(100, 200),
    version=st.sampled_from([8, 9, 12, 13]),
    sizes=st.sampled_from([[100], [700], [1_500, 900]]),
)
def test_runs_of_responses_are_as_one_by_one(name: str, at: int, number: int, version: int, sizes: list[int]) -> None:
    """Many of one size, and among them one exchange of any kind: a run ends where it needs its handler."""
    said = [unchanged(produce(n, version=version), produced(n, version)) for n in range(40)]
    said.insert(at, EACH[name](number))
    whole, in_pieces = Pair(World()), Pair(World(), cuts=sizes)
    for pair in (whole, in_pieces):
        converse(pair, said, in_turn=False)
    assert outcome(in_pieces) == outcome(whole)
    assert REAL_HOST.encode() not in whole.to_client
    assert len(correlation_ids(whole.received(), requests=False)) >= 40
    assert not whole.response_stream.in_flight
