"""The Spark job and its surroundings against a real broker."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from pipeline.client_metrics import longest_throttle_seconds
from pipeline.demo import flights
from pipeline.demo.produce_flights import produce, read_flights
from pipeline.demo.verify import Tally, TopicUnreadableError, compare, read_topic
from pipeline.failures import JobFailedError
from pipeline.spark_session import spark_session

ROWS = 3_000


def test_every_flight_arrives_once_and_the_working_directory_stays_clean(
    kafka_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, client_id = unique_name("flights"), unique_name("flights-etl")
    prepared = flights.prepare(artifacts.CACHE / "flights")
    expected = flights.expected_checksums(prepared, ROWS)
    monkeypatch.chdir(tmp_path)
    with spark_session(artifacts.spark_jars()) as spark:
        records = read_flights(spark, prepared, ROWS)
        produce(records, bootstrap_servers=kafka_cluster.bootstrap_servers, topic=topic, client_id=client_id)
        assert longest_throttle_seconds(spark, client_id) == 0.0
        with pytest.raises(JobFailedError, match=r"InvalidTopicException: .*not a topic"):
            produce(
                records, bootstrap_servers=kafka_cluster.bootstrap_servers, topic="not a topic", client_id=client_id
            )
    tally = compare(read_topic(kafka_cluster.bootstrap_servers, topic, unique_name("verify")), expected)
    assert tally == Tally(records=ROWS, value_bytes=tally.value_bytes)
    assert list(tmp_path.iterdir()) == []


def test_a_topic_with_less_than_expected_is_read_to_its_end(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("empty")
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    records = read_topic(kafka_cluster.bootstrap_servers, topic, unique_name("verify"))
    assert compare(records, {b"1": 0}) == Tally(missing=1, examples=["missing key b'1'"])


def test_a_topic_that_cannot_be_read_is_named(unique_name: Callable[[str], str]) -> None:
    with pytest.raises(TopicUnreadableError, match="topic flights: "):
        list(read_topic("127.0.0.1:1", "flights", unique_name("verify"), stall_timeout_seconds=1))
