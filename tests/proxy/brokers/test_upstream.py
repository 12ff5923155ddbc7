"""Connecting to brokers: one after the other, names, time limits, brokers that are down and come back."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest

from proxy.brokers.readiness import Readiness
from proxy.brokers.upstream import RESOLVED_FOR_NS, BrokerFailed, Upstream
from proxy.config.addresses import format_address
from proxy.config.config import Config, UsageOptions
from proxy.sessions.opening import SILENT_NS
from proxy.usage.sink import SinkFailed
from proxy.usage.topic_sink import TopicSink
from tests.proxy.conversation import LOOPBACK, Clock, OpenStage, ScriptedBroker, lines_of, nobody_accepts, until
from tests.proxy.frames import frame, heartbeat, heartbeat_answer


def nobody_listens() -> tuple[str, int]:
    with socket.create_server((LOOPBACK, 0)) as gone:
        address: tuple[str, int] = gone.getsockname()[:2]
        return address


async def test_the_next_bootstrap_server_when_one_refuses(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    broker, dead = ScriptedBroker(), nobody_listens()
    try:
        stage = open_stage(bootstrap_servers=(dead, broker.address))
        for number in range(4):
            client = await stage.client()
            await client.send(heartbeat(number))
            assert await (await broker.accept()).frame() == heartbeat(number)
        errors = {reason: count for reason, count in stage.metrics.errors.upstream.items() if count}
        assert errors == {"connect_refused": 2}, "every other session begins with the one that is down"
        [said] = [fields for name, fields in lines_of(caplog.records) if name == "broker_failed"]
        assert (said["address"], said["reason"]) == (format_address(dead), "connect_refused")
    finally:
        broker.close()


async def test_with_all_brokers_down_connections_are_closed_at_once_until_a_restart(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = nobody_listens(), nobody_listens()
    stage = open_stage(bootstrap_servers=(first, second))
    for _ in range(5):
        await (await stage.client()).closed()
    assert stage.metrics.errors.upstream["connect_refused"] == 10
    said = [fields for name, fields in lines_of(caplog.records) if name == "broker_failed"]
    assert [fields["effect"] for fields in said] == [None, "no bootstrap server can be used"]
    assert {fields["address"] for fields in said} == {format_address(first), format_address(second)}
    assert len(said) == 2, "one for each address, not for each client"
    assert {fields["reason"] for fields in said} == {"connect_refused"}
    server = socket.create_server(first)
    try:
        client = await stage.client()
        await client.send(heartbeat(1))
        server.setblocking(False)
        accepted, _ = await asyncio.get_running_loop().sock_accept(server)
        with accepted:
            accepted.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(accepted, 1_000) == heartbeat(1)
            await asyncio.get_running_loop().sock_sendall(accepted, heartbeat_answer(1))
            assert await client.frame() == heartbeat_answer(1)
    finally:
        server.close()


async def test_the_next_bootstrap_server_when_one_does_not_answer(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ADDRESS_SECONDS", 0.02)
    broker = ScriptedBroker()
    try:
        with nobody_accepts() as address:
            stage = open_stage(bootstrap_servers=(address, broker.address))
            for number in range(4):
                client = await stage.client()
                await client.send(heartbeat(number))
                assert await (await broker.accept()).frame() == heartbeat(number)
            assert stage.metrics.errors.upstream["connect_timeout"] == 1, "every other client would wait for it"
            stage.clock.now_ns += SILENT_NS + 1
            for number in range(2):
                await (await stage.client()).send(heartbeat(number))
                assert await (await broker.accept()).frame() == heartbeat(number)
            assert stage.metrics.errors.upstream["connect_timeout"] == 2
    finally:
        broker.close()


class SilentWire:
    """Of a broker that does not answer the handshake."""

    def __init__(self, sock: socket.socket, _host: str) -> None:
        self.close = sock.close

    def open(self, done: Callable[[], None], failed: Callable[[str, str], None]) -> None:
        pass


@pytest.mark.parametrize(
    ("addresses", "brokers", "given"),
    [(1, 1, [30]), (1, 3, [8, 8, 30]), (3, 1, [8, 8, 30]), (2, 2, [8, 8, 8, 30])],
    ids=["a node", "three bootstrap servers", "a name of three addresses", "both"],
)
async def test_a_slow_handshake_has_as_long_as_clients_wait(
    monkeypatch: pytest.MonkeyPatch, addresses: int, brokers: int, given: list[int]
) -> None:
    """Until the next address is tried, while there is one; the last one has what is left."""
    timeouts: list[float | None] = []
    timeout = asyncio.timeout

    def short(seconds: float | None) -> asyncio.Timeout:
        timeouts.append(seconds)
        return timeout(0.05)

    upstream = Upstream(asyncio.get_running_loop(), Clock())
    broker, failures, ends = ScriptedBroker(), list[str](), list[object]()

    async def look_up(host: str, port: int) -> list[Any]:
        return [(socket.AF_INET, broker.address)] * addresses

    monkeypatch.setattr(upstream, "_look_up", look_up)
    monkeypatch.setattr(asyncio, "timeout", short)
    try:
        await upstream.connect(
            [("kafka", number) for number in range(brokers)],
            SilentWire,
            lambda wire, _: ends.append(wire),
            lambda _, reason, detail: failures.append(f"{reason}: {detail}"),
            lambda: ends.append("exhausted"),
        )
    finally:
        broker.close()
    assert timeouts == pytest.approx(given, abs=5)
    assert ends == ["exhausted"]
    assert len(failures) == brokers


async def test_no_address_has_more_than_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.brokers.upstream.CONNECT_TIMEOUT_SECONDS", 0)
    upstream = Upstream(asyncio.get_running_loop(), Clock())
    broker, failures = ScriptedBroker(), list[str]()
    ended = asyncio.Event()
    try:
        await upstream.connect(
            [broker.address] * 3,
            SilentWire,
            lambda *_: pytest.fail("it is too late"),
            lambda _, reason, detail: failures.append(f"{reason}: {detail}"),
            ended.set,
        )
    finally:
        broker.close()
    assert ended.is_set()
    assert [each[-10:] for each in failures] == ["within 0 s"] * 3


async def test_a_name_that_does_not_resolve_beside_one_that_answers(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ScriptedBroker()
    try:
        stage = open_stage(bootstrap_servers=(("kafka.invalid", 9092), broker.address))

        async def unknown(host: str, port: int) -> list[Any]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(stage.shared.upstream, "_look_up", unknown)
        client = await stage.client()
        await client.send(heartbeat(1))
        assert await (await broker.accept()).frame() == heartbeat(1)
        assert stage.metrics.errors.upstream["name_resolution"] == 1
    finally:
        broker.close()


async def test_a_thousand_sessions_ask_for_a_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    upstream = Upstream(asyncio.get_running_loop(), clock)
    asked = []
    go_on = asyncio.Event()

    async def look_up(host: str, port: int) -> list[Any]:
        asked.append(host)
        await go_on.wait()
        return [(socket.AF_INET, (LOOPBACK, 1))]

    monkeypatch.setattr(upstream, "_look_up", look_up)
    first = [asyncio.ensure_future(upstream.resolve(("kafka", 9092))) for _ in range(1_000)]
    await until(lambda: asked)
    first.pop().cancel()
    go_on.set()
    await asyncio.gather(*first)
    await upstream.resolve(("kafka", 9092))
    assert asked == ["kafka"]
    clock.now_ns += RESOLVED_FOR_NS
    await upstream.resolve(("kafka", 9092))
    assert asked == ["kafka", "kafka"], "a broker may move: the answer is believed for half a minute"


async def test_a_session_that_ends_during_name_resolution_does_not_connect(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage(bootstrap_servers=(("kafka", 9092),))
    upstream = stage.shared.upstream
    go_on = asyncio.Event()

    async def look_up(host: str, port: int) -> list[Any]:
        await go_on.wait()
        return [(socket.AF_INET, stage.broker.address)]

    monkeypatch.setattr(upstream, "_look_up", look_up)
    client = await stage.client()
    other = await stage.client()
    await until(lambda: len(stage.sessions) == 2)
    stage.session_of(client).close()
    await client.closed()
    go_on.set()
    await other.send(heartbeat(1))
    assert await (await stage.broker.accept()).frame() == heartbeat(1)
    accepting = asyncio.ensure_future(stage.broker.accept())
    third = await stage.client()
    await third.send(heartbeat(3))
    assert await (await accepting).frame() == heartbeat(3), "no connection came in between"


async def test_ipv6(open_stage: OpenStage) -> None:
    server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    server.setblocking(False)
    try:
        stage = open_stage(bootstrap_servers=(("::1", server.getsockname()[1]),))
        client = await stage.client()
        await client.send(heartbeat(1))
        accepted, _ = await asyncio.get_running_loop().sock_accept(server)
        with accepted:
            accepted.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(accepted, 1_000) == heartbeat(1)
    finally:
        server.close()


@pytest.mark.parametrize("host", ["fe80::1%lo", "[fe80::1%lo]"])
async def test_the_interface_of_an_address_is_kept(host: str) -> None:
    [(family, sockaddr)] = await Upstream(asyncio.get_running_loop(), Clock()).resolve((host, 9092))
    assert (family, sockaddr[0].partition("%")[0], sockaddr[3]) == (
        socket.AF_INET6,
        "fe80::1",
        socket.if_nametoindex("lo"),
    )


@pytest.mark.parametrize(
    "address",
    [
        ("", 9092),
        ("kafka", 65_536),
        ("kafka", -1),
        ("::1", -1),
        ("fe80::1%no-such", 9092),
        ("a" * 64, 9092),
        ("a..b", 9092),
    ],
)
async def test_an_address_that_cannot_be_is_a_failure_of_its_broker_only(address: tuple[str, int]) -> None:
    """A broker's response may name any text."""
    upstream, ends = Upstream(asyncio.get_running_loop(), Clock()), list[str]()
    await upstream.connect(
        [address],
        SilentWire,
        lambda *_: pytest.fail("there is no such address"),
        lambda _, reason, __: ends.append(reason),
        lambda: ends.append("exhausted"),
    )
    assert ends[0] in {"connect_failed", "name_resolution"}
    assert ends[1:] == ["exhausted"]


