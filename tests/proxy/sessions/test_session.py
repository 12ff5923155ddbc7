"""How sessions end on sockets: what depends on the kernel, and on the loop. `test_endings` has all else."""

import asyncio
from collections.abc import Callable

import pytest

from proxy.sessions.lifecycle import State
from proxy.sessions.session import Session
from proxy.streams.memory import READ_SIZE
from tests.proxy.conversation import OpenStage, Peer, Stage, arrives, nobody_accepts, readable_bytes, until
from tests.proxy.frames import fetch, fetched, heartbeat, heartbeat_answer, produce, produced


async def opened(open_stage: OpenStage, *sent: bytes) -> tuple[Stage, Peer, Peer, Session]:
    """A client, its broker, and their session, when the broker has received these frames of the client."""
    client, broker = await (stage := open_stage()).pair()
    await client.send(b"".join(sent))
    for each in sent:
        assert await broker.frame() == each
    return stage, client, broker, stage.session_of(client)


async def a_client_that_does_not_read(stage: Stage) -> tuple[Peer, Peer, bytes]:
    """The proxy holds bytes that its client does not take. Returns client, broker, and the whole answer."""
    client, broker = await stage.pair()
    session = stage.session_of(client)
    await arrives(client, broker, fetch(1))
    answer = fetched(1, size=30_000_000)
    sent = 0
    while session.responses.writer.pending is None:
        sent += broker.send_now(answer[sent : sent + READ_SIZE])
        await asyncio.sleep(0)
    # The rest of the answer is left out where a test does not need it: the broker may be gone by then.
    return client, broker, answer[:sent]


# ---- cONNECTING
async def test_connecting_client_ends_and_connecting_drains(open_stage: OpenStage) -> None:
    with nobody_accepts() as address:
        stage = open_stage(bootstrap_servers=(address,))
        client = await stage.client()
        await until(lambda: stage.sessions)
        session = stage.session_of(client)
        client.close()
        await asyncio.sleep(0)
        assert session.state is State.CONNECTING, "nobody reads it yet: it is seen as soon as the broker answers"
        session.drain()
        await stage.no_sessions()


# ---- oPEN
@pytest.mark.parametrize("in_flight", [(), (heartbeat(1), heartbeat(2))], ids=["idle", "in flight"])
@pytest.mark.parametrize("leave", [Peer.reset, Peer.close])
async def test_a_disconnected_client_is_closed_at_once(
    open_stage: OpenStage, leave: Callable[[Peer], None], in_flight: tuple[bytes, ...]
) -> None:
    """A reset is known at once; a client that closed is, when the first response has reached it."""
    stage, client, broker, session = await opened(open_stage, *in_flight)
    leave(client)
    if in_flight:
        await until(lambda: session.state is State.FLUSHING)
        if leave is Peer.close:
            await broker.send(heartbeat_answer(1))
            await until(lambda: session.client.is_broken)
        session.sweep(stage.clock())
    await broker.closed()
    await stage.no_sessions()


@pytest.mark.parametrize("drains", [False, True])
async def test_a_broker_ends_while_its_client_still_reads(open_stage: OpenStage, drains: bool) -> None:
    stage = open_stage()
    client, broker, answer = await a_client_that_does_not_read(stage)
    if drains:
        stage.session_of(client).drain()
    broker.close()
    assert await client.rest() == answer, "everything the broker said arrives, though it has gone"
    assert stage.metrics.errors.upstream["closed_mid_frame"] == 1
    await stage.no_sessions()


# ---- fLUSHING
async def test_data_without_acknowledgement_behind_answers_that_nobody_takes_arrives(open_stage: OpenStage) -> None:
    """The client closed with answers unread, so the proxy's next answer fails; what the client sent is still there."""
    stage, client, broker, session = await opened(open_stage, heartbeat(1), heartbeat(2))
    await broker.send(heartbeat_answer(1))
    await until(lambda: readable_bytes(client.sock))
    session.requests.pause(8)  # as if memory were short just now: the next bytes wait in the kernel
    sent = produce(3, 30_000, acks=0)
    await client.send(sent)
    client.close()
    await broker.send(heartbeat_answer(2))
    await until(lambda: not session.response_stream.in_flight)
    session.requests.resume(8)
    assert await broker.rest() == sent
    broker.close()
    await stage.no_sessions()


# Writing to a peer that is gone, in the middle of looking at what was read


async def test_responses_before_a_brokers_close_are_delivered(open_stage: OpenStage) -> None:
    """It answered and closed; the next request fails to be sent before the answer was read."""
    stage, client, broker, session = await opened(open_stage, produce(1))
    session.responses.pause(8)
    await broker.send(produced(1))
    broker.close()
    for number in range(2, 40):
        if session.state is State.CLOSED or session.requests.writer.discarding:
            break
        await client.send(produce(number))
        await until(lambda: session.state is State.CLOSED or not stage.unread(session))
    session.responses.resume(8)
    assert await client.frame() == produced(1)
    await client.closed()
    await stage.no_sessions()


@pytest.mark.parametrize("sweeps", [True, False])
@pytest.mark.pure
async def test_a_reset_after_unread_bytes(open_stage: OpenStage, sweeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop says it once, and the one read that follows takes the bytes; the end is found by the sweep, or by a write.

    That is a broker that crashes: it answered one request and will not answer the other.
    """
    if not sweeps:
        monkeypatch.setattr(Session, "sweep", lambda _session, _now_ns: None)
    stage, client, broker, session = await opened(open_stage)
    await client.send(produce(1) + produce(2))
    await broker.read(len(produce(1)))
    session.responses.pause(8)  # so that both are there when the proxy reads
    await broker.send(produced(1))
    broker.close()  # with the second request unread: a reset
    session.responses.resume(8)
    assert await client.frame() == produced(1)
    if not sweeps:
        await client.send(produce(3))
    await client.closed()
    await stage.no_sessions()
    assert stage.metrics.errors.upstream["connection_reset"] == 1
