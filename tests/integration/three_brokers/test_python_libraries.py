"""aiokafka and kafka-python through the proxy: each way to produce, and a group."""

import asyncio
from contextlib import closing
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer

from tests.conftest import UniqueName
from tests.integration.records import all_of, missing, values
from tests.integration.scanned_proxy import ScannedProxy

DEADLINE_SECONDS = 45.0
WAYS: dict[str, dict[str, Any]] = {
    "acks-0": {"acks": 0, "enable_idempotence": False},
    "acks-1": {"acks": 1, "enable_idempotence": False},
    "acks-all": {"acks": "all", "enable_idempotence": False},
    "idempotent": {"enable_idempotence": True},
    "gzip": {"acks": "all", "compression_type": "gzip"},
}
READING = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


async def with_aiokafka(servers: str, topic: str, group: str, expected: dict[str, list[bytes]]) -> list[bytes]:
    """Produces each value in its way, reads as many in a group, and commits them."""
    for way, settings in WAYS.items():
        async with AIOKafkaProducer(bootstrap_servers=servers, max_request_size=2_000_000, **settings) as producer:
            sent = [await producer.send(topic, value) for value in expected[way]]
            await producer.flush()
            if way != "acks-0":
                assert {(await each).topic for each in sent} == {topic}
    async with AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=group, **READING) as consumer:
        received = [(await consumer.getone()).value for _ in all_of(expected)]
        await consumer.commit()
    return received


def with_kafka_python(servers: str, topic: str, group: str, expected: dict[str, list[bytes]]) -> list[bytes]:
    """The same."""
    for way, settings in WAYS.items():
        with closing(KafkaProducer(bootstrap_servers=servers, **settings)) as producer:
            sent = [producer.send(topic, value) for value in expected[way]]
            producer.flush(DEADLINE_SECONDS)
            assert {each.get(DEADLINE_SECONDS).topic for each in sent} == {topic}
    timeout_ms = int(DEADLINE_SECONDS * 1000)
    with closing(
        KafkaConsumer(topic, bootstrap_servers=servers, group_id=group, consumer_timeout_ms=timeout_ms, **READING)
    ) as consumer:
        received = [record.value for _, record in zip(all_of(expected), consumer, strict=False)]
        consumer.commit()
    return received


@pytest.mark.parametrize("library", ["aiokafka", "kafka-python"])
@pytest.mark.timeout(150)
async def test_every_way_to_produce_is_read_back(front: ScannedProxy, unique_name: UniqueName, library: str) -> None:
    topic, expected = front.create_topic(unique_name("ways")), {way: values(way) for way in WAYS}
    given = (front.bootstrap_servers, topic, unique_name("group"), expected)
    if library == "aiokafka":
        received = await with_aiokafka(*given)
    else:
        received = await asyncio.to_thread(with_kafka_python, *given)
    assert missing(expected, received) == {}
