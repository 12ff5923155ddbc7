"""What a quota does besides holding: who is told, who is named, who is counted, and what a rehearsal leaves alone."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.java_tools import run_tool
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

LIMIT = 200_000
RECORD_BYTES = 10_000


def producer_for(proxy: ProxyProcess, client_id: str, **settings: Any) -> Producer:
    """Its requests are small against the limit."""
    return Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "client.id": client_id,
            "batch.size": RECORD_BYTES,
            "linger.ms": 0,
            **settings,
        }
    )


def records(size: int) -> list[bytes]:
    return [bytes(RECORD_BYTES)] * (size // RECORD_BYTES)


@pytest.mark.timeout(120)
def test_a_java_client_is_notified_and_holds_are_shown(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    java, client_id = unique_name("java"), unique_name("waiting")
    create_topics(kafka_cluster, java, client_id)
    quota = f"client-id=<default>,producer_byte_rate={LIMIT}"
    expected = {
        "user": "ANONYMOUS",
        "client_id": client_id,
        "limit": "producer_byte_rate",
        "entity": f"client-id:{client_id}",
        "limit_value": LIMIT,
    }
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ThreadPoolExecutor() as threads:
        assert proxy.throttles() == []
        producer = producer_for(proxy, client_id)
        for value in records(4 * LIMIT):
            producer.produce(client_id, value)
        tool = threads.submit(
            run_tool,
            "ProducerPerformance",
            *("--bootstrap-server", proxy.bootstrap_servers, "--topic", java, "--throughput", "-1"),
            *("--num-records", "60", "--record-size", str(RECORD_BYTES), "--print-metrics"),
            *("--command-property", f"client.id={java}"),
        )
        waiting, *_ = eventually(
            lambda: [each for each in proxy.throttles() if each["client_id"] == client_id], 20, "it waits"
        )
        table = eventually(
            lambda: text if client_id in (text := proxy.get("/throttles", "text/plain")[1]) else "", 10, "the table"
        )
        assert producer.flush(60) == 0
        assert {name: waiting[name] for name in expected} == expected
        assert waiting["peer"].startswith("127.0.0.1:")
        assert 0 <= waiting["remaining_seconds"] < 5
        assert "producer_byte_rate" in table
        line = proxy.wait_for_event("throttled", 5, client_id=client_id)
        assert all(line[name] == expected[name] for name in ("limit", "limit_value", "entity"))
        assert proxy.metric("throttle_seconds_sum", client_id=client_id, limit="producer_byte_rate") > 1
        assert proxy.metric("throttle_time_max_seconds", client_id=client_id) > 0
        assert proxy.metric("bytes_total", client_id=client_id, direction="produce") > 4 * LIMIT
        (told,) = (each for each in tool.result().splitlines() if "produce-throttle-time-max" in each)
        assert float(told.rsplit(":", 1)[1]) > 0
        assert proxy.metric("throttled_total", client_id=java, mode="notify") > 0
        eventually(lambda: proxy.throttles() == [], 20, "nobody waits")
