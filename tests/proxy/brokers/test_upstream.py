"""Connecting to brokers: one after the other, names, time limits, brokers that are down and come back."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest

from proxy.background.host import Host
from proxy.brokers.readiness import Readiness
from proxy.brokers.upstream import RESOLVED_FOR_NS, BrokerFailed, Upstream
from proxy.config.addresses import Address, format_address
from proxy.config.config import Config, UsageOptions
from proxy.internal_clients.failures import LogFailed
from proxy.sessions.opening import SILENT_NS
from proxy.usage.topic_sink import TopicSink
from tests.proxy.conversation import (
    LOOPBACK,
    Clock,
    OpenBroker,
    OpenStage,
    ScriptedBroker,
    Stage,
    exchange,
    lines_of,
    nobody_accepts,
    nobody_listens,
    until,
)
from tests.proxy.frames import frame, heartbeat, heartbeat_answer

pytestmark = [
    pytest.mark.claim("limits", "a broker whose TLS handshake takes 7 s; how long each address has"),
    pytest.mark.claim(
        "limits",
        "an address that drops packets delays clients and the proxy's own requests by a moment, where "
        "its name has another one",
    ),
]
KAFKA = ("kafka", 9092)


async def clients_reach(stage: Stage, broker: ScriptedBroker, count: int = 1) -> None:
    """So many new clients, one after the other."""
    for number in range(count):
        await (await stage.client()).send(heartbeat(number))
        assert await broker.first_frame() == heartbeat(number)


def errors_of(stage: Stage) -> Counter[str]:
    return +stage.metrics.errors.upstream


def new_upstream(clock: Callable[[], int] | None = None) -> Upstream:
    return Upstream(asyncio.get_running_loop(), Host(clock=clock or Clock()))


def upstream_of(monkeypatch: pytest.MonkeyPatch, look_up: Callable[..., Any], clock: Clock | None = None) -> Upstream:
    """Resolves each name by this function."""
    upstream = new_upstream(clock)
    monkeypatch.setattr(upstream, "_look_up", look_up)
    return upstream


async def test_the_next_bootstrap_server_which_has_ipv6_when_one_refuses(
    open_stage: OpenStage, open_broker: OpenBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker, dead = open_broker("::1"), nobody_listens()
    stage = open_stage(bootstrap_servers=(dead, broker.address))
    await clients_reach(stage, broker, 4)
    assert errors_of(stage) == {"connect_refused": 2}, "every other session begins with the one that is down"
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["address"], fields["reason"]) == ("broker_failed", format_address(dead), "connect_refused")


async def test_with_all_brokers_down_connections_are_closed_at_once_until_a_restart(
    open_stage: OpenStage, open_broker: OpenBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each address, not for each client."""
    addresses = nobody_listens(), nobody_listens()
    stage = open_stage(bootstrap_servers=addresses)
    for _ in range(5):
        await (await stage.client()).closed()
    assert errors_of(stage) == {"connect_refused": 10}
    said = [fields for name, fields in lines_of(caplog.records) if name == "broker_failed"]
    assert [each["effect"] for each in said] == [None, "no bootstrap server can be used"]
    assert {each["reason"] for each in said} == {"connect_refused"}
    assert {each["address"] for each in said} == {format_address(each) for each in addresses}
    broker = open_broker(*addresses[0])
    await exchange(await stage.client(), await broker.accept(), heartbeat(1), heartbeat_answer(1))


