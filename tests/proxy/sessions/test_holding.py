"""Quotas at work: who is held, what is kept meanwhile, in which order they go on, and what becomes of those that left.

Limits are given without a burst, so that every frame leaves a debt of its own length, and the rates are high, so that
the loop's timers are short; how much time has passed is for the test to say.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import chain

import pytest

from protocol.apis import FETCH, SHARE_FETCH
from proxy.config.quotas_file import Quotas
from proxy.sessions import wakeups
from proxy.sessions.lifecycle import State
from proxy.sessions.pump import Pump
from proxy.sessions.wakeups import Wakeups
from proxy.streams.handlers import fetch as fetch_handler
from proxy.streams.handlers.data import HEAD_READ_SIZE
from proxy.streams.memory import READ_SIZE
from proxy.streams.request_stream import RequestStream
from quotas.admission.limit import Limit
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Clock, Peer, Stage, lines_of, until, without_burst
from tests.proxy.frames import (
    correlation_of,
    fetch,
    fetched,
    produce,
    produced,
    share_fetch,
    share_fetched,
)

OpenStage = Callable[..., Stage]
FAST = without_burst("client-id=etl,producer_byte_rate=1MB")
SLOW = without_burst("client-id=etl,producer_byte_rate=1")
FETCH_SLOW = without_burst("client-id=etl,consumer_byte_rate=1")


async def in_debt(stage: Stage, size: int = 10_000) -> tuple[Peer, Peer]:
    """A client and its broker connection, after one request that left a debt of 10 ms (at 1 MB/s)."""
    client, broker = await stage.pair()
    await client.send(produce(1, size))
    assert await broker.frame() == produce(1, size)
    return client, broker


async def held(stage: Stage, count: int = 1) -> None:
    await until(lambda: stage.paused().get("quota", 0) == count)


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


async def test_a_frame_of_the_size_of_the_buffer_can_be_held(open_stage: OpenStage) -> None:
    """A session far from its limits reads all there is, and may then meet one that others have brought into debt."""
    stage = open_stage(quotas=[FAST])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    frame = produce(2, 2 * READ_SIZE)
    stage.memory.data[:] = frame[:READ_SIZE]
    session.requests._run(READ_SIZE)
    assert session.held is not None
    assert len(session.requests.kept) == READ_SIZE
    stage.clock.pass_seconds(1)
    assert await broker.read(READ_SIZE) == frame[:READ_SIZE]
    sending = asyncio.ensure_future(client.send(frame[READ_SIZE:]))
    receiving = asyncio.ensure_future(broker.read(len(frame) - READ_SIZE))
    while not receiving.done():
        stage.clock.pass_seconds(0.1)
        await asyncio.sleep(0.001)
    assert await receiving == frame[READ_SIZE:]
    await sending


async def test_bytes_read_with_the_previous_frame_are_parsed_again(open_stage: OpenStage) -> None:
    """Five requests in one read: the tail is in no kernel any more, so nothing but the timer can bring it on."""
    stage = open_stage(quotas=[FAST])
    client, broker = await stage.pair()
    await client.send(b"".join(produce(number, 3_000) for number in range(5)))
    for number in range(5):
        assert await broker.frame() == produce(number, 3_000)
        if number < 4:
            await held(stage)
            assert stage.session_of(client).is_held
        stage.clock.pass_seconds(0.1)
    await until(lambda: not stage.paused())


# Order


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Correlation ids of what is forwarded from now on, in the order in which it is."""
    forwarded: list[int] = []
    write = Pump.write

    def recording(pump: Pump, data: memoryview) -> None:
        if isinstance(pump.stream, RequestStream):
            forwarded.append(correlation_of(bytes(data[:12])))
        write(pump, data)

    monkeypatch.setattr(Pump, "write", recording)
    return forwarded


@pytest.mark.pure
async def test_each_turn_is_for_one_frame(open_stage: OpenStage, order: list[int]) -> None:
    """One session has three frames at hand when its turn comes, and there is a little room: the other is next."""
    quota = replace(parse_spec("client-id=etl,producer_byte_rate=1MB"), burst_seconds=Fraction(1, 13_000))
    stage = open_stage(quotas=[quota])
    many, broker_of_many = await stage.pair()
    one, broker_of_one = await stage.pair()
    await many.send(produce(0, 100_000))
    assert await broker_of_many.frame() == produce(0, 100_000)
    await many.send(b"".join(produce(number, 5) for number in (1, 2, 3)))
    await held(stage)
    assert stage.memory.buffered_bytes == 3 * len(produce(1, 5)), "all three have been read"
    await one.send(produce(10, 6))
    await held(stage, 2)
    order.clear()
    stage.clock.pass_seconds(60)
    assert await broker_of_one.frame() == produce(10, 6)
    for number in (1, 2, 3):
        assert await broker_of_many.frame() == produce(number, 5)
    assert order == [1, 10, 2], "nobody else waits any more: the third goes with the second"


class Ticking(Clock):
    """A little time passes whenever somebody looks: a fifth of what a pass may take."""

    def __call__(self) -> int:
        self.now_ns += wakeups.LONGEST_PASS_NS // 5
        return self.now_ns


