"""Brokers that are down: quick closes, counted and logged; health apart from readiness; all well once they are up."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.librdkafka import produce
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_usage_records import VALUES, client_of, in_topic, recorded, shown, usage_flags


@pytest.fixture
def bounced_cluster() -> Iterator[KafkaCluster]:
    """One broker that this test stops and starts."""
    with KafkaCluster(1) as cluster:
        yield cluster


@pytest.mark.parametrize("event_loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.nightly)])
@pytest.mark.timeout(200)
def test_down_at_start_up_later_and_away_for_a_while(
    kafka_cluster: KafkaCluster, bounced_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path, event_loop: str
) -> None:
    """Of one proxy it is the broker of clients, of another, `recording`, that of usage records."""
    topic, usage, client_id = unique_name("bounce"), unique_name("usage"), unique_name("etl")
    address = bounced_cluster.bootstrap_servers
    own = tmp_path / "own.properties"
    own.write_text(f"bootstrap.servers={address}\n")
    flags = usage_flags("--usage-topic", usage, "--own-client-config", str(own))
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags, event_loop=event_loop) as recording:
        traffic = client_of(recording, client_id)
        produce(traffic, unique_name("orders"), VALUES)
        eventually(lambda: recording.metric("usage_records_sent_total"), 20, "records are sent")
        bounced_cluster.stop_broker(1, graceful=False)
        with ProxyProcess(address, event_loop=event_loop) as proxy:

            def is_ready() -> bool:
                return proxy.get("/readyz")[0] == 200

            def is_down() -> bool:
                status, reason = proxy.get("/readyz")
                assert proxy.get("/healthz")[0] == 200, "the proxy itself is well"
                return status == 503 and address in reason

            host, port = proxy.bootstrap_servers.split(":")
            with socket.create_connection((host, int(port)), timeout=10) as client:
                assert client.recv(1) == b"", "closed"
            refused = proxy.metric("upstream_errors_total", reason="connect_refused")
            assert refused >= 1
            line = proxy.wait_for_event("broker_failed", 5, reason="connect_refused")
            assert (line["address"], line["level"]) == (address, "WARN")
            assert is_down()

            for _ in range(3):
                produce(traffic, unique_name("orders"), VALUES)
            eventually(lambda: recording.metric("usage_records_pending"), 20, "records wait")
            bounced_cluster.start_broker(1)
            eventually(is_ready, 20, "ready")
            assert proxy.wait_for_event("broker_recovered", 5)["address"] == address
            eventually(lambda: not recording.metric("usage_records_pending"), 60, "the broker is back")

            producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "acks": "all"})
            produce(producer, topic, [b"before"])
            bounced_cluster.stop_broker(1, graceful=False)
            eventually(is_down, 20, "not ready")
            producer.produce(topic, b"meanwhile")
            eventually(lambda: proxy.metric("upstream_errors_total") > refused, 20, "the client was refused")
            bounced_cluster.start_broker(1)
            produce(producer, topic, [b"after"])
            eventually(is_ready, 20, "ready")
        assert recording.metric("usage_records_lost_total") == 0
        expected = shown(recording)
    records = [record for _, record in in_topic(address, usage)]
    assert recorded(records) == expected
    numbers = {record["seq"] for record in records}
    assert numbers == set(range(len(numbers))), "repeated perhaps, but none is missing"
