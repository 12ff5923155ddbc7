"""Connections share the time of the event loop (`proxy.sessions.turns`): turns and rounds end after their time."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from proxy.sessions.pump import BULK, MEMORY, TURN
from proxy.sessions.turns import HEAVY_NS, HEAVY_ROUND_NS, ROUND_NS, TURN_NS, Turns
from proxy.streams.memory import READ_SIZE
from proxy.streams.steps import PIECES_PER_STEP
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Peer, Stage, until
from tests.proxy.frames import batch, fetch, fetched, heartbeat, heartbeat_answer, produce, produce_records
from tests.proxy.work import Work, WorkClock

OpenStage = Callable[..., Stage]

SIZE = 3_000_000
STEP_NS = 50_000
#: Steps of one turn.
STEPS = TURN_NS // STEP_NS


# The rules alone


class Loop:
    """Calls what it was given when the test says so."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def run(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()


class Works:
    """Uses so much in each of its turns."""

    def __init__(self, turns: Turns, order: list[Works], used_ns: int) -> None:
        self.is_heavy = False
        self.turns, self.order, self.used_ns = turns, order, used_ns

    def on_turn(self) -> None:
        self.order.append(self)
        self.is_heavy = self.used_ns > HEAVY_NS
        self.turns.used(self, self.used_ns)

    def on_readable(self) -> None:
        if self.turns.may_begin(self):
            self.on_turn()
        else:
            self.turns.wait(self)


def some(used_ns: int, count: int, *more_ns: int) -> tuple[Loop, list[Works], list[Works]]:
    """So many that use `used_ns` in a turn, and one for each of `more_ns`; and the order in which they have turns."""
    loop = Loop()
    turns = Turns(cast(Any, loop), lambda: 0)
    order: list[Works] = []
    return loop, [Works(turns, order, each) for each in (*[used_ns] * count, *more_ns)], order


def test_light_connections_are_read_until_the_round_is_used_up() -> None:
    count = ROUND_NS // HEAVY_NS + 1
    loop, light, order = some(HEAVY_NS, count + 20)
    for each in light:
        each.on_readable()
    assert order == light[:count], "the one that uses the round up is the last"
    loop.run()
    assert order == light


def test_heavy_connections_share_their_part_of_a_round_in_order() -> None:
    loop, heavy, order = some(TURN_NS, 10)
    for each in heavy:
        each.is_heavy = True
        each.on_readable()
    most = HEAVY_ROUND_NS // TURN_NS
    assert order == heavy[:most]
    for number in range(2, 6):
        loop.run()
        assert order == heavy[: number * most]


def test_light_connections_are_read_while_heavy_ones_wait() -> None:
    loop, (*heavy, light), order = some(TURN_NS, 10, HEAVY_NS)
    for each in heavy:
        each.is_heavy = True
        each.on_readable()
    light.on_readable()
    assert order[-1] is light
    loop.run()
    light.on_readable()
    assert order.count(light) == 2


def test_no_round_is_begun_for_little_work() -> None:
    loop, [light], _ = some(1_000, 1)
    light.on_readable()
    assert not loop.soon


# Whole


async def all_at_once(pairs: list[tuple[Peer, Peer]], sent: bytes) -> None:
    """Each client sends this, and each broker connection gets it whole."""

    async def one(client: Peer, broker: Peer) -> None:
        _, received = await asyncio.gather(client.send(sent), broker.read(len(sent)))
        assert received == sent

    async with asyncio.TaskGroup() as group:
        for pair in pairs:
            group.create_task(one(*pair))


def costly(count: int) -> bytes:
    """Requests of which each step passes one: their client id changes."""
    return b"".join(heartbeat(number, client_id="ab"[number % 2]) for number in range(count))


def answers(count: int) -> bytes:
    return b"".join(heartbeat_answer(number) for number in range(count))


