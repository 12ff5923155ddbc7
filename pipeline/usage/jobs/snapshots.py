"""Partitions, bytes on disk and log end offsets of every topic at one time, from what Kafka's own tools print."""

import json
from collections import Counter
from datetime import UTC, datetime

from pyspark.sql import DataFrame

from pipeline.failures import InputError
from pipeline.usage.schemas import TABLES
from pipeline.usage.tables import Warehouse


def snapshot(warehouse: Warehouse, log_dirs: str, offsets: str, cluster: str = "") -> DataFrame:
    """Append a snapshot to storage_snapshots, and return its rows.

    log_dirs: output of `kafka-log-dirs.sh --describe`; offsets: of `kafka-get-offsets.sh`. size_bytes counts all
    replicas. Raises InputError.
    """
    now = datetime.now(UTC)
    sizes, partitions, ends = _sizes(log_dirs), Counter[str](), Counter[str]()
    for line in offsets.split():
        topic, _, end = line.rpartition(":")
        topic, _, partition = topic.rpartition(":")
        if not (topic and partition.isdigit() and (end.isdigit() or not end)):
            raise InputError(f"{line!r} is no line of kafka-get-offsets.sh, TOPIC:PARTITION:OFFSET")
        partitions[topic] += 1
        ends[topic] += int(end or 0)
    rows = [
        (now.date(), now, cluster, name, count, sizes[name], ends[name]) for name, count in sorted(partitions.items())
    ]
    found = warehouse.spark.createDataFrame(rows, TABLES["storage_snapshots"].schema)
    warehouse.append("storage_snapshots", found)
    return found


def _sizes(log_dirs: str) -> Counter[str]:
    """Bytes by topic. The tool's JSON is one line among others."""
    text = next((line for line in log_dirs.splitlines() if line.startswith("{")), "")
    sizes = Counter[str]()
    try:
        folders = [each for broker in json.loads(text)["brokers"] for each in broker["logDirs"]]
        for each in (partition for folder in folders for partition in folder["partitions"]):
            sizes[each["partition"].rpartition("-")[0]] += each["size"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("no JSON of kafka-log-dirs.sh --describe was found") from error
    return sizes
