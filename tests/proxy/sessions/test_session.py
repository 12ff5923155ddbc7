"""How sessions end: a test for each cell of `proxy.sessions.lifecycle`, and what reaches the other side."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import pytest

from proxy.sessions.lifecycle import State
from proxy.sessions.session import Session
from proxy.streams.memory import READ_SIZE
from tests.proxy.conversation import (
    LOOPBACK,
    Peer,
    Stage,
    lines_of,
    nobody_accepts,
    readable_bytes,
    until,
)
from tests.proxy.frames import (
    api_versions,
    coordinators_answer,
    fetch,
    fetched,
    find_coordinator,
    heartbeat,
    heartbeat_answer,
    produce,
    produced,
    produced_widely,
)

OpenStage = Callable[..., Stage]


async def opened(open_stage: OpenStage, *sent: bytes) -> tuple[Stage, Peer, Peer, Session]:
    """A client, its broker, and their session, when the broker has received these frames of the client."""
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(b"".join(sent))
    for each in sent:
        assert await broker.frame() == each
    return stage, client, broker, stage.session_of(client)


async def a_client_that_does_not_read(stage: Stage) -> tuple[Peer, Peer, bytes]:
    """The proxy holds bytes that its client does not take. Returns client, broker, and the whole answer."""
    client, broker = await stage.pair()
    session = stage.session_of(client)
    await client.send(fetch(1))
    await broker.frame()
    answer = fetched(1, size=30_000_000)
    sent = 0
    while session.responses.writer.pending is None:
        sent += broker.send_now(answer[sent : sent + READ_SIZE])
        await asyncio.sleep(0)
    # The rest of the answer is left out where a test does not need it: the broker may be gone by then.
    return client, broker, answer[:sent]


# CONNECTING


async def test_connecting_broker_fails(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server((LOOPBACK, 0)) as gone:
        address = gone.getsockname()[:2]
    stage = open_stage(bootstrap_servers=(address,))
    client = await stage.client()
    await client.closed()
    await stage.no_sessions()
    assert stage.metrics.errors.upstream["connect_refused"] == 1
    [(_, fields)] = [line for line in lines_of(caplog.records) if line[0] == "broker_failed"]
    assert fields["address"] == f"{LOOPBACK}:{address[1]}"


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


async def test_connecting_client_ends_before_the_broker_answers(open_stage: OpenStage) -> None:
    stage = open_stage()
    client = await stage.client()
    await client.send(produce(1, acks=0))
    client.close()
    broker = await stage.broker.accept()
    assert await broker.rest() == produce(1, acks=0), "what was sent before is delivered all the same"
    broker.close()
    await stage.no_sessions()


# OPEN


async def test_open_client_ends_with_nothing_under_way(open_stage: OpenStage) -> None:
    stage, client, broker, _ = await opened(open_stage, heartbeat(1))
    await broker.send(heartbeat_answer(1))
    await client.frame()
    client.end()
    assert await broker.rest() == b""
    assert await client.rest() == b""
    await stage.no_sessions()


async def test_open_client_half_closes_and_still_gets_its_answer(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    await client.send(heartbeat(1) + produce(2))
    client.end()
    sent = heartbeat(1) + produce(2)
    assert await broker.read(len(sent)) == sent
    await until(lambda: session.state is State.FLUSHING)
    await broker.send(heartbeat_answer(1) + produced(2)[:10])
    assert await client.frame() == heartbeat_answer(1)
    assert readable_bytes(broker.sock) == 0
    with pytest.raises(BlockingIOError):
        broker.sock.recv(1)  # a broker that finds the end of the stream drops responses
    await broker.send(produced(2)[10:])
    assert await broker.rest() == b""
    broker.close()
    assert await client.rest() == produced(2)
    await stage.no_sessions()


@pytest.mark.parametrize("leave", [Peer.reset, Peer.close])
async def test_a_disconnected_client_is_closed_at_once(open_stage: OpenStage, leave: Callable[[Peer], None]) -> None:
    """A reset is known at once; a client that closed is, when the first response has reached it."""
    stage, client, broker, session = await opened(open_stage)
    await client.send(heartbeat(1) + heartbeat(2))
    await broker.read(len(heartbeat(1) + heartbeat(2)))
    leave(client)
    await until(lambda: session.state is State.FLUSHING)
    if leave is Peer.close:
        await broker.send(heartbeat_answer(1))
        await until(lambda: session.client.is_broken)
    session.sweep(stage.clock())
    await broker.closed()
    await stage.no_sessions()


async def test_memory_of_a_response_is_returned_when_its_client_has_gone(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage, find_coordinator(1))
    await broker.send(coordinators_answer(1, 1_000)[:2_000])
    await until(lambda: stage.memory.used > 0)
    client.reset()
    await until(lambda: session.state is State.FLUSHING)
    session.sweep(stage.clock())
    assert stage.memory.used == 0
    await stage.no_sessions()


async def test_open_client_fails_with_nothing_under_way(open_stage: OpenStage) -> None:
    stage, client, broker, _ = await opened(open_stage)
    client.reset()
    await broker.closed()
    await stage.no_sessions()


async def test_open_broker_closes_an_idle_connection(open_stage: OpenStage) -> None:
    stage, client, broker, _ = await opened(open_stage)
    broker.end()
    assert await client.rest() == b""
    await stage.no_sessions()
    assert not any(stage.metrics.errors.upstream.values()), "brokers close idle connections: no error"


async def test_open_broker_ends_while_its_client_still_reads(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker, answer = await a_client_that_does_not_read(stage)
    broker.close()
    assert await client.rest() == answer, "everything the broker said arrives, though it has gone"
    assert stage.metrics.errors.upstream["closed_mid_frame"] == 1
    await stage.no_sessions()


async def test_open_drain_with_nothing_under_way(open_stage: OpenStage) -> None:
    stage, client, broker, _ = await opened(open_stage)
    session = stage.session_of(client)
    session.drain()
    assert await client.rest() == b""
    assert session.state is State.LINGERING
    client.close()
    assert await broker.rest() == b""
    await stage.no_sessions()


async def test_open_drain_behind_data_without_a_response(open_stage: OpenStage) -> None:
    """The broker ends its stream when it has read all, and that is the end."""
    stage, client, broker, _ = await opened(open_stage)
    await client.send(produce(1, acks=0))
    await until(lambda: stage.session_of(client).connection.sent_unanswered)
    stage.session_of(client).drain()
    assert await broker.frame() == produce(1, acks=0)
    assert await client.rest() == b""
    client.close()
    assert await broker.rest() == b""
    broker.close()
    await stage.no_sessions()


# DRAINING


async def test_draining_closes_when_all_is_answered(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage, produce(1), heartbeat(2))
    session.drain()
    assert session.state is State.DRAINING
    await client.send(produce(3))
    await broker.send(produced(1))
    assert await client.frame() == produced(1)
    assert session.state is State.DRAINING
    await broker.send(heartbeat_answer(2))
    assert await client.frame() == heartbeat_answer(2)
    assert await client.rest() == b""
    client.close()
    assert await broker.rest() == b"", "no new frame is begun"
    await stage.no_sessions()
    assert not any(stage.metrics.errors.protocol.values())


async def test_draining_completes_the_frame_that_was_begun(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    sent = produce(1, 1_000)
    await client.send(sent[:400])
    assert await broker.read(400) == sent[:400]
    session.drain()
    await client.send(sent[400:] + heartbeat(2))
    assert await broker.read(len(sent) - 400) == sent[400:]
    await broker.send(produced(1))
    assert await client.rest() == produced(1)
    client.close()
    assert await broker.rest() == b""
    await stage.no_sessions()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (fetch(1, 4), fetched(1, 4, 3 * READ_SIZE)),
        (fetch(1, 12), fetched(1, 12, 3 * READ_SIZE)),
        (fetch(1, 4), fetched(1, 4, 10)),
        (produce(1, version=12), produced_widely(1, 12, READ_SIZE)),
    ],
    ids=["long", "long v12", "short", "kept whole"],
)
async def test_draining_closes_behind_a_response_of_any_length(
    open_stage: OpenStage, sent: bytes, answer: bytes
) -> None:
    """The last bytes of a long one come in reads of their own, behind everything that is looked at."""
    stage, client, broker, _ = await opened(open_stage, sent)
    stage.session_of(client).drain()
    received, _ = await asyncio.gather(client.rest(), broker.send(answer))
    assert received == answer
    client.close()
    await stage.no_sessions()


async def test_draining_closes_when_the_broker_has_taken_the_last_bytes(open_stage: OpenStage) -> None:
    """acks=0, and a broker that reads slowly: nothing is answered, so only the flush can end it."""
    stage, client, broker, session = await opened(open_stage)
    sent = produce(1, 20_000_000, acks=0)
    sending = asyncio.ensure_future(client.send(sent))
    await until(lambda: session.requests.writer.pending is not None)
    session.drain()
    assert await broker.read(len(sent)) == sent
    await sending
    assert await client.rest() == b""
    client.close()
    assert await broker.rest() == b""
    broker.close()
    await stage.no_sessions()


async def test_draining_keeps_whole_frames_that_the_broker_has_not_taken(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    sent = b""
    while session.requests.writer.pending is None:
        sent += (one := produce(1, 20_000, acks=0))
        await client.send(one)
        await until(lambda: not stage.unread(session))
    assert session.requests.stream.remaining == 0
    session.drain()
    assert await client.rest() == b""
    client.close()
    assert await broker.rest() == sent
    broker.close()
    await stage.no_sessions()


async def test_draining_keeps_whole_responses_that_the_client_has_not_taken(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    assert session.upstream is not None
    upstream = session.upstream
    answered = b""
    while session.responses.writer.pending is None:
        await client.send(heartbeat(1))
        await broker.frame()
        answered += (one := heartbeat_answer(1, 20_000))
        await broker.send(one)
        await until(lambda: not readable_bytes(upstream))
    assert session.responses.stream.remaining == 0
    assert not session.response_stream.in_flight
    session.drain()
    assert session.state is State.DRAINING
    assert await client.rest() == answered
    client.close()
    await stage.no_sessions()


async def test_draining_client_ends_mid_frame(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    sent = produce(1, 1_000)
    await client.send(sent[:400])
    await broker.read(400)
    session.drain()
    client.close()
    assert await broker.rest() == b""
    broker.close()
    await stage.no_sessions()


async def test_draining_client_fails_while_it_is_answered(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage, produce(1), produce(2))
    session.drain()
    client.reset()
    await broker.send(produced(1))
    await until(lambda: len(session.response_stream.in_flight) == 1)
    await broker.send(produced(2))
    await stage.no_sessions()


async def test_draining_broker_ends_and_fails(open_stage: OpenStage) -> None:
    stage = open_stage()
    for last in (Peer.close, Peer.reset):
        client, broker = await stage.pair()
        await client.send(produce(1))
        await broker.frame()
        stage.session_of(client).drain()
        last(broker)
        await client.closed()
        await stage.no_sessions()


async def test_draining_broker_ends_while_its_client_still_reads(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker, answer = await a_client_that_does_not_read(stage)
    session = stage.session_of(client)
    session.drain()
    assert session.state is State.DRAINING
    broker.close()
    assert await client.rest() == answer
    await stage.no_sessions()


# FLUSHING


async def test_data_without_acknowledgement_sent_right_before_the_close_arrives(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    sent = b"".join(produce(number, 50_000, acks=0) for number in range(60))
    receiving = asyncio.ensure_future(broker.rest())
    await client.send(sent)
    session = stage.session_of(client)
    client.close()
    assert await receiving == sent
    assert session.state is State.FLUSHING, "the broker's end of stream says that it has read everything"
    broker.close()
    await stage.no_sessions()


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


async def test_flushing_broker_fails(open_stage: OpenStage) -> None:
    stage, client, broker, _ = await opened(open_stage)
    await client.send(produce(1))
    client.end()
    await broker.frame()
    await until(lambda: stage.session_of(client).state is State.FLUSHING)
    broker.reset()
    await client.closed()
    await stage.no_sessions()


async def test_flushing_client_fails(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    await client.send(produce(1) + produce(2))
    client.end()
    await until(lambda: session.state is State.FLUSHING)
    client.reset()
    await broker.send(produced(1))
    await until(lambda: len(session.response_stream.in_flight) == 1)
    await broker.send(produced(2))
    assert session.state is State.FLUSHING
    broker.close()
    await stage.no_sessions()


async def test_flushing_drain_changes_nothing(open_stage: OpenStage) -> None:
    stage, client, broker, session = await opened(open_stage)
    await client.send(produce(1))
    client.end()
    await until(lambda: session.state is State.FLUSHING)
    session.drain()
    assert session.state is State.FLUSHING
    await broker.send(produced(1))
    broker.close()
    assert await client.rest() == produced(1)
    await stage.no_sessions()


@pytest.mark.pure
async def test_flushing_has_a_deadline(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.sessions.ending.FLUSH_TIMEOUT_SECONDS", 0.01)
    stage, client, broker, _ = await opened(open_stage)
    await client.send(produce(1))
    client.end()
    await stage.no_sessions()
    await broker.closed()


async def test_a_close_while_bytes_wait_for_either_side(open_stage: OpenStage) -> None:
    """Both sockets are registered for writing then; on uvloop a forgotten one would end the process."""
    stage = open_stage()
    client, broker, _ = await a_client_that_does_not_read(stage)
    session = stage.session_of(client)
    sending = asyncio.ensure_future(client.send(produce(2, 30_000_000, acks=0)))
    await until(lambda: session.requests.writer.pending is not None)
    assert stage.memory.buffered_bytes > 0
    session.close()
    assert stage.memory.buffered_bytes == 0
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        await sending
    await broker.closed()


@pytest.mark.parametrize(
    ("who", "coordinators", "size"),
    [("the session", 40_000, READ_SIZE + 100_000), ("the broker", 20, 100), ("the broker", 20, 6)],
)
async def test_a_close_while_a_response_is_collected(
    open_stage: OpenStage, who: str, coordinators: int, size: int
) -> None:
    stage, client, broker, session = await opened(open_stage, find_coordinator(1))
    await broker.send(coordinators_answer(1, coordinators)[:size])
    await until(lambda: stage.memory.buffered_bytes >= size - 4)
    if who == "the session":
        session.close()
    else:
        broker.close()
        assert await client.rest() == b""
    assert stage.memory.buffered_bytes == 0
    assert stage.metrics.errors.upstream["closed_mid_frame"] == (who == "the broker")


async def test_the_proxys_own_answer_waits_for_a_response_that_has_begun(open_stage: OpenStage) -> None:
    """Begun and passed on in part, begun and kept, begun and collected: in each it comes behind the whole of it."""
    stage = open_stage()
    for sent, answer in (
        (fetch(1, 4), fetched(1, 4, 5_000)),
        (produce(1, version=12), produced(1, 12)),
        (produce(1, version=12), produced_widely(1, 12, READ_SIZE)),
    ):
        client, broker = await stage.pair()
        session = stage.session_of(client)
        await client.send(sent)
        await broker.frame()
        await broker.send(answer[:30])
        flow = session.responses
        await until(lambda flow=flow: flow.stream.remaining or flow.backlog.kept)  # type: ignore[misc]
        await client.send(api_versions(2, 99))
        await until(lambda session=session: not stage.unread(session))  # type: ignore[misc]
        received, _ = await asyncio.gather(client.read(len(answer)), broker.send(answer[30:]))
        assert received == answer
        assert (await client.frame())[4:8] == b"\x00\x00\x00\x02"


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


async def test_the_proxys_own_answer_to_a_client_that_has_gone(open_stage: OpenStage) -> None:
    stage, client, broker, _ = await opened(open_stage)
    await client.send(heartbeat(1) + b"".join(api_versions(number, 99) for number in range(2, 50)))
    await broker.frame()
    client.reset()
    await broker.send(heartbeat_answer(1))
    await broker.closed()
    broker.close()
    await stage.no_sessions()


@pytest.mark.parametrize("sweeps", [True, False])
@pytest.mark.pure
async def test_a_reset_after_unread_bytes_is_not_lost(
    open_stage: OpenStage, sweeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_broker_that_breaks_a_connection_is_named(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage, client, broker, _ = await opened(open_stage, produce(1))
    await broker.send(produced(1))
    await client.frame()
    with caplog.at_level(logging.WARNING):
        broker.reset()
        await client.closed()
    [(name, fields)] = lines_of(caplog.records)
    address = f"{LOOPBACK}:{stage.broker.address[1]}"
    assert (name, fields["address"], fields["reason"]) == ("broker_failed", address, "connection_reset")


# The sweep


async def test_a_client_that_goes_during_a_drain_is_noticed_though_it_is_not_read(open_stage: OpenStage) -> None:
    """It may have ended its stream alone, and receives the response in flight."""
    stage, client, broker, session = await opened(open_stage, heartbeat(1))
    session.drain()
    client.close()
    await until(lambda: session.client.peer_has_gone)
    session.sweep(stage.clock())
    await broker.send(heartbeat_answer(1))
    assert await broker.rest() == b""
    broker.close()
    await stage.no_sessions()


async def test_a_sweep_passes_over_a_session_that_was_closed_meanwhile(open_stage: OpenStage) -> None:
    stage, _, broker, session = await opened(open_stage)
    session.close()
    session.sweep(stage.clock())
    assert await broker.rest() == b""


@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_broker_that_closes_before_a_response_gets_a_hint_about_tls(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    stage, client, broker, _ = await opened(open_stage, api_versions(1, 3))
    if how == "closes":
        broker.close()
    else:
        broker.reset()
    await client.closed()
    await stage.no_sessions()
    assert stage.metrics.errors.upstream["closed_early"] == 1
    [(_, fields)] = [line for line in lines_of(caplog.records) if line[0] == "broker_failed"]
    assert "TLS" in fields["hint"]
