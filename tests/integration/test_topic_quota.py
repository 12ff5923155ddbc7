"""Limits on the records of topics: bytes and messages, whoever produces them, in whichever version and compression."""

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, TopicPartition

from bench.flooding_clients import command
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.evenness import measure
from deploy.local.tap import Tap
from tests.integration.flood import RECORD_BYTES, Flood, create_topics, rates
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_produce_quota import span, uneven

pytestmark = pytest.mark.alone

BYTES, MESSAGES = "bytes_in_rate", "messages_in_rate"
LIMIT = 2_000_000
SECONDS = 6


@pytest.mark.timeout(120)
def test_a_topic_is_held_in_every_second_and_the_others_are_not(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str]
) -> None:
    """Two libraries share what the topic has."""
    limited, free = unique_name("limited"), unique_name("free")
    client_ids = {library: unique_name(library) for library in ("aiokafka", "librdkafka")}
    create_topics(tapped_cluster, limited, free)
    quota = f"topic={limited},{BYTES}={LIMIT}"
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        for library, client_id in client_ids.items():
            argv = command(library, proxy.bootstrap_servers, client_id, limited)
            stack.callback(stack.enter_context(subprocess.Popen(argv, cwd=PROJECT)).kill)

        def frames() -> list[tuple[int, int]]:
            return [each for client_id in client_ids.values() for each in tap.sizes("produce", client_id)]

        eventually(lambda: len(frames()) > LIMIT / 100_000, 60, "they have begun")
        with Flood(proxy.bootstrap_servers, unique_name("bystander"), free, **{"batch.num.messages": 20}) as bystander:
            bystander.wait_for(1)
            (free_rate,) = rates(2, bystander)
        eventually(lambda: span(sorted(frames())) >= SECONDS * 10**9, 60, f"they have sent for {SECONDS} s")
        run = measure(frames(), LIMIT, connections=len(client_ids))
        for client_id in client_ids.values():
            assert tap.sizes("produce", client_id), "both have their part of it"
        assert proxy.metric("throttled_total", limit=BYTES) > 0
        assert proxy.metric("throttled_total", client_id=bystander.client_id) == 0
        assert proxy.wait_for_event("throttled", 5, limit=BYTES)["entity"] == f"topic:{limited}"
    assert free_rate > 2 * LIMIT
    assert uneven({"both": run}) == {}


@pytest.mark.timeout(90)
def test_the_default_is_for_each_topic_alone(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    low, high = 300_000, 900_000
    topics = {unique_name("default"): low, unique_name("default-too"): low, unique_name("own"): high}
    create_topics(kafka_cluster, *topics)
    own = list(topics)[-1]
    quotas = ("--quota", f"topic=<default>,{BYTES}={low}", "--quota", f"topic={own},{BYTES}={high}")
    with ProxyProcess(kafka_cluster.bootstrap_servers, *quotas) as proxy, ExitStack() as stack:
        floods = [stack.enter_context(Flood(proxy.bootstrap_servers, f"client-of-{topic}", topic)) for topic in topics]
        for flood, limit in zip(floods, topics.values(), strict=True):
            flood.wait_for(2 * limit // RECORD_BYTES)
        found = rates(3, *floods)
    assert found == pytest.approx(list(topics.values()), rel=0.1)


@pytest.mark.timeout(90)
def test_messages_are_counted_with_any_compression(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    limit, batch = 400, 20
    topics = {codec: unique_name(codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    create_topics(kafka_cluster, *topics.values())
    quota = f"topic=<default>,{MESSAGES}={limit}"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        settings: dict[str, Any] = {"batch.num.messages": batch, "linger.ms": 5}
        floods = [
            stack.enter_context(
                Flood(
                    proxy.bootstrap_servers,
                    topic,
                    topic,
                    record_bytes=1000,
                    **(settings | {"compression.type": codec}),
                )
            )
            for codec, topic in topics.items()
        ]
        for flood in floods:
            flood.wait_for(2 * limit)
        found = [rate / 1000 for rate in rates(3, *floods)]
        sent = {codec: proxy.metric("bytes_total", client_id=topic) for codec, topic in topics.items()}
        requests = proxy.metric("requests_total", api="Produce")
        written = sum(flood.records() for flood in floods)
        assert proxy.metric("throttled_total", limit=MESSAGES) > 0
    assert found == pytest.approx([limit] * len(topics), rel=0.1)
    assert requests < written / 5, "a request holds many of them, and each counts"
    assert all(sent[codec] < sent["none"] / 2 for codec in topics if codec != "none"), sent


@pytest.mark.timeout(90)
async def test_aiokafka_with_a_limited_and_a_free_topic_in_its_requests(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """All arrives; the limited one in its time."""
    limit, count, largest = 500_000, 150, 60_000
    limited, free = unique_name("limited"), unique_name("free")
    create_topics(kafka_cluster, limited, free)
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", f"topic={limited},{BYTES}={limit}") as proxy:
        async with AIOKafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, max_batch_size=largest, linger_ms=20
        ) as producer:
            began = time.monotonic()
            sent = [await producer.send(topic, bytes(RECORD_BYTES)) for _ in range(count) for topic in (limited, free)]
            for each in sent:
                await each
            elapsed = time.monotonic() - began
        requests = proxy.metric("requests_total", api="Produce")
        assert proxy.wait_for_event("throttled", 5)["entity"] == f"topic:{limited}"
    assert [_records_in(kafka_cluster, topic) for topic in (limited, free)] == [count, count]
    assert requests < count, "both are in one request"
    assert elapsed >= (count * RECORD_BYTES - limit - largest) / limit


@pytest.mark.timeout(90)
def test_librdkafka_with_a_limited_and_a_free_topic_on_one_connection(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    limit = 500_000
    limited, free, client_id = unique_name("limited"), unique_name("free"), unique_name("librdkafka")
    create_topics(kafka_cluster, limited, free)
    with (
        ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", f"topic={limited},{BYTES}={limit}") as proxy,
        Flood(proxy.bootstrap_servers, client_id, limited, free) as flood,
    ):
        eventually(lambda: flood.records(limited) * RECORD_BYTES > 2 * limit, 30, "the burst is over")
        free_before = flood.records(free)
        (limited_rate,) = rates(3, flood, topic=limited)
        assert flood.records(free) > free_before, "the free one goes on between them"
        assert flood.problems == []
        assert proxy.wait_for_event("throttled", 5, client_id=client_id)["entity"] == f"topic:{limited}"
    assert limited_rate == pytest.approx(limit, rel=0.1)


def _records_in(cluster: KafkaCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "nobody"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1])
    finally:
        consumer.close()
