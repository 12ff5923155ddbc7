"""Limits on the records of topics, in whichever compression."""

from contextlib import ExitStack
from typing import Any

import pytest

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.bytes_passed import SECONDS, check_held
from tests.integration.flood import Flood, written
from tests.integration.proxy_process import ProxyProcess, sum_of
from tests.integration.topics import create_topics

MESSAGES = "messages_in_rate"


@pytest.mark.claim("limits", "messages_in_rate")
@pytest.mark.timeout(90)
def test_messages_are_counted_with_any_compression(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
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
                    proxy.bootstrap_servers, topic, topic, record_bytes=1000, **(settings | {"compression.type": codec})
                )
            )
            for codec, topic in topics.items()
        ]
        for flood in floods:
            flood.wait_for(limit)
        seconds, *found = written(SECONDS, *floods)
        page = proxy.metrics()
        sent = {codec: sum_of(page, "bytes_total", client_id=topic) for codec, topic in topics.items()}
        requests = sum_of(page, "requests_total", api="Produce")
        assert sum_of(page, "throttled_total", limit=MESSAGES) > 0
        assert requests < sum(flood.records() for flood in floods) / 5, "a request holds many of them, and each counts"
    for passed in found:
        check_held(passed / 1000, seconds, limit, extra=batch)
    assert all(sent[codec] < sent["none"] / 2 for codec in topics if codec != "none"), sent