async def crowd(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, number: int
) -> tuple[Stage, Clock, list[tuple[Peer, Peer]]]:
    """A stage on which so many wait, each with a frame of its own number: 1, 2, ..."""
    monkeypatch.setattr(wakeups, "LONGEST_PASS_NS", 500_000)
    clock = Ticking()
    stage = open_stage(quotas=[parse_spec("client-id=etl,producer_byte_rate=1MB")], real_clock=clock)
    first, broker = await stage.pair()
    await first.send(produce(0, 1_400_000))
    assert await broker.frame() == produce(0, 1_400_000)
    pairs = [await stage.pair() for _ in range(number)]
    for nth, (client, _) in enumerate(pairs, 1):
        await client.send(produce(nth, 6))
        await held(stage, nth)
    return stage, clock, pairs


@pytest.mark.pure
async def test_one_pass_is_bounded(open_stage: OpenStage, order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose turn it is are many, and still the loop sees to others in between."""
    served: list[list[int]] = []
    pass_ = Wakeups._pass

    def recording(self: Wakeups, limit: Limit) -> None:
        order.clear()
        pass_(self, limit)
        served.append(list(order))

    monkeypatch.setattr(Wakeups, "_pass", recording)
    monkeypatch.setattr(Limit, "has_room_for_all", lambda *_: False)
    _, clock, pairs = await crowd(open_stage, monkeypatch, 7)
    clock.pass_seconds(60)
    for number, (_, broker) in enumerate(pairs, 1):
        assert await broker.frame() == produce(number, 6)
    assert list(chain.from_iterable(served)) == list(range(1, 8))
    assert max(len(each) for each in served) <= 5


@pytest.mark.pure
async def test_a_queue_too_long_for_one_pass_ends_where_there_is_room_for_all(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else clients that never stop sending would join its end before the next pass, and queue for each other."""
    left: list[int] = []
    pass_ = Wakeups._pass

    def recording(self: Wakeups, limit: Limit) -> None:
        pass_(self, limit)
        left.append(limit.waiters.waiting)

    monkeypatch.setattr(Wakeups, "_pass", recording)
    _, clock, pairs = await crowd(open_stage, monkeypatch, 7)
    left.clear()
    clock.pass_seconds(60)
    for number, (_, broker) in enumerate(pairs, 1):
        assert await broker.frame() == produce(number, 6)
    assert left[0] == 0


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


async def test_a_held_acks_0_frame_is_delivered_after_its_client_hung_up(
    open_stage: OpenStage,
) -> None:
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
    monkeypatch.setattr("proxy.sessions.session.FLUSH_TIMEOUT_SECONDS", 0.01)
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
    while session.held is None:  # the broker takes a little at a time, so that the proxy always has bytes for it
        received += await broker.read(4_000)
    assert session.requests.pending is not None
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


# Limits that change


# Fetch


@pytest.mark.parametrize("api", [FETCH, SHARE_FETCH])
@pytest.mark.pure
async def test_only_a_share_fetch_passes_at_a_deadline(
    open_stage: OpenStage, api: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch_handler.LONGEST_SHARE_HOLD_NS == 10_000_000_000, "a third of the default acquisition lock of 30 s"
    monkeypatch.setattr(fetch_handler, "LONGEST_SHARE_HOLD_NS", 10_000_000)
    stage = open_stage(quotas=[FETCH_SLOW])
    client, broker = await stage.pair()
    sent = [share_fetch(number) if api == SHARE_FETCH else fetch(number) for number in (1, 2)]
    await client.send(sent[0])
    await broker.frame()
    await broker.send(share_fetched(1) if api == SHARE_FETCH else fetched(1))
    await client.frame()
    await client.send(sent[1])
    await held(stage)
    stage.clock.pass_seconds(0.005)
    stage.server.active_config.replace_quotas(Quotas((FETCH_SLOW,), 1))  # held again, with the time that is left
    await held(stage)
    session = stage.session_of(client)
    stage.clock.pass_seconds(0.005)
    if api == FETCH:
        await asyncio.sleep(0.03)  # three times the deadline that is not to be
        assert session.held is not None
        return
    assert correlation_of(await broker.frame()) == 2
    await until(lambda: not stage.paused())
    [limit] = stage.registry.limits_in_use()
    before = limit.debt_ns(stage.clock())
    assert before > 0, "it passed in spite of the debt"
    answer = share_fetched(2)
    await broker.send(answer)
    await client.frame()
    assert limit.debt_ns(stage.clock()) == before + len(answer) * 1_000_000_000, "and was charged all the same"
    await client.send(share_fetch(3))
    await held(stage)
    stage.clock.pass_seconds(0.010)
    assert correlation_of(await broker.frame()) == 3, "the next one has a deadline of its own"
    assert stage.shared.wakeups._timers == {}


# A rehearsal


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
    assert await client.read(4)
    assert await broker.rest() == b""
    await stage.no_sessions()
    assert stage.shared.wakeups._timers == {}


async def test_draining_closes_a_connection_whose_frame_is_held_in_its_middle(open_stage: OpenStage) -> None:
    """Its client is slow: within a second, less than 32 KiB of the frame arrived."""
    stage = open_stage(quotas=[FAST])
    client, broker = await in_debt(stage)
    sent = produce(2, 90_000)
    stage.clock.pass_seconds(1)
    await client.send(sent[:10_000])
    await broker.read(10_000)
    [limit] = stage.registry.limits_in_use()
    assert limit.reserved == len(sent) - 10_000
    stage.clock.pass_seconds(1)
    await until(lambda: not limit.reserved)  # ten times a second
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
    assert len(await client.frame()) == len(produced(1))
    stage.clock.pass_seconds(1)
    assert await broker.rest() == produce(2, 300, acks=0)
    await stage.no_sessions()
