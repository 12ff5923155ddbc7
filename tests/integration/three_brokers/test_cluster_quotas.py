"""The cluster's own client quotas with three brokers, one of which goes and comes back."""

from collections.abc import Callable

import pytest

from deploy.local.broker_quota import Entity, alter_quotas
from deploy.local.cluster import KafkaCluster
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_cluster_quotas import DEADLINE_SECONDS, PRODUCED, RATE, limits


@pytest.mark.nightly
@pytest.mark.timeout(250)
def test_per_broker_multiplies_by_the_brokers_that_are_there(
    kafka_cluster3: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    client_id = unique_name("etl")
    entity: Entity = (("client-id", client_id),)
    broker = kafka_cluster3.advertised_addresses[1]
    alter_quotas(broker, {entity: {PRODUCED: RATE}})
    with (
        ProxyProcess(kafka_cluster3.bootstrap_servers, "--cluster-quotas", "per-broker") as proxy,
        Flood(proxy.bootstrap_servers, client_id, unique_name("orders")),
    ):

        def becomes(brokers: int) -> None:
            eventually(
                lambda: limits(proxy, client_id) == {PRODUCED: brokers * RATE}, DEADLINE_SECONDS, f"{brokers} brokers"
            )

        becomes(3)
        kafka_cluster3.stop_broker(3)
        becomes(2)
        kafka_cluster3.start_broker(3)
        becomes(3)
    alter_quotas(broker, {entity: {PRODUCED: None}})