# ---- a name with several addresses


class Dual(NamedTuple):
    broker: ScriptedBroker
    addresses: list[Any]


@pytest.fixture
async def dual(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dual]:
    """`kafka` has two addresses, and the first one drops packets."""
    broker = ScriptedBroker()
    with nobody_accepts() as silent:
        found = Dual(broker, [(socket.AF_INET, silent), (socket.AF_INET, broker.address)])

        async def look_up(_: Upstream, host: str, port: int) -> list[Any]:
            return list(found.addresses)

        monkeypatch.setattr(Upstream, "_look_up", look_up)
        yield found
    broker.close()


async def test_a_silent_address_of_a_name_costs_the_first_client_a_moment(open_stage: OpenStage, dual: Dual) -> None:
    """As clients connect (RFC 8305); the next ones begin with the address that works."""
    stage = open_stage(bootstrap_servers=(("kafka", 9092),))
    for number in range(3):
        client = await stage.client()
        await client.send(heartbeat(number))
        assert await (await dual.broker.accept()).frame() == heartbeat(number)
    address, working = ("kafka", 9092), dual.addresses[1]
    assert stage.shared.upstream._working == {address: working}
    assert not any(stage.metrics.errors.upstream.values()), "a name that works is no failure"


async def test_the_addresses_of_a_name_are_silent_together(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage, dual: Dual
) -> None:
    """They were tried at the same time, so the next server does not wait for each of them."""
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ADDRESS_SECONDS", 0.02)
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ATTEMPT_SECONDS", 0)
    waited: list[float] = []
    timeout = asyncio.timeout

    def counted(seconds: float) -> asyncio.Timeout:
        waited.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr("proxy.brokers.upstream.asyncio.timeout", counted)
    stage = open_stage(bootstrap_servers=(("kafka", 9092), dual.broker.address))
    dual.addresses[1:] = dual.addresses[:1] * 3
    client = await stage.client()
    await client.send(heartbeat(1))
    assert await (await dual.broker.accept()).frame() == heartbeat(1)
    assert waited.count(0.02) == 1


