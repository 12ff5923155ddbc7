"""Clients push their metrics to the proxy, and the settings that `advise` prints keep records from expiring."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer

from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from deploy.local.tools import tool_command
from tests.conftest import UniqueName
from tests.integration import advised_job, old_librdkafka
from tests.integration.librdkafka import records_in
from tests.integration.proxy_process import ProxyProcess, eventually, killed_at_the_end, sum_of
from tests.integration.topics import create_topics

pytestmark = pytest.mark.claim(
    "telemetry",
    "Java and librdkafka push, a client without telemetry is not affected, and a librdkafka that aborts lives",
)

FIRST_PUSH_SECONDS = 120.0
"""Between half an interval and one and a half, of 10 s; and a JVM has to start, on a busy machine."""


@pytest.fixture
def proxy(kafka_cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    quota = "client-id=<default>,producer_byte_rate=500kB"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--client-telemetry", "--quota", quota) as running:
        yield running


def java_producer(proxy: ProxyProcess, topic: str) -> list[str]:
    """It stays below its limit, until it is killed: one that is told to wait all the time pushes late, if at all."""
    return tool_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "1000000", "--record-size", "1000", "--throughput", "200"),
        *("--producer-props", f"bootstrap.servers={proxy.bootstrap_servers}", "client.id=java-producer"),
    )


def java_consumer(proxy: ProxyProcess, topic: str, path: Path) -> list[str]:
    path.write_text("client.id=java-consumer\n")
    return tool_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", proxy.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--consumer.config", str(path)),
    )


@pytest.mark.timeout(200)
def test_java_and_librdkafka_push_their_metrics(
    proxy: ProxyProcess, kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path
) -> None:
    topic = unique_name("telemetry")
    create_topics(kafka_cluster, topic)
    settings = {"bootstrap.servers": proxy.bootstrap_servers}
    producer = Producer({**settings, "client.id": "rdkafka-producer"})
    consumer = Consumer({**settings, "client.id": "rdkafka-consumer", "group.id": topic})
    consumer.subscribe([topic])
    wanted = {
        "java-producer": ("buffer_bytes", "buffer_available_bytes", "record_queue_time_max_seconds", "outgoing_bytes"),
        "java-consumer": ("records_lag_max", "poll_idle_ratio_avg", "fetch_throttle_time_avg_seconds"),
        "rdkafka-producer": ("record_queue_time_avg_seconds", "request_latency_avg_seconds"),
        "rdkafka-consumer": ("poll_idle_ratio_avg",),
    }

    def missing() -> set[str]:
        producer.produce(topic, b"one")
        producer.poll(0)
        consumer.consume(100, timeout=0.1)
        other.send(topic, b"one").get(30)
        page = proxy.metrics()
        return {
            f"{client_id} {name}"
            for client_id, names in wanted.items()
            for name in names
            if f'_client_{name}{{client_id="{client_id}"' not in page
            and f'_client_{name}{{user="ANONYMOUS",client_id="{client_id}"' not in page
        }

    with (
        closing(KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id="without")) as other,
        killed_at_the_end(java_producer(proxy, topic)),
        killed_at_the_end(java_consumer(proxy, topic, tmp_path / "consumer.properties")),
    ):
        eventually(lambda: not missing(), FIRST_PUSH_SECONDS, "all have pushed")
        assert proxy.metric("client_buffer_bytes", client_id="java-producer") == 33_554_432
        assert proxy.metric("client_record_errors", client_id="java-producer") == 0
        assert 0 <= proxy.metric("client_poll_idle_ratio_avg", client_id="java-consumer") <= 1
        page = proxy.metrics()
        assert 'client_id="without"' in page
        pushed = sum_of(page, "requests_total", api="PushTelemetry")
        assert not [line for line in page.splitlines() if "_client_" in line.split("{")[0] and '"without"' in line]
        eventually(lambda: proxy.metric("requests_total", api="PushTelemetry") >= pushed + 4, 30, "each goes on")
    consumer.close()
    assert producer.flush(30) == 0
    assert not [event for event in proxy.events if event["event"] == "protocol_error"]


@pytest.mark.nightly
@pytest.mark.parametrize("version", ["2.5.0"])
def test_a_librdkafka_that_aborts_at_unknown_names_lives(
    proxy: ProxyProcess, kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path, version: str
) -> None:
    topic = unique_name("aborts")
    create_topics(kafka_cluster, topic)
    library = old_librdkafka.library(version, tmp_path)
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": topic}
    result = old_librdkafka.produce_and_read(library, settings, topic, "its value")
    assert result == {"version": version, "read": "its value", "errors": []}
    assert proxy.metric("requests_total", api="GetTelemetrySubscriptions") > 0
    assert proxy.metric("requests_total", api="PushTelemetry") == 0


@pytest.mark.nightly
@pytest.mark.parametrize("version", ["2.8.0"])
def test_a_librdkafka_that_keeps_one_name_reports(
    proxy: ProxyProcess, kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path, version: str
) -> None:
    """Within 15 s: the first push."""
    topic = unique_name("keeps-one")
    create_topics(kafka_cluster, topic)
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": topic}
    with old_librdkafka.producing(old_librdkafka.library(version, tmp_path), settings, topic):
        family = "client_request_latency_avg_seconds"
        eventually(lambda: f'{family}{{client_id="{topic}"' in proxy.metrics(), 60, "it reports what was wanted")


# ---- advise
RATE, ROW_BYTES = 500_000, 1_000
EXPIRY_SECONDS = 120
SUBMIT_SETTINGS = {
    "spark.task.maxFailures": "1",
    "spark.ui.enabled": "false",
    **dict.fromkeys(("spark.driver.bindAddress", "spark.driver.host"), "127.0.0.1"),
    **{f"spark.{each}.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" for each in ("driver", "executor")},
}


def submit(directory: Path, proxy: ProxyProcess, topic: str, rows: int, options: str = "") -> subprocess.Popen[str]:
    """A job on two executors: the limit is shared by their producers, both `producer-1`."""
    command = [
        str(Path(sys.executable).with_name("spark-submit")), "--master", "local-cluster[2,1,1024]",
        "--jars", artifacts.spark_jars(),
        *(part for name, value in SUBMIT_SETTINGS.items() for part in ("--conf", f"{name}={value}")),
        advised_job.__file__, proxy.bootstrap_servers, topic, str(rows), options,
    ]  # fmt: skip
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (directory / "spark.log").open("w") as log:
        return subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log, text=True)


@pytest.mark.claim("telemetry", "Spark is warned before its first record expires, and with the advice no task fails")
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_spark_is_warned_before_records_expire_and_none_does_with_the_advice(
    proxy: ProxyProcess, kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path
) -> None:
    lost, kept = unique_name("defaults"), unique_name("advised")
    create_topics(kafka_cluster, lost, kept)
    rows = 2 * 50_000_000 // ROW_BYTES
    with submit(tmp_path, proxy, lost, rows) as job:
        try:
            warning = proxy.wait_for_event("records_expire_soon", 2 * EXPIRY_SECONDS)
            assert job.poll() is None, "before the first record expires"
            assert "Expiring" not in (tmp_path / "spark.log").read_text()
            assert job.wait(3 * EXPIRY_SECONDS) != 0
        finally:
            job.kill()
    assert "Expiring" in (tmp_path / "spark.log").read_text()
    limit = f"client-id:producer-1 producer_byte_rate={RATE}"
    assert (warning["client_id"], warning["limit"]) == ("producer-1", limit)
    assert warning["wait_seconds"] > EXPIRY_SECONDS * 0.8
    assert 0 < warning["expires_in_seconds"] < EXPIRY_SECONDS

    advice = subprocess.run(
        [sys.executable, "-m", "proxy", "advise", "--rate", f"{RATE}", "--producers", "2"],
        cwd=artifacts.PROJECT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows, began = 30_000_000 // ROW_BYTES, time.monotonic()
    with submit(tmp_path, proxy, kept, rows, advice) as job:
        try:
            assert job.wait(4 * EXPIRY_SECONDS) == 0, (tmp_path / "spark.log").read_text()[-3_000:]
        finally:
            job.kill()
    assert records_in(kafka_cluster, kept) == rows
    assert time.monotonic() - began > 30_000_000 / RATE / 2, "it was held to the limit"
