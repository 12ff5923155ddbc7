"""Usage by topic with real clients: what the proxy counts is what the log has.

The proxy runs in this process, so that its counters can be read; clients run in threads and processes of their own.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from deploy.local.cluster import KafkaCluster
from proxy.background.host import Host
from proxy.config.config import Config, ListeningOptions, UsageOptions
from proxy.config.values import parse_addresses
from proxy.process.server import Server
from tests.conftest import UniqueName
from tests.integration.java_tools import run_tool
from tests.integration.librdkafka import records_in
from tests.integration.topics import create_topics
from tests.integration.transactional_producers import transact_with_java

DEADLINE_SECONDS = 45.0
RECORDS = 300
#: A control batch of one marker, as Kafka 4.3.1 writes it.
MARKER_BYTES = 78


class Counted(NamedTuple):
    """What one client did to one topic, or all of them."""

    produce_bytes: int
    produce_messages: int
    fetch_bytes: int


class Proxy:
    """A proxy without limits that counts by topic."""

    def __init__(self, cluster: KafkaCluster) -> None:
        servers = parse_addresses(cluster.bootstrap_servers)
        listening = ListeningOptions(address=("127.0.0.1", 0), broker_ports=None)
        config = Config(bootstrap_servers=servers, listening=listening, usage=UsageOptions(by_topic=True))
        self.server = Server(config, Host())
        self.server.start(asyncio.get_running_loop())
        self.bootstrap_servers = f"127.0.0.1:{self.server.ports.bootstrap}"

    def counted(self, topic: str, client_id: str | None = None) -> Counted:
        """Of one client; None: of all."""
        found = [
            entity.topics[topic]
            for entity in self.server.metrics.entities
            if entity.topics is not None and topic in entity.topics and client_id in (None, entity.client_id)
        ]
        return Counted(*(sum(getattr(each, name) for each in found) for name in Counted._fields))

    def check(self) -> None:
        """Topics have a part of each client's bytes; nothing is wrong."""
        for entity in self.server.metrics.entities:
            assert entity.topics is not None
            assert sum(each.produce_bytes for each in entity.topics.values()) <= entity.produce_bytes
            assert sum(each.fetch_bytes for each in entity.topics.values()) <= entity.fetch_bytes
        assert not any(self.server.metrics.errors.protocol.values())


@asynccontextmanager
async def proxying(cluster: KafkaCluster) -> AsyncIterator[Proxy]:
    proxy = Proxy(cluster)
    try:
        yield proxy
        proxy.check()
    finally:
        proxy.server.close()


def log_bytes(cluster: KafkaCluster, *topics: str) -> dict[str, int]:
    """Kafka's own sizes of the logs of topics with one partition: of record batches, as they are on disk."""
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    printed = run_tool("LogDirsCommand", *servers, "--describe", "--topic-list", ",".join(topics))
    described = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    partitions = [each for broker in described["brokers"] for log in broker["logDirs"] for each in log["partitions"]]
    return {each["partition"].removesuffix("-0"): each["size"] for each in partitions}


def produce_librdkafka(
    proxy: Proxy, topic: str, client_id: str, settings: dict[str, object], transactions: int = 0
) -> None:
    """`RECORDS` records; or as many in each transaction, of which the last one is aborted."""
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id, **settings})
    if transactions:
        producer.init_transactions(DEADLINE_SECONDS)
    for number in range(max(1, transactions)):
        if transactions:
            producer.begin_transaction()
        for record in range(RECORDS):
            producer.produce(topic, f"{number}-{record}-".encode() * (record % 40 + 1))
        assert producer.flush(DEADLINE_SECONDS) == 0
        if transactions and number == transactions - 1:
            producer.abort_transaction(DEADLINE_SECONDS)
        elif transactions:
            producer.commit_transaction(DEADLINE_SECONDS)


def read_librdkafka(proxy: Proxy, topic: str, client_id: str, count: int) -> None:
    """`count` records from the beginning."""
    settings = {"client.id": client_id, "group.id": client_id, "enable.auto.commit": False}
    servers = {"bootstrap.servers": proxy.bootstrap_servers}
    consumer = Consumer({**servers, **settings, "isolation.level": "read_uncommitted"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        received = 0
        while received < count:
            messages = consumer.consume(count - received, timeout=DEADLINE_SECONDS)
            assert messages, "records are missing"
            received += len(messages)
    finally:
        consumer.close()


@pytest.mark.timeout(150)
async def test_librdkafka(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """Two clients, plain and compressed; their records are told apart, and those of each topic."""
    plain, packed, both = (unique_name(name) for name in ("plain", "packed", "both"))
    create_topics(kafka_cluster, plain, packed, both)
    async with proxying(kafka_cluster) as proxy:
        run = asyncio.to_thread
        await run(produce_librdkafka, proxy, plain, "one", {"acks": "1"})
        await run(produce_librdkafka, proxy, both, "one", {"enable.idempotence": True})
        await run(produce_librdkafka, proxy, packed, "two", {"compression.type": "lz4", "linger.ms": 50})
        await run(produce_librdkafka, proxy, both, "two", {"compression.type": "gzip"})
        sizes = await run(log_bytes, kafka_cluster, plain, packed, both)
        for topic, times in ((plain, 1), (packed, 1), (both, 2)):
            size = sizes[topic]
            assert proxy.counted(topic) == (size, times * RECORDS, 0)
            assert await run(records_in, kafka_cluster, topic) == times * RECORDS
            await run(read_librdkafka, proxy, topic, "reader", times * RECORDS)
            assert proxy.counted(topic, "reader") == (0, 0, size)
        one, two = proxy.counted(both, "one"), proxy.counted(both, "two")
        assert one.produce_messages == two.produce_messages == RECORDS
        assert one.produce_bytes > two.produce_bytes, "one of them is compressed"


@pytest.mark.timeout(150)
async def test_transactions(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """The markers of their ends are in the log: coordinators write them. Consumers fetch them."""
    topic = unique_name("transactions")
    create_topics(kafka_cluster, topic)
    async with proxying(kafka_cluster) as proxy:
        run = asyncio.to_thread
        await run(produce_librdkafka, proxy, topic, "tx", {"transactional.id": unique_name("tx")}, 3)
        size = (await run(log_bytes, kafka_cluster, topic))[topic]
        markers = await run(records_in, kafka_cluster, topic) - 3 * RECORDS
        assert markers == 3
        assert proxy.counted(topic, "tx") == (size - markers * MARKER_BYTES, 3 * RECORDS, 0)
        await run(read_librdkafka, proxy, topic, "reader", 3 * RECORDS)
        assert size - MARKER_BYTES <= proxy.counted(topic, "reader").fetch_bytes <= size


@pytest.mark.timeout(200)
async def test_java_transactions(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """One after the other: brokers refuse the first records of many while the end of the one before is written."""
    topic, transactions, partitions = unique_name("java"), 100, 24
    create_topics(kafka_cluster, topic, partitions=partitions)
    async with proxying(kafka_cluster) as proxy:
        run = asyncio.to_thread
        given = (unique_name("tx"), topic, [partitions] * transactions, 60_000, partitions)
        done = await run(transact_with_java, proxy.bootstrap_servers, *given)
        assert (done.errors, len(done.committed)) == ([], transactions)
        assert proxy.counted(topic).produce_messages == partitions * transactions
