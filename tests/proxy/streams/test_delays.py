"""Delayed responses: which responses are late, for how long, and what follows them."""

import struct
from dataclasses import replace

import pytest

from proxy.config.config import EnforcementOptions
from proxy.sessions.pump_set import DELAY
from quotas.modes import MODES
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.streams.pair import Pair, World, correlation_ids, pass_holds

#: Each thousand bytes are a millisecond of debt.
QUOTA = without_burst("client-id=etl,producer_byte_rate=1MB,consumer_byte_rate=1MB")


def debt_ms(pair: Pair) -> int:
    """Of what has been forwarded."""
    return -(-(len(pair.to_broker) - 4) // 1_000)


def answered(version: int, size: int = 10_000, max_throttle_ms: int = 5_000) -> Pair:
    """A request that left debt has its response."""
    pair = Pair(World([QUOTA], enforcement=EnforcementOptions(max_throttle_ms=max_throttle_ms)))
    pair.exchange(frames.produce(1, size, version), frames.produced(1, version))
    return pair


@pytest.mark.parametrize("version", range(14))
def test_old_versions_of_produce_are_answered_late(version: int) -> None:
    """Clients of 6 and later wait by themselves (KIP-219); version 0 has no throttle time."""
    pair = answered(version)
    assert (pair.responses.paused == DELAY) == (version < 6)
    if version < 6:
        assert pair.to_client == b""
        pair.end_delay()
        assert pair.to_client == frames.produced(1, version, debt_ms(pair) if version else 0)
        (mode,) = pair.world.throttled()
        assert (mode[2], pair.world.throttled()[mode]) == ("delay", 1), "counted once"
    else:
        assert frames.produce_throttle_ms(pair.received()[0], version) == debt_ms(pair)


@pytest.mark.parametrize("version", [0, 1, 7, 8, 12])
def test_a_fetch_response_that_leaves_debt_is_late(version: int) -> None:
    """It is charged once, though it is decided twice."""
    pair = Pair(World([replace(QUOTA, options=replace(QUOTA.options, mode="delay"))]))
    pair.client_sends(frames.fetch(1, version))
    answer = frames.fetched(1, version, size=9_900)
    pair.broker_sends(answer)
    assert pair.to_client == b""
    pair.end_delay()
    assert len(pair.to_client) == len(answer)
    if version:
        shown_ms = -(-len(answer) // 1_000) if version < 8 else 0
        told = struct.unpack_from(">i", pair.to_client, 9 if version >= 12 else 8)
        assert told == (shown_ms,), "clients of 8 and later would wait again"
    assert pair.connection.identity.entity.fetch_bytes == len(answer)
    pair.client_sends(frames.fetch(2, version))
    assert pair.held is None, "what was served by a delay does not hold"


@pytest.mark.parametrize("version", [3, 9])
def test_without_a_response_nothing_is_late(version: int) -> None:
    """The next data frame is held, as in mode `pause`."""
    pair = Pair(World([QUOTA]))
    pair.client_sends(frames.produce(1, 10_000, version, acks=0), frames.heartbeat(2), frames.produce(3, 10, version))
    assert len(pair.sent()) == 2
    assert pair.held is not None
    notice = pair.connection.identity.notice
    assert (notice.until_ns > pair.world.clock()) == (version == 9), "it covers the held request"


@pytest.mark.parametrize("mode", MODES)
def test_control_requests_and_share_fetches_are_never_held(mode: str) -> None:
    """Also those that only renew acquisition locks (KIP-1222) pass unchanged: they ask for no bytes."""
    pair = Pair(World([without_burst(f"client-id=etl,consumer_byte_rate=1,mode={mode}")]))
    pair.exchange(frames.share_fetch(1, 2), frames.share_fetched(1, 2))
    sent = [
        frames.share_fetch(2, 2, max_bytes=0, renews=True),
        *(frames.request(api, 1, 10 + api) for api in (3, 8, 11, 12, 13, 14, 22, 24, 26)),
    ]
    pair.client_sends(*sent, frames.share_fetch(3, 2), frames.fetch(4))
    assert pair.sent()[1:-1] == sent
    assert correlation_ids(pair.sent(), requests=True)[-1] == 3
    assert pair.held is not None, "the fetch"


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize("cuts", [[], [10_000], [300_000]])
def test_a_client_waits_once_for_each_byte_however_its_response_arrives(cuts: list[int], version: int) -> None:
    """A delay is for what has passed its limit; what comes after it holds the next fetch."""
    world = World(
        [replace(QUOTA, options=replace(QUOTA.options, mode="delay"))],
        enforcement=EnforcementOptions(max_throttle_ms=60_000),
    )
    pair = Pair(world, cuts=cuts)
    began_ns = world.clock()
    for number in range(5):
        pair.client_sends(frames.fetch(number, version))
        pass_holds(world)
        pair.broker_sends(frames.fetched(number, version, size=2_000_000))
        while pair.response_stream.delay is not None:
            pair.end_delay()
    pair.client_sends(frames.fetch(5, version))
    pass_holds(world)
    assert (world.clock() - began_ns) / 1e9 == pytest.approx(len(pair.to_client) / 1e6, abs=0.01)
