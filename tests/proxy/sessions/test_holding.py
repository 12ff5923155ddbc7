"""Quotas at work: what is kept while a client is held, and what becomes of one that has left.

Limits are given without a burst, so that every frame leaves a debt of its own length, and the rates are high, so that
the loop's timers are short; how much time has passed is for the test to say.
"""

import re

import pytest

from tests.proxy.conversation import OpenStage, Peer, Stage, arrives, lines_of, without_burst
from tests.proxy.dialogue import held
from tests.proxy.frames import produce, produced
from tests.proxy.streams.pair import Pair, World

FAST = without_burst("client-id=etl,producer_byte_rate=1MB")
SLOW = without_burst("client-id=etl,producer_byte_rate=1")


async def in_debt(stage: Stage, *held_requests: bytes) -> tuple[Peer, Peer]:
    """A client and its broker connection: one answered request left a debt of 10 ms, and these are held."""
    client, broker = await stage.pair()
    await arrives(client, broker, produce(1, 10_000))
    await broker.send(produced(1))
    await client.frame()
    await client.send(b"".join(held_requests))
    await held(stage)
    return client, broker


# ---- clients that hang up while held
async def test_a_held_frame_of_a_disconnected_client_is_dropped(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[FAST])
    for leave in (Peer.close, Peer.reset):
        client, broker = await in_debt(stage, produce(2, 500))
        before = stage.metrics.connections.dropped_frames
        leave(client)
        stage.clock.pass_seconds(1)
        assert await broker.rest() == b"", "the client will send it again: passing it on would duplicate it"
        await stage.no_sessions()
        assert stage.metrics.connections.dropped_frames == before + 1
        stage.clock.pass_seconds(1)


def test_a_long_hold_repeats_its_line_with_the_time_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(World([SLOW]))
    pair.client_sends(produce(1, 10_000), produce(2, 100))
    for _ in range(14):
        pair.world.clock.pass_seconds(1)
        pair.session.sweep(pair.world.clock())
    lines = [fields for name, fields in lines_of(caplog.records) if name == "throttled"]
    told = [tuple(fields.get(each) for each in ("mode", "held_seconds", "of")) for fields in lines]
    assert told == [("notify", None, None), ("pause", 6.0, 6.0), ("pause", 5.0, 5.0)]
    first, *more = [fields.get("until") for fields in lines]
    assert first is None
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", str(each)) for each in more)
