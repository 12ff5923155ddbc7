"""Kafka's own `kafka-configs` through the proxy: it sets and shows the broker's quota (docs/kafka-quotas.md)."""

from collections.abc import Callable

import pytest

from deploy.local.cluster import KafkaCluster
from tests.integration.java_tools import run_tool
from tests.integration.proxy_process import ProxyProcess


@pytest.mark.timeout(150)
def test_it_sets_and_shows_the_quota_of_the_broker(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    client_id = unique_name("etl")

    def configs(bootstrap: str, *arguments: str) -> str:
        entity = ("--entity-type", "clients", "--entity-name", client_id)
        return run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, *arguments, *entity).strip()

    broker = kafka_cluster.bootstrap_servers
    with ProxyProcess(broker, "--quota", f"client-id={client_id},producer_byte_rate=5MB") as proxy:
        assert configs(proxy.bootstrap_servers, "--describe") == "", "the proxy's own quota is not shown"
        told = configs(proxy.bootstrap_servers, "--alter", "--add-config", "producer_byte_rate=1000000")
    assert told == f"Completed updating config for client {client_id}."
    shown = configs(broker, "--describe")
    assert shown == f"Quota configs for client-id '{client_id}' are producer_byte_rate=1000000.0"
    configs(broker, "--alter", "--delete-config", "producer_byte_rate")