async def test_what_worked_once_is_not_believed_for_ever(open_stage: OpenStage, dual: Dual) -> None:
    stage = open_stage(bootstrap_servers=(("kafka", 9092),))
    silent, working = dual.addresses
    stage.shared.upstream._working["kafka", 9092] = silent
    client = await stage.client()
    await client.send(heartbeat(1))
    assert await (await dual.broker.accept()).frame() == heartbeat(1)
    assert stage.shared.upstream._working["kafka", 9092] == working


async def test_the_attempts_that_are_not_needed_are_closed(monkeypatch: pytest.MonkeyPatch, dual: Dual) -> None:
    """Also one that succeeds in the same moment."""
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ATTEMPT_SECONDS", 0)
    upstream, broker = Upstream(asyncio.get_running_loop(), Clock()), dual.broker
    dual.addresses[1:] = [(socket.AF_INET, broker.address)] * 3
    opened: list[socket.socket] = []
    connect = upstream._connected

    async def connected(family: int, sockaddr: tuple[Any, ...]) -> socket.socket:
        opened.append(await connect(family, sockaddr))
        return opened[-1]

    monkeypatch.setattr(upstream, "_connected", connected)
    sock = await upstream.dial(("kafka", 9092))
    await until(lambda: all(each is sock or each.fileno() < 0 for each in opened))
    assert sock.fileno() >= 0
    sock.close()


