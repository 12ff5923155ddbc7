"""Seed 004: a topic above its threshold is held while the total is above, and one below its threshold goes on."""

from collections.abc import Callable
from typing import Any

import pytest

from deploy.local.cluster import KafkaCluster
from tests.integration.flood import Flood, create_topics, rates
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_throttling import producer_for

pytestmark = pytest.mark.alone

THRESHOLD = "bytes.in.per.sec.threshold"
TOPIC_THRESHOLD = 100_000
TICK_SECONDS = 5
MESSAGES_THRESHOLD = "messages.in.per.sec.threshold"
TOPIC_MESSAGES = 100
TOTAL_MESSAGES = 300


@pytest.mark.timeout(120)
def test_a_topic_above_its_threshold_waits_only_while_the_total_is_above(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """The same load on two proxies: one has a total that it exceeds, one has room."""
    above, below = unique_name("above"), unique_name("below")
    create_topics(kafka_cluster, above, below)
    topic_quota = f"topic={above},{THRESHOLD}={TOPIC_THRESHOLD}"

    def proxy_with_total(total: str) -> ProxyProcess:
        total_quota = f"total=true,total.{THRESHOLD}={total}"
        return ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", total_quota, "--quota", topic_quota)

    with (
        proxy_with_total("300kB") as tight,
        proxy_with_total("100GB") as roomy,
        Flood(tight.bootstrap_servers, unique_name("held"), above) as held,
        Flood(roomy.bootstrap_servers, unique_name("free"), above) as free,
    ):

        def held_now() -> list[dict[str, Any]]:
            return [each for each in tight.throttles() if each["mode"] == "pause"]

        (waiting,) = eventually(held_now, 3 * TICK_SECONDS, "the flood is held once a tick has seen it")
        assert {name: waiting[name] for name in ("client_id", "limit", "entity", "limit_value")} == {
            "client_id": held.client_id,
            "limit": THRESHOLD,
            "entity": f"topic:{above}",
            "limit_value": TOPIC_THRESHOLD,
        }
        passed = tight.metric("bytes_total", client_id=held.client_id)
        neighbour = producer_for(tight, unique_name("neighbour"))
        produce(neighbour, below, [b"below its share"] * 20)
        (went_on,) = rates(2, free)
        assert [each["client_id"] for each in held_now()] == [held.client_id]
        assert tight.metric("bytes_total", client_id=held.client_id) == passed
        line = tight.wait_for_event("throttled", 5)
        assert (line["limit"], line["entity"], line["topics"]) == (THRESHOLD, f"topic:{above}", above)

        def measured() -> bool:
            return roomy.metric("produced_rate", unit="bytes", outcome="accepted") > TOPIC_THRESHOLD

        eventually(measured, 3 * TICK_SECONDS, "a tick has seen the other flood")
        assert went_on > TOPIC_THRESHOLD
        assert roomy.throttles() == []
        assert tight.metric("produced_rate", unit="bytes", outcome="accepted") > 300_000
        eventually(
            lambda: tight.metric("produced_rate", unit="bytes", outcome="throttled") > 0,
            2 * TICK_SECONDS,
            "it is counted",
        )
        assert roomy.metric("throttled_total") == 0


@pytest.mark.timeout(120)
def test_compressed_messages_count_in_full(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    """As above, in messages: batches of 50, of which little but zeros goes over the wire."""
    above, below = unique_name("above"), unique_name("below")
    create_topics(kafka_cluster, above, below)
    topic_quota = f"topic={above},{MESSAGES_THRESHOLD}={TOPIC_MESSAGES}"
    batches: dict[str, Any] = {
        "batch.num.messages": 50,
        "linger.ms": 20,
        "compression.type": "zstd",
        "record_bytes": 1_000,
    }

    def proxy_with_total(total: int) -> ProxyProcess:
        total_quota = f"total=true,total.{MESSAGES_THRESHOLD}={total}"
        return ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", total_quota, "--quota", topic_quota)

    with (
        proxy_with_total(TOTAL_MESSAGES) as tight,
        proxy_with_total(1_000_000_000) as roomy,
        Flood(tight.bootstrap_servers, unique_name("held"), above, **batches) as held,
        Flood(roomy.bootstrap_servers, unique_name("free"), above, **batches) as free,
    ):

        def held_now() -> list[dict[str, Any]]:
            return [each for each in tight.throttles() if each["mode"] == "pause"]

        (waiting,) = eventually(held_now, 3 * TICK_SECONDS, "the flood is held once a tick has seen it")
        assert {name: waiting[name] for name in ("client_id", "limit", "entity", "limit_value")} == {
            "client_id": held.client_id,
            "limit": MESSAGES_THRESHOLD,
            "entity": f"topic:{above}",
            "limit_value": TOPIC_MESSAGES,
        }
        observed = tight.metric("produced_rate", unit="messages", outcome="accepted")
        passed = tight.metric("bytes_total", client_id=held.client_id)
        eventually(
            lambda: held.records() == pytest.approx(TICK_SECONDS * observed, rel=0.02),
            TICK_SECONDS,
            "what was observed in the five seconds before it was held is what the client knows to be written",
        )
        assert passed < held.records() * held.record_bytes / 5, "compressed"
        assert tight.metric("requests_total", api="Produce") < held.records() / 5, "many in a request"
        neighbour = producer_for(tight, unique_name("neighbour"))
        produce(neighbour, below, [b"below its share"] * 20)
        (went_on,) = rates(2, free)
        assert [each["client_id"] for each in held_now()] == [held.client_id]
        assert tight.metric("bytes_total", client_id=held.client_id) == passed
        line = tight.wait_for_event("throttled", 5)
        assert (line["limit"], line["entity"], line["topics"]) == (MESSAGES_THRESHOLD, f"topic:{above}", above)
        assert observed > TOTAL_MESSAGES
        assert went_on > TOPIC_MESSAGES * free.record_bytes
        assert roomy.throttles() == []
        assert roomy.metric("throttled_total") == 0
        throttled = eventually(
            lambda: tight.metric("produced_rate", unit="messages", outcome="throttled"),
            2 * TICK_SECONDS,
            "it is counted",
        )
        assert throttled * TICK_SECONDS <= 4 * 50, "the messages of one request, which holds what was ready then"
        assert held.problems == []
