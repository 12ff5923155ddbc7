"""Produce requests longer than one read: records are charged when they are found, and a topic that is found late, whose
limit is in debt, holds the request in its middle. However the bytes are cut, the broker gets those that were sent.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from protocol.errors import ProtocolError
from proxy.config.config import EnforcementOptions, SecurityOptions
from proxy.streams.handlers.produce import ProduceRequest
from proxy.streams.handlers.reject.refusals import LOOKAHEAD
from proxy.streams.memory import READ_SIZE, Holding
from proxy.streams.sent_records import MAX_REMEMBERED
from quotas.limit_kinds import BYTES_THRESHOLD
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import Topic, batch, heartbeat, produce_records, produced
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import holder, replace_quotas, wait

#: A second of debt for each byte.
EACH_SLOW = [without_burst(f"topic={name},bytes_in_rate=1") for name in ("early", "late", "last")]
LATE = without_burst("topic=late,bytes_in_rate=1MB")
ANY_TOPIC = parse_spec("topic=<default>,bytes_in_rate=1GB")
MAY_REJECT = parse_spec("topic=<default>,bytes_in_rate=1GB,action=reject")


def long_request(number: int, *, acks: int = 1, late: int = 1_000) -> bytes:
    """Its topic "late" begins after 64 KiB, "last" is longer than a read."""
    topics: dict[Topic, list[bytes | None]] = {
        "early": [batch(1, 70_000)],
        "late": [batch(3, late)],
        "last": [None, batch(1, READ_SIZE + 90_000)],
    }
    return produce_records(number, topics, acks=acks)


def small(number: int, topic: str = "other", size: int = 100) -> bytes:
    return produce_records(number, {topic: [batch(1, size)]})


def send_in_pieces(pair: Pair, data: bytes, cuts: list[int]) -> None:
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        pair.client_sends(data[start:end])


def send_late(pair: Pair, data: bytes) -> None:
    """The request has begun to pass before its topic "late" has arrived."""
    send_in_pieces(pair, data, [LOOKAHEAD + 1_000])


def splits(data: bytes) -> Iterator[list[int]]:
    yield []
    at = data.index(b"late")
    # Byte by byte where one topic ends and the next begins, and at the very end.
    yield [*range(at - 12, at + 30), *range(len(data) - 12, len(data))]
    for boundary in (LOOKAHEAD, READ_SIZE):
        yield [boundary - 1, boundary, boundary + 1, 2 * boundary]
    chance = random.Random(4)
    for _ in range(5):
        yield sorted(chance.sample(range(1, len(data)), 12))


@pytest.mark.parametrize("split", range(9))
def test_the_broker_gets_what_was_sent_and_every_topic_is_charged(split: int) -> None:
    world = World(EACH_SLOW)
    pair = Pair(world)
    data = long_request(1)
    send_in_pieces(pair, data, list(splits(data))[split])
    assert pair.to_broker == data
    assert world.debts() == {
        ("topic:early", "bytes_in_rate"): 70_000,
        ("topic:late", "bytes_in_rate"): 1_000,
        ("topic:last", "bytes_in_rate"): READ_SIZE + 90_000,
    }
    assert world.memory.buffered_bytes == 0


@pytest.mark.parametrize("size", [1_000, 65_000, 65_400, 66_000, 600_000])
def test_a_request_passes_as_it_arrives(size: int) -> None:
    """But for the beginning of a batch: its header says how many messages it has."""
    pair = Pair(World([ANY_TOPIC]))
    data = produce_records(1, {"rows": [batch(1, size)]})
    for end in (size // 4, size // 2):
        pair.client_sends(data[len(pair.to_broker) + len(pair.requests.backlog.kept) : end])
        assert pair.to_broker == data[:end]
        assert pair.requests.backlog.kept == b""
    pair.client_sends(data[size // 2 :] + heartbeat(2))
    assert pair.sent() == [data, heartbeat(2)]


@pytest.mark.parametrize("size", [1_000, 65_000, 65_400, 66_000, 600_000])
def test_a_request_that_may_be_refused_is_decided_when_64_kib_have_arrived_or_all_of_it(size: int) -> None:
    pair = refusing(World([MAY_REJECT]))
    data = produce_records(1, {"rows": [batch(1, size)]})
    needed = min(len(data), 4 + LOOKAHEAD)
    pair.client_sends(data[: needed - 1])
    assert len(pair.requests.backlog.kept) == needed - 1
    pair.client_sends(data[needed - 1 : needed])
    assert pair.to_broker == data[:needed]
    pair.client_sends(data[needed:] + heartbeat(2))
    assert pair.sent() == [data, heartbeat(2)]


def refusing(world: World, cuts: Sequence[int] = ()) -> Pair:
    """A client that sends refused batches again."""
    pair = Pair(world, cuts=cuts)
    pair.connection.identity.refusal_error = 89
    return pair


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("split", range(9))
def test_a_request_waits_in_its_middle_for_a_topic_that_is_found_late(split: int, acks: int) -> None:
    """Each request on a connection of its own: what it owes is not kept per connection."""
    world = World([LATE])
    Pair(world).client_sends(small(1, "late", size=50_000))
    pair = Pair(world)
    data = long_request(1, acks=acks, late=5_000)
    send_in_pieces(pair, data, list(splits(data))[split])
    assert holder(pair) == ("topic:late", "bytes_in_rate")
    assert len(pair.to_broker) < data.index(b"late") + 70 or not split, "a read that is held is held as a whole"
    assert data.startswith(pair.to_broker)
    wait(world, 0.049_999)
    assert pair.is_held
    wait(world, 0.000_001)
    assert pair.to_broker == data
    assert world.debts() == {("topic:late", "bytes_in_rate"): 0.005}
    assert world.throttled()["etl", "bytes_in_rate", "pause"] == 1
    pair.client_sends(small(2))
    assert pair.to_broker == data + small(2), "of another topic: no limit is in debt for it"
    pair.client_sends(small(3, "late"))
    assert holder(pair) == ("topic:late", "bytes_in_rate")
    wait(world, 0.005)
    assert pair.to_broker == data + small(2) + small(3, "late")


@pytest.mark.parametrize("pieces", [0, 200, 1_000])
def test_late_topics_get_no_more_than_their_limit_whatever_is_before_them(pieces: int) -> None:
    """After 64 KiB, or after more pieces than one step reads; each request on a new connection, which then goes."""
    world = World([parse_spec("topic=secret,bytes_in_rate=1MB"), ANY_TOPIC])
    topics: dict[Topic, list[bytes | None]] = {"decoy": [b"abc"] * pieces or [batch(1, 70_000)]}
    data = produce_records(1, topics | {"secret": [batch(1, 400_000)]})
    passed = 0
    for _ in range(100):
        pair = Pair(world)
        pair.client_sends(data[:67_000])
        pair.client_sends(data[67_000:])
        wait(world, 0.01)
        passed += pair.to_broker == data
        pair.hang_up()
    assert 4 <= passed <= 6, "a burst of 1 MB, a second at 1 MB/s, and one request of 0.4 MB"


def test_late_charges_are_in_the_throttle_time() -> None:
    pair = Pair(World([LATE]))
    send_late(pair, long_request(1, late=7_000))
    pair.broker_sends(produced(1))
    assert pair.to_client == produced(1, throttle_ms=7)


def test_a_removed_late_limit_holds_nothing() -> None:
    other = parse_spec("topic=x,bytes_in_rate=1")
    world = World([without_burst("topic=late,bytes_in_rate=1"), other])
    Pair(world).client_sends(small(1, "late"))
    pair = Pair(world)
    send_late(pair, long_request(1) + small(2))
    assert holder(pair) == ("topic:late", "bytes_in_rate")
    replace_quotas(world, [other])
    assert pair.sent() == [long_request(1), small(2)]


def test_late_debt_holds_nothing_in_a_dry_run() -> None:
    pair = Pair(World(EACH_SLOW, enforcement=EnforcementOptions(dry_run=True)))
    send_late(pair, long_request(1) + small(2, "late"))
    assert pair.sent() == [long_request(1), small(2, "late")]


def test_a_late_part_that_cannot_be_parsed_closes_the_connection() -> None:
    pair = Pair(World([ANY_TOPIC]))
    data = long_request(1)
    at = data.index(b"late") - 1
    with pytest.raises(ProtocolError):
        send_late(pair, data[:at] + b"\x00" + data[at + 1 :])  # a topic without a name
    assert len(pair.to_broker) >= LOOKAHEAD
    assert data.startswith(pair.to_broker)


# ---- memory


def test_requests_before_their_decision_do_not_use_up_memory() -> None:
    """Else nothing could be read that completes them, for ever."""
    world = World([MAY_REJECT], security=SecurityOptions(max_buffered_bytes=300_000))
    data = produce_records(1, {"rows": [batch(1, 100_000)]})
    pairs = [refusing(world, cuts=[1_000]) for _ in range(12)]
    for pair in pairs:
        pair.client_sends(data[:60_000])
    assert world.memory.buffered_bytes < 300_000
    for pair in pairs:
        pair.client_sends(data[60_000:])
        assert pair.to_broker == data


def test_a_request_decided_early_is_charged_in_full() -> None:
    may_reject = [replace(each, rejects=True) for each in EACH_SLOW]
    world = World(may_reject, security=SecurityOptions(max_buffered_bytes=2_000))
    pair = refusing(world)
    world.memory.update(Holding(), 0, 2_500, 0)
    assert world.memory.is_tight
    data = long_request(1)
    pair.client_sends(data[:100])
    assert pair.to_broker[:40] == data[:40]
    pair.client_sends(data[100:])
    assert pair.to_broker == data
    assert len(world.debts()) == 3


def test_a_request_with_many_topics_keeps_little_state() -> None:
    world = World([ANY_TOPIC, parse_spec("total=true,total.bytes.in.per.sec.threshold=1GB")])
    pair = Pair(world)
    topics: dict[Topic, list[bytes | None]] = {"x": [batch(1, 70_000)]}
    topics |= {f"topic-{number}": [batch(1, 70)] for number in range(MAX_REMEMBERED + 500)}
    send_late(pair, produce_records(1, topics))
    _, request = pair.response_stream.in_flight[-1]
    assert isinstance(request, ProduceRequest)
    assert request.content is not None
    assert request.content.counted is not None
    assert len(request.content.counted) == MAX_REMEMBERED
    accepted = world.registry.topics.thresholds[BYTES_THRESHOLD].accepted
    assert accepted.count == 70 * 501, "of which none is kept for the response"
    pair.broker_sends(produced(1))
    assert accepted.count == 70_000 + 70 * (MAX_REMEMBERED + 500), "all of them count"
