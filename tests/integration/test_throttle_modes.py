"""Each throttle mode with real clients, and a consumer group far over its quota."""

import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess

pytestmark = pytest.mark.alone

LIMIT = 100_000
#: Ten requests of 20 kB leave a second of debt after the burst.
VALUE = bytes(20_000)
SESSION_SECONDS = 6


def quota(client_id: str, mode: str) -> str:
    return f"client-id={client_id},producer_byte_rate={LIMIT},burst_seconds=0.1,mode={mode}"


@pytest.mark.parametrize("mode", ["notify", "delay", "pause"])
@pytest.mark.timeout(120)
async def test_a_request_that_leaves_debt(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], mode: str
) -> None:
    """aiokafka sends the next request after the response to the one before: late with `delay`, else at once."""
    client_id = unique_name(mode)
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota(client_id, mode)) as proxy:
        producer = AIOKafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, client_id=client_id, max_request_size=2_000_000
        )
        await producer.start()
        try:
            await producer.send_and_wait(client_id, b"the topic exists")
            begun = time.monotonic()
            await producer.send_and_wait(client_id, 5 * VALUE)
            first_seconds = time.monotonic() - begun
            await producer.send_and_wait(client_id, b"next")
            second_seconds = time.monotonic() - begun
        finally:
            await producer.stop()
        assert (first_seconds > 0.7) == (mode == "delay"), first_seconds
        assert second_seconds > 0.7, "in each mode the limit holds"
        counted = {each: proxy.metric("throttled_total", client_id=client_id, mode=each) for each in (mode, "pause")}
        assert counted[mode] >= 1
        assert (counted["pause"] > 0) == (mode != "delay"), "what was served by a delay does not hold"
        assert proxy.metric("notices_total", client_id=client_id, outcome="waited") == 0


@pytest.mark.parametrize("mode", ["auto", "notify", "delay", "pause"])
@pytest.mark.timeout(120)
def test_the_limit_holds_in_each_mode(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], mode: str
) -> None:
    """librdkafka, which sends many requests without waiting for their responses."""
    client_id = unique_name(mode)
    with ProxyProcess(
        kafka_cluster.bootstrap_servers, "--throttle-mode", mode, "--quota", quota(client_id, mode)
    ) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id}
        producer = Producer({**settings, "batch.size": 2 * len(VALUE)})
        producer.produce(client_id, b"the topic exists")
        assert producer.flush(30) == 0
        begun = time.monotonic()
        for _ in range(20):
            producer.produce(client_id, VALUE)
            producer.poll(0)
        assert producer.flush(30) == 0
        took_seconds = time.monotonic() - begun
        least_seconds = (20 * len(VALUE) - 0.1 * LIMIT) / LIMIT - 1.5  # one request, which may have many records
        assert least_seconds < took_seconds < 10


@pytest.mark.parametrize("seconds", [12, pytest.param(120, marks=pytest.mark.nightly)])
@pytest.mark.timeout(300)
def test_a_group_far_over_its_quota_does_not_rebalance(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], seconds: int
) -> None:
    """Its heartbeats are due within 6 s, and no hold starts on them."""
    topic = unique_name("group")
    rate, partitions, members = 200_000, 6, 3
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    filler = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    for number in range((seconds + 20) * rate // len(VALUE)):
        filler.produce(topic, VALUE, partition=number % partitions)
        filler.poll(0)
    assert filler.flush(60) == 0
    flags = ("--quota", f"client-id={topic},consumer_byte_rate={rate},burst_seconds=0.1")
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags) as proxy:
        assigned: list[tuple[int, int]] = []
        revoked: list[int] = []
        consumers = []
        for member in range(members):
            consumer = Consumer(
                {
                    "bootstrap.servers": proxy.bootstrap_servers,
                    "client.id": topic,
                    "group.id": topic,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": SESSION_SECONDS * 1_000,
                    "heartbeat.interval.ms": 1_000,
                }
            )

            def on_assign(_: Consumer, found: list[TopicPartition], member: int = member) -> None:
                assigned.append((member, len(found)))

            def on_revoke(_: Consumer, _found: list[TopicPartition], member: int = member) -> None:
                revoked.append(member)

            consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
            consumers.append(consumer)

        def read_until(is_done: Callable[[], bool]) -> int:
            read = 0
            while not is_done():
                for consumer in consumers:
                    for message in consumer.consume(100, timeout=0.02):
                        assert message.error() is None, message.error()
                        read += len(message.value() or b"")
            return read

        def is_stable() -> bool:
            latest = dict(assigned)
            return len(latest) == members and sum(latest.values()) == partitions

        joined = time.monotonic()
        read_until(lambda: is_stable() or time.monotonic() > joined + 60)
        assert is_stable()
        assigned.clear()
        revoked.clear()
        begun = time.monotonic()
        read = read_until(lambda: time.monotonic() > begun + seconds)
        assert (assigned, revoked) == ([], []), "the group has rebalanced"
        assert 0.5 * rate * seconds < read < 1.2 * rate * (seconds + 1) + 1_048_588 * members
        assert proxy.metric("throttled_total", client_id=topic, limit="consumer_byte_rate") > 0
        for consumer in consumers:
            consumer.close()
