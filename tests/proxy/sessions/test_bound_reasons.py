"""The bounds of the proxy as reasons of a throttle."""

import logging

import pytest

from proxy.config.config import SecurityOptions
from proxy.enforcement.report import IN_FLIGHT, MEMORY
from proxy.streams.memory import Holding
from tests.proxy.conversation import OpenStage, lines_of, until
from tests.proxy.frames import heartbeat, produce, produce_throttle_ms, produced


@pytest.mark.parametrize("reason", [MEMORY, IN_FLIGHT])
async def test_a_bound_of_the_proxy_is_a_reason(
    open_stage: OpenStage, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that is not read receives notices as long as that lasts."""
    caplog.set_level(logging.WARNING)
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    others = Holding()
    await client.send(produce(1))
    await broker.frame()
    if reason == MEMORY:
        stage.memory.update(others, 0, 2 * stage.memory.limit, 0)
        session.requests._wait_for_memory()
    else:
        await client.send(
            b"".join(heartbeat(number) for number in range(2, SecurityOptions().max_pending_requests + 2))
        )
    await until(lambda: stage.paused() == {reason: 1})
    stage.clock.pass_seconds(1)
    session.sweep(stage.clock())
    [waiting] = stage.waiting()
    assert (waiting.reason, waiting.entity) == (reason, "proxy")
    assert [fields["reason"] for _, fields in lines_of(caplog.records)] == [reason]
    await broker.send(produced(1))
    assert produce_throttle_ms(await client.frame(), 9) == 100
    stage.memory.forget(others)
