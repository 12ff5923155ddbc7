"""Producing and reading with confluent-kafka, which is librdkafka, until it is done."""

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from deploy.local.cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess
from tests.integration.scanned_proxy import RelayedProxy

DEADLINE_SECONDS = 45.0


def producer_for(front: RelayedProxy, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": front.bootstrap_servers, "message.max.bytes": 1_000_000, **settings})


def produce(producer: Producer, topic: str, sent: list[bytes]) -> None:
    """Produces and waits until each value is delivered. Raises AssertionError with what was not."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    for value in sent:
        producer.produce(topic, value, on_delivery=delivered)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert failed == []


def read(front: RelayedProxy | ProxyProcess, topic: str, group: str, count: int, **settings: Any) -> list[bytes]:
    """The next `count` values of a group, which it then commits."""
    consumer = Consumer(
        {
            "bootstrap.servers": front.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    received: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        consumer.subscribe([topic])
        while len(received) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(received), timeout=0.5):
                error = message.error()
                # A topic that was created a moment ago may not be known to the broker that was asked.
                assert error is None or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART, error
                if error is None:
                    received.append(message.value() or b"")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return received


def numbers_of(cluster: KafkaCluster, topic: str, partition: int, **settings: str) -> list[int]:
    """The numbers of all records of a partition in order, read directly from the broker."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.partition.eof": True, **settings}
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


def records_in(cluster: KafkaCluster, topic: str) -> int:
    """Records, and transaction markers, in a topic of one partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        return int(high - low)
    finally:
        consumer.close()
