"""Partitions, bytes on disk and log end offsets of every topic, from the brokers, at one time.

Uses the Java Admin client of Spark's Kafka connector: Metadata, DescribeLogDirs, ListOffsets. It needs the right
to Describe the topics and the cluster.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame

from pipeline.brokers import admin_client
from pipeline.usage.tables import Warehouse

_COLUMNS = "date date, time timestamp, topic string, partitions bigint, size_bytes bigint, end_offsets bigint"


def snapshot(warehouse: Warehouse, bootstrap_servers: str, options: Mapping[str, str]) -> DataFrame:
    """Take a snapshot, append it to storage_snapshots, and return its rows. options: Kafka client settings.

    size_bytes counts all replicas. A few calls into the JVM for each partition: minutes for 100,000 of them.
    Raises pipeline.brokers.BrokersError.
    """
    with admin_client(warehouse.spark, bootstrap_servers, options) as admin:
        rows = _rows(warehouse.spark._jvm, admin, datetime.now(UTC))
    found = warehouse.spark.createDataFrame(rows, _COLUMNS)
    warehouse.append("storage_snapshots", found)
    return found


def _rows(jvm: Any, admin: Any, now: datetime) -> list[tuple[Any, ...]]:
    topics = admin.describeTopics(admin.listTopics().names().get()).allTopicNames().get()
    partitions = {name: len(description.partitions()) for name, description in topics.items()}
    sizes: dict[str, int] = defaultdict(int)
    brokers = jvm.java.util.ArrayList()
    # py4j iterates lists, sets and maps, but no other collection.
    for node in jvm.java.util.ArrayList(admin.describeCluster().nodes().get()):
        brokers.add(node.id())
    for directories in admin.describeLogDirs(brokers).allDescriptions().get().values():
        for directory in directories.values():
            for partition, replica in directory.replicaInfos().items():
                sizes[partition.topic()] += replica.size()
    latest = jvm.java.util.HashMap()
    for name, count in partitions.items():
        for number in range(count):
            partition = jvm.org.apache.kafka.common.TopicPartition(name, number)
            latest[partition] = jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
    ends: dict[str, int] = defaultdict(int)
    for partition, offset in admin.listOffsets(latest).all().get().items():
        ends[partition.topic()] += offset.offset()
    return [(now.date(), now, name, count, sizes[name], ends[name]) for name, count in sorted(partitions.items())]
