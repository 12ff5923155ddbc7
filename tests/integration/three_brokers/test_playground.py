"""The three brokers themselves, without the proxy."""

import socket
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local import probe
from deploy.local.cluster import KafkaCluster
from tests.integration.librdkafka import numbers_of, produce


def test_each_of_three_brokers_has_an_address_of_its_own(kafka_cluster3: KafkaCluster) -> None:
    addresses = kafka_cluster3.node_addresses
    assert {node: host for node, (host, _) in addresses.items()} == {1: "127.0.0.2", 2: "127.0.0.3", 3: "127.0.0.4"}
    for host, port in addresses.values():
        assert probe.known_brokers(host, port, timeout_seconds=10) == addresses


@pytest.mark.parametrize("graceful", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_restarted_broker_has_its_port_and_data(
    kafka_cluster3: KafkaCluster, unique_name: Callable[[str], str], graceful: bool
) -> None:
    topic, servers = unique_name("bounce"), {"bootstrap.servers": kafka_cluster3.bootstrap_servers}
    led_by_2 = NewTopic(topic, 1, replica_assignment=[[2, 1, 3]])
    admin = AdminClient(servers)
    admin.create_topics([led_by_2])[topic].result(30)
    produce(Producer({**servers, "acks": "all"}), topic, [b"42"])
    address = kafka_cluster3.node_addresses[2]

    kafka_cluster3.stop_broker(2, graceful=graceful)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    kafka_cluster3.start_broker(2)

    assert kafka_cluster3.node_addresses[2] == address
    assert probe.answers_api_versions(*address, timeout_seconds=10)
    assert numbers_of(kafka_cluster3, topic, 0) == [42]
