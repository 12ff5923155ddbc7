"""Brokers and topics that are missing are one line with the next step, before a job starts."""

import pytest
from pyspark.sql import SparkSession

from deploy.local.cluster import KafkaCluster
from pipeline.brokers import require_topic
from pipeline.failures import InputError
from tests.conftest import UniqueName
from tests.integration.topics import create_topics


def test_a_topic_and_a_missing_one(spark: SparkSession, kafka_cluster: KafkaCluster, unique_name: UniqueName) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, unique_name("orders")
    create_topics(kafka_cluster, topic)
    require_topic(spark, servers, topic, {"client.id": "check"})
    with pytest.raises(InputError) as raised:
        require_topic(spark, servers, "nothing", {})
    assert str(raised.value) == f"topic nothing at {servers}: it does not exist; create it, or correct --topic"


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ("127.0.0.1:1", "no broker answers at 127.0.0.1:1 (Timed out"),
        ("nonsense", "nonsense: Invalid url in bootstrap.servers: nonsense; correct --bootstrap-servers or --option"),
    ],
)
def test_no_broker(spark: SparkSession, servers: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        require_topic(spark, servers, "orders", {}, timeout_s=1)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
