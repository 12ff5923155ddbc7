"""What closed connections leave: nothing. Reference counting frees it, without a collection (see `proxy.ticks`)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.brokers.login import Login
from proxy.brokers.upstream import BrokerFailed
from proxy.config.client_settings import ClientSettings, LoginSettings
from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import Client, Identity
from proxy.sessions.backlog import Backlog
from proxy.sessions.broker_watch import BrokerWatch
from proxy.sessions.client_timeouts import ClientTimeouts
from proxy.sessions.ending import FLUSH_TIMEOUT_SECONDS, Ending
from proxy.sessions.lifecycle import State
from proxy.sessions.login import BrokerLogin
from proxy.sessions.opening import Opening
from proxy.sessions.pump import Pump
from proxy.sessions.pump_set import DELAY, MEMORY, TURN, WRITE_BACKPRESSURE
from proxy.sessions.session import Session
from proxy.sessions.throttling import Throttling
from proxy.sessions.tls_wire import Handshake, TlsWire
from proxy.sessions.turns import ROUND_NS
from proxy.sessions.wire import Wire
from proxy.sessions.writer import Writer
from proxy.streams.batch_plan import BatchPlans, PartitionPlan, TopicsPlan
from proxy.streams.batches import Batches
from proxy.streams.connection import Connection
from proxy.streams.handlers.fetch import FetchRequest
from proxy.streams.handlers.produce import ProduceRequest
from proxy.streams.memory import Holding
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import Answers, ResponseStream
from proxy.streams.topic_charges import TopicChargesCache
from tests.proxy.conversation import LOOPBACK, OpenStage, Stage, nobody_accepts, until, without_burst
from tests.proxy.frames import (
    api_versions,
    batch,
    coordinators_answer,
    fetch,
    fetched,
    find_coordinator,
    heartbeat,
    heartbeat_answer,
    metadata,
    metadata_answer,
    produce_records,
    produced,
)
from tests.proxy.sasl_broker import SaslBroker
from tests.proxy.streams.pair import Pair, World
from tests.proxy.tls_peer import Certificates, TlsPeer
from tests.proxy.wires import MemoryWire

#: All that exists for one connection.
KINDS = frozenset(
    {
        Answers,
        Backlog,
        Batches,
        BatchPlans,
        BrokerFailed,
        BrokerLogin,
        BrokerWatch,
        Client,
        ClientTimeouts,
        Connection,
        Delay,
        Ending,
        FetchRequest,
        Handshake,
        Holding,
        Identity,
        Login,
        MemoryWire,
        Opening,
        PartitionPlan,
        ProduceRequest,
        Pump,
        RequestStream,
        ResponseStream,
        Session,
        Throttling,
        TlsWire,
        TopicChargesCache,
        TopicsPlan,
        Wire,
        Writer,
        asyncio.Task,
        socket.gaierror,
        ssl.SSLObject,
    }
)
#: Hold every request after the first; delay every response after the first.
HELD = without_burst("client-id=held,producer_byte_rate=1,consumer_byte_rate=1")
LATE = without_burst("client-id=late,producer_byte_rate=1,mode=delay")
TOPIC = without_burst("topic=rows,bytes_in_rate=1")


def produce(number: int, client_id: str = "etl", size: int = 100, acks: int = 1, topic: str = "free") -> bytes:
    return produce_records(number, {"other": [batch(1, 100)], topic: [batch(1, size)]}, acks=acks, client_id=client_id)


def existing() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)


@contextlib.contextmanager
def without_collections() -> Iterator[Callable[[], Counter[str]]]:
    """Gives what has been left since."""
    gc.collect()
    gc.disable()
    before = existing()
    try:
        yield lambda: existing() - before
    finally:
        gc.enable()


# ---- without sockets: what a session has under way when it is closed


class QuietPair(Pair):
    """An error for which the session closes is not raised: its traceback would refer to all of it."""

    @staticmethod
    def on_closed(_: Session) -> None:
        """See above."""


def worked(pair: Pair) -> None:
    pair.client_sends(api_versions(1, 99), produce(2), fetch(3), metadata(4), heartbeat(5))
    pair.broker_sends(produced(2), fetched(3), metadata_answer(4, {7: ("127.0.0.9", 9_092)}, 3), heartbeat_answer(5))
    assert len(pair.received()) == 5
    pair.client.end()


def with_requests_in_flight(pair: Pair) -> None:
    pair.client_sends(produce(1), fetch(2), find_coordinator(3), heartbeat(4))


def held(pair: Pair) -> None:
    pair.client_sends(produce(1, client_id="held"), produce(2, client_id="held"))
    assert pair.is_held


def held_by_a_topic(pair: Pair) -> None:
    pair.client_sends(produce(1, topic="rows"), produce(2, topic="rows"))
    assert pair.is_held


def held_and_gone(pair: Pair) -> None:
    """The client's end is seen by the sweep; the broker ends the connection."""
    held(pair)
    pair.client.peer_has_gone = True
    pair.session.sweep(pair.world.clock())
    assert pair.session.state in {State.FLUSHING, State.CLOSED}
    pair.broker.end()
    assert pair.session.state is State.CLOSED


