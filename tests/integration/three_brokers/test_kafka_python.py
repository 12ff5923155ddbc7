"""kafka-python through the proxy: each way to produce, groups, transactions."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

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


def producer_for(front: ScannedProxy, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=front.bootstrap_servers, **settings)


def read(front: ScannedProxy, topic: str, group: str, count: int, **settings: Any) -> list[bytes]:
    """The next `count` values of a group, which it then commits."""
    received: list[bytes] = []
    with closing(
        KafkaConsumer(
            topic,
            bootstrap_servers=front.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=int(DEADLINE_SECONDS * 1000),
            max_poll_records=count,
            **settings,
        )
    ) as consumer:
        for record in consumer:
            received.append(record.value)
            if len(received) == count:
                break
        consumer.commit()
    return received


@pytest.mark.timeout(150)
def test_every_way_to_produce_is_read_back_by_a_group(front: ScannedProxy, unique_name: Callable[[str], str]) -> None:
    topic, expected = front.create_topic(unique_name("ways")), {way: values(way) for way in WAYS}
    for way, settings in WAYS.items():
        with closing(producer_for(front, **settings)) as producer:
            sent = [producer.send(topic, value) for value in expected[way]]
            producer.flush(DEADLINE_SECONDS)
            assert {each.get(DEADLINE_SECONDS).topic for each in sent} == {topic}
    count = len(list(all_of(expected)))
    assert missing(expected, read(front, topic, unique_name("group"), count)) == {}
