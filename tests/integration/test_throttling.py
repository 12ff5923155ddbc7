"""What a quota does besides holding: who is told, who is named, who is counted, and what a rehearsal leaves alone."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from tests.integration.java_tools import run_tool
from tests.integration.proxy_process import ProxyProcess, eventually

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
def test_held_connections_are_shown(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    client_id = unique_name("waiting")
    quota = f"client-id={client_id},producer_byte_rate={LIMIT}"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy:
        assert proxy.throttles() == []
        producer = producer_for(proxy, client_id)
        for value in records(4 * LIMIT):
            producer.produce("shown", value)
        (waiting,) = eventually(proxy.throttles, 20, "somebody waits")
        table = eventually(
            lambda: text if client_id in (text := proxy.get("/throttles", "text/plain")[1]) else "", 10, "the table"
        )
        assert producer.flush(60) == 0
        assert {name: waiting[name] for name in ("user", "client_id", "limit", "entity", "limit_value")} == {
            "user": "ANONYMOUS",
            "client_id": client_id,
            "limit": "producer_byte_rate",
            "entity": f"client-id:{client_id}",
            "limit_value": LIMIT,
        }
        assert waiting["peer"].startswith("127.0.0.1:")
        assert 0 <= waiting["remaining_seconds"] < 5
        assert "producer_byte_rate" in table
        line = proxy.wait_for_event("throttled", 5, client_id=client_id)
        assert (line["limit"], line["limit_value"], line["entity"]) == (
            "producer_byte_rate",
            LIMIT,
            f"client-id:{client_id}",
        )
        labels = {"client_id": client_id, "limit": "producer_byte_rate"}
        assert proxy.metric("throttle_seconds_sum", **labels) > 1
        assert proxy.metric("throttle_time_max_seconds", client_id=client_id) > 0
        assert proxy.metric("bytes_total", client_id=client_id, direction="produce") > 4 * LIMIT
        eventually(lambda: proxy.throttles() == [], 20, "nobody waits")


@pytest.mark.timeout(120)
def test_the_java_client_receives_the_throttle_time(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    client_id = unique_name("told")
    quota = f"client-id={client_id},producer_byte_rate={LIMIT}"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy:
        printed = run_tool(
            "ProducerPerformance",
            *("--bootstrap-server", proxy.bootstrap_servers, "--topic", "told", "--throughput", "-1"),
            *("--num-records", "60", "--record-size", str(RECORD_BYTES), "--print-metrics"),
            *("--command-property", f"client.id={client_id}"),
        )
        (line,) = (each for each in printed.splitlines() if "produce-throttle-time-max" in each)
        assert float(line.rsplit(":", 1)[1]) > 0
        assert proxy.metric("throttled_total", client_id=client_id, mode="notify") > 0
