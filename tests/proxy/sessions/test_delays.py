"""What ends the delay of a response: its timer, or something earlier."""

import pytest

from proxy.config.config import SecurityOptions
from proxy.enforcement.report import DELAY
from proxy.streams.memory import Holding
from tests.proxy.conversation import OpenStage, Peer, Stage, until, without_burst
from tests.proxy.dialogue import alter
from tests.proxy.frames import heartbeat, heartbeat_answer, produce, produced

#: Each thousand bytes are a millisecond of debt.
QUOTA = without_burst("client-id=etl,producer_byte_rate=1MB,consumer_byte_rate=1MB")
NAME = "producer_byte_rate"


async def delayed(stage: Stage, count: int = 1) -> None:
    await until(lambda: stage.paused().get("delay", 0) == count)


async def answered_late(stage: Stage, version: int, size: int = 10_000) -> tuple[Peer, Peer, int]:
    """A request that left debt, and whose response is delayed. Returns the debt in ms, too."""
    client, broker = await stage.pair()
    await client.send(produce(1, size, version))
    debt_ms = -(-(len(await broker.frame()) - 4) // 1_000)
    await broker.send(produced(1, version))
    await delayed(stage)
    return client, broker, debt_ms


async def test_its_timer_ends_it(open_stage: OpenStage) -> None:
    """The responses after it follow in order."""
    stage = open_stage(quotas=[QUOTA])
    client, broker, debt_ms = await answered_late(stage, 3)
    [waiting] = stage.waiting()
    assert (waiting.mode, waiting.limit, waiting.remaining_seconds) == (DELAY, NAME, debt_ms / 1_000)
    assert stage.memory.buffered_bytes == len(produced(1, 3))
    await client.send(heartbeat(2))
    assert await broker.frame() == heartbeat(2), "requests pass meanwhile"
    await broker.send(heartbeat_answer(2))
    assert stage.metrics.connections.paused["delay"] == 1
    stage.clock.pass_seconds(debt_ms / 1_000)
    assert await client.frame() == produced(1, 3, debt_ms)
    assert await client.frame() == heartbeat_answer(2)
    assert stage.paused() == {}
    assert stage.waiting() == []


@pytest.mark.parametrize("how", ["drain", "end of stream", "raised limit", "no limit", "no memory"])
async def test_it_ends_early(open_stage: OpenStage, how: str) -> None:
    stage = open_stage(quotas=[QUOTA], security=SecurityOptions(max_buffered_bytes=4_000_000))
    client, _, debt_ms = await answered_late(stage, 3)
    session = stage.session_of(client)
    session.sweep(stage.clock())
    assert session.response_stream.delay is not None
    others = Holding()
    if how == "drain":
        session.drain()
    elif how == "end of stream":
        client.end()
    elif how == "no memory":
        stage.memory.update(others, 0, 3_000_000, 0)
    else:
        alter(stage, f"client-id=etl,producer_byte_rate={10**12}", away=how == "no limit")
        stage.clock.pass_seconds(0.000_001)
    session.sweep(stage.clock())
    assert await client.frame() == produced(1, 3, debt_ms)
    assert stage.shared.wakeups._delays == {}
    stage.memory.forget(others)


@pytest.mark.parametrize("who", ["the client", "the proxy"])
async def test_a_connection_that_closes_leaves_nothing(open_stage: OpenStage, who: str) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker, _ = await answered_late(stage, 3)
    if who == "the client":
        client.reset()
        await broker.closed()
        broker.close()
        await stage.no_sessions()
    else:
        stage.session_of(client).close()
        await client.closed()
    assert stage.shared.wakeups._delays == {}