async def test_all_addresses_of_a_name_fail(dual: Dual) -> None:
    upstream = Upstream(asyncio.get_running_loop(), Clock())
    dual.addresses[:] = [(socket.AF_INET, nobody_listens()), (socket.AF_INET, nobody_listens())]
    with pytest.raises(BrokerFailed, match="Connection refused"):
        await upstream.dial(("kafka", 9092))
    assert upstream._working == {}


async def test_names_are_forgotten(monkeypatch: pytest.MonkeyPatch, dual: Dual) -> None:
    monkeypatch.setattr("proxy.brokers.upstream.MAX_NAMES", 5)
    dual.addresses.reverse()
    upstream = Upstream(asyncio.get_running_loop(), Clock())
    for number in range(20):
        (await upstream.dial((f"kafka-{number}", 9092))).close()
    assert len(upstream._names) == len(upstream._working) == 5


async def test_the_proxys_own_requests_pass_a_silent_address(open_stage: OpenStage, dual: Dual) -> None:
    stage = open_stage(bootstrap_servers=(("kafka", 9092),))
    ready = Readiness([("kafka", 9092)], stage.server.tls, stage.shared.health, stage.clock)
    probing = asyncio.ensure_future(ready.probe(("kafka", 9092)))
    peer = await dual.broker.accept()
    await peer.frame()
    await peer.send(frame(struct.pack(">ihihhh", 1, 0, 1, 0, 0, 13)))
    assert (await probing).ok


async def test_clients_of_aiokafka_pass_a_silent_address(dual: Dual, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage records, and the fleet."""
    config = Config(bootstrap_servers=(("kafka", 9092),), usage=UsageOptions(topic="usage"))
    sink = TopicSink(config, b"")
    writing = asyncio.ensure_future(sink.write(()))
    peer = await dual.broker.accept()
    assert (await peer.frame())[4:6] == b"\x00\x12", "ApiVersions"
    peer.close()
    with pytest.raises(SinkFailed):
        await writing
