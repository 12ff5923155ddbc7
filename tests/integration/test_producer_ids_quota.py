"""`producer_ids_rate` with real idempotent producers: the third new id waits, and the two that are known go on."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from tests.integration.flood import create_topics
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_mutation_quota import java

pytestmark = pytest.mark.alone

LIMIT = "producer_ids_rate"
WINDOW_SECONDS = 6


def flags(entity: str) -> tuple[str, ...]:
    """Two new ids in six seconds."""
    return (
        *("--quota", f"{entity},{LIMIT}=2"),
        *("--producer-id-quota-window-size-seconds", str(WINDOW_SECONDS)),
        *("--producer-id-quota-window-count", "4"),
    )


def held(proxy: ProxyProcess) -> list[tuple[str, str]]:
    """The limits of those who wait, and whose they are."""
    return [(each["limit"], each["entity"]) for each in proxy.throttles() if each["mode"] == "pause"]


@pytest.mark.timeout(120)
def test_a_third_producer_waits_and_the_first_two_continue(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Two of librdkafka, and Java's own."""
    topic = unique_name("ids")
    create_topics(kafka_cluster, topic)
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags("user=ANONYMOUS")) as proxy, java() as gateway:
        properties = gateway.jvm.java.util.Properties()
        properties.put("bootstrap.servers", proxy.bootstrap_servers)
        serializer = gateway.jvm.org.apache.kafka.common.serialization.StringSerializer
        third = gateway.jvm.org.apache.kafka.clients.producer.KafkaProducer(properties, serializer(), serializer())
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "enable.idempotence": True}
        known = [Producer(settings), Producer(settings)]
        began = time.monotonic()
        for each in known:
            produce(each, topic, [b"new"])
        sent = third.send(gateway.jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, "new, and too many"))
        eventually(lambda: held(proxy) == [(LIMIT, "user:ANONYMOUS")], 30, "the third producer is held")
        for each in known:
            produce(each, topic, [b"known"] * 5)
        assert not sent.isDone()
        sent.get()
        assert time.monotonic() - began > WINDOW_SECONDS / 2
        third.close()
        assert proxy.wait_for_event("throttled", 5)["limit"] == LIMIT
        assert proxy.metric("throttled_total", limit=LIMIT) > 0


@pytest.mark.timeout(120)
async def test_each_user_has_the_default_to_itself_and_known_ids_cost_nothing(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Producers without ids count for nothing."""
    topic = unique_name("ids")
    create_topics(kafka_cluster, topic)
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--principal", "alice", *flags("user=<default>")) as proxy:
        async with AsyncExitStack() as stack:
            without, first, second, third = [
                await stack.enter_async_context(
                    AIOKafkaProducer(bootstrap_servers=proxy.bootstrap_servers, enable_idempotence=idempotent)
                )
                for idempotent in (False, True, True, True)
            ]
            began = time.monotonic()
            for each in (without, first, second, first, second):
                await each.send_and_wait(topic, b"passes")
            sent = await third.send(topic, b"new, and too many")
            await asyncio.to_thread(
                eventually, lambda: held(proxy) == [(LIMIT, "user:alice")], 20, "the third producer is held"
            )
            for each in (without, first, second):
                await each.send_and_wait(topic, b"passes")
            assert not sent.done()
            await sent
            assert time.monotonic() - began > WINDOW_SECONDS / 2
