"""The disk guard before real brokers: one whose disk is above marks in free bytes that no disk has, and three on small
disks of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from deploy.local.cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

FULL = "900000TB..800000TB"


@pytest.mark.claim("limits", "disk_guard")
@pytest.mark.claim("operate", "a full disk stops producers, not consumers, and every page says which disk")
@pytest.mark.timeout(120)
def test_producers_get_a_storage_error_that_they_retry(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("disk-guard")
    create_topics(kafka_cluster, topic)
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    direct = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    direct.produce(topic, b"before")
    assert direct.flush(30) == 0
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--disk-guard", FULL) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": "etl"}
        producer = Producer({**settings, "request.timeout.ms": 2_000, "message.timeout.ms": 8_000})
        producer.produce(topic, b"one", on_delivery=delivered)
        producer.poll(0)
        eventually(lambda: refused(proxy), 60, "a request is refused")
        page = proxy.get("/explain", "text/plain")[1]
        assert f"The disk guard {FULL}: broker 1 at " in page
        assert "It stops all producers" in page
        [row] = [
            each for each in json.loads(proxy.get("/limits", "application/json")[1]) if each["limit"] == "disk_guard"
        ]
        assert row["source"] == "--disk-guard"
        assert json.loads(proxy.get("/config", "application/json")[1])["disk_guard"]["state"] == "full"
        consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        assert consumer.poll(30).value() == b"before"
        consumer.commit(asynchronous=False)
        consumer.close()
        producer.flush(30)
        [error] = errors
        assert error is not None
        assert error.code() == KafkaError._MSG_TIMED_OUT, "it has retried as long as its user lets it"


def refused(proxy: ProxyProcess) -> float:
    lines = proxy.get("/metrics", "text/plain")[1].splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("kafka_quota_proxy_disk_guard_refused_total")
    )


@pytest.mark.nightly  # as root, because it mounts disks
@pytest.mark.timeout(1500)
def test_no_small_disk_passes_hard_under_a_flood() -> None:
    """In each scenario of `bench.disk_guard`; without the guard, brokers stop."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.disk_guard"], capture_output=True, text=True, timeout=1400, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    [unguarded] = [line for line in done.stdout.splitlines() if line.startswith("| even load | off |")]
    assert not unguarded.endswith("| none |")
