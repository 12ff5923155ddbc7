"""The proxy restarts under producers that idle: the same objects go on, on the ports that they know.

The Java producer's turn is in test_spark.py: Spark caches them.
"""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaProducer

from deploy.local.cluster import KafkaCluster
from tests.integration.librdkafka import produce, producer_for
from tests.integration.scanned_proxy import ScannedProxy


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.nightly)])
def restarted(request: pytest.FixtureRequest, kafka_cluster: KafkaCluster) -> Iterator[ScannedProxy]:
    """A proxy of the test's own, to restart."""
    with ScannedProxy(kafka_cluster, event_loop=request.param) as front:
        yield front
        assert front.relay.sightings == 0


def restart(front: ScannedProxy) -> None:
    front.proxy.stop()
    front.proxy.start()


def records_in(front: ScannedProxy, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": front.bootstrap_servers, "group.id": "nobody"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1])
    finally:
        consumer.close()


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.timeout(90)
async def test_aiokafka(restarted: ScannedProxy, unique_name: Callable[[str], str], idempotent: bool) -> None:
    topic = restarted.create_topic(unique_name("restart"), 1)
    producer = AIOKafkaProducer(
        bootstrap_servers=restarted.bootstrap_servers, acks="all", enable_idempotence=idempotent
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"before")
        restart(restarted)
        await producer.send_and_wait(topic, b"after")
    finally:
        await producer.stop()
    assert records_in(restarted, topic) == 2


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.timeout(90)
def test_librdkafka(restarted: ScannedProxy, unique_name: Callable[[str], str], idempotent: bool) -> None:
    topic = restarted.create_topic(unique_name("restart"), 1)
    producer = producer_for(restarted, **{"enable.idempotence": idempotent})
    produce(producer, topic, [b"before"])
    restart(restarted)
    produce(producer, topic, [b"after"])
    assert records_in(restarted, topic) == 2


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.timeout(90)
def test_kafka_python(restarted: ScannedProxy, unique_name: Callable[[str], str], idempotent: bool) -> None:
    topic = restarted.create_topic(unique_name("restart"), 1)
    with closing(
        KafkaProducer(bootstrap_servers=restarted.bootstrap_servers, acks="all", enable_idempotence=idempotent)
    ) as producer:
        producer.send(topic, b"before").get(40)
        restart(restarted)
        producer.send(topic, b"after").get(40)
    assert records_in(restarted, topic) == 2
