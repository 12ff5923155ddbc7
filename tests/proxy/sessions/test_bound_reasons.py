"""The bounds of the proxy as reasons of a throttle."""

import logging

import pytest

from proxy.enforcement.report import IN_FLIGHT, MEMORY
from proxy.streams.memory import Holding
from tests.proxy.conversation import lines_of
from tests.proxy.frames import heartbeat, produce, produce_throttle_ms, produced
from tests.proxy.streams.pair import Pair, World


@pytest.mark.parametrize("reason", [MEMORY, IN_FLIGHT])
def test_a_bound_of_the_proxy_is_a_reason(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that is not read receives notices as long as that lasts."""
    caplog.set_level(logging.WARNING)
    pair = Pair(world := World())
    pair.client_sends(produce(1))
    if reason == MEMORY:
        world.memory.update(Holding(), 0, 2 * world.memory.limit, 0)
        pair.requests._wait_for_memory()
    else:
        pair.client_sends(*(heartbeat(number) for number in range(2, pair.connection.max_in_flight + 2)))
    assert world.metrics.connections.paused[reason] == 1
    world.clock.pass_seconds(1)
    pair.session.sweep(world.clock())
    waiting = pair.session.throttle_status
    assert waiting is not None
    assert (waiting.reason, waiting.entity) == (reason, "proxy")
    assert [fields["reason"] for _, fields in lines_of(caplog.records)] == [reason]
    pair.broker_sends(produced(1))
    assert produce_throttle_ms(pair.received()[0], 9) == 100
