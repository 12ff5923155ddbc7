"""Bytes go through unchanged, wherever the stream is cut, except where the proxy has a reason to change them."""

import asyncio
from typing import Any

import pytest
from kio.index import load_response_schema

from protocol.apis import FETCH
from protocol.messages import decode
from proxy.streams.memory import READ_SIZE
from tests.proxy import frames
from tests.proxy.conversation import OpenStage, cut, send_in_pieces
from tests.proxy.frames import fetch, heartbeat, heartbeat_answer, produce, produced, request


def parsed(api: int, version: int, received: bytes) -> Any:
    """A response as kio reads it."""
    return decode(load_response_schema(api, version), received, 9)


CONVERSATION = [
    (produce(1, 300), produced(1)),
    (heartbeat(2), heartbeat_answer(2)),
    (produce(3, 10, version=7, client_id="other"), produced(3, 7)),
    (produce(4, 50, acks=0), b""),
    (fetch(5), frames.fetched(5)),
    (produce(6, 0, version=2, client_id=None), produced(6, 2)),
    (fetch(7, version=1), frames.fetched(7, 1)),
    (request(22, 4, 8, b"\x00" * 9, client_id=""), heartbeat_answer(8, 500)),
]
REQUESTS = b"".join(sent for sent, _ in CONVERSATION)
ANSWERS = b"".join(answer for _, answer in CONVERSATION)


@pytest.mark.parametrize("step", [1_000_000, 1, 2, 3, 7, 64])
async def test_a_pipelined_conversation_passes_unchanged_however_it_is_cut(open_stage: OpenStage, step: int) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    for _ in range(2):
        await send_in_pieces(client, session.client, cut(REQUESTS, [step] * len(REQUESTS)))
        assert await broker.read(len(REQUESTS)) == REQUESTS
        assert len(session.connection.in_flight) == 7
        await send_in_pieces(broker, session.upstream, cut(ANSWERS, [step] * len(ANSWERS)))
        assert await client.read(len(ANSWERS)) == ANSWERS
    assert not session.connection.in_flight
    client.end()
    broker.close()
    assert await client.rest() == b""


async def test_a_long_fetch_response_is_walked_and_streamed(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(fetch(6, 17) + heartbeat(7))
    await broker.frame()
    await broker.frame()
    answer = frames.fetched_with_endpoints(6, 17, partitions=4, record_bytes=READ_SIZE)
    more = heartbeat_answer(7)
    received, _ = await asyncio.gather(client.read(len(answer + more)), broker.send(answer + more))
    assert received.endswith(more)
    assert parsed(FETCH, 17, received[: len(answer)]).node_endpoints == ()
    assert frames.REAL_HOST.encode() not in received