async def test_the_next_bootstrap_server_when_one_does_not_answer(
    open_stage: OpenStage, open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, open_one = open_broker(), Upstream._open_one
    with nobody_accepts() as address:

        async def impatient(upstream: Upstream, left: list[Any], wire_of: Any, seconds: float, others: int) -> Any:
            """With this address alone: on a busy machine the other one, too, takes its time."""
            is_silent = left[0][1] == address
            return await open_one(upstream, left, wire_of, 0.02 if is_silent else seconds, others)

        monkeypatch.setattr(Upstream, "_open_one", impatient)
        stage = open_stage(bootstrap_servers=(address, broker.address))
        await clients_reach(stage, broker, 4)
        assert errors_of(stage) == {"connect_timeout": 1}, "every other client would wait for it"
        stage.clock.now_ns += SILENT_NS + 1
        await clients_reach(stage, broker, 2)
        assert errors_of(stage) == {"connect_timeout": 2}


# ---- time limits
class SilentWire:
    """Of a broker that does not answer the handshake."""

    def __init__(self, sock: socket.socket, _host: str) -> None:
        self.close = sock.close

    def open(self, done: Callable[[], None], failed: Callable[[str, str], None]) -> None:
        pass


async def failures_of(upstream: Upstream, brokers: list[Address]) -> list[tuple[str, str]]:
    """Reason and detail of each of these brokers, of which none can be used."""
    failures: list[tuple[str, str]] = []
    ended = asyncio.Event()
    failed: Any = lambda _, reason, detail: failures.append((reason, detail))  # noqa: E731
    await upstream.connect(brokers, SilentWire, lambda *_: pytest.fail("it cannot be used"), failed, ended.set)
    assert ended.is_set()
    return failures


@pytest.mark.parametrize(
    ("addresses", "brokers", "given"),
    [(1, 1, [30]), (1, 3, [8, 8, 30]), (3, 1, [8, 8, 30]), (2, 2, [8, 8, 8, 30])],
    ids=["a node", "three bootstrap servers", "a name of three addresses", "both"],
)
async def test_a_slow_handshake_has_as_long_as_clients_wait(
    monkeypatch: pytest.MonkeyPatch, open_broker: OpenBroker, addresses: int, brokers: int, given: list[int]
) -> None:
    """Until the next address is tried, while there is one; the last one has what is left."""
    timeouts: list[float | None] = []
    timeout, broker = asyncio.timeout, open_broker()

    def short(seconds: float | None) -> asyncio.Timeout:
        timeouts.append(seconds)
        return timeout(0.05)

    async def look_up(host: str, port: int) -> list[Any]:
        return [(socket.AF_INET, broker.address)] * addresses

    upstream = upstream_of(monkeypatch, look_up)
    monkeypatch.setattr(asyncio, "timeout", short)
    assert len(await failures_of(upstream, [("kafka", number) for number in range(brokers)])) == brokers
    assert timeouts == pytest.approx(given, abs=5)


async def test_no_address_has_more_than_what_is_left(monkeypatch: pytest.MonkeyPatch, open_broker: OpenBroker) -> None:
    monkeypatch.setattr("proxy.brokers.upstream.CONNECT_TIMEOUT_SECONDS", 0)
    failures = await failures_of(new_upstream(), [open_broker().address] * 3)
    assert [detail[-10:] for _, detail in failures] == ["within 0 s"] * 3


# ---- names
async def test_a_name_that_does_not_resolve_beside_one_that_answers(
    open_stage: OpenStage, open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(host: str, port: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    broker = open_broker()
    stage = open_stage(bootstrap_servers=(("kafka.invalid", 9092), broker.address))
    monkeypatch.setattr(stage.shared.upstream, "_look_up", unknown)
    await clients_reach(stage, broker)
    assert errors_of(stage) == {"name_resolution": 1}


async def test_a_thousand_sessions_ask_for_a_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, clock, go_on = [], Clock(), asyncio.Event()

    async def look_up(host: str, port: int) -> list[Any]:
        asked.append(host)
        await go_on.wait()
        return [(socket.AF_INET, (LOOPBACK, 1))]

    upstream = upstream_of(monkeypatch, look_up, clock)
    first = [asyncio.ensure_future(upstream.resolve(KAFKA)) for _ in range(1_000)]
    await until(lambda: asked)
    first.pop().cancel()
    go_on.set()
    await asyncio.gather(*first)
    await upstream.resolve(KAFKA)
    assert asked == ["kafka"]
    clock.now_ns += RESOLVED_FOR_NS
    await upstream.resolve(KAFKA)
    assert asked == ["kafka", "kafka"], "a broker may move: the answer is believed for half a minute"


async def test_a_session_that_ends_does_not_connect(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = open_stage(bootstrap_servers=(KAFKA,))
    go_on = asyncio.Event()

    async def look_up(host: str, port: int) -> list[Any]:
        await go_on.wait()
        return [(socket.AF_INET, stage.broker.address)]

    monkeypatch.setattr(stage.shared.upstream, "_look_up", look_up)
    client, other = await stage.client(), await stage.client()
    await until(lambda: len(stage.sessions) == 2)
    stage.session_of(client).close()
    await client.closed()
    go_on.set()
    await other.send(heartbeat(1))
    assert await stage.broker.first_frame() == heartbeat(1)
    await (await stage.client()).send(heartbeat(3))
    assert await stage.broker.first_frame() == heartbeat(3), "no connection came in between"


@pytest.mark.parametrize("host", ["fe80::1%lo", "[fe80::1%lo]"])
async def test_the_interface_of_an_address_is_kept(host: str) -> None:
    [(family, sockaddr)] = await new_upstream().resolve((host, 9092))
    loopback = socket.if_nametoindex("lo")
    assert (family, sockaddr[0].partition("%")[0], sockaddr[3]) == (socket.AF_INET6, "fe80::1", loopback)


@pytest.mark.parametrize(
    ("host", "port"),
    [("kafka", 65_536), ("kafka", -1), ("::1", -1)]
    + [(host, 9092) for host in ("", "fe80::1%no-such", "a" * 64, "a..b")],
)
async def test_an_address_that_cannot_be_is_a_failure_of_its_broker_only(host: str, port: int) -> None:
    """A broker's response may name any text."""
    [(reason, _)] = await failures_of(new_upstream(), [(host, port)])
    assert reason in {"connect_failed", "name_resolution"}


# ---- a name with several addresses
class Dual(NamedTuple):
    broker: ScriptedBroker
    addresses: list[Any]


@pytest.fixture
async def dual(monkeypatch: pytest.MonkeyPatch, open_broker: OpenBroker) -> AsyncIterator[Dual]:
    """`kafka` has two addresses, and the first one drops packets."""
    broker = open_broker()
    with nobody_accepts() as silent:
        found = Dual(broker, [(socket.AF_INET, silent), (socket.AF_INET, broker.address)])

        async def look_up(_: Upstream, host: str, port: int) -> list[Any]:
            return list(found.addresses)

        monkeypatch.setattr(Upstream, "_look_up", look_up)
        yield found


async def test_a_silent_address_of_a_name_costs_the_first_client_a_moment(open_stage: OpenStage, dual: Dual) -> None:
    """As clients connect (RFC 8305); the next ones begin with the address that works, as long as it does."""
    stage = open_stage(bootstrap_servers=(KAFKA,))
    silent, working = dual.addresses
    await clients_reach(stage, dual.broker, 3)
    known = stage.shared.upstream._working
    assert known == {KAFKA: working}
    known[KAFKA] = silent
    await clients_reach(stage, dual.broker)
    assert known == {KAFKA: working}
    assert not errors_of(stage), "a name that works is no failure"


async def test_all_addresses_are_silent(monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage, dual: Dual) -> None:
    """They were tried at the same time, so the next server does not wait for each of them."""
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ADDRESS_SECONDS", 0.02)
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ATTEMPT_SECONDS", 0)
    waited: list[float] = []
    timeout = asyncio.timeout

    def counted(seconds: float) -> asyncio.Timeout:
        waited.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr("proxy.brokers.upstream.asyncio.timeout", counted)
    stage = open_stage(bootstrap_servers=(KAFKA, dual.broker.address))
    dual.addresses[1:] = dual.addresses[:1] * 3
    await clients_reach(stage, dual.broker)
    assert waited.count(0.02) == 1


async def test_the_attempts_that_are_not_needed_are_closed(monkeypatch: pytest.MonkeyPatch, dual: Dual) -> None:
    """Also one that succeeds in the same moment."""
    monkeypatch.setattr("proxy.brokers.upstream.NEXT_ATTEMPT_SECONDS", 0)
    upstream = new_upstream()
    dual.addresses[1:] = dual.addresses[1:] * 3
    opened: list[socket.socket] = []
    connect = upstream._connected

    async def connected(family: int, sockaddr: tuple[Any, ...]) -> socket.socket:
        opened.append(await connect(family, sockaddr))
        return opened[-1]

    monkeypatch.setattr(upstream, "_connected", connected)
    with await upstream.dial(KAFKA) as sock:
        await until(lambda: all(each is sock or each.fileno() < 0 for each in opened))
        assert sock.fileno() >= 0


async def test_all_addresses_of_a_name_fail(dual: Dual) -> None:
    upstream = new_upstream()
    dual.addresses[:] = [(socket.AF_INET, nobody_listens()), (socket.AF_INET, nobody_listens())]
    with pytest.raises(BrokerFailed, match="Connection refused"):
        await upstream.dial(KAFKA)
    assert upstream._working == {}


async def test_names_are_forgotten(monkeypatch: pytest.MonkeyPatch, dual: Dual) -> None:
    monkeypatch.setattr("proxy.brokers.upstream.MAX_NAMES", 5)
    dual.addresses.reverse()
    upstream = new_upstream()
    for number in range(20):
        (await upstream.dial((f"kafka-{number}", 9092))).close()
    assert len(upstream._names) == len(upstream._working) == 5


async def test_the_proxys_own_requests_pass_a_silent_address(open_stage: OpenStage, dual: Dual) -> None:
    stage = open_stage(bootstrap_servers=(KAFKA,))
    ready = Readiness([KAFKA], stage.server.tls, stage.shared.health, stage.clock)
    probing = asyncio.ensure_future(ready.probe(KAFKA))
    peer = await dual.broker.accept()
    await peer.frame()
    await peer.send(frame(struct.pack(">ihihhh", 1, 0, 1, 0, 0, 13)))
    assert (await probing).ok


async def test_clients_of_aiokafka_pass_a_silent_address(dual: Dual) -> None:
    """Usage records, and the fleet."""
    sink = TopicSink(Config(bootstrap_servers=(KAFKA,), usage=UsageOptions(topic="usage")), b"")
    writing = asyncio.ensure_future(sink.write(()))
    peer = await dual.broker.accept()
    assert (await peer.frame())[4:6] == b"\x00\x12", "ApiVersions"
    peer.close()
    with pytest.raises(LogFailed):
        await writing
