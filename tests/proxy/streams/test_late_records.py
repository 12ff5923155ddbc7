"""Produce requests longer than what the decision uses: the records after that are charged while they stream by.

The connection's next request waits for that debt. However the bytes are cut, the broker gets those that were sent.
"""

import random
from collections.abc import Iterator

import pytest

from protocol.errors import ProtocolError
from proxy.config.config import EnforcementOptions, SecurityOptions
from proxy.streams.memory import READ_SIZE, Holding
from proxy.streams.produce_usage import LOOKAHEAD, MAX_REMEMBERED
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


def long_request(number: int, *, acks: int = 1, late: int = 1_000) -> bytes:
    """Its topic "late" begins after what the decision uses, "last" is longer than a read."""
    topics: dict[Topic, list[bytes | None]] = {
        "early": [batch(1, 70_000)],
        "late": [batch(3, late)],
        "last": [None, batch(1, READ_SIZE + 90_000)],
    }
    return produce_records(number, topics, acks=acks)


def small(number: int, topic: str = "other", version: int = 9) -> bytes:
    return produce_records(number, {topic: [batch(1, 100)]}, version)


def send_in_pieces(pair: Pair, data: bytes, cuts: list[int]) -> None:
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        pair.client_sends(data[start:end])


def send_late(pair: Pair, data: bytes) -> None:
    """The request is decided before its topic "late" has arrived."""
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
def test_a_request_is_decided_when_64_kib_have_arrived_or_all_of_it(size: int) -> None:
    pair = Pair(World([ANY_TOPIC]))
    data = produce_records(1, {"rows": [batch(1, size)]})
    needed = min(len(data), 4 + LOOKAHEAD)
    pair.client_sends(data[: needed - 1])
    assert len(pair.requests.backlog.kept) == needed - 1
    pair.client_sends(data[needed - 1 : needed])
    assert pair.to_broker == data[:needed]
    pair.client_sends(data[needed:] + heartbeat(2))
    assert pair.sent() == [data, heartbeat(2)]


@pytest.mark.parametrize("acks", [0, 1])
def test_the_next_request_waits_for_late_charges(acks: int) -> None:
    world = World([LATE])
    pair = Pair(world)
    data = long_request(1, acks=acks, late=5_000)
    send_late(pair, data + small(2))
    assert pair.to_broker == data
    assert holder(pair) == ("topic:late", "bytes_in_rate")
    wait(world, 0.004_999)
    assert pair.is_held
    wait(world, 0.000_001)
    assert pair.sent()[1:] == [small(2)]
    # And only the next one: others may send what they like to that topic.
    Pair(world).client_sends(small(1, "late"))
    assert world.debts() == {("topic:late", "bytes_in_rate"): 0.0001}
    pair.client_sends(small(3))
    assert pair.sent()[2:] == [small(3)]


def test_late_charges_are_in_the_throttle_time() -> None:
    pair = Pair(World([LATE]))
    send_late(pair, long_request(1, late=7_000))
    pair.broker_sends(produced(1))
    assert pair.to_client == produced(1, throttle_ms=7)


def test_a_removed_late_limit_holds_nothing() -> None:
    other = parse_spec("topic=x,bytes_in_rate=1")
    world = World([without_burst("topic=late,bytes_in_rate=1"), other])
    pair = Pair(world)
    send_late(pair, long_request(1))
    assert world.debts()
    replace_quotas(world, [other])
    pair.client_sends(small(2))
    assert pair.sent()[1:] == [small(2)]


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
    world = World([ANY_TOPIC], security=SecurityOptions(max_buffered_bytes=300_000))
    data = produce_records(1, {"rows": [batch(1, 100_000)]})
    pairs = [Pair(world, cuts=[1_000]) for _ in range(12)]
    for pair in pairs:
        pair.client_sends(data[:60_000])
    assert world.memory.buffered_bytes < 300_000
    for pair in pairs:
        pair.client_sends(data[60_000:])
        assert pair.to_broker == data


def test_a_request_decided_early_is_charged_in_full() -> None:
    world = World(EACH_SLOW, security=SecurityOptions(max_buffered_bytes=2_000))
    pair = Pair(world)
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
    usage = pair.connection.usage
    assert usage is not None
    assert not usage.late
    assert usage.counted is not None
    assert len(usage.counted.usages) == MAX_REMEMBERED
    accepted = world.registry.topics.thresholds[BYTES_THRESHOLD].accepted
    assert accepted.count == 70 * 501, "of which none is kept for the response"
    pair.broker_sends(produced(1))
    assert accepted.count == 70_000 + 70 * (MAX_REMEMBERED + 500), "all of them count"
