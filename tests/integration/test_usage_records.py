"""Usage records of a running proxy: they add up to its metrics. `test_broker_down` has them without a broker."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.integration.librdkafka import produce, read
from tests.integration.proxy_process import ProxyProcess, eventually, sum_of
from tests.integration.topics import config_of, create_topics, set_config
from tests.pipeline.usage import published
from tests.proxy.usage.test_collector import Record, check_all, series_of, totals

INTERVAL_SECONDS = 1.0
VALUES = [bytes(1000)] * 200


def usage_flags(*flags: str) -> tuple[str, ...]:
    return ("--usage-interval", f"{INTERVAL_SECONDS:g}s", "--label", "team=search", "--sidecar-name", "pod-7", *flags)


def client_of(proxy: ProxyProcess, client_id: str) -> Producer:
    return Producer({"bootstrap.servers": proxy.bootstrap_servers, "client.id": client_id, "linger.ms": 0})


def in_file(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def in_topic(servers: str, topic: str) -> list[tuple[bytes, Record]]:
    """Keys and records of all partitions, those of one partition in order."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True})
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[tuple[bytes, Record]] = []
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(20)
            assert message is not None, "the topic was not read to its end"
            error = message.error()
            if error is None:
                found.append((message.key() or b"", json.loads(message.value() or b"")))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
        return found
    finally:
        consumer.close()


def shown(proxy: ProxyProcess) -> dict[str, float]:
    page = proxy.metrics()
    return {name: sum_of(page, "bytes_total", direction=name) for name in ("produce", "fetch")}


