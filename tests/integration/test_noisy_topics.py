"""A noisy topic with `action=reject`: its producer loses, repeats and reorders no record; its other topics go on."""

import time
from collections.abc import Callable
from statistics import median

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.cluster import KafkaCluster
from tests.integration.numbered_producers import (
    DEADLINE_SECONDS,
    NOISY_RECORDS,
    PARTITIONS,
    QUIET_RECORDS,
    RECORD_BYTES,
    Written,
    numbered,
    produce_with_franz_go,
    produce_with_java,
    produce_with_librdkafka,
)
from tests.integration.proxy_process import ProxyProcess

pytestmark = pytest.mark.alone

LIMIT = 2_000_000


def values_of(cluster: KafkaCluster, topic: str, partition: int) -> list[int]:
    """The numbers of all records of a partition, past the proxy, in order."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.partition.eof": True}
    )
    found: list[int] = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=0.5):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                found.append(int((message.value() or b"")[:8]))
    finally:
        consumer.close()
    raise AssertionError(f"the end of {topic}-{partition} does not come")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "write",
    [
        produce_with_librdkafka,
        produce_with_java,
        pytest.param(produce_with_franz_go, marks=pytest.mark.nightly),  # needs Go
    ],
)
def test_records_of_a_noisy_topic_arrive_once_and_in_order(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], write: Callable[[str, str, str, str], Written]
) -> None:
    noisy, quiet, client_id = unique_name("noisy"), unique_name("quiet"), unique_name("client")
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    for created in admin.create_topics([NewTopic(each, PARTITIONS) for each in (noisy, quiet)]).values():
        created.result(30)
    quota = f"topic={noisy},bytes_in_rate={LIMIT},action=reject"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy:
        written = write(proxy.bootstrap_servers, client_id, noisy, quiet)
        throttled = {
            mode: proxy.metric("throttled_total", client_id=client_id, mode=mode)
            for mode in ("reject", "notify", "pause")
        }
    for topic, count in ((noisy, NOISY_RECORDS), (quiet, 2 * QUIET_RECORDS)):
        for partition in range(PARTITIONS):
            assert values_of(kafka_cluster, topic, partition) == list(range(partition, count, PARTITIONS))
    rate = (NOISY_RECORDS * RECORD_BYTES - LIMIT) / written.seconds  # without the burst of one second
    slower = median(written.during) / median(written.before)
    print(f"rate {rate / LIMIT:.2f} of the limit, quiet {slower:.2f} times as slow, {throttled}")
    print(sorted(written.before)[-3:], sorted(written.during)[-3:])
    assert throttled["reject"] > 10
    assert throttled["notify"] == throttled["pause"] == 0
    assert 0.8 * LIMIT <= rate <= 1.05 * LIMIT
    assert slower < 5, "a held connection would wait for hundreds of milliseconds"


@pytest.mark.timeout(120)
def test_a_transaction_is_held_and_commits(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    """Nothing of it is refused, and the limit leaves it enough of its timeout."""
    noisy, client_id = unique_name("noisy"), unique_name("client")
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(noisy, PARTITIONS)])[noisy].result(30)
    count = 3 * LIMIT // RECORD_BYTES
    with ProxyProcess(
        kafka_cluster.bootstrap_servers, "--quota", f"topic={noisy},bytes_in_rate={LIMIT},action=reject"
    ) as proxy:
        producer = Producer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "client.id": client_id,
                "transactional.id": client_id,
                "transaction.timeout.ms": 10_000,
                "batch.size": 100_000,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(noisy, numbered(number), partition=number % PARTITIONS)
        producer.commit_transaction(30)
        producer.close()
        assert proxy.metric("throttled_total", client_id=client_id, mode="reject") == 0
        assert proxy.metric("throttled_total", client_id=client_id) > 0
    for partition in range(PARTITIONS):
        assert values_of(kafka_cluster, noisy, partition) == list(range(partition, count, PARTITIONS))
