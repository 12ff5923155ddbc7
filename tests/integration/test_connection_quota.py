"""`connection_creation_rate` and `connections` of an address, with clients of three libraries."""

import socket
from contextlib import ExitStack, closing

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

pytestmark = pytest.mark.claim("enforcement", "a storm of connections passes at an even rate, without a client error")

#: ApiVersions 0 without a client id, which a broker answers before anything else.
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


def is_answered(connection: socket.socket) -> bool:
    """Asks for the versions, and waits for the answer. False: it was closed instead."""
    try:
        connection.sendall(API_VERSIONS)
        return bool(connection.recv(65_536))
    except (BrokenPipeError, ConnectionResetError):
        return False


@pytest.mark.claim("limits", "connection_creation_rate")
@pytest.mark.timeout(90)
async def test_connections_over_the_rate_are_served_later(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """Each client opens two connections at least, and two a second are allowed."""
    topic = unique_name("patience")
    create_topics(kafka_cluster, topic)
    quota = "ip=<default>,connection_creation_rate=2"
    errors: list[KafkaError] = []
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy:
        servers = proxy.bootstrap_servers
        librdkafka = Producer({"bootstrap.servers": servers, "error_cb": errors.append, "retries": 0})
        produce(librdkafka, topic, [b"from librdkafka"])
        async with AIOKafkaProducer(bootstrap_servers=servers) as aiokafka:
            await aiokafka.send_and_wait(topic, b"from aiokafka")
        with closing(KafkaProducer(bootstrap_servers=servers)) as kafka_python:
            kafka_python.send(topic, b"from kafka-python").get(60)
        assert errors == []
        line = proxy.wait_for_event("throttled", 5, limit="connection_creation_rate")
        assert (line["entity"], line["limit_value"]) == ("ip:127.0.0.1", 2)
        assert proxy.metric("connections_rejected_total", reason="connection_creation_rate") == 0


@pytest.mark.claim("limits", "connections")
@pytest.mark.timeout(60)
def test_connections_above_the_limit_of_an_address(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """librdkafka tries again, and is served when others have gone."""
    topic = unique_name("crowded")
    create_topics(kafka_cluster, topic)
    quota = "ip=<default>,connections=3"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy:
        host, _, port = proxy.bootstrap_servers.rpartition(":")
        with ExitStack() as stack:

            def connect(source: str = "127.0.0.1") -> socket.socket:
                address = (host, int(port))
                return stack.enter_context(socket.create_connection(address, timeout=30, source_address=(source, 0)))

            others = [connect() for _ in range(3)]
            assert all(is_answered(each) for each in others)
            assert not is_answered(connect())
            assert is_answered(connect("127.0.0.77"))
            producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
            producer.produce(topic, b"at last")
            producer.poll(0)
            eventually(
                lambda: proxy.metric("connections_rejected_total", reason="connections") > 1, 30, "it is refused"
            )
            assert all(is_answered(each) for each in others), "they stay"
        assert producer.flush(30) == 0
