"""`connections` and `connection_creation_rate` of an address, a listener and the total: sockets, and clients."""

import select
import selectors
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from deploy.local.cluster import KafkaCluster
from deploy.local.settings import Address
from deploy.local.tools import tool_command
from tests.integration.flood import create_topics
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_throttling import producer_for

#: ApiVersions 0 without a client id, which a broker answers before anything else.
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.77"
RATE, CONNECTIONS = "connection_creation_rate", "connections"
ENTITIES = ("ip=<default>", "listener=bootstrap", "total=true")


@contextmanager
def running(cluster: KafkaCluster, quota: str, *flags: str) -> Iterator[ProxyProcess]:
    """A proxy on all of 127.0.0.0/8 with one quota; every entity starts afresh."""
    with ProxyProcess(cluster.bootstrap_servers, "--quota", quota, *flags) as proxy:
        yield proxy


def bootstrap_of(proxy: ProxyProcess) -> Address:
    host, _, port = proxy.bootstrap_servers.rpartition(":")
    return host, int(port)


def broker_of(proxy: ProxyProcess) -> Address:
    """The port of the broker, which is another listener."""
    (broker,) = AdminClient({"bootstrap.servers": proxy.bootstrap_servers}).list_topics(timeout=30).brokers.values()
    return broker.host, broker.port


def knock(address: Address, source: str = HERE) -> socket.socket:
    """Connects, and asks for the versions without waiting for the answer."""
    connection = socket.create_connection(address, timeout=30, source_address=(source, 0))
    connection.sendall(API_VERSIONS)
    return connection


def is_answered(connection: socket.socket) -> bool:
    """Waits for the answer. False: it was closed instead."""
    try:
        return bool(connection.recv(4))
    except ConnectionResetError:
        return False


def is_silent(connection: socket.socket) -> bool:
    """It has been neither answered nor closed yet."""
    return not select.select([connection], [], [], 0)[0]


def crowd(stack: ExitStack, address: Address, size: int, source: str = HERE) -> list[socket.socket]:
    return [stack.enter_context(knock(address, source)) for _ in range(size)]


@pytest.mark.parametrize("entity", ENTITIES)
@pytest.mark.timeout(60)
def test_connections_over_the_rate_are_served_later(kafka_cluster: KafkaCluster, entity: str) -> None:
    """Five at once and five a second; whoever comes under another address or to another port is not slowed."""
    rate, size = 5, 14
    with running(kafka_cluster, f"{entity},{RATE}={rate}") as proxy, ExitStack() as stack:
        other_port = broker_of(proxy) if entity.startswith("listener") else None
        began = time.monotonic()
        connections = crowd(stack, bootstrap_of(proxy), size)
        if entity.startswith("ip"):
            assert is_answered(*crowd(stack, bootstrap_of(proxy), 1, ELSEWHERE))
            assert is_silent(connections[-1]), "the other one overtook it"
        if other_port is not None:
            assert is_answered(*crowd(stack, other_port, 1))
            assert is_silent(connections[-1])
        assert all(is_answered(each) for each in connections)
        assert time.monotonic() - began >= (size - rate) / rate - 0.1
        assert proxy.metric("throttled_total", limit=RATE) >= size - rate - 1
        assert proxy.metric("connections_rejected_total", reason=RATE) == 0
        owner = {"ip=<default>": f"ip:{HERE}", "listener=bootstrap": "listener:bootstrap", "total=true": "total"}
        line = proxy.wait_for_event("throttled", 5, limit=RATE)
        assert (line["entity"], line["limit_value"]) == (owner[entity], rate)


@pytest.mark.timeout(60)
def test_those_beyond_the_longest_wait_are_closed_after_it(kafka_cluster: KafkaCluster) -> None:
    hold_seconds, size = 1.5, 30
    quota = f"ip=<default>,{RATE}=5"
    with running(kafka_cluster, quota, "--max-connection-hold", f"{hold_seconds * 1000:g}ms") as proxy:
        with ExitStack() as stack:
            began = time.monotonic()
            connections = crowd(stack, bootstrap_of(proxy), size)
            served = [is_answered(each) for each in connections]
            assert time.monotonic() - began >= hold_seconds
        refused = served.count(False)
        assert refused > 0
        assert served == [True] * (size - refused) + [False] * refused
        assert size - refused >= 5, "those that the rate lets in"
        assert proxy.metric("connections_rejected_total", reason=RATE) == refused
        line = proxy.wait_for_event("connection_rejected", 5, reason=RATE, entity=f"ip:{HERE}")
        assert line["held_seconds"] == hold_seconds


@pytest.mark.timeout(60)
def test_connections_above_the_limit_of_an_address_are_closed_at_once(kafka_cluster: KafkaCluster) -> None:
    limit = 3
    with running(kafka_cluster, f"ip=<default>,{CONNECTIONS}={limit}") as proxy, ExitStack() as stack:
        address = bootstrap_of(proxy)
        first, *others = crowd(stack, address, limit)
        assert all(is_answered(each) for each in (first, *others))
        assert not is_answered(*crowd(stack, address, 1))
        assert proxy.metric("connections_rejected_total", reason=CONNECTIONS) == 1
        assert is_answered(*crowd(stack, address, 1, ELSEWHERE))
        first.close()
        eventually(lambda: is_answered(*crowd(stack, address, 1)), 10, "its place is free")
        assert all(is_silent(each) or each.recv(65536) for each in others), "those that were there stay"


