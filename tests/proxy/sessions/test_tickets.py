"""Frames that two limits hold one after the other: they claim at the first, wait for the second, and pass or give back.

etl    1 MB/s and a burst of one second for the client, which owes 20 ms after a first request
total  100 MB/s without a burst, which another client brings into debt while etl waits for its own limit
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from proxy.sessions.lifecycle import State
from quotas.admission.limit import Limit
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Peer, Stage, until, without_burst
from tests.proxy.dialogue import alter, debts, held
from tests.proxy.frames import batch, produce, produce_records

OpenStage = Callable[..., Stage]

OWN = ("client-id:etl", "producer_byte_rate")
TOTAL = ("total", "producer_byte_rate")
SECOND = produce(2, 100)
SIZE = len(SECOND) - 4


def limit_of(stage: Stage, key: tuple[str, str]) -> Limit:
    return next(each for each in stage.registry.limits_in_use() if (str(each.entity), each.name) == key)


async def one_long(client: Peer, broker: Peer, size: int) -> None:
    """A request that is charged so many bytes."""
    sent = produce(1, size - (len(produce(1, 0)) - 4))
    receiving = asyncio.ensure_future(broker.frame())
    await client.send(sent)
    assert await receiving == sent


async def with_an_open_claim(open_stage: OpenStage, second: bytes = SECOND) -> tuple[Stage, Peer, Peer]:
    """The client's second frame has had its turn at its own limit, and waits 6 ms for the total."""
    stage = open_stage(
        quotas=[
            parse_spec("client-id=etl,producer_byte_rate=1MB"),
            without_burst("total=true,producer_byte_rate=100MB"),
        ],
    )
    client, broker = await stage.pair()
    other, broker_of_other = await stage.pair()
    await one_long(client, broker, 1_020_000)
    await client.send(second)
    await held(stage)
    session = stage.session_of(client)
    assert session.held is not None
    assert session.held.limit is limit_of(stage, OWN)
    stage.clock.pass_seconds(0.011)
    frame = produce(1, 1_500_000 - (len(produce(1, 0, client_id="web")) - 4), client_id="web")
    receiving = asyncio.ensure_future(broker_of_other.frame())
    await other.send(frame)
    assert await receiving == frame
    stage.clock.pass_seconds(0.009)
    await until(lambda: session.held is not None and session.held.limit is limit_of(stage, TOTAL))
    size = min(50_000, int.from_bytes(second[:4], "big"))  # what the limit earns in 50 ms
    assert debts(stage) == {OWN: size / 1_000_000, TOTAL: 0.006}, "it has been charged to its own limit"
    return stage, client, broker


async def test_a_shared_limit_is_charged_once(open_stage: OpenStage) -> None:
    stage, _, broker = await with_an_open_claim(open_stage)
    stage.clock.pass_seconds(0.006)
    assert await broker.frame() == SECOND
    own = limit_of(stage, OWN).algorithm
    assert own.headroom(stage.clock()) == 6_000 - SIZE
    assert debts(stage) == {TOTAL: SIZE / 100_000_000}
    stage.clock.pass_seconds(10)
    assert own.headroom(stage.clock()) == 1_000_000, "and nothing is set aside any more"


@pytest.mark.parametrize("end", ["the broker goes", "the proxy drains", "the client hangs up"])
async def test_a_frame_that_never_passes_is_refunded(open_stage: OpenStage, end: str) -> None:
    stage, client, broker = await with_an_open_claim(open_stage)
    session = stage.session_of(client)
    if end == "the broker goes":
        broker.reset()
        await until(lambda: session.state is State.CLOSED)
    elif end == "the proxy drains":
        session.drain()
        assert session.held is None
    else:
        client.close()
        stage.clock.pass_seconds(0.006)
        await until(lambda: stage.metrics.connections.dropped_frames == 1)
    assert OWN not in debts(stage)
    stage.clock.pass_seconds(10)
    assert limit_of(stage, OWN).algorithm.headroom(stage.clock()) == 1_000_000


