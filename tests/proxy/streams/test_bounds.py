"""What one connection can make the proxy remember is bounded."""

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import CorrelationMismatch, MalformedFrame, UnexpectedResponse
from protocol.wire import encode_varint
from proxy.brokers.nodes import Nodes
from proxy.config.addresses import Address
from proxy.config.config import EnforcementOptions, ListeningOptions, SecurityOptions
from proxy.sessions.pump_set import IN_FLIGHT
from proxy.streams.handlers.produce import ProduceRequest
from proxy.streams.memory import ResponseTooLarge
from proxy.streams.pending import MAX_OWED_BYTES
from proxy.streams.request import MAX_KINDS, MAX_TAIL_BYTES
from proxy.streams.response_stream import ResponseStream
from proxy.streams.sent_records import MAX_COUNTED, MAX_REMEMBERED
from quotas.limit_kinds import BYTES_THRESHOLD
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import (
    Topic,
    api_versions,
    batch,
    heartbeat,
    heartbeat_answer,
    produce,
    produce_records,
    produced,
    request,
)
from tests.proxy.mutation_frames import create
from tests.proxy.streams.pair import Pair, World

pytestmark = pytest.mark.claim(
    "enforcement", "--max-pending-requests and --max-buffered-bytes hold, and others are served"
)

MAX_IN_FLIGHT = SecurityOptions().max_pending_requests


@pytest.mark.parametrize("most", [1, 2, 7, 5_000])
def test_the_bound_is_an_option(most: int) -> None:
    pair = Pair(World(security=SecurityOptions(max_pending_requests=most)))
    sent = [heartbeat(number) for number in range(2 * most + 3)]
    pair.client_sends(*sent)
    assert pair.sent() == sent[:most]
    for number in range(len(sent)):
        pair.broker_sends(heartbeat_answer(number))
        assert len(pair.response_stream.in_flight) <= most
    assert pair.sent() == sent
    assert not pair.response_stream.in_flight


@pytest.mark.parametrize("make", [heartbeat, frames.fetch])
def test_requests_go_on_when_half_of_the_responses_have_come(make: Callable[[int], bytes]) -> None:
    """Fetches too, in a dry run of a limit."""
    quotas = [parse_spec("client-id=etl,consumer_byte_rate=1GB")]
    pair = Pair(World(quotas, enforcement=EnforcementOptions(dry_run=True)))
    sent = [make(number) for number in range(MAX_IN_FLIGHT + 10)]
    pair.client_sends(*sent)
    half = MAX_IN_FLIGHT // 2
    pair.broker_sends(*(heartbeat_answer(number) for number in range(half - 1)))
    assert len(pair.sent()) == MAX_IN_FLIGHT
    pair.broker_sends(heartbeat_answer(half - 1))
    assert pair.sent() == sent


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_the_bound_holds_with_requests_of_any_kind_before_it(lengths: list[int]) -> None:
    """Requests of several kinds in turn, so that batches of any length meet the bound."""
    makers = (heartbeat, produce, lambda n: produce(n, acks=0), frames.fetch, lambda n: api_versions(n, 99))
    sent = [makers[at % len(makers)](at * 1_000 + each) for at, count in enumerate(lengths) for each in range(count)]
    pair = Pair(World())
    pair.client_sends(frames.metadata(999_999), *sent)
    assert len(pair.response_stream.in_flight) <= MAX_IN_FLIGHT


