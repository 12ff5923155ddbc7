"""Which broker stands behind which port, and how connections find it."""

import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema

from protocol.addresses import HIDDEN_ADDRESS
from protocol.apis import METADATA
from protocol.messages import decode
from proxy.brokers.nodes import Nodes
from proxy.config.addresses import Address
from proxy.config.config import ListeningOptions
from proxy.config.errors import BindError
from tests.proxy.conversation import LOOPBACK, OpenBroker, OpenStage, Peer, arrives, exchange, lines_of, until
from tests.proxy.frames import heartbeat, heartbeat_answer, metadata, metadata_answer

pytestmark = pytest.mark.claim(
    "limits",
    "a broker whose port is taken is moved or hidden, and reported; every other broker keeps "
    "working, and replicas agree on ports",
)


def nodes(**options: Any) -> tuple[Nodes, list[int]]:
    """And the ports that it had the kernel choose."""
    bound: list[int] = []

    def bind_any() -> int:
        bound.append(40_000 + len(bound))
        return bound[-1]

    return Nodes(ListeningOptions(**options), bind_any), bound


def all_of(known: Nodes, brokers: list[tuple[int, str, int]]) -> list[Address]:
    return [address for address in known.advertise_all(brokers) if address is not None]


# ---- the map
@pytest.mark.parametrize("node", [0, 1, 19, 20, 1_001, -1, -21, 2**31 - 1, -(2**31)])
def test_a_nodes_port_follows_from_its_id(node: int) -> None:
    known, _ = nodes()
    assert known.broker_at(19_093 + node % 20) is None
    assert known.advertise(node, "kafka", 9092) == ("127.0.0.1", 19_093 + node % 20)
    assert known.broker_at(19_093 + node % 20) == ("kafka", 9092)


def test_all_ports_of_the_range_and_the_exceptions_are_bound_at_start() -> None:
    known, _ = nodes(broker_ports=range(20_000, 20_003), node_ports={7: 30_007, 8: 20_001})
    assert known.fixed_ports() == [20_000, 20_001, 20_002, 30_007]
    assert nodes(broker_ports=None)[0].fixed_ports() == []


def conflicts_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [fields for name, fields in lines_of(caplog.records) if name == "broker_port_conflict"]


def test_a_node_whose_port_is_taken_gets_a_free_one_and_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    known, _ = nodes()
    all_of(known, [(1, "kafka-1", 9092), (2, "kafka-2", 9092)])
    for _ in range(3):
        told = all_of(known, [(1, "kafka-1", 9092), (2, "kafka-2", 9092), (21, "kafka-21", 9092)])
        assert told == [("127.0.0.1", 19_094), ("127.0.0.1", 19_095), ("127.0.0.1", 19_105)]
    assert known.broker_at(19_094) == ("kafka-1", 9092)
    assert known.broker_at(19_105) == ("kafka-21", 9092)
    detail = "broker 21 is at port 19105, because broker 1 has its own port"
    hint = "give --broker-port 21=PORT, or a larger --broker-ports range"
    assert conflicts_of(caplog) == [{"detail": detail, "hint": hint}], "one line, not one for each response"
    all_of(known, [(2, "kafka-2", 9092), (21, "kafka-21", 9092)])
    assert known.port_of(21) == 19_105, "it stays there while broker 1 restarts"
    all_of(known, [(1, "kafka-1", 9092)])
    assert not known.placement.moved, "it has left, so there is nothing to report"


