"""Refusals of requests that create partitions, on sockets: order and memory where the client does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from proxy.streams.connection import Answer
from proxy.streams.memory import READ_SIZE
from tests.proxy.conversation import Peer, Stage, until, without_burst
from tests.proxy.frames import heartbeat, heartbeat_answer
from tests.proxy.mutation_frames import REFUSED, Told, create, told

OpenStage = Callable[..., Stage]
QUOTA = without_burst("client-id=etl,controller_mutation_rate=10")


async def in_debt(stage: Stage) -> tuple[Peer, Peer]:
    client, broker = await stage.pair()
    await client.send(create(100, {"first": 3}))
    await broker.frame()
    await broker.send(heartbeat_answer(100))
    await client.frame()
    return client, broker


@pytest.mark.parametrize("seen", [3, 8_000_000 - 1])
async def test_a_refusal_waits_for_the_end_of_an_earlier_response(open_stage: OpenStage, seen: int) -> None:
    """Also where the client has not taken the earlier one's beginning yet."""
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    first = heartbeat_answer(1, 8_000_000)
    await client.send(heartbeat(1))
    await broker.frame()
    sending = asyncio.ensure_future(broker.send(first[:seen]))
    await until(lambda: sending.done() or stage.paused().get("write_backpressure"))
    await client.send(create(2, {"b": 1}))
    await until(lambda: session.connection.in_flight and isinstance(session.connection.in_flight[-1][1], Answer))
    received, _ = await asyncio.gather(client.read(seen if seen > 8 else 0), sending)
    await broker.send(first[seen:])
    assert received + await client.read(len(first) - len(received)) == first
    assert told(19, 7, await client.frame()) == Told(2, 300, {"b": REFUSED})


async def test_unread_refusals_are_bounded(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    session.client._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    names = dict.fromkeys((f"{number:0>240}" for number in range(100)), 1)
    sending = asyncio.ensure_future(client.send(b"".join(create(number, names) for number in range(200))))
    await until(lambda: stage.paused().get("in_flight") == 1)
    assert len(session.connection.in_flight) < 60
    for number in range(200):
        assert told(19, 7, await client.frame()).correlation == number
        assert session.connection.owed_bytes + stage.memory.buffered_bytes <= 3 * READ_SIZE
    await sending
    await until(lambda: not stage.paused())
    assert session.connection.owed_bytes == 0
    await client.send(heartbeat(1))
    assert await broker.frame() == heartbeat(1)