def held_and_released(pair: Pair) -> None:
    held(pair)
    pair.world.clock.pass_seconds(1_000)
    pair.world.shared.wakeups.limits_changed()
    pair.world.loop.run()
    assert not pair.is_held


def held_before_nonsense(pair: Pair) -> None:
    """Its release closes the connection."""
    pair.client_sends(produce(1, client_id="held"), produce(2, client_id="held"), b"\xff" * 100)
    assert pair.is_held
    pair.world.loop.pass_seconds(1_000)
    assert pair.session.state is State.CLOSED


def held_and_on_its_way_to_be_released(pair: Pair) -> None:
    held(pair)
    pair.world.shared.wakeups.limits_changed()


def delayed(pair: Pair) -> None:
    pair.client_sends(produce(1, client_id="late"))
    pair.broker_sends(produced(1))
    assert pair.responses.paused == DELAY


def delayed_and_sent(pair: Pair) -> None:
    delayed(pair)
    pair.end_delay()


def in_the_middle_of_a_request(pair: Pair) -> None:
    pair.client_sends(produce(1)[:-1])


def in_the_middle_of_a_head(pair: Pair) -> None:
    pair.client_sends(produce(1)[:9])


def in_the_middle_of_a_response_that_is_collected(pair: Pair) -> None:
    pair.client_sends(find_coordinator(1))
    pair.broker_sends(coordinators_answer(1, 300)[:-1])


def ended_in_the_middle_of_a_request(pair: Pair) -> None:
    in_the_middle_of_a_request(pair)
    pair.client.end()


def unsent(pair: Pair) -> None:
    pair.broker.room = pair.client.room = 10
    pair.client_sends(produce(1, size=5_000))
    assert pair.requests.paused == WRITE_BACKPRESSURE


def without_memory(pair: Pair) -> None:
    pair.client_sends(heartbeat(1))
    pair.requests._wait_for_memory()
    assert pair.requests.paused == MEMORY


def before_its_turn(pair: Pair) -> None:
    turns = pair.world.shared.pumps.turns
    turns.begin_round()
    turns.used_ns = ROUND_NS
    pair.client.receive(heartbeat(1))
    assert pair.client.on_readable is not None
    pair.client.on_readable()
    assert pair.requests.paused == TURN


def nonsense(pair: Pair) -> None:
    pair.client_sends(b"GET / HTTP/1.1\r\n\r\n")
    assert pair.session.state is State.CLOSED


def broken_by_the_broker(pair: Pair) -> None:
    pair.client_sends(heartbeat(1))
    pair.broker.broken = True
    pair.client_sends(heartbeat(2))
    assert pair.session.state is State.CLOSED


def drained(pair: Pair) -> None:
    pair.client_sends(fetch(1))
    pair.session.drain()
    pair.broker_sends(fetched(1))
    pair.client_sends(fetch(2))
    pair.client.end()
    assert pair.session.state is State.CLOSED


def lingering_in_vain(pair: Pair) -> None:
    pair.client_sends(produce(1, acks=0))
    pair.session.drain()
    pair.world.loop.pass_seconds(FLUSH_TIMEOUT_SECONDS)
    assert pair.session.state is State.CLOSED


def flushing(pair: Pair) -> None:
    pair.client_sends(produce(1, acks=0))
    pair.client.end()
    assert pair.session.state is State.FLUSHING


def flushed_in_vain(pair: Pair) -> None:
    flushing(pair)
    pair.world.loop.pass_seconds(FLUSH_TIMEOUT_SECONDS)
    assert pair.session.state is State.CLOSED


SITUATIONS = (
    worked,
    with_requests_in_flight,
    held,
    held_by_a_topic,
    held_and_gone,
    held_and_released,
    held_before_nonsense,
    held_and_on_its_way_to_be_released,
    delayed,
    delayed_and_sent,
    in_the_middle_of_a_request,
    in_the_middle_of_a_head,
    in_the_middle_of_a_response_that_is_collected,
    ended_in_the_middle_of_a_request,
    unsent,
    without_memory,
    before_its_turn,
    nonsense,
    broken_by_the_broker,
    drained,
    lingering_in_vain,
    flushing,
    flushed_in_vain,
)


