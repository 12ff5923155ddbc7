"""A noisy topic with `action=reject`: its producer loses, repeats and reorders no record; its other topics go on."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, Message, Producer

from deploy.local.cluster import KafkaCluster
from tests.integration.flood import create_topics
from tests.integration.java_tools import run_tool
from tests.integration.librdkafka import numbers_of, records_in
from tests.integration.proxy_process import ProxyProcess
from tests.integration.records import numbered

LIMIT = 300_000
PARTITIONS = 2
RECORD_BYTES = 10_000
#: Four seconds of the limit.
NOISY_RECORDS = 4 * LIMIT // RECORD_BYTES
QUIET_RECORDS = 40
DEADLINE_SECONDS = 60


@pytest.mark.timeout(150)
def test_a_noisy_topic_loses_nothing_and_the_others_go_on(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """librdkafka has one topic in a request, and so has Java's tool, which writes to a topic of its own meanwhile."""
    noisy, quiet, java, client_id = (unique_name(name) for name in ("noisy", "quiet", "java", "client"))
    create_topics(kafka_cluster, noisy, quiet, partitions=PARTITIONS)
    create_topics(kafka_cluster, java)
    quotas = [f"topic={topic},bytes_in_rate={LIMIT},burst_seconds=0.1,action=reject" for topic in (noisy, java)]
    flags = [part for quota in quotas for part in ("--quota", quota)]
    delivered: list[str | None] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message.topic())

    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as proxy, ThreadPoolExecutor() as threads:

        def refused(client_id: str) -> float:
            return proxy.metric("throttled_total", client_id=client_id, mode="reject")

        tool = threads.submit(
            run_tool,
            "ProducerPerformance",
            *("--bootstrap-server", proxy.bootstrap_servers, "--topic", java, "--throughput", "-1"),
            *("--num-records", str(NOISY_RECORDS), "--record-size", str(RECORD_BYTES)),
            *("--command-property", f"client.id={java}", "enable.idempotence=true"),
        )
        producer = Producer(
            {"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id, "enable.idempotence": True}
        )

        def produce(topic: str, records: int) -> None:
            for number in range(records):
                value, partition = numbered(number, RECORD_BYTES), number % PARTITIONS
                producer.produce(topic, value, partition=partition, on_delivery=on_delivery)

        produce(noisy, NOISY_RECORDS)
        while not refused(client_id):
            producer.poll(0.05)
        produce(quiet, QUIET_RECORDS)
        assert producer.flush(DEADLINE_SECONDS) == 0
        assert delivered[-1] == noisy, "the other topic did not wait for it"
        assert f"{NOISY_RECORDS} records sent" in tool.result()
        assert refused(java) > 0
    for topic, records in ((noisy, NOISY_RECORDS), (quiet, QUIET_RECORDS)):
        for partition in range(PARTITIONS):
            assert numbers_of(kafka_cluster, topic, partition) == list(range(partition, records, PARTITIONS))
    assert records_in(kafka_cluster, java) == NOISY_RECORDS
