"""One TLS port for all brokers (`--sni-host`): the server name of a client's handshake selects the broker."""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kio.index import load_response_schema

from protocol.apis import METADATA
from protocol.messages import decode
from proxy.brokers import nodes as nodes_module
from proxy.config.config import ListeningOptions
from tests.proxy.conversation import LOOPBACK, OpenStage, Peer, ScriptedBroker, Stage, arrives, lines_of, until
from tests.proxy.frames import REAL_HOST, heartbeat, heartbeat_answer, metadata, metadata_answer
from tests.proxy.streams import exchanges
from tests.proxy.streams.exchanges import HANDLED
from tests.proxy.streams.pair import Pair, World
from tests.proxy.tls_peer import Certificates, TlsPeer

PATTERN = "broker-{node}.kafka.test"


@pytest.mark.parametrize("cuts", [(), (1,)], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", list(HANDLED))
def test_each_response_has_the_nodes_host(name: str, cuts: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata, FindCoordinator, DescribeCluster; node endpoints of Produce and Fetch stay hidden."""
    monkeypatch.setattr(exchanges, "PROXY", ("broker-7.kafka.test", 9093))
    pair = Pair(World(listening=ListeningOptions(sni_host=f"{PATTERN}:9093", broker_ports=range(0))), cuts=cuts)
    expected = []
    for n in range(12):
        exchange = HANDLED[name](n)
        pair.exchange(exchange.request, exchange.response)
        expected += [exchange.returned] * bool(exchange.response or exchange.returned is None)
    received = pair.received()
    assert [each if wanted else None for each, wanted in zip(received, expected, strict=True)] == expected
    assert REAL_HOST.encode() not in bytes(pair.to_client)


# ---- with sockets
@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("sni"))
    made.server = made.issue("wildcard", "*.kafka.test")
    return made


class Door:
    """A proxy of one port, and its brokers: `stage.broker` is the bootstrap server."""

    def __init__(self, open_stage: OpenStage, certificates: Certificates, **options: Any) -> None:
        listening = replace(certificates.listening(), sni_host=PATTERN, broker_ports=range(0))
        self.stage: Stage = open_stage(listening=listening, **options)
        self.certificates = certificates

    async def connect(self, name: str | None, to: ScriptedBroker) -> tuple[TlsPeer, Peer]:
        """A client with this server name, and the broker's side of its connection, which is at this broker."""
        context = self.certificates.of_client()
        context.check_hostname = False
        client = TlsPeer(await self.stage.client(), context, name or LOOPBACK)
        await client.handshake()
        broker = await to.accept()
        await arrives(client, broker, heartbeat(1))
        await arrives(broker, client, heartbeat_answer(1))
        return client, broker

    async def learn(self, client: TlsPeer, broker: Peer, brokers: dict[int, ScriptedBroker]) -> dict[int, object]:
        """What the client is told about these brokers."""
        await client.send(metadata(2))
        await broker.frame()
        await broker.send(metadata_answer(2, {node: each.address for node, each in brokers.items()}))
        body: Any = decode(load_response_schema(METADATA, 12), await client.frame(), 9)
        return {each.node_id: (each.host, each.port) for each in body.brokers}


@pytest.fixture
async def door(open_stage: OpenStage, certificates: Certificates) -> Door:
    return Door(open_stage, certificates)


@pytest.fixture
async def brokers() -> AsyncIterator[dict[int, ScriptedBroker]]:
    found = {node: ScriptedBroker() for node in (0, 1, 2_147_483_647)}
    yield found
    for each in found.values():
        each.close()


@pytest.mark.claim(
    "security", "the server name of a handshake (--sni-host) selects only brokers that the cluster has named"
)
async def test_three_brokers_on_one_port(door: Door, brokers: dict[int, ScriptedBroker]) -> None:
    stage = door.stage
    client, at_bootstrap = await door.connect("kafka.test", stage.broker)
    told = await door.learn(client, at_bootstrap, brokers)
    assert told == {node: (f"broker-{node}.kafka.test", stage.port) for node in brokers}
    assert len(stage.server.ports) == 1
    for node, broker in brokers.items():
        await door.connect(f"broker-{node}.kafka.test", broker)
        await door.connect(f"BROKER-{node}.Kafka.Test", broker)
        await door.connect(f"broker-{node}.kafka.test.", broker)
    for name in (None, "kafka.test", "broker-2.kafka.test", "broker-01.kafka.test", "broker-.kafka.test", "localhost"):
        await door.connect(name, stage.broker)
    for name in ("broker-1.kafka.test.evil.test", "broker-1", "xbroker-1.kafka.test", "broker--1.kafka.test"):
        await door.connect(name, stage.broker)
    assert await door.learn(client, at_bootstrap, brokers) == told


async def test_a_later_broker_gets_its_clients(door: Door, brokers: dict[int, ScriptedBroker], caplog: Any) -> None:
    """A client that outlived a restart of the proxy knows only such names. Its connection, to a broker that answers
    NOT_LEADER for ever, ends once the node is known and what is in flight is answered.
    """
    caplog.set_level(logging.INFO)
    stage = door.stage
    stray, at_bootstrap = await door.connect("broker-1.kafka.test", stage.broker)
    other, _ = await door.connect("kafka.test", stage.broker)
    stage.sweep()
    await arrives(stray, at_bootstrap, heartbeat(5))
    asking, asked = await door.connect("kafka.test", stage.broker)
    await door.learn(asking, asked, {1: brokers[1]})
    stage.sweep()
    await arrives(at_bootstrap, stray, heartbeat_answer(5))
    await stray.ended()
    await stray.end()
    assert [fields["broker"] for name, fields in lines_of(caplog.records) if name == "connection_rerouted"] == [
        f"{LOOPBACK}:{brokers[1].address[1]}"
    ]
    await door.connect("broker-1.kafka.test", brokers[1])
    stage.sweep()
    await until(lambda: len(stage.sessions) == 3)
    await other.send(heartbeat(6))


async def test_the_same_broker_under_another_name_keeps_its_connection(door: Door) -> None:
    client, broker = await door.connect("broker-1.kafka.test", door.stage.broker)
    await door.learn(client, broker, {1: door.stage.broker})
    door.stage.sweep()
    await arrives(client, broker, heartbeat(3))


async def test_a_resumed_session_goes_where_its_new_name_leads(door: Door, brokers: dict[int, ScriptedBroker]) -> None:
    """TLS 1.3: a ticket for one broker, used with the name of another."""
    client, broker = await door.connect("broker-0.kafka.test", door.stage.broker)
    await door.learn(client, broker, brokers)
    context = door.certificates.of_client()
    first = TlsPeer(await door.stage.client(), context, "broker-0.kafka.test")
    await first.handshake()
    at_first = await brokers[0].accept()
    await arrives(first, at_first, heartbeat(1))
    await at_first.send(heartbeat_answer(1))
    await first.frame()
    again = TlsPeer(await door.stage.client(), context, "broker-1.kafka.test", session=first.tls.session)
    await again.handshake()
    await again.send(heartbeat(2))
    assert await (await brokers[1].accept()).frame() == heartbeat(2)


async def test_invented_nodes_are_bounded(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ports they are bounded themselves; names there are without end."""
    monkeypatch.setattr(nodes_module, "MAX_NODES", 50)
    known = door.stage.context.nodes
    for start in range(0, 1_000, 20):
        list(known.advertise_all([(node, "kafka", 9092) for node in range(start, start + 20)]))
        assert len(known._real) == len(known._node_at) <= 50
        assert known.broker_at(f"broker-{start + 19}.kafka.test") == ("kafka", 9092)


async def test_names_of_clients_leave_nothing(door: Door) -> None:
    names = [f"broker-{number}.kafka.test" for number in range(20)]
    for client, _ in [await door.connect(name, door.stage.broker) for name in names]:
        client.peer.close()
    await door.stage.no_sessions()
    assert door.stage.context.nodes._node_at == {}