def play(world: World, situation: Callable[[Pair], None]) -> None:
    world.clock.pass_seconds(1_000_000)  # nothing is owed of the connection before
    pair = QuietPair(world)
    situation(pair)
    pair.hang_up()
    world.loop.run()


def test_a_thousand_closed_connections_leave_nothing() -> None:
    world = World([HELD, LATE, TOPIC])
    with without_collections() as left:
        for number in range(1_000):
            play(world, SITUATIONS[number % len(SITUATIONS)])
        assert left() == {}


@pytest.mark.parametrize("situation", SITUATIONS, ids=[each.__name__ for each in SITUATIONS])
def test_each_of_them_leaves_nothing(situation: Callable[[Pair], None]) -> None:
    world = World([HELD, LATE, TOPIC])
    with without_collections() as left:
        play(world, situation)
        assert left() == {}


def test_a_closed_session_does_nothing_more() -> None:
    """It may be called once more in the turn, or in the sweep, in which it was closed."""
    world = World()
    pair = QuietPair(world)
    session = pair.session
    pair.client_sends(heartbeat(1))
    pair.hang_up()
    session.after_step()
    session.sweep(world.clock())
    session.drain()
    assert not session.lacks_request(0, world.clock())
    assert session.throttle_status is None
    assert world.metrics.errors.protocol["defect"] == 0
    session.close_for(ZeroDivisionError(), pair.requests)
    assert world.metrics.errors.protocol["defect"] == 1


# ---- on sockets


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


class Sockets:
    """Connections through a proxy with TLS on both sides, or with none. `ends`: addresses instead of the broker's."""

    def __init__(self, stage: Stage, certificates: Certificates, *, is_tls: bool) -> None:
        self.stage = stage
        self.certificates = certificates
        self.is_tls = is_tls
        self.brokers = [stage.broker.address]

    async def client(self) -> Any:
        client = await self.stage.client()
        if not self.is_tls:
            return client
        secured = TlsPeer(client, self.certificates.of_client())
        await secured.handshake()
        return secured

    async def pair(self, client_id: str = "etl") -> tuple[Any, Any]:
        """A client whose first request the broker has received, and answered."""
        client, broker = await self.client(), await self.stage.broker.accept()
        if self.is_tls:
            broker = TlsPeer(broker, self.certificates.of_server(), None)  # type: ignore[assignment]
            await broker.handshake()  # type: ignore[attr-defined]
        await client.send(produce(1, client_id))
        assert await broker.frame() == produce(1, client_id)
        return client, broker

    def stop(self) -> None:
        """As the proxy does at its own end."""
        for session in list(self.stage.sessions):
            session.close()

    async def until_paused(self, reason: str) -> None:
        await until(lambda: self.stage.paused().get(reason))

    async def closed(self, *peers: Any) -> None:
        """Close these ends; wait until the proxy has closed the connection, too."""
        for peer in peers:
            (peer.peer if isinstance(peer, TlsPeer) else peer).close()
        await self.stage.no_sessions()


async def answered(sockets: Sockets) -> None:
    client, broker = await sockets.pair()
    await broker.send(produced(1))
    assert await client.frame() == produced(1)
    await sockets.closed(client)
    await sockets.closed(broker)


async def ended_by_the_broker(sockets: Sockets) -> None:
    _, broker = await sockets.pair()
    await sockets.closed(broker)


async def held_on_sockets(sockets: Sockets) -> None:
    client, broker = await sockets.pair("held")
    await client.send(produce(2, "held"))
    await sockets.until_paused("quota")
    await sockets.closed(broker)


async def delayed_on_sockets(sockets: Sockets) -> None:
    client, broker = await sockets.pair("late")
    await broker.send(produced(1))
    await sockets.until_paused("delay")
    sockets.stop()
    await sockets.closed(client, broker)


async def cut_in_a_request(sockets: Sockets) -> None:
    client, broker = await sockets.pair()
    await client.send(produce(2)[:-1])
    await broker.read(len(produce(2)) - 1)
    await sockets.closed(client, broker)


async def refused_by_the_broker(sockets: Sockets) -> None:
    """The broker ends the connection without a word; where TLS is expected, in the middle of its handshake."""
    client = await sockets.stage.client() if not sockets.is_tls else await sockets.client()
    broker = await sockets.stage.broker.accept()
    await sockets.closed(broker)
    del client


