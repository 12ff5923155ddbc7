"""A noisy topic with `action=reject`: no record is lost, repeated or reordered, and other topics of its producer go on."""

import time
from collections.abc import Callable
from statistics import median

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.cluster import KafkaCluster
from tests.integration.numbered_producers import (
    DEADLINE_SECONDS,
    NOISY_RECORDS,
    PARTITIONS,
    QUIET_RECORDS,
    Written,
    produce_with_franz_go,
    produce_with_java,
    produce_with_librdkafka,
)
from tests.integration.proxy_process import ProxyProcess

pytestmark = pytest.mark.alone

LIMIT = 2_000_000


def values_of(cluster: KafkaCluster, topic: str, partition: int) -> list[int]:
    """The numbers of all records of a partition, past the proxy, in order."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    found = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        deadline = time.monotonic() + DEADLINE_SECONDS
        position = 0
        while position < end and time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=0.5):
                assert message.error() is None, message.error()
                position = (message.offset() or 0) + 1
                found.append(int((message.value() or b"")[:8]))
    finally:
        consumer.close()
    return found


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
    slower = median(written.during) / median(written.before)
    print(f"rate {written.noisy_rate / LIMIT:.2f} of the limit, quiet {slower:.2f} times as slow, {throttled}")
    print(sorted(written.before)[-3:], sorted(written.during)[-3:])
    assert throttled["reject"] > 10
    assert throttled["notify"] == throttled["pause"] == 0
    assert 0.8 * LIMIT <= written.noisy_rate <= 1.2 * LIMIT
    assert slower < 5, "a held connection would wait for hundreds of milliseconds"
