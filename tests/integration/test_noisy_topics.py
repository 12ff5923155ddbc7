"""A noisy topic with `action=reject`: its producer loses, repeats and reorders no record; its other topics go on."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, Message, Producer

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.java_tools import perf_producer
from tests.integration.librdkafka import numbers_of, records_in
from tests.integration.proxy_process import ProxyProcess
from tests.integration.records import numbered
from tests.integration.topics import create_topics

pytestmark = pytest.mark.claim(
    "enforcement",
    "action=reject: order and exactly once hold, and other topics of the same producer do not "
    "wait where each request has one topic",
)

LIMIT = 300_000
PARTITIONS = 2
RECORD_BYTES = 10_000
#: Four seconds of the limit.
NOISY_RECORDS = 4 * LIMIT // RECORD_BYTES
QUIET_RECORDS = 40
DEADLINE_SECONDS = 60


@pytest.mark.claim("limits", "action=reject")
@pytest.mark.timeout(150)
def test_a_noisy_topic_loses_nothing_and_the_others_go_on(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """librdkafka has one topic in a request, and so has Java's tool, which writes to a topic of its own meanwhile."""
    noisy, quiet, java, client_id = (unique_name(name) for name in ("noisy", "quiet", "java", "client"))
    create_topics(kafka_cluster, noisy, quiet, partitions=PARTITIONS)
    create_topics(kafka_cluster, java)
    quotas = [f"topic={topic},bytes_in_rate={LIMIT},burst_seconds=0.1,action=reject" for topic in (noisy, java)]
    delivered: list[str | None] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message.topic())

    with ProxyProcess(kafka_cluster.bootstrap_servers, quotas=quotas) as proxy, ThreadPoolExecutor() as threads:

        def refused(client_id: str) -> float:
            return proxy.metric("throttled_total", client_id=client_id, mode="reject")

        tool = threads.submit(
            perf_producer,
            *(proxy.bootstrap_servers, java, f"client.id={java}", "enable.idempotence=true"),
            records=NOISY_RECORDS,
            size=RECORD_BYTES,
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
        assert f"{NOISY_RECORDS} records sent" in tool.result().stdout
        assert refused(java) > 0
    for topic, records in ((noisy, NOISY_RECORDS), (quiet, QUIET_RECORDS)):
        for partition in range(PARTITIONS):
            assert numbers_of(kafka_cluster, topic, partition) == list(range(partition, records, PARTITIONS))
    assert records_in(kafka_cluster, java) == NOISY_RECORDS
