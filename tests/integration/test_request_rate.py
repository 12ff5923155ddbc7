"""`request_rate`: all requests count, and only data waits, so a consumer group survives its members' limit."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.bytes_passed import SECONDS, check_held
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import create_topics

pytestmark = pytest.mark.claim("enforcement", "heartbeats pass while data of the same client is held")

LIMIT = "request_rate"
RATE = 8


class Losses(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """What was taken away from a consumer."""

    def __init__(self) -> None:
        self.revoked: list[TopicPartition] = []

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.revoked.extend(revoked)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing is lost."""


@pytest.mark.claim("limits", "request_rate")
@pytest.mark.timeout(90)
async def test_heartbeats_pass_while_data_waits(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """Consumer and producer are one client in debt all along: fetches are slow, and nobody is put out of the group."""
    topic, client_id, other = unique_name("heartbeats"), unique_name("member"), unique_name("another")
    create_topics(kafka_cluster, topic)
    losses = Losses()
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", f"client-id={client_id},{LIMIT}={RATE}") as proxy:

        def requests(api: str) -> float:
            return proxy.metric("requests_total", api=api)

        async with AsyncExitStack() as stack:
            producer, free = [
                await stack.enter_async_context(
                    AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id=each)
                )
                for each in (client_id, other)
            ]
            consumer = AIOKafkaConsumer(
                bootstrap_servers=proxy.bootstrap_servers,
                client_id=client_id,
                group_id=client_id,
                auto_offset_reset="earliest",
                session_timeout_ms=10_000,
                heartbeat_interval_ms=300,
            )
            consumer.subscribe([topic], listener=losses)
            await stack.enter_async_context(consumer)
            await producer.send_and_wait(topic, b"the first")
            await consumer.getone()
            while not proxy.throttles():
                await producer.send_and_wait(topic, b"of the burst")
            revoked_at_first = len(losses.revoked)
            data, heartbeats, began = requests("Produce") + requests("Fetch"), requests("Heartbeat"), time.monotonic()
            received = 0
            while time.monotonic() < began + SECONDS or not received or requests("Heartbeat") < heartbeats + 3:
                await producer.send_and_wait(topic, b"one record")
                received += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
            data = requests("Produce") + requests("Fetch") - data
            beats, seconds = requests("Heartbeat") - heartbeats, time.monotonic() - began
            check_held(data + beats, seconds, RATE)
            await asyncio.gather(*(free.send_and_wait(topic, b"of another client") for _ in range(3 * RATE)))
            assert consumer.assignment() == {TopicPartition(topic, 0)}
            assert len(losses.revoked) == revoked_at_first
        assert proxy.metric("throttled_total", limit=LIMIT, client_id=client_id) > 0
        assert proxy.metric("throttled_total", client_id=other) == 0