def test_a_node_without_any_port_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    known, _ = nodes(broker_ports=range(20_000, 20_002))
    for _ in range(2):
        assert all_of(known, [(7, "k7", 1), (2, "k2", 1)]) == [("127.0.0.1", 20_001), ("127.0.0.1", 20_000)]
        told = all_of(known, [(0, "k0", 1), (2, "k2", 1), (7, "k7", 1)])
        assert told == [HIDDEN_ADDRESS, ("127.0.0.1", 20_000), ("127.0.0.1", 20_001)], "they had ports before it came"
        assert known.advertise(0, "k0", 1) == known.advertise(4, "k4", 1) == HIDDEN_ADDRESS
        assert all_of(known, [(0, "k0", 1), (2, "k2", 1)])[1] == ("127.0.0.1", 20_000), "7 restarts"
    assert known.placement.hidden == {0}
    [line] = conflicts_of(caplog)
    assert line["detail"] == "clients cannot see broker 0, because no port of --broker-ports is left"
    assert "--broker-port 0=PORT" in line["hint"]
    assert all_of(known, [(2, "k2", 1), (9, "k9", 1)]) == [("127.0.0.1", 20_000), ("127.0.0.1", 20_001)], "7 has left"


def test_replicas_agree_in_whatever_order_they_have_seen_the_brokers() -> None:
    ids = [0, 1, 2, 100, 101, 102, 21, 41]
    for order in (ids, ids[::-1], ids[3:] + ids[:3]):
        known, _ = nodes()
        for count in range(1, len(order) + 1):
            all_of(known, [(node, f"kafka-{node}", 9092) for node in order[:count]])
        assert known.placement.ports == {
            0: 19_093, 1: 19_094, 2: 19_095, 21: 19_105, 41: 19_106, 100: 19_108, 101: 19_109, 102: 19_110
        }  # fmt: skip


def test_of_entries_with_one_node_id_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    """As in clients, which keep the first of them: the map does not change with each entry."""
    caplog.set_level(logging.INFO)
    known, _ = nodes()
    for _ in range(2):
        told = all_of(known, [(1, "kafka-1", 9092), (1, "kafka-1b", 9092), (2, "kafka-2", 9092)])
        assert told == [("127.0.0.1", 19_094), HIDDEN_ADDRESS, ("127.0.0.1", 19_095)]
    assert known.broker_at(19_094) == ("kafka-1", 9092)
    assert len([name for name, _ in lines_of(caplog.records) if name == "broker_learned"]) == 2


def test_a_node_without_descriptor_for_its_port_is_hidden_until_there_is_one() -> None:
    full = OSError(errno.EMFILE, "no descriptor")
    ports: Iterator[int | OSError] = iter([full, full, 40_000])

    def bind_any() -> int:
        port = next(ports)
        if isinstance(port, OSError):
            raise BindError("--broker-ports", ("127.0.0.1", 0), port)
        return port

    known = Nodes(ListeningOptions(broker_ports=None), bind_any)
    assert [known.advertise(1, "k", 1) for _ in range(3)] == [HIDDEN_ADDRESS] * 2 + [("127.0.0.1", 40_000)]


IDS = st.sets(st.integers(-3, 12), max_size=9)


@given(lists=st.lists(IDS, max_size=8), exceptions=st.dictionaries(st.integers(0, 9), st.integers(3, 8), max_size=3))
def test_a_node_with_a_port_keeps_one(lists: list[set[int]], exceptions: dict[int, int]) -> None:
    """As long as it is listed, whatever joins and leaves. No port leads to two nodes."""
    taken = dict.fromkeys(exceptions.values())
    exceptions = {node: port for node, port in exceptions.items() if taken.pop(port, 0) is None}
    known, _ = nodes(broker_ports=range(1, 6), node_ports=exceptions)
    had = set[int]()
    for listed in lists:
        told = dict(zip(sorted(listed), all_of(known, [(node, f"k{node}", 1) for node in sorted(listed)]), strict=True))
        seen = {node: port for node, (_, port) in told.items() if port > 0}
        assert len(set(seen.values())) == len(seen)
        assert listed & exceptions.keys() <= seen.keys()
        assert had & listed <= seen.keys() or exceptions, "only a port that is given to another node may be lost"
        assert all(known.broker_at(port) == (f"k{node}", 1) for node, port in seen.items())
        assert not listed or known.placement.hidden == listed - seen.keys()
        had = set(seen)


