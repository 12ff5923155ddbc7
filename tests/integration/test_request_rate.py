"""`request_rate`: all requests count, and only data waits, so a consumer group survives its members' limit."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition

from deploy.local.cluster import KafkaCluster
from tests.integration.flood import create_topics
from tests.integration.proxy_process import ProxyProcess

pytestmark = pytest.mark.alone

LIMIT = "request_rate"
SECONDS = 4
HEARTBEAT_MS = 500


class Losses(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """What was taken away from a consumer."""

    def __init__(self) -> None:
        self.revoked: list[TopicPartition] = []

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.revoked.extend(revoked)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing is lost."""


async def send_for(producer: AIOKafkaProducer, topic: str, seconds: float) -> float:
    """One record a request, one after the other. Returns the requests per second."""
    began = time.monotonic()
    count = 0
    while time.monotonic() < began + seconds:
        await producer.send_and_wait(topic, b"one record")
        count += 1
    return count / (time.monotonic() - began)


@pytest.mark.timeout(90)
async def test_requests_are_held_to_their_rate(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    limit = 25
    topic, client_id = unique_name("chatty"), unique_name("chatty")
    create_topics(kafka_cluster, topic)
    quota = f"user=<default>,client-id={client_id},{LIMIT}={limit}"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy:
        async with AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id=client_id) as producer:
            await send_for(producer, topic, 1.5)  # the burst
            assert await send_for(producer, topic, SECONDS) == pytest.approx(limit, rel=0.1)
        async with AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id="another") as producer:
            assert await send_for(producer, topic, 1) > 1.5 * limit
        assert proxy.metric("throttled_total", limit=LIMIT, client_id=client_id) > 0
        assert proxy.metric("throttled_total", client_id="another") == 0


@pytest.mark.timeout(90)
async def test_heartbeats_pass_while_data_waits(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    """Consumer and producer are one client in debt all along: fetches are slow, and nobody is put out of the group."""
    limit = 8
    topic, client_id = unique_name("heartbeats"), unique_name("member")
    create_topics(kafka_cluster, topic)
    losses = Losses()
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", f"client-id={client_id},{LIMIT}={limit}") as proxy:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(
                AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id=client_id)
            )
            consumer = AIOKafkaConsumer(
                bootstrap_servers=proxy.bootstrap_servers,
                client_id=client_id,
                group_id=client_id,
                auto_offset_reset="earliest",
                session_timeout_ms=6000,
                heartbeat_interval_ms=HEARTBEAT_MS,
            )
            consumer.subscribe([topic], listener=losses)
            await stack.enter_async_context(consumer)
            await producer.send_and_wait(topic, b"the first")
            await consumer.getone()
            revoked_at_first = len(losses.revoked)
            heartbeats = proxy.metric("requests_total", api="Heartbeat")
            received = 0
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(send_for(producer, topic, SECONDS))
                while not sending.done():
                    received += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
            heartbeats = proxy.metric("requests_total", api="Heartbeat") - heartbeats
            assert consumer.assignment() == {TopicPartition(topic, 0)}
            assert len(losses.revoked) == revoked_at_first
        assert proxy.metric("throttled_total", limit=LIMIT, client_id=client_id) > 0
    assert sending.result() < limit, "fetches and heartbeats have their part of it"
    assert received > 0
    assert heartbeats >= 0.7 * SECONDS * 1000 / HEARTBEAT_MS
