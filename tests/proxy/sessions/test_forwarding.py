"""Bytes go through unchanged, wherever the stream is cut, except where the proxy has a reason to change them."""

import pytest

from tests.proxy import frames
from tests.proxy.conversation import OpenStage, cut, send_in_pieces
from tests.proxy.frames import fetch, heartbeat, heartbeat_answer, produce, produced, request

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
        assert len(session.response_stream.in_flight) == 7
        await send_in_pieces(broker, session.upstream, cut(ANSWERS, [step] * len(ANSWERS)))
        assert await client.read(len(ANSWERS)) == ANSWERS
    assert not session.response_stream.in_flight
    client.end()
    broker.close()
    assert await client.rest() == b""