@pytest.mark.pure
async def test_a_turn_ends_after_its_time_and_reads_shrink(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage(work_clock=WorkClock(STEP_NS))
    pair = await stage.pair()
    work = Work(monkeypatch)
    sent = costly(900)
    await all_at_once([pair], sent)
    assert max(turn.steps for turn in work.turns) == STEPS
    assert len(work.turns) >= 900 // STEPS
    assert max(turn.used_ns for turn in work.turns) <= TURN_NS + 2 * STEP_NS
    assert stage.memory.buffered_bytes == 0
    again = asyncio.ensure_future(pair[1].send(answers(900)))
    assert await pair[0].read(len(answers(900))) == answers(900)
    await again
    work.turns.clear()
    await all_at_once([pair], sent)
    assert max(turn.size for turn in work.turns) <= 3 * 4_096, "a read, and what was kept of the one before"


async def test_what_was_read_and_not_parsed_is_counted_and_nothing_more_is_read(open_stage: OpenStage) -> None:
    stage = open_stage(work_clock=WorkClock(TURN_NS))
    client, broker = await stage.pair()
    requests = stage.session_of(client).requests
    sent = costly(300)
    await client.send(sent)
    await until(lambda: requests.paused & TURN)
    assert len(requests.kept) == stage.memory.buffered_bytes > 0
    assert requests.unparsed
    assert await broker.read(len(sent)) == sent
    await until(lambda: not stage.paused())
    assert stage.memory.buffered_bytes == 0


@pytest.mark.parametrize("count", [1, 3, 30])
@pytest.mark.pure
async def test_a_round_ends_after_its_time(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    stage = open_stage(work_clock=WorkClock(STEP_NS))
    pairs = [await stage.pair() for _ in range(count)]
    work = Work(monkeypatch)
    await all_at_once(pairs, costly(200))
    slack_ns = TURN_NS + 2 * STEP_NS
    assert max(work.used_in_rounds()) <= ROUND_NS + slack_ns
    assert max(work.used_in_rounds(heavy_only=True)) <= HEAVY_ROUND_NS + slack_ns
    heavy = Counter(turn.pump for turn in work.turns if turn.queued)
    if count == 30:
        assert len(heavy) == count, "each has had turns"
        assert max(heavy.values()) <= 2 * min(heavy.values()), "first come, first served"


@pytest.mark.parametrize("count", [1, 3, 15])
@pytest.mark.pure
async def test_long_frames_take_turns(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    stage = open_stage(work_clock=WorkClock(STEP_NS))
    pairs = [await stage.pair() for _ in range(count)]
    work = Work(monkeypatch)
    await all_at_once(pairs, produce(1, SIZE // count + BULK))
    assert max(turn.size for turn in work.turns) <= READ_SIZE
    assert len({turn.pump for turn in work.turns}) == count
    assert not stage.shared.pumps.turns._heavy


@pytest.mark.pure
async def test_a_small_request_is_read_in_the_round_in_which_it_comes(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage(work_clock=WorkClock(STEP_NS))
    pairs = [await stage.pair() for _ in range(6)]
    client, broker = await stage.pair()
    requests = stage.session_of(client).requests
    work = Work(monkeypatch)
    flood = asyncio.ensure_future(all_at_once(pairs, costly(900)))
    sent_in: list[int] = []
    while not flood.done():
        number = len(sent_in)
        sent_in.append(work.round)
        await client.send(heartbeat(number))
        await broker.frame()
        await broker.send(heartbeat_answer(number))
        await client.frame()
    await flood
    assert len(sent_in) > 4
    read_in = [turn.round for turn in work.turns if turn.pump is requests]
    assert max(read - sent for sent, read in zip(sent_in, read_in, strict=True)) <= 2


@pytest.mark.pure
async def test_responses_take_turns_with_requests(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage(work_clock=WorkClock(STEP_NS))
    pairs = [await stage.pair() for _ in range(4)]
    for client, broker in pairs[2:]:
        await client.send(fetch(1))
        await broker.frame()
    work = Work(monkeypatch)
    answer = fetched(1, size=SIZE)
    backwards = [(broker, client) for client, broker in pairs[2:]]
    await asyncio.gather(all_at_once(pairs[:2], produce(1, SIZE)), all_at_once(backwards, answer))
    assert len({turn.pump for turn in work.turns}) == 4


async def one_in_the_queue(stage: Stage) -> tuple[Peer, Peer, bytes]:
    """A client that waits for its turn, and what it has sent."""
    client, broker = await stage.pair()
    requests = stage.session_of(client).requests
    sent = costly(900)
    await client.send(sent)
    await until(lambda: requests.paused & TURN)
    return client, broker, sent


@pytest.mark.parametrize("who", ["the client", "the broker", "the session"])
async def test_a_connection_that_closes_while_it_waits_for_its_turn(open_stage: OpenStage, who: str) -> None:
    stage = open_stage(work_clock=WorkClock(TURN_NS))
    client, broker, _ = await one_in_the_queue(stage)
    session = stage.session_of(client)
    if who == "the client":
        client.reset()
        broker.close()
    elif who == "the broker":
        broker.reset()
    else:
        session.close()
    await stage.no_sessions()
    await until(lambda: not stage.shared.pumps.turns._heavy)


async def test_a_paused_connection_is_not_read_at_its_turn(open_stage: OpenStage) -> None:
    stage = open_stage(work_clock=WorkClock(TURN_NS))
    client, broker, sent = await one_in_the_queue(stage)
    requests = stage.session_of(client).requests
    requests.pause(MEMORY)
    await until(lambda: not requests.paused & TURN)
    kept = len(requests.kept)
    assert requests.unparsed
    assert kept > 0
    await asyncio.sleep(0)
    assert len(requests.kept) == kept
    requests.resume(MEMORY)
    assert await broker.read(len(sent)) == sent


# Requests with many topics, which are parsed in many steps


ANY_TOPIC = parse_spec("topic=<default>,bytes_in_rate=1GB")
#: Bytes of a topic with a partition of three bytes: a step reads at most `PIECES_PER_STEP` of these, and two more.
TOPIC_SIZE = 10


def dense(number: int, topics: int, *, acks: int = 1) -> bytes:
    return produce_records(number, {f"t{each:x}": [b"abc"] for each in range(topics)}, acks=acks)


@pytest.mark.pure
async def test_requests_with_many_topics_take_turns_and_keep_few_bytes(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_ns = TURN_NS // 4
    stage = open_stage(quotas=[ANY_TOPIC], work_clock=WorkClock(step_ns))
    pairs = [await stage.pair() for _ in range(3)]
    work = Work(monkeypatch)
    await all_at_once(pairs, dense(1, 20_000))
    assert max(turn.steps for turn in work.turns) <= 4
    assert max(work.used_in_rounds(heavy_only=True)) <= HEAVY_ROUND_NS + TURN_NS + 2 * step_ns
    late = [turn.size for turn in work.turns[len(work.turns) // 2 :]]
    assert max(late) <= 4 * 4 * PIECES_PER_STEP * TOPIC_SIZE, "a read, and what was kept of the one before"


async def test_a_broker_that_takes_little_at_a_time(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    upstream = stage.session_of(client).upstream
    assert upstream is not None
    upstream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
    broker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    data = dense(1, 6_000) + dense(2, 10) + produce_records(3, {"x": [batch(1, 90_000)], "late": [batch(1, 90_000)]})
    sending = asyncio.ensure_future(client.send(data))
    received = b""
    while len(received) < len(data):
        received += await broker.read(min(3_001, len(data) - len(received)))
    await sending
    assert received == data


async def test_a_client_that_sends_and_leaves(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ANY_TOPIC])
    client, broker = await stage.pair()
    data = dense(1, 6_000, acks=0) + dense(2, 2_000, acks=0)
    receiving = asyncio.ensure_future(broker.rest())
    await client.send(data)
    client.end()
    assert await receiving == data
    broker.close()
    await stage.no_sessions()
