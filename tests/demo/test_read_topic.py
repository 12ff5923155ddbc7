"""Reading a topic back: from a real broker, and from none."""

from collections.abc import Callable

import pytest

from demo.verify import Tally, TopicUnreadableError, compare, read_topic
from deploy.local.cluster import KafkaCluster
from tests.integration.topics import create_topics


def test_a_topic_with_less_than_expected_is_read_to_its_end(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("empty")
    create_topics(kafka_cluster, topic, partitions=2)
    records = read_topic(kafka_cluster.bootstrap_servers, topic, unique_name("verify"))
    assert compare(records, {b"1": 0}) == Tally(missing=1, examples=["missing key b'1'"])


def test_a_topic_that_cannot_be_read_is_named(unique_name: Callable[[str], str]) -> None:
    with pytest.raises(TopicUnreadableError, match="topic flights: "):
        list(read_topic("127.0.0.1:1", "flights", unique_name("verify"), stall_timeout_seconds=1))
