"""Delayed responses: who receives them late, what follows them, and what ends a delay early."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from proxy.config.config import EnforcementOptions, SecurityOptions
from proxy.enforcement.report import DELAY
from proxy.streams.memory import Holding
from quotas.modes import MODES
from tests.proxy.conversation import Peer, Stage, until, without_burst
from tests.proxy.dialogue import alter, held
from tests.proxy.frames import (
    correlation_of,
    fetch,
    fetched,
    heartbeat,
    heartbeat_answer,
    produce,
    produce_throttle_ms,
    produced,
    request,
    share_fetch,
    share_fetched,
)

OpenStage = Callable[..., Stage]
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


@pytest.mark.parametrize("version", range(14))
async def test_old_versions_of_produce_are_answered_late(open_stage: OpenStage, version: int) -> None:
    """Clients of 6 and later wait by themselves (KIP-219); version 0 has no throttle time."""
    stage = open_stage(quotas=[QUOTA])
    if version >= 6:
        client, broker = await stage.pair()
        await client.send(produce(1, 10_000, version))
        await broker.frame()
        await broker.send(produced(1, version))
        assert produce_throttle_ms(await client.frame(), version) > 0
        assert stage.metrics.connections.paused["delay"] == 0
        return
    client, _, debt_ms = await answered_late(stage, version)
    assert stage.memory.buffered_bytes == len(produced(1, version))
    stage.clock.pass_seconds(debt_ms / 1_000)
    assert await client.frame() == produced(1, version, debt_ms if version else 0)
    assert stage.paused() == {}


@pytest.mark.parametrize("version", [0, 1, 7, 8, 12])
async def test_a_fetch_response_that_leaves_debt_is_late(open_stage: OpenStage, version: int) -> None:
    """It is charged once, though it is looked at twice."""
    stage = open_stage(quotas=[replace(QUOTA, mode="delay")])
    client, broker = await stage.pair()
    await client.send(fetch(1, version))
    await broker.frame()
    answer = fetched(1, version, size=9_900)
    await broker.send(answer)
    await delayed(stage)
    debt_ms = -(-len(answer) // 1_000)
    stage.clock.pass_seconds(debt_ms / 1_000)
    received = await client.frame()
    assert len(received) == len(answer)
    if version:
        at = 9 if version >= 12 else 8
        shown_ms = debt_ms if version < 8 else 0
        assert struct.unpack_from(">i", received, at) == (shown_ms,), "clients of 8 and later would wait again"
    assert stage.session_of(client).identity.entity.fetch_bytes == len(answer)
    await client.send(fetch(2, version))
    assert correlation_of(await broker.frame()) == 2, "what was served by a delay does not hold"


async def test_later_responses_follow_in_order(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker, debt_ms = await answered_late(stage, 3)
    await client.send(heartbeat(2))
    assert await broker.frame() == heartbeat(2), "requests pass meanwhile"
    await broker.send(heartbeat_answer(2))
    assert stage.metrics.connections.paused["delay"] == 1
    stage.clock.pass_seconds(debt_ms / 1_000)
    assert await client.frame() == produced(1, 3, debt_ms)
    assert await client.frame() == heartbeat_answer(2)


async def test_a_delay_is_bounded_and_the_rest_holds(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=EnforcementOptions(max_throttle_ms=3))
    client, broker, debt_ms = await answered_late(stage, 3)
    stage.clock.pass_seconds(0.003)
    assert await client.frame() == produced(1, 3, 3)
    await client.send(produce(2, 100, 3))
    await until(lambda: stage.paused().get("quota", 0) == 1)
    stage.clock.pass_seconds((debt_ms - 3) / 1_000)
    assert correlation_of(await broker.frame()) == 2


async def test_what_waits_is_shown_and_counted_once(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, _, debt_ms = await answered_late(stage, 0)
    [waiting] = stage.waiting()
    assert (waiting.mode, waiting.limit, waiting.remaining_seconds) == (DELAY, NAME, debt_ms / 1_000)
    entity = stage.session_of(client).identity.entity
    assert {key: histogram.count for key, histogram in entity.throttles.items()} == {(NAME, DELAY): 1}
    stage.clock.pass_seconds(1)
    await client.frame()
    assert stage.waiting() == []


@pytest.mark.parametrize("version", [3, 9])
async def test_without_a_response_nothing_is_late(open_stage: OpenStage, version: int) -> None:
    """The next data frame is held, as in mode `pause`."""
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(produce(1, 10_000, version, acks=0) + heartbeat(2) + produce(3, 10, version))
    for number in (1, 2):
        assert correlation_of(await broker.frame()) == number
    await until(lambda: stage.paused().get("quota", 0) == 1)
    notice = stage.session_of(client).identity.notice
    assert (notice.until_ns > stage.clock()) == (version == 9), "it covers the held request"
    stage.clock.pass_seconds(1)
    assert correlation_of(await broker.frame()) == 3


async def test_mode_pause_says_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[replace(QUOTA, mode="pause")])
    client, broker = await stage.pair()
    await client.send(produce(1, 10_000))
    await broker.frame()
    await broker.send(produced(1))
    assert await client.frame() == produced(1)
    await client.send(produce(2, 10_000))
    await until(lambda: stage.paused().get("quota", 0) == 1)
    stage.clock.pass_seconds(1)
    assert correlation_of(await broker.frame()) == 2


async def test_the_mode_of_the_limit_in_debt_applies(open_stage: OpenStage) -> None:
    """One client under two limits with modes of their own, in a proxy with a third."""
    quotas = [
        without_burst("client-id=etl,producer_byte_rate=1MB,mode=delay"),
        without_burst("total,producer_byte_rate=2MB,mode=pause"),
        without_burst("client-id=other,producer_byte_rate=1MB"),
    ]
    stage = open_stage(quotas=quotas, enforcement=EnforcementOptions(throttle_mode="notify"))
    client, broker, debt_ms = await answered_late(stage, 9)
    stage.clock.pass_seconds(debt_ms / 1_000)
    assert await client.frame() == produced(1), "delayed, without a throttle time"
    await client.send(produce(2, 10_000, 9, client_id="other"))
    await broker.frame()
    await broker.send(produced(2))
    assert produce_throttle_ms(await client.frame(), 9) > 0, "the proxy's mode"


@pytest.mark.parametrize("mode", MODES)
async def test_control_requests_and_renewals_of_locks_are_never_held(open_stage: OpenStage, mode: str) -> None:
    """A ShareFetch that only renews acquisition locks (KIP-1222) asks for no bytes; one for records is held."""
    stage = open_stage(quotas=[without_burst(f"client-id=etl,consumer_byte_rate=1,mode={mode}")])
    client, broker = await stage.pair()
    await client.send(share_fetch(1, 2))
    await broker.frame()
    await broker.send(share_fetched(1, 2))
    session = stage.session_of(client)
    await until(lambda: stage.paused().get("delay", 0) or not session.connection.in_flight)
    sent = [
        share_fetch(2, 2, max_bytes=0, renews=True),
        *(request(api, 1, 10 + api) for api in (3, 8, 11, 12, 13, 14, 22, 24, 26)),
    ]
    await client.send(b"".join(sent))
    for each in sent:
        assert await broker.frame() == each
    await client.send(share_fetch(3, 2))
    await until(lambda: stage.paused().get("quota", 0) == 1)


# ---- what ends a delay early


async def test_draining_ends_it(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, _, debt_ms = await answered_late(stage, 3)
    stage.session_of(client).drain()
    assert await client.rest() == produced(1, 3, debt_ms)


async def test_the_end_of_the_clients_stream_ends_it(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker, debt_ms = await answered_late(stage, 3)
    client.end()
    assert await client.frame() == produced(1, 3, debt_ms)
    assert await broker.rest() == b""
    broker.close()
    await stage.no_sessions()


async def test_a_client_that_has_gone_leaves_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker, _ = await answered_late(stage, 3)
    client.reset()
    await broker.closed()
    broker.close()
    await stage.no_sessions()
    assert stage.shared.wakeups._delays == {}


@pytest.mark.parametrize("away", [False, True], ids=["raised", "removed"])
async def test_a_change_of_its_limit_ends_it(open_stage: OpenStage, away: bool) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, _, _ = await answered_late(stage, 3)
    alter(stage, f"client-id=etl,producer_byte_rate={1 if away else 10**12}", away=away)
    stage.clock.pass_seconds(0.000_001)
    stage.session_of(client).sweep(stage.clock())
    assert (await client.frame())[4:8] == produced(1, 3)[4:8]


async def test_nothing_is_late_once_enforcement_is_off(open_stage: OpenStage) -> None:
    """Also the responses that arrive later, to requests that left debt before."""
    stage = open_stage(quotas=[QUOTA])
    client, broker, _ = await answered_late(stage, 3)
    await client.send(fetch(2, 7))
    await broker.frame()
    await broker.send(fetched(2, 7, size=20_000))
    stage.server.active_config.toggle()
    assert await client.frame() == produced(1, 3)
    assert await client.frame() == fetched(2, 7, size=20_000)
    stage.server.active_config.toggle()
    await client.send(produce(3, 10_000, 3))
    await broker.frame()
    stage.server.active_config.toggle()
    await broker.send(produced(3, 3))
    assert await client.frame() == produced(3, 3)


async def test_debt_of_the_rest_of_a_held_request_delays_its_own_response(open_stage: OpenStage) -> None:
    """A long request is charged in parts after its hold; its response is in flight meanwhile."""
    stage = open_stage(quotas=[QUOTA])
    client, broker, _ = await answered_late(stage, 3, 1_000)
    await client.send(produce(2, 130_000, 3))
    await held(stage)
    stage.clock.pass_seconds(0.01)
    await client.frame()
    arriving = asyncio.ensure_future(broker.frame())

    def has_arrived() -> bool:
        if stage.paused().get("quota"):
            stage.clock.pass_seconds(0.001)
        return arriving.done()

    await until(has_arrived)
    await client.send(heartbeat(3))
    await broker.frame()
    await broker.send(produced(2, 3))
    await delayed(stage)
    assert stage.session_of(client).request_stream.delay is None, "nothing is left for the next request"
    stage.clock.pass_seconds(1)
    assert (await client.frame())[4:8] == produced(2, 3)[4:8]


async def test_memory_ends_it(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], security=SecurityOptions(max_buffered_bytes=4_000_000))
    client, _, debt_ms = await answered_late(stage, 3)
    session = stage.session_of(client)
    session.sweep(stage.clock())
    assert session.throttles.delay is not None
    others = Holding()
    stage.memory.update(others, 0, 3_000_000, 0)
    session.sweep(stage.clock())
    assert await client.frame() == produced(1, 3, debt_ms)
    stage.memory.forget(others)


async def test_a_session_that_closes_forgets_it(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker, _ = await answered_late(stage, 3)
    broker.close()
    stage.session_of(client).close()
    await client.closed()
    assert stage.shared.wakeups._delays == {}


async def test_delayed_fetches_keep_little(open_stage: OpenStage) -> None:
    """After the first delay, the broker is read in small pieces."""
    stage = open_stage(quotas=[replace(QUOTA, mode="delay")])
    client, broker = await stage.pair()
    for number in range(3):
        await client.send(fetch(number))
        await broker.frame()
        await broker.send(fetched(number, size=200_000))
        await delayed(stage)
        if number:
            assert stage.memory.buffered_bytes <= 16_384 + 8
        stage.clock.pass_seconds(1)
        assert len(await client.frame()) > 100_000
