"""What closed connections leave: nothing. Reference counting frees it, without a collection (`proxy.process.ticks`)."""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.config.client_settings import ClientSettings, LoginSettings
from proxy.sessions.ending import FLUSH_TIMEOUT_SECONDS
from proxy.sessions.lifecycle import State
from proxy.sessions.pump_set import DELAY, MEMORY, SLICE, WRITE_BACKPRESSURE
from proxy.sessions.slices import ROUND_NS
from tests.proxy.conversation import OpenStage, Stage, arrives, nobody_accepts, nobody_listens, until, without_burst
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
from tests.proxy.sessions.steps import (
    IS_HELD,
    IS_RELEASED,
    QuietPair,
    Step,
    asks,
    broker_breaks,
    broker_ends,
    client_ends,
    client_has_gone,
    drains,
    finds,
    is_in,
    passes,
    play,
    says,
)
from tests.proxy.streams.pair import Pair, World
from tests.proxy.tls_peer import Certificates, TlsPeer
from tests.proxy.wires import MemoryWire

PACKAGES = tuple(f"proxy.{each}." for each in ("brokers", "enforcement", "sessions", "streams"))
#: What the process keeps of connections, within bounds.
KEPT = {"Kind", "Placement", "ResponseTimes", "_Held", "_Outage"}
OTHERS = {MemoryWire, asyncio.Task, socket.gaierror, ssl.SSLObject}
#: Hold every request after the first; delay every response after the first.
HELD = without_burst("client-id=held,producer_byte_rate=1,consumer_byte_rate=1")
LATE = without_burst("client-id=late,producer_byte_rate=1,mode=delay")
TOPIC = without_burst("topic=rows,bytes_in_rate=1")


def produce(number: int, client_id: str = "etl", size: int = 100, acks: int = 1, topic: str = "free") -> bytes:
    return produce_records(number, {"other": [batch(1, 100)], topic: [batch(1, size)]}, acks=acks, client_id=client_id)


def existing() -> Counter[str]:
    """Objects by class: of the packages that a connection is made of, and what it has of others."""
    kinds = Counter(type(each) for each in gc.get_objects())
    return Counter({kind.__name__: count for kind, count in kinds.items() if kind in OTHERS or is_of_connection(kind)})


def is_of_connection(kind: type) -> bool:
    return str(kind.__module__).startswith(PACKAGES) and kind.__name__ not in KEPT


@contextlib.contextmanager
def without_collections() -> Iterator[Callable[[], Counter[str]]]:
    """Gives what has been left since. What was there before is frozen, which hides it from `gc.get_objects`: counting
    the millions of objects that other tests may have left, once for each situation, took most of the time.
    """
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield existing
    finally:
        gc.unfreeze()
        gc.enable()


# ---- without sockets: what a session has under way when it is closed
def takes_little(pair: Pair) -> None:
    """Neither side takes more than that."""
    pair.broker.room = pair.client.room = 10


def limits_change(pair: Pair) -> None:
    pair.world.shared.wakeups.limits_changed()


def debt_is_paid(pair: Pair) -> None:
    pair.world.clock.pass_seconds(1_000)
    limits_change(pair)
    pair.world.loop.run()


def memory_is_short(pair: Pair) -> None:
    pair.requests._wait_for_memory()


def round_is_used_up(pair: Pair) -> None:
    slices = pair.world.shared.pumps.slices
    slices.begin_round()
    slices.used_ns = ROUND_NS
    pair.client.receive(heartbeat(1))
    assert pair.client.on_readable is not None
    pair.client.on_readable()


