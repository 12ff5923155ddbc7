"""Protocol versions that Kafka 4 no longer speaks, against the last broker that does."""

import struct
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from tests.integration.librdkafka import produce, read
from tests.integration.records import missing, values
from tests.integration.scanned_proxy import ScannedProxy
from tests.integration.wire import Wire, records

PRODUCE, FETCH = 0, 1
LIMIT = 20_000
VALUE = b"x" * 2_000


@pytest.fixture(scope="module")
def old_front() -> Iterator[ScannedProxy]:
    """Kafka 3.9.1 behind a proxy that holds the client id `slow` both ways: a value needs a tenth of a second."""
    quota = f"client-id=slow,producer_byte_rate={LIMIT},consumer_byte_rate={LIMIT},burst_seconds=0.05"
    with KafkaCluster(1, version="3.9.1") as cluster, ScannedProxy(cluster, "--quota", quota) as front:
        yield front
        assert front.relay.sightings == 0


def produce_body(topic: str, message_set: bytes, acks: int = 1) -> bytes:
    """Produce v0 to v2."""
    name = topic.encode()
    head = struct.pack(">hiih", acks, 10_000, 1, len(name)) + name
    return head + struct.pack(">iii", 1, 0, len(message_set)) + message_set


def fetch_body(topic: str, version: int, offset: int = 0) -> bytes:
    """Fetch v0 to v3."""
    name = topic.encode()
    bounds = struct.pack(">iii", -1, 500, 1) + (struct.pack(">i", 1 << 20) if version >= 3 else b"")
    return bounds + struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, 0, offset, 1 << 20)


def produced(topic: str, version: int, response: bytes) -> tuple[int, int]:
    """Offset and throttle_time_ms (0 where the version has none) of an answer to `produce_body`."""
    at = 4 + 2 + len(topic) + 4
    partition, error, offset = struct.unpack_from(">ihq", response, at)
    assert (partition, error) == (0, 0)
    at += 14 + (8 if version >= 2 else 0)
    throttle = struct.unpack_from(">i", response, at)[0] if version >= 1 else 0
    assert len(response) == at + (4 if version >= 1 else 0)
    return offset, throttle


def fetched(topic: str, version: int, response: bytes) -> tuple[bytes, int]:
    """Message set and throttle_time_ms of an answer to `fetch_body`."""
    throttle = struct.unpack_from(">i", response)[0] if version >= 1 else 0
    at = (4 if version >= 1 else 0) + 4 + 2 + len(topic) + 4
    partition, error, _, size = struct.unpack_from(">ihqi", response, at)
    assert (partition, error) == (0, 0)
    assert len(response) == at + 18 + size
    return response[at + 18 :], throttle


def node(front: ScannedProxy, client_id: str) -> Wire:
    return Wire("127.0.0.9", front.node_ports[1], client_id)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.timeout(90)
def test_produce(old_front: ScannedProxy, unique_name: Callable[[str], str], version: int) -> None:
    topic = old_front.create_topic(unique_name("old"), 1)
    message_set = records(VALUE, magic=1 if version >= 2 else 0)
    with node(old_front, "fast") as wire:
        assert produced(topic, version, wire.ask(PRODUCE, version, produce_body(topic, message_set))) == (0, 0)
    with node(old_front, "slow") as wire:
        answers = [
            produced(topic, version, wire.ask(PRODUCE, version, produce_body(topic, message_set))) for _ in range(3)
        ]
    assert [offset for offset, _ in answers] == [1, 2, 3]
    if version >= 1:
        assert answers[-1][1] > 0, "the client is told"
    assert old_front.proxy.metric("throttled_total", client_id="slow", limit="producer_byte_rate") > 0


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.timeout(90)
def test_fetch(old_front: ScannedProxy, unique_name: Callable[[str], str], version: int) -> None:
    topic = old_front.create_topic(unique_name("old"), 1)
    with node(old_front, "fast") as wire:
        sent = records(VALUE, magic=1)
        produced(topic, 2, wire.ask(PRODUCE, 2, produce_body(topic, sent)))
        message_set, throttle = fetched(topic, version, wire.ask(FETCH, version, fetch_body(topic, version)))
        assert VALUE in message_set
        assert throttle == 0
    with node(old_front, "slow") as wire:
        answers = [fetched(topic, version, wire.ask(FETCH, version, fetch_body(topic, version))) for _ in range(2)]
    assert all(VALUE in message_set for message_set, _ in answers)
    if version >= 1:
        assert answers[-1][1] > 0, "the client is told"


@pytest.mark.parametrize("fallback", ["0.9.0.1", pytest.param("0.10.2.0", marks=pytest.mark.nightly), "0.11.0.0"])
@pytest.mark.timeout(120)
def test_librdkafka_that_is_told_how_old_the_broker_is(
    old_front: ScannedProxy, unique_name: Callable[[str], str], fallback: str
) -> None:
    """Without ApiVersions it speaks what a broker of that age spoke: Produce v1 and Fetch v1 for 0.9."""
    old = {"api.version.request": fallback != "0.9.0.1", "broker.version.fallback": fallback}
    topic, expected = old_front.create_topic(unique_name("old")), {"old": values("old")}
    producer = Producer({"bootstrap.servers": old_front.bootstrap_servers, "message.max.bytes": 1_000_000, **old})
    produce(producer, topic, expected["old"])
    assert missing(expected, read(old_front, topic, unique_name("group"), len(expected["old"]), **old)) == {}