def test_a_node_that_has_left_gives_its_port_to_the_one_that_took_its_place(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    known, _ = nodes(broker_ports=range(20_000, 20_008))
    all_of(known, [(1, "kafka-1", 9092), (2, "kafka-2", 9092)])
    for listed in ([1], [], [1, 3]):  # one broker's list may lack a node that has just joined
        all_of(known, [(node, f"kafka-{node}", 9092) for node in listed])
        assert known.broker_at(20_002) == ("kafka-2", 9092)
    told = all_of(known, [(1, "kafka-1", 9092), (10, "kafka-10", 9092)])
    assert told == [("127.0.0.1", 20_001), ("127.0.0.1", 20_002)]
    assert known.broker_at(20_002) == ("kafka-10", 9092)
    assert known._real.keys() == {1, 3, 10}
    left = [fields for name, fields in lines_of(caplog.records) if name == "broker_left"]
    assert left == [{"node": 2, "proxy_port": 20_002, "port_now_of": 10}]


def test_a_long_list_is_learned_in_steps_while_others_use_the_map() -> None:
    """Two responses are parsed in turns: each step leaves a map that leads each port to one node."""
    known, bound = nodes(broker_ports=None)
    brokers = [(node, f"kafka-{node}", 9092) for node in range(100)]
    first, second = known.advertise_all(brokers), known.advertise_all(brokers[::-1])
    told: tuple[list[Any], list[Any]] = ([], [])
    for each in range(2 * len(brokers)):
        told[0].append(next(iter(first)))
        told[1].append(next(iter(second)))
        assert len(bound) <= 2 * (each + 1), "two ports are bound in one step of both"
        assert all(known.broker_at(known.port_of(node) or 0) == real for node, real in known._real.items())
    assert told[0][:100] == told[1][:100] == [None] * 100
    assert told[0][100:] == told[1][:99:-1] == all_of(known, brokers)


@pytest.mark.parametrize(("pattern", "port"), [("b{node}.kafka.test", 40_000), ("b{node}.kafka.test:443", 443)])
def test_one_port_for_all_nodes(pattern: str, port: int) -> None:
    """That of --listen, or of the load balancer before it."""
    known = nodes(sni_host=pattern, broker_ports=range(0))[0]
    assert known.fixed_ports() == []
    assert known.advertise(3, "kafka-3", 9092) == ("b3.kafka.test", port)
    assert known.broker_at("b3.kafka.test") == ("kafka-3", 9092)
    assert [known.broker_at(place) for place in ("", "b4.kafka.test", port)] == [None] * 3
    known.advertise(3, "kafka-3b", 9093)
    assert known.broker_at("b3.kafka.test") == ("kafka-3b", 9093)


# ---- in conversations
async def learn(client: Peer, broker: Peer, brokers: dict[int, tuple[str, int]]) -> dict[int, tuple[str, int]]:
    """What the client is told about these brokers."""
    await arrives(client, broker, metadata(1))
    await broker.send(metadata_answer(1, brokers))
    body: Any = decode(load_response_schema(METADATA, 12), await client.frame(), 9)
    return {found.node_id: (found.host, found.port) for found in body.brokers}


async def test_each_node_is_reached_through_its_own_port(open_stage: OpenStage, open_broker: OpenBroker) -> None:
    stage, one, two = open_stage(), open_broker(), open_broker()
    client, broker = await stage.pair()
    told = await learn(client, broker, {1: one.address, 2: two.address})
    assert {host for host, _ in told.values()} == {LOOPBACK}
    assert len({stage.port, told[1][1], told[2][1]}) == 3
    for node, real in ((1, one), (2, two), (1, one)):
        await (await stage.client(told[node][1])).send(heartbeat(node))
        assert await real.first_frame() == heartbeat(node)
    assert await learn(client, broker, {1: one.address, 2: two.address}) == told


def free_ports(count: int) -> range:
    """Ports next to each other that nobody listens on just now."""
    while True:
        with ExitStack() as bound:
            try:
                start: int = bound.enter_context(socket.create_server((LOOPBACK, 0))).getsockname()[1]
                for port in range(start + 1, start + count):
                    bound.enter_context(socket.create_server((LOOPBACK, port)))
            except (OSError, OverflowError) as error:
                if isinstance(error, OSError) and error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
            else:
                return range(start, start + count)


async def test_the_port_of_an_unknown_node_leads_to_bootstrap(open_stage: OpenStage, open_broker: OpenBroker) -> None:
    """A client that outlived a restart of the proxy knows only such ports: its metadata request must work."""
    ports, real = free_ports(2), open_broker()
    stage = open_stage(listening=ListeningOptions(address=(LOOPBACK, 0), broker_ports=ports))
    client, broker = await stage.pair(ports[1])
    await exchange(client, broker, heartbeat(1), heartbeat_answer(1))
    assert await learn(client, broker, {1: real.address}) == {1: (LOOPBACK, ports[1])}
    stage.sweep()
    await client.closed()  # else it would be told for ever that this is not the leader
    await (await stage.client(ports[1])).send(heartbeat(2))
    assert await real.first_frame() == heartbeat(2)


async def test_a_broker_that_joins_without_a_port_cuts_nobody(open_stage: OpenStage, open_broker: OpenBroker) -> None:
    """Every client of every broker was cut at its next request for metadata."""
    stage = open_stage(listening=ListeningOptions(address=(LOOPBACK, 0), broker_ports=free_ports(1)))
    real = open_broker()
    client, broker = await stage.pair()
    told = await learn(client, broker, {1: real.address})
    to_node = await stage.client(told[1][1])
    accepted = await real.accept()
    for number in (1, 2):
        assert await learn(client, broker, {1: real.address, 2: ("kafka-2", 9092)}) == told
        await exchange(to_node, accepted, heartbeat(number), heartbeat_answer(number))
    assert not sum(stage.metrics.errors.protocol.values())
    assert (stage.metrics.sources.hidden_brokers(), stage.metrics.sources.moved_brokers()) == (1, 0)


@pytest.mark.parametrize("address", [(LOOPBACK, 123_456), (LOOPBACK, -1), ("", 9092), ("kafka\0", 9092)])
async def test_an_address_that_leads_nowhere_is_no_defect(open_stage: OpenStage, address: tuple[str, int]) -> None:
    client, broker = await (stage := open_stage()).pair()
    told = await learn(client, broker, {1: address})
    await (await stage.client(told[1][1])).closed()
    assert stage.metrics.errors.upstream["connect_failed"] == 1
    await until(lambda: len(stage.sessions) == 1)


@pytest.mark.claim("limits", "a broker that advertises an address of the proxy uses up no connections")
@pytest.mark.parametrize(
    ("listen", "host"),
    [(LOOPBACK, LOOPBACK), (LOOPBACK, "127.1"), ("localhost", LOOPBACK), ("0.0.0.0", "127.0.0.2")],  # noqa: S104
)
async def test_a_broker_that_advertises_the_proxy_does_not_use_up_its_connections(
    open_stage: OpenStage, open_broker: OpenBroker, listen: str, host: str
) -> None:
    """Each connection to its port would open another one to the same port, until no client is accepted."""
    listening = ListeningOptions(address=(listen, 0), broker_ports=None, advertised_host="proxy.example")
    stage, real = open_stage(listening=listening), open_broker()
    client, broker = await stage.pair()
    told = await learn(client, broker, {1: real.address})
    assert await learn(client, broker, {1: (host, told[1][1])}) == told
    await (await stage.client(told[1][1])).closed()
    assert stage.metrics.errors.upstream["connect_failed"] == 1
    await until(lambda: len(stage.sessions) == 1)
