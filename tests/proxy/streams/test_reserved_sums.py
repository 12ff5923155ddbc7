"""What limits have reserved is what frames and fetches under way have reserved, whatever clients, brokers and operators
do. Nothing is left when the connections are closed.
"""

import sys
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import FETCH, PRODUCE
from quotas.admission.limit import Limit
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, fetch, fetched, heartbeat, heartbeat_answer, produce_records, produced
from tests.proxy.streams.pair import Pair, World, frames_of, lapse, pass_time, release_due
from tests.proxy.streams.waiting import decide_again, replace_quotas

QUOTAS: tuple[Sequence[QuotaEntry], ...] = (
    (),
    (without_burst("client-id=etl,producer_byte_rate=50000,consumer_byte_rate=50000,request_rate=20"),),
    (
        parse_spec("client-id=<default>,producer_byte_rate=200000"),
        without_burst("topic=a,bytes_in_rate=90000,messages_in_rate=9"),
        parse_spec("topic=<default>,messages_in_rate=3"),
    ),
    (
        parse_spec("client-id=etl,producer_byte_rate=300000,consumer_byte_rate=1000000"),
        parse_spec("total,producer_byte_rate=500000"),
    ),
)
PIECES = (1, 5, 100, 5_000, 70_000, 1_000_000)
TIMES_MS = (1, 50, 400, 3_000)

Request = tuple[dict[str, int], int] | str
"""Sizes of batches by topic, and acks; or what else it is."""

sizes = st.sampled_from((61, 3_000, 150_000))
topics = st.dictionaries(st.sampled_from("abcd"), sizes, min_size=1)
requests = st.one_of(st.tuples(topics, st.sampled_from((0, 1))), st.just("fetch"), st.just("heartbeat"))
events = st.one_of(
    st.tuples(st.just("piece"), st.tuples(st.sampled_from(PIECES), requests)),
    st.tuples(st.just("piece"), st.tuples(st.sampled_from(PIECES), requests)),
    st.tuples(st.just("answer"), sizes),
    st.tuples(st.just("time"), st.sampled_from(TIMES_MS)),
    st.tuples(st.just("quotas"), st.sampled_from(QUOTAS)),
    st.tuples(st.sampled_from(("lapse", "turns", "turns", "dry run", "close")), st.none()),
)


class Peers:
    """A client that sends what it has in pieces, and a broker that answers what has come to it."""

    def __init__(self, world: World) -> None:
        self.pair = Pair(world)
        self.unsent = b""
        self.number = self.answered = 0

    def request(self, what: Request) -> None:
        self.number += 1
        if what == "fetch":
            self.unsent += fetch(self.number)
        elif isinstance(what, str):
            self.unsent += heartbeat(self.number)
        else:
            found, acks = what
            self.unsent += produce_records(
                self.number, {name: [batch(3, size)] for name, size in found.items()}, acks=acks
            )

    def send(self, size: int, next_request: Request) -> None:
        if len(self.unsent) < size:
            self.request(next_request)
        data, self.unsent = self.unsent[:size], self.unsent[size:]
        self.pair.client_sends(data)

    def answer(self, size: int) -> None:
        """All requests that came whole and whose client waits."""
        sent = whole(self.pair.to_broker)
        for each in sent[self.answered :]:
            api, number = int.from_bytes(each[4:6]), int.from_bytes(each[8:12])
            if number in {number for number, _ in self.pair.connection.in_flight}:
                responses = {PRODUCE: produced(number), FETCH: fetched(number, size=size)}
                self.pair.broker_sends(responses.get(api, heartbeat_answer(number)))
        self.answered = len(sent)


def whole(data: bytearray) -> list[bytes]:
    """The frames that have come to their ends."""
    end = 0
    while end + 4 <= len(data) and end + 4 + int.from_bytes(data[end : end + 4]) <= len(data):
        end += 4 + int.from_bytes(data[end : end + 4])
    return frames_of(data[:end])


def check(world: World, both: list[Peers], known: dict[Limit, None]) -> None:
    expected: dict[Limit, int] = {}
    frames = [peers.pair.connection.frame for peers in both]
    reserved = [passage.left for passage in world.holds._reserving]
    for amounts in reserved + [frame.ticket.reserved for frame in frames if frame is not None]:
        for limit, units in amounts.items():
            expected[limit] = expected.get(limit, 0) + units
    known.update(dict.fromkeys([*world.registry.limits_in_use(), *expected]))
    assert {limit: limit.reserved for limit in known if limit.reserved} == {
        limit: units for limit, units in expected.items() if units
    }


@given(st.sampled_from(QUOTAS), st.lists(st.tuples(st.booleans(), events), min_size=20, max_size=60))
def test_what_is_reserved_is_under_way(
    quotas: Sequence[QuotaEntry], drawn: list[tuple[bool, tuple[str, object]]]
) -> None:
    world = World(quotas)
    both = [Peers(world), Peers(world)]
    known: dict[Limit, None] = {}
    for which, (what, value) in drawn:
        happen(world, both, int(which), what, value)
        check(world, both, known)
    for peers in both:
        peers.pair.hang_up()
    check(world, [], known)
    assert not world.holds._reserving
    assert not world.holds.limits


def happen(world: World, both: list[Peers], which: int, what: str, value: object) -> None:
    peers = both[which]
    match what, value:
        case "piece", (int(size), (str() | tuple()) as request):
            peers.send(size, request)
        case "answer", int(size):
            peers.answer(size)
        case "time", int(time_ms):
            pass_time(world, time_ms * 1_000_000)
        case "quotas", tuple(quotas):
            replace_quotas(world, quotas)
        case "lapse", None:
            lapse(world)
        case "turns", None:
            for _ in range(5):
                release_due(world)
        case "dry run", None:
            measures = world.context.measures
            measures.change(measures.mode, enforces=not measures.enforces)
            if measures.enforces:
                world.registry.forget_debts(world.clock(), sys.maxsize)
            decide_again(world)
        case "close", None:
            peers.pair.hang_up()
            both[which] = Peers(world)
