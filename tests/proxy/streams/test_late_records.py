"""Produce requests longer than one read: records are charged when they are found, and a topic that is found late, whose
limit is in debt, holds the request in its middle.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from proxy.config.config import SecurityOptions
from proxy.streams.handlers.reject.refusals import LOOKAHEAD
from proxy.streams.memory import READ_SIZE, Holding
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import Topic, batch, heartbeat, produce_records, produced
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import holder, wait

#: A second of debt for each byte.
EACH_SLOW = [without_burst(f"topic={name},bytes_in_rate=1") for name in ("early", "late", "last")]
LATE = without_burst("topic=late,bytes_in_rate=1MB")
MAY_REJECT = parse_spec("topic=<default>,bytes_in_rate=1GB,action=reject")


def long_request(number: int, *, acks: int = 1, late: int = 1_000) -> bytes:
    """Its topic "late" begins after 64 KiB, "last" is longer than a read."""
    topics: dict[Topic, list[bytes | None]] = {
        "early": [batch(1, 70_000)],
        "late": [batch(3, late)],
        "last": [None, batch(1, READ_SIZE + 90_000)],
    }
    return produce_records(number, topics, acks=acks)


def small(number: int, topic: str, size: int = 100) -> bytes:
    return produce_records(number, {topic: [batch(1, size)]})


def send_late(pair: Pair, data: bytes) -> None:
    """The request has begun to pass before its topic "late" has arrived."""
    pair.client_sends(data[: LOOKAHEAD + 1_000])
    pair.client_sends(data[LOOKAHEAD + 1_000 :])


def refusing(world: World, cuts: Sequence[int] = ()) -> Pair:
    """A client that sends refused batches again."""
    pair = Pair(world, cuts=cuts)
    pair.connection.identity.refusal_error = 89
    return pair


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


@pytest.mark.parametrize("acks", [0, 1])
def test_a_request_waits_in_its_middle_for_a_topic_that_is_found_late(acks: int) -> None:
    """Each request on a connection of its own: what it owes is not kept per connection."""
    world = World([LATE])
    Pair(world).client_sends(small(1, "late", size=50_000))
    pair = Pair(world)
    data = long_request(1, acks=acks, late=5_000)
    send_late(pair, data)
    assert holder(pair) == ("topic:late", "bytes_in_rate")
    assert pair.to_broker == data[: LOOKAHEAD + 1_000]
    wait(world, 0.049_999)
    assert pair.is_held
    wait(world, 0.000_001)
    assert pair.to_broker == data
    assert world.debts() == {("topic:late", "bytes_in_rate"): 0.005}
    assert world.throttled()["etl", "bytes_in_rate", "pause"] == 1
    pair.client_sends(small(2, "other"))
    assert pair.to_broker == data + small(2, "other"), "no limit is in debt for it"
    pair.client_sends(small(3, "late"))
    assert holder(pair) == ("topic:late", "bytes_in_rate")


def test_late_charges_are_in_the_throttle_time() -> None:
    pair = Pair(World([LATE]))
    send_late(pair, long_request(1, late=7_000))
    pair.broker_sends(produced(1))
    assert pair.to_client == produced(1, throttle_ms=7)


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
    may_reject = [replace(each, options=replace(each.options, rejects=True)) for each in EACH_SLOW]
    pair = refusing(world := World(may_reject, security=SecurityOptions(max_buffered_bytes=2_000)))
    world.memory.update(Holding(), 0, 2_500, 0)
    assert world.memory.is_tight
    data = long_request(1)
    pair.client_sends(data[:100])
    assert pair.to_broker[:40] == data[:40]
    pair.client_sends(data[100:])
    assert pair.to_broker == data
    assert len(world.debts()) == 3
