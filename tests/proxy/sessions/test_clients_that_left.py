"""Clients that have closed their connection with more sent than the receive window holds: TCP tells their end behind
that, so a limit would hold them for as long as it takes.
"""

import pytest
from kio.schema.errors import ErrorCode

from proxy.sessions.ending import PROBE_NS
from proxy.sessions.lifecycle import State
from tests.proxy.conversation import OpenStage, arrives, without_burst
from tests.proxy.dialogue import held
from tests.proxy.frames import batch, heartbeat, heartbeat_answer, produce, produce_records, produced, refused
from tests.proxy.streams.pair import Pair, World, pass_holds

pytestmark = pytest.mark.claim(
    "enforcement",
    "a client that has closed with more sent than the kernels hold is found after 65 s of a hold; "
    "others receive the same bytes",
)

LIMIT = "client-id=etl,producer_byte_rate=100"
LONG_S = PROBE_NS / 1e9 + 1
#: More than the windows of both kernels hold.
MUCH = 12_000_000


async def test_one_that_has_left_is_found_while_it_is_held(open_stage: OpenStage) -> None:
    client, broker = await (stage := open_stage(quotas=[without_burst(LIMIT)])).pair()
    await arrives(client, broker, produce(1, 10_000))
    await broker.send(produced(1))
    await client.frame()
    client.sock.setblocking(False)
    sent = produce(2, MUCH)
    assert 0 < client.sock.send(sent) < len(sent), "the kernels are full"
    await held(stage)
    session = stage.session_of(client)
    client.close()
    stage.sweep()
    assert session.state is State.OPEN, "its end is behind what it sent"
    stage.clock.pass_seconds(LONG_S)
    stage.sweep()
    await broker.closed()
    stage.sweep()
    await stage.no_sessions()


def probed(spec: str, sent: bytes, *, cuts: tuple[int, ...] = ()) -> tuple[World, Pair]:
    """A client that has waited for long for a second request."""
    pair = Pair(world := World([without_burst(spec)]), cuts=cuts)
    pair.exchange(produce_records(1, {"t": [batch(1, 10_000)]}), produced(1))
    pair.to_client.clear()
    pair.client_sends(sent)
    assert pair.is_held
    pair.session.sweep(world.clock())
    assert pair.to_client == b""
    world.clock.pass_seconds(LONG_S)
    for _ in range(3):
        pair.session.sweep(world.clock())
    return world, pair


@pytest.mark.parametrize("cuts", [(), (1,), (3,)])
@pytest.mark.parametrize("spec", [LIMIT, "topic=t,bytes_in_rate=100", "topic=t,bytes_in_rate=100,action=reject"])
def test_one_that_waits_receives_the_same_bytes(spec: str, cuts: tuple[int, ...]) -> None:
    """The first byte of the response early, and the rest with the response."""
    sent = produce_records(2, {"t": [batch(1, 100)]})
    world, pair = probed(spec, sent, cuts=cuts)
    assert pair.to_client == b"\0"
    pass_holds(world)
    assert pair.to_broker.endswith(sent)
    answer = refused(2, {"t": [ErrorCode.none]})
    pair.broker_sends(answer)
    pair.exchange(heartbeat(3), heartbeat_answer(3))
    assert len(pair.to_client) == len(answer) + len(heartbeat_answer(3))
    assert pair.received()[1:] == [heartbeat_answer(3)]


def test_who_is_not_probed() -> None:
    """Who takes what is held for delivered (acks=0), and who receives another response first."""
    for acks, is_answered in ((0, True), (1, False)):
        pair = Pair(world := World([without_burst(LIMIT)]))
        pair.client_sends(produce(1, 10_000))
        if is_answered:
            pair.broker_sends(produced(1))
            pair.to_client.clear()
        pair.client_sends(produce(2, 100, acks=acks))
        assert pair.is_held
        world.clock.pass_seconds(LONG_S)
        pair.session.sweep(world.clock())
        assert pair.to_client == b""