@pytest.mark.parametrize("entity", ENTITIES[1:])
@pytest.mark.timeout(60)
def test_connections_above_the_limit_wait_for_a_slot(kafka_cluster: KafkaCluster, entity: str) -> None:
    limit = 3
    quota = f"{entity},{CONNECTIONS}={limit}"
    with running(kafka_cluster, quota, "--max-connection-hold", "2s") as proxy, ExitStack() as stack:
        other_port = broker_of(proxy) if entity.startswith("listener") else None
        eventually(lambda: proxy.metric("connections") == 0, 20, "the one that asked is gone")
        address = bootstrap_of(proxy)
        served = crowd(stack, address, limit)
        assert all(is_answered(each) for each in served)
        (late,) = crowd(stack, address, 1)
        eventually(lambda: proxy.throttles() != [], 5, "it waits")
        assert is_silent(late)
        if other_port is not None:
            assert is_answered(*crowd(stack, other_port, 1))
        served[0].close()
        assert is_answered(late)
        began = time.monotonic()
        assert not is_answered(*crowd(stack, address, 1)), "nobody leaves"
        assert time.monotonic() - began >= 1.9
        assert proxy.metric("connections_rejected_total", reason=CONNECTIONS) == 1


@pytest.mark.parametrize("size", [300, pytest.param(700, marks=pytest.mark.nightly)])
@pytest.mark.timeout(60)
def test_a_storm_of_connections_is_served_at_an_even_rate(kafka_cluster: KafkaCluster, size: int) -> None:
    """Executors start while their driver is connected."""
    rate = 100
    with running(kafka_cluster, f"total=true,{RATE}={rate}") as proxy, ExitStack() as stack:
        address = bootstrap_of(proxy)
        assert is_answered(*crowd(stack, address, 1))
        selector = stack.enter_context(selectors.DefaultSelector())
        for each in crowd(stack, address, size):
            selector.register(each, selectors.EVENT_READ)
        served: list[float] = []
        while selector.get_map():
            for key, _ in selector.select(20):
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                assert is_answered(key.fileobj)
                served.append(time.monotonic())
        seconds = Counter(int(at - served[0]) for at in served)
        assert len(served) == size
        assert [seconds[nth] for nth in range(1, max(seconds))] == pytest.approx([rate] * (max(seconds) - 1), rel=0.1)
        assert sum(proxy.metric("connections_rejected_total", reason=reason) for reason in (RATE, CONNECTIONS)) == 0


@pytest.mark.parametrize(
    ("rate", "librdkafka", "java", "sockets"),
    [(10, 10, 0, 5), pytest.param(100, 60, 40, 250, marks=pytest.mark.nightly)],
)
@pytest.mark.timeout(180)
def test_clients_that_start_at_once_see_no_error(
    kafka_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    rate: int,
    librdkafka: int,
    java: int,
    sockets: int,
) -> None:
    """Each opens two connections or three; the nightly form has about 500 together."""
    topic = unique_name("storm")
    create_topics(kafka_cluster, topic)
    errors: list[KafkaError] = []
    with running(kafka_cluster, f"total=true,{RATE}={rate}") as proxy, ExitStack() as stack:
        connections = crowd(stack, bootstrap_of(proxy), sockets)
        producers = [
            producer_for(proxy, f"{topic}-{nth}", error_cb=errors.append, retries=0) for nth in range(librdkafka)
        ]
        source = Path(__file__).with_name("StormClients.java")
        command = tool_command(str(source), proxy.bootstrap_servers, topic, str(java))
        with ThreadPoolExecutor(librdkafka) as pool:
            in_java = subprocess.Popen(command, stdout=subprocess.PIPE) if java else None
            list(pool.map(lambda producer: produce(producer, topic, [b"from librdkafka"]), producers))
        if in_java is not None:
            assert in_java.communicate(timeout=90)[0].strip() == f"sent {java}".encode()
        assert all(is_answered(each) for each in connections)
        assert errors == []
        assert proxy.metric("throttled_total", limit=RATE) > 0
        assert proxy.metric("connections_rejected_total", reason=RATE) == 0


@pytest.mark.timeout(90)
async def test_clients_get_through_within_their_patience(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Each opens two connections at least, and two a second are allowed."""
    topic = unique_name("patience")
    create_topics(kafka_cluster, topic)
    with running(kafka_cluster, f"ip=<default>,{RATE}=2") as proxy:
        produce(producer_for(proxy, unique_name("librdkafka")), topic, [b"from librdkafka"])
        async with AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers) as aiokafka:
            await aiokafka.send_and_wait(topic, b"from aiokafka")
        with closing(KafkaProducer(bootstrap_servers=proxy.bootstrap_servers)) as kafka_python:
            kafka_python.send(topic, b"from kafka-python").get(60)
        assert proxy.metric("throttled_total", limit=RATE) > 0
        assert proxy.metric("connections_rejected_total", reason=RATE) == 0


@pytest.mark.timeout(90)
def test_a_client_waits_until_others_have_gone(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    """librdkafka is accepted, and served when there is a place."""
    topic = unique_name("crowded")
    create_topics(kafka_cluster, topic)
    errors: list[KafkaError] = []
    with running(kafka_cluster, f"total=true,{CONNECTIONS}=3") as proxy:
        with ExitStack() as stack:
            assert all(is_answered(each) for each in crowd(stack, bootstrap_of(proxy), 3))
            producer = producer_for(proxy, unique_name("late"), error_cb=errors.append)
            producer.produce(topic, b"at last")
            eventually(lambda: proxy.throttles() != [], 30, "it waits for a slot")
        assert producer.flush(30) == 0
        assert errors == []
        assert proxy.metric("connections_rejected_total", reason=CONNECTIONS) == 0
