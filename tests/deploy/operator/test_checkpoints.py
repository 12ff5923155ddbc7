"""A streaming query that ran without the proxy goes on behind it from its checkpoint, and back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from deploy.local import artifacts
from pipeline.spark_session import spark_session
from tests.conftest import UniqueName
from tests.integration.librdkafka import records_in
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import create_topics

if TYPE_CHECKING:
    from deploy.local.cluster import KafkaCluster

ROWS: Final = 500
VALUE_BYTES: Final = 1_000
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(300),
    # PySpark leaves it to the collector to close the sockets through which results come.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def write(cluster: KafkaCluster, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in numbers:
        producer.produce(topic, bytes(VALUE_BYTES), key=str(number))
    assert producer.flush(60) == 0
    producer.close()


def keys(cluster: KafkaCluster, topic: str) -> Counter[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: Counter[bytes] = Counter()
    for _ in range(records_in(cluster, topic)):
        [record] = consumer.consume(1, 60)
        found[record.key() or b""] += 1
    consumer.close()
    return found


def test_a_checkpoint_outlives_the_proxy(kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path) -> None:
    source, target = unique_name("source"), unique_name("target")
    create_topics(kafka_cluster, source, target)
    quota = f"client-id=<default>,consumer_byte_rate={ROWS * VALUE_BYTES}"
    with (
        ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy,
        spark_session(artifacts.spark_jars(), app_name="checkpoints", short=True) as spark,
    ):
        ways = (kafka_cluster.bootstrap_servers, proxy.bootstrap_servers, kafka_cluster.bootstrap_servers)
        fetched = []
        for turn, servers in enumerate(ways):
            write(kafka_cluster, source, range(turn * ROWS, (turn + 1) * ROWS))
            options = {"kafka.bootstrap.servers": servers}
            rows = spark.readStream.format("kafka").options(**options, subscribe=source, startingOffsets="earliest")
            sink = rows.load().writeStream.format("kafka").options(**options, topic=target)
            query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            assert records_in(kafka_cluster, target) == (turn + 1) * ROWS
            fetched.append(proxy.metric("bytes_total", direction="fetch"))
            assert (proxy.metric("bytes_total", direction="produce") > ROWS * VALUE_BYTES) is (turn > 0)
    assert keys(kafka_cluster, target) == {str(number).encode(): 1 for number in range(3 * ROWS)}, "each once"
    assert fetched[0] == 0
    assert ROWS * VALUE_BYTES < fetched[1] < 2 * ROWS * VALUE_BYTES, "from where it stopped, not from the beginning"
    assert fetched[2] == fetched[1]
