"""What ends the delay of a response: its timer, or something earlier."""

import pytest

from proxy.config.config import SecurityOptions
from proxy.enforcement.report import DELAY
from proxy.streams.memory import Holding
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import heartbeat, heartbeat_answer, produce, produced
from tests.proxy.streams.pair import Pair, World

#: Each thousand bytes are a millisecond of debt.
QUOTA = without_burst("client-id=etl,producer_byte_rate=1MB,consumer_byte_rate=1MB")
LATE_MS = 11


def answered_late() -> Pair:
    """A request that left debt, and whose response is delayed."""
    pair = Pair(World([QUOTA], security=SecurityOptions(max_buffered_bytes=4_000_000)))
    pair.exchange(produce(1, 10_000, 3), produced(1, 3))
    assert pair.to_client == b""
    return pair


def test_its_timer_ends_it() -> None:
    """The responses after it follow in order; requests pass meanwhile."""
    pair = answered_late()
    waiting = pair.session.throttle_status
    assert waiting is not None
    assert (waiting.mode, waiting.limit, waiting.remaining_seconds) == (DELAY, "producer_byte_rate", LATE_MS / 1_000)
    assert pair.world.memory.buffered_bytes == len(produced(1, 3))
    assert pair.world.metrics.connections.paused["delay"] == 1
    pair.exchange(heartbeat(2), heartbeat_answer(2))
    assert (pair.sent()[1:], pair.received()) == ([heartbeat(2)], [])
    pair.world.loop.pass_seconds(LATE_MS / 1_000)
    assert pair.received() == [produced(1, 3, LATE_MS), heartbeat_answer(2)]
    assert pair.world.metrics.connections.paused["delay"] == 0
    assert pair.session.throttle_status is None


@pytest.mark.parametrize("how", ["drain", "end of stream", "raised limit", "no limit", "no memory"])
def test_it_ends_early_and_the_response_contains_what_it_was(how: str) -> None:
    pair = answered_late()
    world, others = pair.world, Holding()
    world.loop.pass_seconds(0.003_999)
    pair.session.sweep(world.clock())
    assert pair.response_stream.delay is not None
    if how == "drain":
        pair.session.drain()
    elif how == "end of stream":
        pair.client.end()
    elif how == "no memory":
        world.memory.update(others, 0, 3_000_000, 0)
    else:
        entries = [] if how == "no limit" else [parse_spec(f"client-id=etl,producer_byte_rate={10**12}")]
        world.registry.replace(entries, world.clock())
        world.clock.pass_seconds(0.000_001)
    pair.session.sweep(world.clock())
    world.loop.run()
    assert pair.received() == [produced(1, 3, 4)], "not the 11 ms that were planned"
    assert world.shared.wakeups._delays == {}
