"""Seed 004: a topic above its threshold is held while the total is above, and one below its threshold goes on."""

from typing import Any

import pytest

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.flood import Flood
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_throttling import producer_for, records
from tests.integration.topics import create_topics

BYTES, MESSAGES = "bytes.in.per.sec.threshold", "messages.in.per.sec.threshold"
TOPIC_BYTES, TOPIC_MESSAGES = 100_000, 100
#: The bytes of the topic with many messages stay far below its share of this total, on fast machines too: otherwise
#: that topic waits for its bytes, and not for its messages.
TOTAL_BYTES, TOTAL_MESSAGES = 2_000_000, 300
TICK_SECONDS = 5


@pytest.mark.claim(
    "limits",
    "bytes.in.per.sec.threshold, total.bytes.in.per.sec.threshold, messages.in.per.sec.threshold, "
    "total.messages.in.per.sec.threshold",
)
@pytest.mark.timeout(120)
def test_a_topic_above_its_threshold_waits_for_the_total(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    """In bytes, and in messages of compressed batches. Two proxies: one has a total that is exceeded, one has room."""
    large, many, below = unique_name("large"), unique_name("many"), unique_name("below")
    create_topics(kafka_cluster, large, many, below)

    def proxy_with_total(total: str) -> ProxyProcess:
        topics = f"topic={large},{BYTES}={TOPIC_BYTES}", f"topic={many},{MESSAGES}={TOPIC_MESSAGES}"
        return ProxyProcess(kafka_cluster.bootstrap_servers, quotas=(f"total=true,{total}", *topics))

    batches: dict[str, Any] = {"batch.num.messages": 50, "linger.ms": 20, "compression.type": "zstd"}
    with (
        proxy_with_total(f"total.{BYTES}={TOTAL_BYTES},total.{MESSAGES}={TOTAL_MESSAGES}") as tight,
        proxy_with_total(f"total.{BYTES}=100GB,total.{MESSAGES}=1000000000") as roomy,
        Flood(tight.bootstrap_servers, large, large) as bytes_flood,
        Flood(tight.bootstrap_servers, many, many, record_bytes=1_000, **batches) as messages_flood,
    ):

        def held_now() -> set[tuple[str, str, str, float]]:
            names = ("client_id", "limit", "entity", "limit_value")
            return {tuple(each[name] for name in names) for each in tight.throttles() if each["mode"] == "pause"}

        def passed() -> float:
            return tight.metric("bytes_total", client_id=large) + tight.metric("bytes_total", client_id=many)

        held = {(large, BYTES, f"topic:{large}", TOPIC_BYTES), (many, MESSAGES, f"topic:{many}", TOPIC_MESSAGES)}
        eventually(lambda: held_now() == held, 6 * TICK_SECONDS, "the floods are held once a tick has seen them")
        assert tight.metric("bytes_total", client_id=many) < messages_flood.records() * 1_000 / 5, "compressed"
        before = passed()
        produce(producer_for(tight, unique_name("neighbour")), below, [b"below its share"] * 20)
        assert held_now() == held
        assert passed() == before
        assert tight.metric("produced_rate", unit="bytes", outcome="accepted") > TOTAL_BYTES
        assert tight.metric("produced_rate", unit="messages", outcome="accepted") > TOTAL_MESSAGES
        assert tight.wait_for_event("throttled", 5, entity=f"topic:{large}")["topics"] == large
        free = producer_for(roomy, unique_name("free"))

        def measured() -> bool:
            produce(free, large, records(5 * TOPIC_BYTES))
            return roomy.metric("produced_rate", unit="bytes", outcome="accepted") > TOPIC_BYTES

        eventually(measured, 6 * TICK_SECONDS, "a tick has seen the other producer")
        produce(free, large, records(TOPIC_BYTES))
        assert roomy.metric("throttled_total") == 0
        eventually(
            lambda: tight.metric("produced_rate", unit="bytes", outcome="throttled") > 0,
            6 * TICK_SECONDS,
            "it is counted",
        )
        assert bytes_flood.problems == messages_flood.problems == []