CLOSED = is_in(State.CLOSED)
IS_DELAYED = finds(lambda pair: pair.responses.paused == DELAY)
ALL = [api_versions(1, 99), produce(2), fetch(3), metadata(4), heartbeat(5)]
ANSWERS = [produced(2), fetched(3), metadata_answer(4, {7: ("127.0.0.9", 9_092)}, 3), heartbeat_answer(5)]
HOLD = [asks(produce(1, client_id="held"), produce(2, client_id="held")), IS_HELD]
HOLD_BY_TOPIC = [asks(produce(1, topic="rows"), produce(2, topic="rows")), IS_HELD]
DELAYED = [asks(produce(1, client_id="late")), says(produced(1)), IS_DELAYED]
UNANSWERED = asks(produce(1, acks=0))
COLLECTED = [asks(find_coordinator(1)), says(coordinators_answer(1, 300)[:-1])]
#: What happens before both sides are closed.
SITUATIONS: dict[str, list[Step]] = {
    "all is answered": [asks(*ALL), says(*ANSWERS), finds(lambda pair: len(pair.received()) == 5), client_ends],
    "requests are in flight": [asks(produce(1), fetch(2), find_coordinator(3), heartbeat(4))],
    "held": HOLD,
    "held by a topic": HOLD_BY_TOPIC,
    "held and gone": [*HOLD, client_has_gone, broker_ends, CLOSED],
    "held and released": [*HOLD, debt_is_paid, IS_RELEASED],
    "held before nonsense, for which its release closes": [*HOLD, asks(b"\xff" * 100), passes(1_000), CLOSED],
    "held and on its way to be released": [*HOLD, limits_change],
    "delayed": DELAYED,
    "delayed and sent": [*DELAYED, Pair.end_delay],
    "in the middle of a request": [asks(produce(1)[:-1])],
    "in the middle of a head": [asks(produce(1)[:9])],
    "in the middle of a response that is collected": COLLECTED,
    "ended in the middle of a request": [asks(produce(1)[:-1]), client_ends],
    "unsent": [
        takes_little,
        asks(produce(1, size=5_000)),
        finds(lambda pair: pair.requests.paused == WRITE_BACKPRESSURE),
    ],
    "without memory": [asks(heartbeat(1)), memory_is_short, finds(lambda pair: pair.requests.paused == MEMORY)],
    "before its turn": [round_is_used_up, finds(lambda pair: pair.requests.paused == SLICE)],
    "nonsense": [asks(b"GET / HTTP/1.1\r\n\r\n"), CLOSED],
    "broken by the broker": [asks(heartbeat(1)), broker_breaks, asks(heartbeat(2)), CLOSED],
    "drained": [asks(fetch(1)), drains, says(fetched(1)), asks(fetch(2)), client_ends, CLOSED],
    "lingering in vain": [UNANSWERED, drains, passes(FLUSH_TIMEOUT_SECONDS), CLOSED],
    "flushing": [UNANSWERED, client_ends, is_in(State.FLUSHING)],
    "flushed in vain": [UNANSWERED, client_ends, passes(FLUSH_TIMEOUT_SECONDS), CLOSED],
}


def play_one(world: World, steps: list[Step]) -> None:
    world.clock.pass_seconds(1_000_000)  # nothing is owed of the connection before
    pair = QuietPair(world)
    play(pair, steps)
    pair.hang_up()
    world.loop.run()


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_of_them_leaves_nothing(situation: str) -> None:
    world = World([HELD, LATE, TOPIC])
    with without_collections() as left:
        play_one(world, SITUATIONS[situation])
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
        await arrives(client, broker, produce(1, client_id))
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
    await arrives(broker, client, produced(1))
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
    """One side breaks the connection."""
    client, broker = await sockets.pair()
    await client.send(produce(2)[:-1])
    await broker.read(len(produce(2)) - 1)
    reset, other = (client, broker) if len(sockets.stage.clients) % 2 else (broker, client)
    (reset.peer if sockets.is_tls else reset).reset()
    await sockets.closed(other)


async def refused_by_the_broker(sockets: Sockets) -> None:
    """The broker ends the connection without a word; where TLS is expected, in the middle of its handshake."""
    client = await sockets.stage.client() if not sockets.is_tls else await sockets.client()
    await sockets.closed(await sockets.stage.broker.accept())
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
    sockets.brokers[:] = [nobody_listens(), ("broker.invalid", 9_092)]
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
    open_stage: OpenStage, certificates: Certificates, is_tls: bool, monkeypatch: pytest.MonkeyPatch
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
async def test_connections_with_our_login_leave_nothing(open_stage: OpenStage, password: str, answers: int) -> None:
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
