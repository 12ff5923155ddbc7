"""Delayed responses: which responses are late, for how long, and what follows them."""

import struct
from dataclasses import replace

import pytest

from proxy.config.config import EnforcementOptions
from proxy.sessions.pump_set import DELAY
from proxy.streams.handler import DELAYED_READ_SIZE
from quotas.modes import MODES
from tests.proxy.conversation import without_burst
from tests.proxy.frames import (
    fetch,
    fetched,
    heartbeat,
    produce,
    produce_throttle_ms,
    produced,
    request,
    share_fetch,
    share_fetched,
)
from tests.proxy.streams.pair import Pair, World, pass_holds

#: Each thousand bytes are a millisecond of debt.
QUOTA = without_burst("client-id=etl,producer_byte_rate=1MB,consumer_byte_rate=1MB")


def debt_ms(pair: Pair) -> int:
    """Of what has been forwarded."""
    return -(-(len(pair.to_broker) - 4) // 1_000)


def answered(version: int, size: int = 10_000, max_throttle_ms: int = 5_000) -> Pair:
    """A request that left debt has its response."""
    pair = Pair(World([QUOTA], enforcement=EnforcementOptions(max_throttle_ms=max_throttle_ms)))
    pair.client_sends(produce(1, size, version))
    pair.broker_sends(produced(1, version))
    return pair


@pytest.mark.parametrize("version", range(14))
def test_old_versions_of_produce_are_answered_late(version: int) -> None:
    """Clients of 6 and later wait by themselves (KIP-219); version 0 has no throttle time."""
    pair = answered(version)
    assert (pair.responses.paused == DELAY) == (version < 6)
    if version < 6:
        assert pair.to_client == b""
        pair.end_delay()
        assert pair.to_client == produced(1, version, debt_ms(pair) if version else 0)
        (mode,) = pair.world.throttled()
        assert (mode[2], pair.world.throttled()[mode]) == ("delay", 1), "counted once"
    else:
        assert produce_throttle_ms(pair.received()[0], version) == debt_ms(pair)


def test_after_a_delay_the_next_one_keeps_few_bytes() -> None:
    pair = Pair(World([replace(QUOTA, mode="delay")]))
    for number in (1, 2):
        pair.client_sends(fetch(number))
        pass_holds(pair.world)
        pair.broker_sends(fetched(number, size=300_000))
        assert pair.responses.paused == DELAY
        assert len(pair.responses.backlog.kept) > DELAYED_READ_SIZE or number == 2
        if number == 1:
            pair.end_delay()
    assert len(pair.responses.backlog.kept) <= DELAYED_READ_SIZE


@pytest.mark.parametrize("version", [0, 1, 7, 8, 12])
def test_a_fetch_response_that_leaves_debt_is_late(version: int) -> None:
    """It is charged once, though it is decided twice."""
    pair = Pair(World([replace(QUOTA, mode="delay")]))
    pair.client_sends(fetch(1, version))
    answer = fetched(1, version, size=9_900)
    pair.broker_sends(answer)
    assert pair.to_client == b""
    pair.end_delay()
    assert len(pair.to_client) == len(answer)
    if version:
        shown_ms = -(-len(answer) // 1_000) if version < 8 else 0
        told = struct.unpack_from(">i", pair.to_client, 9 if version >= 12 else 8)
        assert told == (shown_ms,), "clients of 8 and later would wait again"
    assert pair.connection.identity.entity.fetch_bytes == len(answer)
    pair.client_sends(fetch(2, version))
    assert pair.held is None, "what was served by a delay does not hold"


def test_a_delay_is_bounded_and_the_rest_holds() -> None:
    pair = answered(3, max_throttle_ms=3)
    pair.end_delay()
    assert pair.to_client == produced(1, 3, 3)
    pair.client_sends(produce(2, 100, 3))
    assert pair.held is not None


@pytest.mark.parametrize("version", [3, 9])
def test_without_a_response_nothing_is_late(version: int) -> None:
    """The next data frame is held, as in mode `pause`."""
    pair = Pair(World([QUOTA]))
    pair.client_sends(produce(1, 10_000, version, acks=0), heartbeat(2), produce(3, 10, version))
    assert len(pair.sent()) == 2
    assert pair.held is not None
    notice = pair.connection.identity.notice
    assert (notice.until_ns > pair.world.clock()) == (version == 9), "it covers the held request"


@pytest.mark.parametrize("mode", MODES)
def test_control_requests_and_renewals_of_locks_are_never_held(mode: str) -> None:
    """A ShareFetch that only renews acquisition locks (KIP-1222) asks for no bytes; one for records is held."""
    pair = Pair(World([without_burst(f"client-id=etl,consumer_byte_rate=1,mode={mode}")]))
    pair.client_sends(share_fetch(1, 2))
    pair.broker_sends(share_fetched(1, 2))
    sent = [
        share_fetch(2, 2, max_bytes=0, renews=True),
        *(request(api, 1, 10 + api) for api in (3, 8, 11, 12, 13, 14, 22, 24, 26)),
    ]
    pair.client_sends(*sent)
    assert pair.sent()[1:] == sent
    pair.broker_sends(share_fetched(2, 2))
    while pair.response_stream.delay is not None:
        pair.end_delay()
    pair.client_sends(share_fetch(3, 2))
    assert pair.held is not None


def test_debt_of_a_long_held_request_delays_its_own_response() -> None:
    pair = answered(3, 1_000)
    pair.client_sends(produce(2, 130_000, 3))
    assert pair.held is not None
    pass_holds(pair.world)
    pair.client_sends(heartbeat(3))
    assert len(pair.sent()) == 3
    assert pair.request_stream.delay is None, "nothing is left for the next request"
    pair.end_delay()
    pair.broker_sends(produced(2, 3))
    assert pair.responses.paused == DELAY
    assert len(pair.received()) == 1