def recorded(records: list[Record]) -> dict[str, float]:
    found = totals(records)
    return {name: found[name, "bytes"] for name in ("produce", "fetch")}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("event_loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.nightly)])
def test_records_add_up_to_the_metrics(
    kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path, event_loop: str
) -> None:
    path, topic, client_id = tmp_path / "usage.jsonl", unique_name("orders"), unique_name("etl")
    quota = f"client-id={client_id},producer_byte_rate=100000"
    flags = usage_flags("--usage-file", str(path), "--quota", quota)
    with ProxyProcess(kafka_cluster.bootstrap_servers, *flags, event_loop=event_loop) as proxy:
        produce(client_of(proxy, client_id), topic, VALUES)
        produce(client_of(proxy, f"{client_id};label.pod=p-1"), topic, VALUES)
        assert len(read(proxy, topic, unique_name("readers"), 2 * len(VALUES))) == 2 * len(VALUES)
        eventually(lambda: not proxy.metric("connections"), 20, "all clients have left")
        eventually(lambda: recorded(in_file(path)) == shown(proxy), 20, "the records are those of /metrics")
        throttled_seconds = proxy.metric("throttle_seconds_sum", client_id=client_id)
        excess_bytes = proxy.metric("excess_bytes_total", client_id=client_id)
        before = shown(proxy)
        eventually(lambda: not proxy.metric("usage_records_pending"), 20, "all are written")
        assert proxy.metric("usage_records_sent_total") == len(in_file(path))
    records = in_file(path)
    assert recorded(records) == before, "after the last records, too"
    check_all(records)
    assert {each["listener"] for each in records} == {proxy.bootstrap_servers}
    assert {each["sidecar"] for each in records} == {"pod-7"}
    assert {each["labels"].get("pod") for each in records if each["client_id"] == client_id} == {None, "p-1"}
    throttles = list({series_of(each): each for each in records if each["kind"] == "throttle"}.values())
    [throttle] = [each for each in throttles if each["client_id"] == client_id]
    assert (throttle["limit"], throttle["entity"]) == ("producer_byte_rate", f"client-id:{client_id}")
    assert throttle["throttled_ms"] == int(throttled_seconds * 1000 + 1e-6) > 0
    assert (throttle["delayed_bytes"], throttle["limit_value"]) == (excess_bytes, 100_000)
    assert [each["final"] for each in records if each["kind"] == "idle"] == [False], "at the beginning"
    of_series = [series_of(each) for each in records if each["kind"] != "idle"]
    assert set(of_series[-len(set(of_series)) :]) == set(of_series), "a full snapshot at the end"
    assert proxy.wait_for_event("usage_stopped", 1)["records_lost"] == 0


@pytest.mark.timeout(120)
def test_the_topic_is_created_and_has_the_records(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    servers, topic, client_id = kafka_cluster.bootstrap_servers, unique_name("usage"), unique_name("etl")
    with ProxyProcess(servers, *usage_flags("--usage-topic", topic)) as proxy:
        produce(client_of(proxy, client_id), unique_name("orders"), VALUES)
        eventually(lambda: proxy.metric("usage_records_sent_total"), 20, "records are sent")
        assert proxy.wait_for_event("usage_topic_created", 5)["topic"] == topic
        expected = shown(proxy)
    found = in_topic(servers, topic)
    records = [record for _, record in found]
    assert recorded(records) == expected
    check_all(records)
    assert {key for key, _ in found} == {published.key(record) for record in records}
    assert all(each["client_id"] != "kafka-quota-proxy-usage" for each in records), "it does not use the proxy itself"
    settings = config_of(kafka_cluster, topic)
    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("delete", "604800000")
    assert settings["message.timestamp.type"] == "LogAppendTime"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", ["compact", pytest.param("compact,delete", marks=pytest.mark.nightly)])
def test_a_compacted_topic_is_refused(kafka_cluster: KafkaCluster, unique_name: UniqueName, policy: str) -> None:
    servers, topic, client_id = kafka_cluster.bootstrap_servers, unique_name("usage"), unique_name("etl")
    create_topics(kafka_cluster, topic, config={"cleanup.policy": policy})
    proxy = ProxyProcess(servers, *usage_flags("--usage-topic", topic))
    proxy.expected_errors = {"usage_records_refused"}
    with proxy:
        producer = client_of(proxy, client_id)
        produce(producer, unique_name("orders"), VALUES)
        refused = proxy.wait_for_event("usage_records_refused", 20)
        assert refused["reason"] == "topic_compacted"
        assert policy in refused["message"]
        eventually(lambda: proxy.metric("usage_records_lost_total"), 20, "they are counted as lost")
        assert proxy.metric("usage_errors_total", reason="topic_compacted") >= 1
        assert in_topic(servers, topic) == []
        set_config(kafka_cluster, topic, "cleanup.policy", "delete")
        produce(producer, unique_name("orders"), VALUES)
        eventually(lambda: proxy.metric("usage_records_sent_total"), 20, "it is checked again")
        expected = shown(proxy)
    assert recorded([record for _, record in in_topic(servers, topic)]) == expected


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "more_flags", [(), pytest.param(("--usage-by-topic",), marks=pytest.mark.nightly)], ids=["by client", "by topic"]
)
def test_sigkill_loses_at_most_one_interval(
    kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path, more_flags: tuple[str, ...]
) -> None:
    path, topic = tmp_path / "usage.jsonl", unique_name("orders")
    slack_seconds = 2.0  # to read and to write, on a busy machine
    flags = usage_flags("--usage-file", str(path), *more_flags)
    proxy = ProxyProcess(kafka_cluster.bootstrap_servers, *flags).start()
    try:
        producer = client_of(proxy, unique_name("etl"))
        deadline = time.monotonic() + 2 * INTERVAL_SECONDS + 2 * slack_seconds
        counted: list[tuple[float, float]] = []  # time, and bytes that the proxy had counted before
        while time.monotonic() < deadline:
            size = shown(proxy)["produce"]
            counted.append((time.monotonic(), size))
            produce(producer, topic, VALUES[:20])
        killed = time.monotonic()
    finally:
        proxy.kill()
    written = recorded(in_file(path))["produce"]
    earlier = [size for at, size in counted if at < killed - INTERVAL_SECONDS - slack_seconds]
    assert earlier
    assert written >= earlier[-1] > 0
