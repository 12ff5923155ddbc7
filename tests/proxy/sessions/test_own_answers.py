"""Responses that the proxy makes itself: sent in their order, whatever the broker does meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from tests.proxy.conversation import Stage, until
from tests.proxy.frames import api_versions, heartbeat, heartbeat_answer


async def test_an_answer_follows_the_response_before_it(open_stage: Callable[..., Stage]) -> None:
    """It is sent when that response has passed, though the broker sends nothing more."""
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(heartbeat(1) + api_versions(2, 99) + api_versions(3, 99))
    assert await broker.frame() == heartbeat(1)
    connection = stage.session_of(client).connection
    await until(lambda: len(connection.in_flight) == 3)
    for piece in (heartbeat_answer(1)[:9], heartbeat_answer(1)[9:]):
        await broker.send(piece)
    assert await client.frame() == heartbeat_answer(1)
    for correlation_id in (2, 3):
        assert (await client.frame())[4:8] == correlation_id.to_bytes(4, "big")
    assert connection.owed_bytes == 0