async def with_a_broken_record(sockets: Sockets) -> None:
    """A read that fails, while the error is kept for the next one."""
    client, broker = await sockets.pair()
    sent = heartbeat(2) + bytes(100)
    if sockets.is_tls:
        client.tls.write(heartbeat(2))
        sent = client._outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32)
        await client.peer.send(sent)
        await client.peer.closed()
    else:
        await client.send(sent)
        await client.closed()
    await sockets.closed(client, broker)


async def not_kafka(sockets: Sockets) -> None:
    """Where TLS is expected, a handshake that fails."""
    client = await sockets.stage.client()
    await client.send(b"GET / HTTP/1.1\r\n\r\n")
    await client.closed()
    await sockets.closed(client)


async def in_a_handshake(sockets: Sockets) -> None:
    """A client that sends nothing, or half of its first record, and goes."""
    for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
        client = await sockets.stage.client()
        await client.send(sent)
        await until(lambda: sockets.stage.sessions)
        for _ in range(5):
            await asyncio.sleep(0)
        client.reset()
        sockets.stage.sweep()
        await sockets.stage.no_sessions()


async def without_a_broker(sockets: Sockets) -> None:
    """No broker listens; a broker's name does not resolve."""
    with socket.create_server((LOOPBACK, 0)) as gone:
        sockets.brokers[:] = [gone.getsockname()[:2], ("broker.invalid", 9_092)]
    client = await sockets.client()
    await client.peer.closed() if sockets.is_tls else await client.closed()
    await sockets.closed(client)


async def closed_while_connecting(sockets: Sockets) -> None:
    with nobody_accepts() as address:
        sockets.brokers[:] = [address]
        await sockets.client()
        await until(lambda: sockets.stage.sessions)
        for _ in range(10):
            await asyncio.sleep(0)
        sockets.stop()


SITUATIONS_ON_SOCKETS = (
    answered,
    ended_by_the_broker,
    held_on_sockets,
    delayed_on_sockets,
    cut_in_a_request,
    refused_by_the_broker,
    with_a_broken_record,
    not_kafka,
    in_a_handshake,
    without_a_broker,
    closed_while_connecting,
)


async def check_that_nothing_is(left: Callable[[], Counter[str]], what: object) -> None:
    """Nor referred to by a callback of the loop, some rounds later."""
    with contextlib.suppress(AssertionError):
        await until(lambda: not left())
    assert left() == {}, what


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_connections_on_sockets_leave_nothing(
    open_stage: OpenStage,
    certificates: Certificates,
    is_tls: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"listening": certificates.listening(), "upstream": certificates.upstream()} if is_tls else {}
    stage = open_stage(quotas=[HELD, LATE], **options)

    async def unknown(host: str, port: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(stage.shared.upstream, "_look_up", unknown)
    sockets = Sockets(stage, certificates, is_tls=is_tls)
    monkeypatch.setattr(stage.server.ports, "brokers_at", lambda *_: tuple(sockets.brokers))
    with without_collections() as left:
        for situation in SITUATIONS_ON_SOCKETS:
            for _ in range(10):
                sockets.brokers[:] = [stage.broker.address]
                stage.clock.pass_seconds(1_000_000)
                await situation(sockets)
            await check_that_nothing_is(left, situation)


@pytest.mark.parametrize(
    ("password", "answers"), [("right", 4), ("wrong", 4), ("right", 0), ("right", 1), ("right", 2)]
)
async def test_connections_with_a_login_of_the_proxy_leave_nothing(
    open_stage: OpenStage, password: str, answers: int
) -> None:
    """`answers`: of the broker, before it ends the connection. A login has three requests, and the client one."""
    login = LoginSettings(mechanism="SCRAM-SHA-256", username="etl", password=password)
    stage = open_stage(upstream=ClientSettings(login=login))
    kafka = SaslBroker("etl", "right", lifetime_ms=3_600_000)

    async def play_one() -> None:
        client, broker = await stage.client(), await stage.broker.accept()
        await client.send(heartbeat(1))
        for _ in range(answers):
            try:
                frame = await broker.frame()
            except (EOFError, ConnectionResetError):
                break
            await broker.send(kafka.respond(frame, broker) or heartbeat_answer(1))
        assert (answers < 4) or (password == "wrong") or await client.frame() == heartbeat_answer(1)
        broker.close()
        await client.closed()
        client.close()
        await stage.no_sessions()

    with without_collections() as left:
        for _ in range(5):
            await play_one()
        kafka._others.clear()
        await check_that_nothing_is(left, answers)
