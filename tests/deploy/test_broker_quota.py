"""The broker's own quotas, set by wire at a real broker."""

from collections.abc import Callable

import pytest

from deploy.local.broker_quota import client_quotas, in_force
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import BrokerQuotaError


def test_the_quotas_apply_inside_the_block_only(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    client_id = unique_name("flights-etl")
    broker = kafka_cluster.node_addresses[1]
    limits = {"producer_byte_rate": 5e6, "consumer_byte_rate": 1e6}
    with client_quotas(broker, client_id, limits):
        assert in_force(broker, client_id) == limits
    assert in_force(broker, client_id) == {}


def test_a_quota_that_the_broker_refuses_is_an_error_with_its_reason(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    refused = client_quotas(kafka_cluster.node_addresses[1], unique_name("flights-etl"), {"producer_byte_rate": -1})
    with pytest.raises(BrokerQuotaError, match="must be greater than 0"):
        refused.__enter__()
