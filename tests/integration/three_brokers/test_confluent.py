"""confluent-kafka (librdkafka) through the proxy: each way to produce, both group protocols, share groups."""

import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import ShareConsumer
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from tests.conftest import UniqueName
from tests.integration.librdkafka import DEADLINE_SECONDS, produce, producer_for, read
from tests.integration.records import all_of, missing, values
from tests.integration.scanned_proxy import ScannedProxy

WAYS: dict[str, dict[str, Any]] = {
    "acks-0": {"acks": 0},
    "acks-1": {"acks": 1},
    "acks-all": {"acks": "all"},
    "idempotent": {"enable.idempotence": True},
    "lz4": {"acks": "all", "compression.type": "lz4"},
}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.timeout(150)
def test_every_way_to_produce_is_read_back(front: ScannedProxy, unique_name: UniqueName, protocol: str) -> None:
    topic, expected = front.create_topic(unique_name("ways")), {way: values(way) for way in WAYS}
    for way, settings in WAYS.items():
        produce(producer_for(front, **settings), topic, expected[way])
    count = len(list(all_of(expected)))
    received = read(front, topic, unique_name("group"), count, **{"group.protocol": protocol})
    assert missing(expected, received) == {}


@pytest.mark.timeout(150)
def test_a_group_goes_on_where_it_committed_and_reads_committed(front: ScannedProxy, unique_name: UniqueName) -> None:
    topic, group = front.create_topic(unique_name("transactions")), unique_name("group")
    producer = producer_for(front, **{"transactional.id": unique_name("tx")})
    producer.init_transactions(DEADLINE_SECONDS)
    for name in ("first", "second"):
        producer.begin_transaction()
        produce(producer, topic, values(name))
        producer.commit_transaction(DEADLINE_SECONDS)
        producer.begin_transaction()
        produce(producer, topic, [b"aborted"])
        producer.abort_transaction(DEADLINE_SECONDS)
        received = read(front, topic, group, len(values(name)), **{"isolation.level": "read_committed"})
        assert missing({name: values(name)}, received) == {}


def share_from_the_start(front: ScannedProxy, group: str) -> None:
    """A share group, of any client, begins with the oldest record."""
    with closing(KafkaAdminClient(bootstrap_servers=front.bootstrap_servers)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, {"share.auto.offset.reset": "earliest"})])


@pytest.mark.timeout(150)
def test_a_share_group_gets_every_record(front: ScannedProxy, unique_name: UniqueName) -> None:
    topic, group = front.create_topic(unique_name("shared")), unique_name("share")
    share_from_the_start(front, group)
    expected = {"shared": values("shared")}
    produce(producer_for(front), topic, expected["shared"])
    consumer = ShareConsumer({"bootstrap.servers": front.bootstrap_servers, "group.id": group})
    received: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        consumer.subscribe([topic])
        while len(received) < len(expected["shared"]) and time.monotonic() < deadline:
            for message in consumer.poll(0.5):
                assert message.error() is None, message.error()
                received.append(message.value())
        consumer.commit_sync()
    finally:
        consumer.close()
    assert missing(expected, received) == {}
