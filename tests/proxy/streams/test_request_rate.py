"""`request_rate`: every request counts, and only those for data are held."""

import pytest

from proxy.config.config import EnforcementOptions
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import (
    api_versions,
    fetch,
    fetch_max_bytes,
    fetched,
    heartbeat,
    heartbeat_answer,
    metadata,
    produce,
    produce_throttle_ms,
    produced,
    request,
)
from tests.proxy.streams.pair import Pair, World, correlation_ids
from tests.proxy.streams.waiting import CUTS, holder, wait

#: A second of debt for each request.
SLOW = without_burst("client-id=etl,request_rate=1")
#: A millisecond.
FAST = without_burst("client-id=etl,request_rate=1000")
OWED = ("client-id:etl", "request_rate")


@pytest.mark.parametrize("cuts", CUTS)
def test_every_kind_of_request_counts(cuts: list[int]) -> None:
    world = World([SLOW])
    pair = Pair(world, cuts=cuts)
    sent = [
        heartbeat(1),
        metadata(2),
        api_versions(3, 3),
        request(19, 7, 4, b"\x01\x00\x00\x00\x00\x00\x00"),
        request(20, 1, 5, bytes(8)),
        api_versions(6, 99),  # answered by the proxy
        heartbeat(7),
    ]
    for each in sent:
        world.clock.pass_seconds(1)
        pair.client_sends(each)
        assert world.debts() == {OWED: 1}, "each leaves a second"
    pair.client_sends(heartbeat(8))
    assert world.debts() == {OWED: 1}, "and what finds debt is not charged"
    assert pair.sent() == [*sent[:5], sent[6], heartbeat(8)]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(
    "data",
    [produce(9), produce(9, acks=0), produce(9, version=2), fetch(9)],
    ids=["produce", "acks 0", "version 2", "fetch"],
)
def test_only_data_is_held(cuts: list[int], data: bytes) -> None:
    world = World([FAST])
    pair = Pair(world, cuts=cuts)
    pair.client_sends(*(heartbeat(number) for number in range(1, 4)), data)
    assert correlation_ids(pair.sent(), requests=True) == [1, 2, 3]
    assert holder(pair) == OWED
    assert world.debts()[OWED] == 0.001, "what waits has not been counted, and what found debt is not"
    wait(world, 0.001)
    assert correlation_ids(pair.sent(), requests=True) == [1, 2, 3, 9]
    assert world.debts() == {OWED: 0.001}


def test_small_requests_in_one_read_are_counted_one_by_one() -> None:
    """They pass together where there is room, which is not the same as passing for one."""
    world = World([parse_spec("client-id=etl,request_rate=500,producer_byte_rate=1GB")])
    pair = Pair(world)
    pair.client_sends(*(produce(number, 5) for number in range(700)))
    assert len(pair.sent()) == 501
    assert world.debts() == {OWED: 0.002}
    for number in range(502, 512):
        wait(world, 0.002)
        assert len(pair.sent()) == number
    wait(world, 1)
    assert pair.sent() == [produce(number, 5) for number in range(700)]


@pytest.mark.parametrize(("algorithm", "seconds"), [("token-bucket", 0.1), ("ewma", 0), ("sampled-window", 1.1)])
def test_control_requests_leave_a_bounded_debt(algorithm: str, seconds: float) -> None:
    """However many they are, data waits for the last one that found no debt."""
    world = World([parse_spec("client-id=etl,request_rate=10")], algorithm=algorithm)
    pair = Pair(world)
    owed = []
    for number in range(48):
        pair.client_sends(*(heartbeat(number) for _ in range(40)))
        pair.broker_sends(*(heartbeat_answer(number) for _ in range(40)))
        owed.append(world.debts().get(OWED, 0))
        world.clock.pass_seconds(0.5)
    assert len(pair.sent()) == 48 * 40
    assert max(owed) == seconds


@pytest.mark.parametrize("version", range(4, 14))
def test_its_debt_is_in_data_responses(version: int) -> None:
    world = World([FAST], enforcement=EnforcementOptions(throttle_mode="notify"))
    pair = Pair(world)
    pair.client_sends(heartbeat(1))
    world.clock.pass_seconds(0.001)
    pair.client_sends(produce(2, 3, version), *(heartbeat(number) for number in range(3, 6)))
    pair.broker_sends(heartbeat_answer(1), produced(2, version))
    assert produce_throttle_ms(pair.received()[1], version) == 1, "what this request left"


def test_a_fetch_is_counted_at_its_request() -> None:
    world = World([SLOW])
    pair = Pair(world)
    pair.client_sends(fetch(1))
    assert fetch_max_bytes(pair.sent()[0]) == 50_000_000, "requests say nothing about its size"
    assert world.debts() == {OWED: 1}
    pair.broker_sends(fetched(1, size=5_000))
    assert world.debts() == {OWED: 1}
