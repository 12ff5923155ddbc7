"""Topics of a cluster: made, changed and deleted at its brokers, past the proxy."""

from collections.abc import Mapping

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from deploy.local.cluster import KafkaCluster
from tests.integration.proxy_process import eventually


def create_topics(
    cluster: KafkaCluster, *names: str, partitions: int = 1, replicas: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Until each partition has a leader that serves it: one that does not know yet drops what comes with acks=0."""
    admin = admin_of(cluster)
    new = [NewTopic(name, partitions, replicas, config=dict(config or {})) for name in names]
    for created in admin.create_topics(new).values():
        created.result(30)
    asked = {TopicPartition(name, each): OffsetSpec.latest() for name in names for each in range(partitions)}

    def all_lead() -> bool:
        return all(each.exception(15) is None for each in admin.list_offsets(asked, request_timeout=10).values())

    eventually(all_lead, 30, "all partitions have leaders")


def delete_topic(cluster: KafkaCluster, name: str) -> None:
    admin = admin_of(cluster)
    admin.delete_topics([name])[name].result(30)


def config_of(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    admin = admin_of(cluster)
    [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in described.result(20).items()}


def set_config(cluster: KafkaCluster, topic: str, name: str, value: str) -> None:
    """One setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_of(cluster)
    [altered] = admin.incremental_alter_configs([change]).values()
    altered.result(20)


def admin_of(cluster: KafkaCluster) -> AdminClient:
    """Keep it until its futures are done: they fail when it is collected."""
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
