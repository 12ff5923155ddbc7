"""The broker's own quotas, set by wire at a real broker."""

from collections.abc import Callable

from deploy.local.broker_quota import client_quotas, in_force
from deploy.local.cluster import KafkaCluster


def test_the_quotas_apply_inside_the_block_only(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    client_id = unique_name("flights-etl")
    broker = kafka_cluster.node_addresses[1]
    limits = {"producer_byte_rate": 5e6, "consumer_byte_rate": 1e6}
    with client_quotas(broker, client_id, limits):
        assert in_force(broker, client_id) == limits
    assert in_force(broker, client_id) == {}