async def test_a_refunded_claim_releases_others(open_stage: OpenStage) -> None:
    """What was claimed takes 50 ms to be paid off, and a frame queued after it was to wait that long."""
    size = 30_000_000
    stage, _, broker = await with_an_open_claim(open_stage, size.to_bytes(4, "big") + SECOND[4:])
    behind, broker_of_behind = await stage.pair()
    await behind.send(produce(3))
    await held(stage, 2)
    assert debts(stage)[OWN] == 0.05
    broker.reset()
    stage.clock.pass_seconds(0.006)
    assert await broker_of_behind.frame() == produce(3)


async def test_a_limit_removed_under_a_claim(open_stage: OpenStage) -> None:
    stage, _, broker = await with_an_open_claim(open_stage)
    alter(stage, "client-id=etl,producer_byte_rate=1MB", away=True)
    await held(stage)
    stage.clock.pass_seconds(0.006)
    assert await broker.frame() == SECOND
    alter(stage, "client-id=etl,producer_byte_rate=1MB")
    assert OWN not in debts(stage)


async def test_the_other_limit_removed(open_stage: OpenStage) -> None:
    stage, _, broker = await with_an_open_claim(open_stage)
    alter(stage, "total=true,producer_byte_rate=100MB", away=True)
    assert await broker.frame() == SECOND
    assert debts(stage) == {OWN: SIZE / 1_000_000}
    stage.clock.pass_seconds(10)
    assert limit_of(stage, OWN).algorithm.headroom(stage.clock()) == 1_000_000


async def test_a_frame_with_claims_needs_more_bytes(open_stage: OpenStage) -> None:
    """A limit of topics is set while a frame of which only the head has been read waits: it is asked about anew."""
    stage, client, broker = await with_an_open_claim(open_stage)
    session = stage.session_of(client)
    good = produce_records(3, {"rows": [batch(1, 90_000)]})
    stage.clock.pass_seconds(0.006)
    assert await broker.frame() == SECOND
    stage.clock.pass_seconds(1)
    await one_long(client, broker, 1_020_000)
    stage.clock.pass_seconds(0.0105)
    await client.send(good[:200])
    await held(stage)
    claimed = session.held
    assert claimed is not None
    own = limit_of(stage, OWN)
    claimed.ticket.turn = own
    stage.clock.pass_seconds(0.0095)
    claimed.ticket.claim(len(good) - 4, stage.clock())
    assert OWN in debts(stage)
    alter(stage, "topic=rows,bytes_in_rate=1GB")
    await until(lambda: session.held is None)
    assert debts(stage) == {}
    await client.send(good[200:])
    assert await broker.frame() == good
    stage.clock.pass_seconds(10)
    assert own.algorithm.headroom(stage.clock()) == 1_000_000


async def test_sessions_that_share_two_limits_all_pass(open_stage: OpenStage) -> None:
    """Clients with a limit each, and topics with a limit each that the clients have in common."""
    stage = open_stage(
        quotas=[
            parse_spec("client-id=<default>,producer_byte_rate=4MB,burst_seconds=0.001"),
            parse_spec("topic=<default>,bytes_in_rate=3MB,burst_seconds=0.001"),
            parse_spec("total=true,producer_byte_rate=8MB,burst_seconds=0.001"),
        ],
        real_clock=time.monotonic_ns,
    )
    frames_each, sessions = 6, 16

    async def speak(number: int, client: Peer, broker: Peer) -> None:
        sent = [
            produce_records(
                each,
                {
                    f"topic-{(number + each) % 3}": [batch(1, 1_000 + 300 * number)],
                    f"topic-{each % 2}-b": [batch(1, 90)],
                },
                client_id=f"client-{number % 4}",
            )
            for each in range(frames_each)
        ]
        await client.send(b"".join(sent))
        for each in sent:
            assert await broker.frame() == each

    pairs = [await stage.pair() for _ in range(sessions)]
    async with asyncio.TaskGroup() as group:
        for number, pair in enumerate(pairs):
            group.create_task(speak(number, *pair))
    await until(lambda: not stage.paused())
    assert stage.shared.wakeups._timers == {}
    an_hour_later = time.monotonic_ns() + 3_600_000_000_000
    for limit in stage.registry.limits_in_use():
        assert limit.algorithm.headroom(an_hour_later) == limit.rate / 1_000, "nothing is set aside any more"