def test_topics_kept_for_responses_are_bounded() -> None:
    """While the broker does not respond: the errors of a response give back what thresholds were charged."""
    pair = Pair(world := World([parse_spec("total=true,total.bytes.in.per.sec.threshold=1GB")]))
    accepted = world.registry.topics.thresholds[BYTES_THRESHOLD].accepted
    kept = []
    for number, count in enumerate([MAX_REMEMBERED + 500] + [200] * 300):
        topics: dict[Topic, list[bytes | None]] = {f"topic-{each}": [batch(1, 70)] for each in range(count)}
        pair.client_sends(produce_records(number, topics))
        _, awaited = pair.response_stream.in_flight[-1]
        assert isinstance(awaited, ProduceRequest)
        assert awaited.content is not None
        assert awaited.content.counted is not None
        kept.append(len(awaited.content.counted))
    assert kept[:10] == [MAX_REMEMBERED] + [200] * 9, "as usual"
    assert kept[1:] == [min(200, MAX_COUNTED // (number + 2)) for number in range(300)]
    counted = accepted.count
    pair.broker_sends(produced(0))
    assert accepted.count == counted + 70 * MAX_REMEMBERED, "the others counted when they passed"


def test_bytes_of_own_responses_are_bounded() -> None:
    """A refused CreateTopics is answered with all its names: the answers wait behind a response that does not come."""
    pair = Pair(World([without_burst("client-id=etl,controller_mutation_rate=1")]))
    pair.client_sends(create(1, {"first": 5}))
    names = {f"{number:0>100}": 1 for number in range(50)}
    pair.client_sends(*(create(number, names) for number in range(2, 100)))
    one = len(pair.response_stream.in_flight[1][1].frame)  # type: ignore[attr-defined]
    assert pair.requests.paused == IN_FLIGHT
    assert MAX_OWED_BYTES < pair.response_stream.answers.owed_bytes <= MAX_OWED_BYTES + one
    assert len(pair.response_stream.in_flight) < 20


def test_kinds_are_bounded_in_number_and_bytes() -> None:
    """A client that invents client ids or header tags makes the memo forget, and long heads are not remembered."""
    pair = Pair(world := World())
    for number in range(MAX_KINDS + 500):
        pair.client_sends(produce(number, 10, acks=0, client_id=f"made-up-{number}"))
    assert len(world.kinds._known) <= MAX_KINDS
    before = len(world.kinds._known)
    for number in range(50):
        tags = b"\x01\x00\xff\x7f" + str(number).encode().zfill(16_383)
        pair.exchange(_with_tags(number, tags), heartbeat_answer(number))
    assert len(world.kinds._known) == before
    assert sum(len(tail) for _, _, tail in world.kinds._known) <= MAX_KINDS * MAX_TAIL_BYTES


def test_requests_in_flight_do_not_keep_their_heads() -> None:
    """Heads of 120 KB, each another: what waits for responses is small."""
    pair = Pair(World())
    tracemalloc.start()
    try:
        for number in range(50):
            value = str(number).encode().zfill(120_000)
            tags = b"\x01\x00" + encode_varint(len(value)) + value
            pair.client_sends(_with_tags(number, tags))
        pair.to_broker.clear()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(pair.response_stream.in_flight) == 50
    assert kept < 1_000_000


def _with_tags(correlation_id: int, tags: bytes) -> bytes:
    return frames.frame(request(12, 4, correlation_id, b"body")[4 : 4 + 10 + len("etl")] + tags + b"body")


def test_a_response_above_a_quarter_of_the_pool_is_refused() -> None:
    pair = Pair(world := World(security=SecurityOptions(max_buffered_bytes=1_000_000)))
    pair.client_sends(frames.find_coordinator(1))
    with pytest.raises(ResponseTooLarge) as caught:
        pair.broker_sends((250_001).to_bytes(4, "big") + (1).to_bytes(4, "big"))
    assert (caught.value.length, caught.value.limit) == (250_001, 250_000)
    assert world.memory.used == 0


def many_brokers(count: int) -> bytes:
    brokers = {node: (f"broker-{node}.of.a.large.cluster", 9_092) for node in range(count)}
    return frames.metadata_answer(1, brokers, 2_000)


def test_a_long_list_of_brokers_is_learned_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new broker takes a port and a line of the log."""
    world = World(listening=ListeningOptions(broker_ports=None))
    learned = [0]
    advertise, take = Nodes._advertise, ResponseStream.next_step

    def learning(nodes: Nodes, node_id: int, host: str, port: int) -> Address:
        learned[-1] += 1
        return advertise(nodes, node_id, host, port)

    def taking(stream: ResponseStream, pos: int, end: int, now_ns: int) -> int:
        learned.append(0)
        return take(stream, pos, end, now_ns)

    world.context.nodes._bind_any = iter(range(20_000, 30_000)).__next__
    monkeypatch.setattr(Nodes, "_advertise", learning)
    monkeypatch.setattr(ResponseStream, "next_step", taking)
    pair = Pair(world)
    pair.exchange(frames.metadata(1), many_brokers(300))
    assert len(pair.received()) == 1
    assert sum(learned) == 300
    assert max(learned) <= 10


def test_draining_begins_no_request() -> None:
    pair = Pair(World())
    pair.client_sends(produce(1)[:50])
    pair.connection.close()
    unanswered = produce(3, acks=0)
    pair.client_sends(produce(1)[50:], produce(2), unanswered, heartbeat(4))
    assert pair.sent() == [produce(1), unanswered], "what is not answered counts as delivered"


@pytest.mark.parametrize(("requests", "wrong"), [(1, 0), (20, 0), (20, 1), (20, 19)])
def test_a_wrong_correlation_id(requests: int, wrong: int) -> None:
    pair = Pair(World())
    pair.client_sends(*(produce(number) for number in range(requests)))
    with pytest.raises(CorrelationMismatch) as caught:
        pair.broker_sends(*(produced(number if number != wrong else 4_711) for number in range(requests)))
    assert str(caught.value) == f"response has correlation id 4711, the oldest request in flight has {wrong}"


@pytest.mark.parametrize("requests", [0, 20])
def test_more_responses_than_requests(requests: int) -> None:
    pair = Pair(World())
    pair.client_sends(*(produce(number) for number in range(requests)))
    with pytest.raises(UnexpectedResponse):
        pair.broker_sends(*(produced(number) for number in range(requests + 1)))


def test_a_response_without_a_correlation_id() -> None:
    pair = Pair(World())
    pair.client_sends(produce(1))
    with pytest.raises(MalformedFrame):
        pair.broker_sends((3).to_bytes(4, "big") + bytes(4))


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (produce(1, version=12), b"\x00\x7f" + bytes(20)),
        (frames.fetch(1, 17), b"\x00" + bytes(10) + b"\x05" + bytes(20)),
        (frames.metadata(1), b"\x00" + bytes(4) + b"\x7f" + bytes(30)),
        (frames.find_coordinator(1), b"\xff" * 30),
        (api_versions(1, 3), b"\x00\x00\x7f" + bytes(3)),
    ],
    ids=["produce", "fetch", "metadata", "find coordinator", "api versions"],
)
def test_bytes_that_are_no_response(sent: bytes, answer: bytes) -> None:
    pair = Pair(World())
    pair.client_sends(sent)
    with pytest.raises(MalformedFrame):
        pair.broker_sends(frames.frame((1).to_bytes(4) + answer))
