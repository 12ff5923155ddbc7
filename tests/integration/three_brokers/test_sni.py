"""Three brokers on one TLS port (`--sni-host`): clients find each of them by the name that they connect to."""

import asyncio
import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from demo.proxy_process import reserve_port
from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from tests.conftest import UniqueName
from tests.integration.java_tools import perf_producer
from tests.integration.named_clients import DOMAIN, NamedLibrdkafka, java_options, resolve_in_python
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

PARTITIONS = 3
JAVA_RECORDS, JAVA_RECORDS_PER_SECOND = 2_000, 100
NEWCOMER = 3


class Leaders:
    """The leaders of topics with a replica of each partition on each broker."""

    def __init__(self, cluster: KafkaCluster, *topics: str) -> None:
        self._cluster = cluster
        self.topics = topics
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        create_topics(cluster, *topics, partitions=PARTITIONS, replicas=3)
        eventually(lambda: self.are_on(3), 40, "leaders on all brokers")

    def are_on(self, brokers: int) -> bool:
        """Whether each topic has leaders on so many brokers, and one for each partition."""
        found = self._admin.list_topics(timeout=20).topics
        leaders = [
            {each.leader for each in found[topic].partitions.values()} for topic in self.topics if topic in found
        ]
        return [len(each) for each in leaders if -1 not in each] == [brokers] * len(self.topics)

    def elect(self) -> bool:
        """Back to the broker that was each partition's first, where that has its records again."""
        partitions = [TopicPartition(topic, each) for topic in self.topics for each in range(PARTITIONS)]
        self._admin.elect_leaders(ElectionType.PREFERRED, partitions).result(30)
        return self.are_on(3)

    def records(self, topic: str) -> list[int]:
        """In each partition."""
        settings = {"bootstrap.servers": self._cluster.bootstrap_servers, "group.id": "none"}
        with closing(Consumer(settings)) as consumer:
            marks = [consumer.get_watermark_offsets(TopicPartition(topic, each), 20) for each in range(PARTITIONS)]
        return [high - low for low, high in marks]


@pytest.mark.timeout(180)
async def test_three_libraries_find_all_brokers_on_one_port(
    kafka_cluster3: KafkaCluster,
    security: Security,
    unique_name: UniqueName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While leaders move to a broker that neither proxy nor clients know yet, and over a restart of the proxy: after it
    clients know brokers that the proxy does not.
    """
    names = [unique_name(library) for library in ("aiokafka", "librdkafka", "java")]
    of_aiokafka, of_librdkafka, of_java = names
    leaders = Leaders(kafka_cluster3, *names)
    ca, certificate = security.write_ca(tmp_path / "ca.pem"), security.issue(tmp_path, "wildcard", f"*.{DOMAIN}")
    resolve_in_python(monkeypatch)
    port, reserved = reserve_port("127.0.0.1")
    bootstrap = f"kafka.{DOMAIN}:{port}"
    proxy = ProxyProcess(
        kafka_cluster3.bootstrap_servers,
        *("--listen", f"127.0.0.1:{port}", "--sni-host", f"broker-{{node}}.{DOMAIN}"),
        *("--ssl-certificate-location", f"{certificate.both}"),
    )
    java_file = tmp_path / "java.properties"
    java_file.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n")
    jvm = java_options(tmp_path, [f"kafka.{DOMAIN}", *(f"broker-{node}.{DOMAIN}" for node in (1, 2, 3))])
    context = ssl.create_default_context(cafile=str(ca))
    ssl_of_aiokafka = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": context}
    ssl_of_librdkafka = {"bootstrap.servers": bootstrap, "security.protocol": "ssl", "ssl.ca.location": str(ca)}
    kafka_cluster3.stop_broker(NEWCOMER)
    try:
        eventually(lambda: leaders.are_on(2), 40, "leaders on two brokers")
        with proxy, closing(NamedLibrdkafka(ssl_of_librdkafka, of_librdkafka)) as librdkafka:
            given = (bootstrap, of_java, "acks=all", "batch.size=200", "enable.idempotence=true")
            load: Any = {"records": JAVA_RECORDS, "size": 100, "throughput": JAVA_RECORDS_PER_SECOND}
            java = asyncio.ensure_future(asyncio.to_thread(perf_producer, *given, **load, file=java_file, jvm=jvm))
            async with AIOKafkaProducer(**ssl_of_aiokafka, acks="all", request_timeout_ms=60_000) as producer:

                async def send(value: bytes) -> None:
                    for partition in range(PARTITIONS):
                        await producer.send_and_wait(of_aiokafka, value, partition=partition)
                    await asyncio.to_thread(librdkafka.send, value, PARTITIONS)

                await send(b"to two brokers")
                assert {each["node"] for each in proxy.events if each["event"] == "broker_learned"} == {1, 2}
                await asyncio.to_thread(eventually, lambda: sum(leaders.records(of_java)), 60, "Java has begun")
                await asyncio.to_thread(kafka_cluster3.start_broker, NEWCOMER)
                await asyncio.to_thread(eventually, leaders.elect, 40, "the third leads")
                await send(b"to the third")
                proxy.wait_for_event("broker_learned", 30, node=NEWCOMER)
                await asyncio.to_thread(proxy.stop)
                await asyncio.to_thread(proxy.start)
                await send(b"after a restart")
            group = {"group_id": of_aiokafka, "auto_offset_reset": "earliest", "enable_auto_commit": False}
            async with AIOKafkaConsumer(of_aiokafka, **group, **ssl_of_aiokafka) as consumer:
                values = [(await consumer.getone()).value for _ in range(3 * PARTITIONS)]
            assert len(set(values)) == 3
            done = await java
            assert f"{JAVA_RECORDS} records sent" in done.stdout.splitlines()[-1], done.stdout[-2000:] + done.stderr
    finally:
        if not kafka_cluster3._nodes[NEWCOMER].running:
            kafka_cluster3.start_broker(NEWCOMER)
        for each in reserved:
            each.close()
    assert [leaders.records(topic) for topic in (of_aiokafka, of_librdkafka)] == [[3] * PARTITIONS] * 2
    assert sum(leaders.records(of_java)) == JAVA_RECORDS
