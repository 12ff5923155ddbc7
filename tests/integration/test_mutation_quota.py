"""`controller_mutation_rate` with Kafka's own admin client: KIP-599 without a broker that knows of any quota."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from py4j.java_gateway import JavaGateway

from deploy.local.artifacts import KAFKA_4_3_1, class_path
from deploy.local.cluster import KafkaCluster
from deploy.local.java import find_java
from tests.conftest import UniqueName
from tests.integration.proxy_process import ProxyProcess, eventually

LIMIT = "controller_mutation_rate"
RATE = 0.5
BURST = 10
#: The first request overdraws the bucket by 4 partitions.
FIRST = {"a": 6, "b": 8}
WAIT_SECONDS = (sum(FIRST.values()) - BURST) / RATE


@pytest.mark.claim("limits", "controller_mutation_rate")
@pytest.mark.timeout(150)
def test_the_java_admin_client_waits_and_retries(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    prefix, client_id = unique_name("mutation"), unique_name("java")
    expected = {f"{prefix}-{name}": count for name, count in {**FIRST, "c": 1, "d": 1}.items()}
    quota = f"client-id={client_id},{LIMIT}={RATE},burst_seconds={BURST / RATE}"
    options = ("--quota", quota, "--max-throttle-ms", "60000")
    with ProxyProcess(kafka_cluster.bootstrap_servers, *options) as proxy, java() as gateway:
        properties = gateway.jvm.java.util.Properties()
        properties.put("bootstrap.servers", proxy.bootstrap_servers)
        properties.put("client.id", client_id)
        admin = gateway.jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        names = list(expected)
        started = time.monotonic()
        create(gateway, admin, {name: expected[name] for name in names[:2]})
        create(gateway, admin, {name: expected[name] for name in names[2:]})
        assert time.monotonic() - started >= WAIT_SECONDS
        admin.close()
        rejected = proxy.metric("throttled_total", client_id=client_id, limit=LIMIT, mode="reject")
    assert rejected == 1, "it sent the request again after the wait"
    broker = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})

    def created() -> dict[str, int]:
        known = broker.list_topics(timeout=30).topics
        return {name: len(known[name].partitions) for name in expected if name in known}

    eventually(lambda: created() == expected, 30, "all topics are known")


def create(gateway: JavaGateway, admin: Any, topics: dict[str, int]) -> None:
    """Create topics in one request; it waits until they exist."""
    new = gateway.jvm.java.util.ArrayList()
    for name, count in topics.items():
        new.add(gateway.jvm.org.apache.kafka.clients.admin.NewTopic(name, count, 1))
    admin.createTopics(new).all().get()


@contextmanager
def java() -> Iterator[JavaGateway]:
    """A JVM with Kafka's own client in it."""
    gateway = JavaGateway.launch_gateway(
        classpath=class_path(KAFKA_4_3_1), java_path=find_java(), javaopts=["-Xmx256m"], die_on_exit=True
    )
    try:
        yield gateway
    finally:
        gateway.shutdown()
        with gateway.java_process as process:
            process.stdin.close()
            process.wait(30)
