"""`request_rate`: every request counts, and only those for data are held."""

import pytest

from tests.proxy.conversation import without_burst
from tests.proxy.frames import api_versions, fetch, heartbeat, metadata, produce, request
from tests.proxy.streams.pair import Pair, World, correlation_ids
from tests.proxy.streams.waiting import CUTS, holder, wait

pytestmark = pytest.mark.claim("enforcement", "heartbeats pass while data of the same client is held")

#: A second of debt for each request.
SLOW = without_burst("client-id=etl,request_rate=1")
#: A millisecond.
FAST = without_burst("client-id=etl,request_rate=1000")
OWED = ("client-id:etl", "request_rate")


@pytest.mark.parametrize("cuts", CUTS)
def test_every_kind_of_request_counts(cuts: list[int]) -> None:
    pair = Pair(world := World([SLOW]), cuts=cuts)
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
    pair = Pair(world := World([FAST]), cuts=cuts)
    pair.client_sends(*(heartbeat(number) for number in range(1, 4)), data)
    assert correlation_ids(pair.sent(), requests=True) == [1, 2, 3]
    assert holder(pair) == OWED
    assert world.debts()[OWED] == 0.001, "what waits has not been counted, and what found debt is not"
    wait(world, 0.001)
    assert correlation_ids(pair.sent(), requests=True) == [1, 2, 3, 9]
    assert world.debts() == {OWED: 0.001}
