"""Three brokers, and a range of two ports: brokers 1 and 3 have one port."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.java_tools import perf_producer
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.proxy.brokers.test_nodes import free_ports

pytestmark = pytest.mark.claim(
    "limits",
    "a broker whose port is taken is moved or hidden, and reported; every other broker keeps "
    "working, and replicas agree on ports",
)

RECORDS = 50


def leaders_of(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """A topic with a partition on each broker: the partition that each broker leads."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, replica_assignment=[[1], [2], [3]])])[topic].result(30)

    def found() -> dict[int, int]:
        partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
        return {each.leader: each.id for each in partitions.values()}

    eventually(lambda: found().keys() == {1, 2, 3}, 40, "leaders on all brokers")
    return found()


@pytest.mark.timeout(180)
async def test_a_broker_without_port_stops_no_other(kafka_cluster3: KafkaCluster, unique_name: UniqueName) -> None:
    """Three libraries write to the brokers that have ports. What the third leads waits, as without a leader."""
    topic = unique_name("ports")
    leaders = leaders_of(kafka_cluster3, topic)
    ports = free_ports(2)
    flags = ("--broker-ports", f"{ports[0]}-{ports[1]}")
    with ProxyProcess(kafka_cluster3.bootstrap_servers, *flags) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "message.timeout.ms": 5_000}
        seen = AdminClient(settings).list_topics(topic, timeout=20)
        assert {node: broker.port for node, broker in seen.brokers.items()} == {2: ports[2 % 2], 1: ports[1 % 2]}
        failed: dict[int, str] = {}
        producer = Producer(settings)
        for _ in range(RECORDS):
            for node, partition in leaders.items():
                producer.produce(
                    topic,
                    b"x" * 100,
                    partition=partition,
                    on_delivery=lambda error, _, node=node: failed.update({node: str(error)} if error else {}),
                )
        assert producer.flush(60) == 0
        assert failed.keys() == {3}, failed
        async with AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, request_timeout_ms=5_000) as aiokafka:
            sent = [await aiokafka.send(topic, b"x", partition=leaders[node]) for node in (3, 1, 2)]
            results = await asyncio.gather(*sent, return_exceptions=True)
            assert [isinstance(each, KafkaError) for each in results] == [True, False, False]
        java = await asyncio.to_thread(perf_producer, proxy.bootstrap_servers, topic, records=1_000, size=100)
        assert java.returncode == 0, java.stderr
        assert "1000 records sent" in java.stdout
        assert "disconnected" not in java.stderr
        [conflict] = [each for each in proxy.events if each["event"] == "broker_port_conflict"]
        assert conflict["hint"].startswith("give --broker-port 3=PORT")
        assert proxy.metric("broker_port_conflicts", outcome="hidden") == 1
        assert not [each for each in proxy.events if each["event"] == "protocol_error"]
        status, text = proxy.get("/readyz")
        assert status == 200
        assert "clients cannot see broker 3" in text
        assert "clients cannot see broker 3" in proxy.get("/explain", "text/plain")[1]
    command = str(Path(sys.executable).with_name("kafka-quota-proxy"))
    servers = ("--bootstrap-servers", kafka_cluster3.bootstrap_servers, "--listen", "127.0.0.1:0")
    given = [command, "check", *servers, *flags, "--metrics-listen", "127.0.0.1:0"]
    checked = await asyncio.to_thread(subprocess.run, given, capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 1
    assert "✗ --broker-ports: clients cannot see broker 3" in checked.stdout
