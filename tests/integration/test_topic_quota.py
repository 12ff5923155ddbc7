"""Limits on the records of topics: bytes and messages, whoever produces them, in whichever compression."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.integration.bytes_passed import SECONDS, check_frames, check_held, span
from tests.integration.flood import Flood, create_topics, written
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_produce_quota import flooding

BYTES, MESSAGES = "bytes_in_rate", "messages_in_rate"
LIMIT = 500_000


@pytest.mark.timeout(120)
def test_a_topic_is_held_and_the_others_are_not(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: Callable[[str], str]
) -> None:
    """Two libraries share what the topic has."""
    limited, free, bystander = (unique_name(name) for name in ("limited", "free", "bystander"))
    client_ids = {unique_name(library): library for library in ("aiokafka", "librdkafka")}
    create_topics(tapped_cluster, limited, free)
    quota = f"topic={limited},{BYTES}={LIMIT}"
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        for client_id, library in client_ids.items():
            stack.enter_context(flooding(library, proxy.bootstrap_servers, client_id, limited))

        def frames() -> list[tuple[int, int]]:
            return sorted(each for client_id in client_ids for each in tap.sizes("produce", client_id))

        def are_held() -> bool:
            return all(proxy.metric("throttled_total", limit=BYTES, client_id=each) > 0 for each in client_ids)

        eventually(are_held, 60, "both are held")
        with Flood(proxy.bootstrap_servers, bystander, free) as flood:
            flood.wait_for(200)
        eventually(lambda: span(frames()) >= SECONDS * 10**9, 60, f"they have sent for {SECONDS} s")
        check_frames(frames(), LIMIT, connections=len(client_ids))
        assert proxy.metric("throttled_total", client_id=bystander) == 0
        assert proxy.wait_for_event("throttled", 5, limit=BYTES)["entity"] == f"topic:{limited}"


@pytest.mark.timeout(90)
def test_messages_are_counted_with_any_compression(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Each topic has the default limit to itself."""
    limit, batch = 400, 20
    topics = {codec: unique_name(codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    create_topics(kafka_cluster, *topics.values())
    settings: dict[str, Any] = {"batch.num.messages": batch, "linger.ms": 5}
    quota = f"topic=<default>,{MESSAGES}={limit}"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
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
            flood.wait_for(limit)
        seconds, *found = written(SECONDS, *floods)
        sent = {codec: proxy.metric("bytes_total", client_id=topic) for codec, topic in topics.items()}
        requests = proxy.metric("requests_total", api="Produce")
        assert proxy.metric("throttled_total", limit=MESSAGES) > 0
        assert requests < sum(flood.records() for flood in floods) / 5, "a request holds many of them, and each counts"
    for passed in found:
        check_held(passed / 1000, seconds, limit, extra=batch)
    assert all(sent[codec] < sent["none"] / 2 for codec in topics if codec != "none"), sent
