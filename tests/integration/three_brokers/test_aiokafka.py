"""aiokafka through the proxy: each way to produce, groups, transactions."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.integration.records import all_of, missing, values
from tests.integration.scanned_proxy import ScannedProxy

WAYS: dict[str, dict[str, Any]] = {
    "acks-0": {"acks": 0},
    "acks-1": {"acks": 1},
    "acks-all": {"acks": "all"},
    "idempotent": {"enable_idempotence": True},
    "gzip": {"acks": "all", "compression_type": "gzip"},
}


@asynccontextmanager
async def producing(front: ScannedProxy, **settings: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=front.bootstrap_servers, max_request_size=2_000_000, **settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def read(front: ScannedProxy, topic: str, group: str, count: int, **settings: Any) -> list[bytes]:
    """The next `count` values of a group, which it then commits."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=front.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )
    await consumer.start()
    try:
        received = [(await consumer.getone()).value for _ in range(count)]
        await consumer.commit()
    finally:
        await consumer.stop()
    return received


@pytest.mark.timeout(90)
async def test_every_way_to_produce_is_read_back_by_a_group(
    front: ScannedProxy, unique_name: Callable[[str], str]
) -> None:
    topic, expected = front.create_topic(unique_name("ways")), {way: values(way) for way in WAYS}
    for way, settings in WAYS.items():
        async with producing(front, **settings) as producer:
            sent = [await producer.send(topic, value) for value in expected[way]]
            await producer.flush()
            if way != "acks-0":
                assert {(await each).topic for each in sent} == {topic}
    count = len(list(all_of(expected)))
    assert missing(expected, await read(front, topic, unique_name("group"), count)) == {}
