"""Quotas at work: who is held, what is kept meanwhile, in which order they go on, and what becomes of those that left.

Limits are given without a burst, so that every frame leaves a debt of its own length, and the rates are high, so that
the loop's timers are short; how much time has passed is for the test to say.
"""

import asyncio
import re
import socket

import pytest

from proxy.sessions.lifecycle import State
from proxy.streams.memory import HEAD_READ_SIZE
from tests.proxy.conversation import OpenStage, Peer, Stage, lines_of, until, without_burst
from tests.proxy.dialogue import held
from tests.proxy.frames import produce, produced

FAST = without_burst("client-id=etl,producer_byte_rate=1MB")
SLOW = without_burst("client-id=etl,producer_byte_rate=1")


async def in_debt(stage: Stage, size: int = 10_000) -> tuple[Peer, Peer]:
    """A client and its broker connection, after one request that left a debt of 10 ms (at 1 MB/s)."""
    client, broker = await stage.pair()
    await client.send(produce(1, size))
    assert await broker.frame() == produce(1, size)
    return client, broker


async def test_a_held_session_is_not_read(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    more = produce(2, 30_000) + produce(3, 20)
    await client.send(more)
    await held(stage)
    kept = stage.memory.buffered_bytes
    assert 0 < kept <= HEAD_READ_SIZE
    await until(lambda: stage.unread(session) == len(more) - kept)  # the rest waits in the kernel
    stage.clock.pass_seconds(1)
    assert await broker.frame() == produce(2, 30_000)
    stage.clock.pass_seconds(1)
    assert await broker.frame() == produce(3, 20)
    await until(lambda: not stage.paused())
    assert stage.memory.buffered_bytes == 0


# Clients that hang up while held


async def test_a_held_frame_of_a_disconnected_client_is_dropped(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[FAST])
    for leave in (Peer.close, Peer.reset):
        client, broker = await in_debt(stage)
        await broker.send(produced(1))
        await client.frame()
        await client.send(produce(2, 500))
        await held(stage)
        before = stage.metrics.connections.dropped_frames
        leave(client)
        stage.clock.pass_seconds(1)
        assert await broker.rest() == b"", "the client will send it again: passing it on would duplicate it"
        await stage.no_sessions()
        assert stage.metrics.connections.dropped_frames == before + 1
        stage.clock.pass_seconds(1)
    assert "held_frame_dropped" in [name for name, _ in lines_of(caplog.records)] or caplog.records


async def test_a_held_acks_0_frame_is_delivered_after_its_client_hung_up(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await in_debt(stage)
    await broker.send(produced(1))
    await client.frame()
    sent = produce(2, 70_000, acks=0) + produce(3, 80, acks=0)
    await client.send(sent)
    await held(stage)
    client.close()
    receiving = asyncio.ensure_future(broker.rest())
    while not receiving.done():
        stage.clock.pass_seconds(0.1)
        await asyncio.sleep(0.001)
    assert await receiving == sent
    assert stage.metrics.connections.dropped_frames == 0
    broker.close()
    await stage.no_sessions()


@pytest.mark.pure
async def test_a_held_acks_0_frame_waits_for_its_turn_for_30_s_after_its_client_hung_up(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.sessions.ending.FLUSH_TIMEOUT_SECONDS", 0.01)
    stage = open_stage(quotas=[SLOW])
    client, broker = await in_debt(stage)
    await client.send(produce(2, acks=0))
    await held(stage)
    client.close()
    stage.clock.pass_seconds(1)
    assert await broker.rest() == b""
    await stage.no_sessions()
    assert (stage.metrics.connections.dropped_frames, stage.metrics.connections.open) == (1, 0)
    assert stage.shared.wakeups._timers == {}


async def test_a_dropped_frame_changes_nothing_else(open_stage: OpenStage) -> None:
    """The broker has not taken all of the request before, which nobody will send again: that one is finished."""
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1GB")])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    assert session.upstream is not None
    session.upstream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    broker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    first = produce(1, 300_000, acks=0)
    sending = asyncio.ensure_future(client.send(first + produce(2, 500)))
    received = b""
    while (
        session.request_stream.held is None
    ):  # the broker takes a little at a time, so that the proxy always has bytes for it
        received += await broker.read(4_000)
    assert session.requests.writer.pending is not None
    await sending
    client.close()
    stage.clock.pass_seconds(1)
    await until(lambda: stage.metrics.connections.dropped_frames == 1)
    assert received + await broker.rest() == first
    broker.close()
    await stage.no_sessions()


async def test_a_session_that_dies_while_held_leaves_the_queue(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    _, broker = pair = await in_debt(stage, 100)
    client = pair[0]
    await client.send(produce(2))
    await held(stage)
    broker.reset()
    await client.closed()
    await stage.no_sessions()
    assert stage.shared.wakeups._timers == {}


# Drain


async def test_draining_drops_a_held_frame_that_the_client_retries(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[SLOW])
    client, broker = await in_debt(stage)
    await client.send(produce(2))
    await held(stage)
    session = stage.session_of(client)
    session.drain()
    assert session.state is State.DRAINING
    await broker.send(produced(1))
    assert len(await client.rest()) == len(produced(1))
    client.close()
    assert await broker.rest() == b""
    await stage.no_sessions()
    assert stage.shared.wakeups._timers == {}


async def test_draining_closes_a_connection_whose_frame_is_held_in_its_middle(open_stage: OpenStage) -> None:
    """Another client took the limit into debt, while this one was slow."""
    stage = open_stage(quotas=[FAST])
    client, broker = await in_debt(stage)
    sent = produce(2, 90_000)
    stage.clock.pass_seconds(1)
    await client.send(sent[:10_000])
    await broker.read(10_000)
    stage.clock.pass_seconds(1)
    await in_debt(stage)
    await client.send(sent[10_000:20_000])
    await held(stage)
    session = stage.session_of(client)
    assert session.requests.stream.remaining == len(sent) - 10_000
    session.drain()
    assert session.state is State.CLOSED
    assert await broker.rest() == b""


async def test_draining_waits_for_a_held_frame_after_all_responses(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    client, broker = await in_debt(stage)
    await client.send(produce(2, 300, acks=0))
    await held(stage)
    stage.session_of(client).drain()
    await broker.send(produced(1))
    assert len(await client.rest()) == len(produced(1))
    client.close()
    stage.clock.pass_seconds(1)
    assert await broker.rest() == produce(2, 300, acks=0)
    broker.close()
    await stage.no_sessions()


async def test_a_long_hold_repeats_its_line_with_the_time_when_it_ends(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[SLOW])
    client, _ = await in_debt(stage)
    await client.send(produce(2, 100))
    await held(stage)
    for _ in range(14):
        stage.clock.pass_seconds(1)
        stage.sweep()
    lines = [fields for name, fields in lines_of(caplog.records) if name == "throttled"]
    assert [fields["mode"] for fields in lines] == ["notify", "pause", "pause"]
    assert [(fields.get("held_seconds"), fields.get("of")) for fields in lines] == [
        (None, None),
        (6.0, 6.0),
        (5.0, 5.0),
    ]
    first, *more = [fields.get("until") for fields in lines]
    assert first is None
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", str(each)) for each in more)
