"""The topic of fleets where there are three brokers: three replicas, of which two have each record."""

from deploy.local.cluster import KafkaCluster
from proxy.fleet.topic_log import MUST_BE, fleet_topic
from tests.conftest import UniqueName
from tests.integration.topics import admin_of, config_of


async def test_the_topic_has_three_replicas(kafka_cluster3: KafkaCluster, unique_name: UniqueName) -> None:
    topic, servers = unique_name("fleet"), kafka_cluster3.bootstrap_servers
    for _ in range(2):  # the second time it is there, and is right
        assert await fleet_topic(topic).check({"bootstrap_servers": servers}) == (dict(MUST_BE), "")
    [partition] = admin_of(kafka_cluster3).list_topics(topic, timeout=20).topics[topic].partitions.values()
    assert len(partition.replicas) == 3
    config = config_of(kafka_cluster3, topic)
    assert (config["min.insync.replicas"], config["cleanup.policy"]) == ("2", "delete")
    assert config["compression.type"] == "uncompressed"
    assert config["unclean.leader.election.enable"] == "false"
