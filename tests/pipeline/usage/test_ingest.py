"""The stream from a real Kafka topic into Delta: exactly once, late data, bad records, restarts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from deploy.local.cluster import KafkaCluster
from pipeline.usage.jobs import ingest as job
from pipeline.usage.jobs.ingest import Source, ingest, wall_clock_ms
from pipeline.usage.jobs.maintain import maintain, retry_quarantine
from pipeline.usage.jobs.snapshots import snapshot
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.parsing import parsed
from tests.conftest import UniqueName
from tests.integration.java_tools import run_tool
from tests.pipeline.usage import published
from tests.pipeline.usage.fleets import KAFKA_COLUMNS, NOON_MS, kafka_row, raw_row, throttle_record, usage_record

DAY_MS = 86_400_000
SINCE_NOON_MS = wall_clock_ms() - NOON_MS


class Topic:
    """A topic of its own on the shared broker."""

    def __init__(self, cluster: KafkaCluster, name: str) -> None:
        self.source = Source(cluster.bootstrap_servers, name, max_offsets=5)
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})

    def send(self, made: Sequence[dict[str, Any] | bytes]) -> None:
        for each in made:
            raw = each if isinstance(each, bytes) else published.value(each)
            its_key = b"" if isinstance(each, bytes) else published.key(each)
            self._producer.produce(self.source.topic, raw, its_key)
        assert self._producer.flush(30) == 0


@pytest.fixture
def topic(kafka_cluster: KafkaCluster, unique_name: UniqueName) -> Topic:
    return Topic(kafka_cluster, unique_name("usage"))


def run(warehouse: Warehouse, topic: Topic, checkpoint: Path) -> None:
    assert ingest(warehouse, topic.source, str(checkpoint), now_ms=about_noon()).awaitTermination(120)


def about_noon() -> Column:
    """Spark's time of the batch, moved by as much as noon was from the start of the tests."""
    return f.unix_millis(f.current_timestamp()) - f.lit(SINCE_NOON_MS)


def sequence_numbers(warehouse: Warehouse) -> Counter[int]:
    return Counter(row["seq"] for row in warehouse.read("records").select("seq").collect())


@pytest.mark.timeout(300)
def test_each_record_arrives_once_over_restarts_and_crashes(
    warehouse: Warehouse, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoint"
    topic.send([usage_record(seq=seq) for seq in range(12)])
    run(warehouse, topic, checkpoint)
    assert sequence_numbers(warehouse) == Counter(range(12))
    assert warehouse.version("quarantine") == 0, "created, and not written: all are valid"

    topic.send([usage_record(seq=12), throttle_record(seq=13), b"{broken", usage_record(seq=14, bytes=-1)])
    original = job.write_batch

    def crash_between_the_tables(_: DataFrame) -> DataFrame:
        raise RuntimeError("killed before the quarantine is written")

    def crash_after_writing(*arguments: Any) -> None:
        original(*arguments)
        raise RuntimeError("killed before Spark notes the batch as done")

    clocks = set()

    def note_the_clock(batch: DataFrame) -> DataFrame:
        clocks.add(batch.select("now_ms").first()["now_ms"])
        return parsed(batch)

    monkeypatch.setattr(job, "parsed", note_the_clock)
    for name, crash in (("invalid", crash_between_the_tables), ("write_batch", crash_after_writing)):
        with monkeypatch.context() as patched:
            patched.setattr(job, name, crash)
            query = ingest(warehouse, topic.source, str(checkpoint), now_ms=about_noon())
            with pytest.raises(Exception, match="killed before"):
                query.awaitTermination(120)
    run(warehouse, topic, checkpoint)
    assert len(clocks) == 1, "a record from the future is one in each attempt, or in none"
    assert sequence_numbers(warehouse) == Counter(range(14))
    quarantine = [(row["reason"], bytes(row["value"])) for row in warehouse.read("quarantine").collect()]
    assert sorted(quarantine) == [
        ("broken JSON or a wrong type", b"{broken"),
        ("bytes is missing or negative or absurd", published.value(usage_record(seq=14, bytes=-1))),
    ]

    late = usage_record(seq=15, time_ms=NOON_MS - 3 * DAY_MS, start_time_ms=NOON_MS - 3 * DAY_MS)
    version = warehouse.version("records")
    topic.send([late])
    run(warehouse, topic, checkpoint)
    assert sequence_numbers(warehouse)[15] == 1
    assert [str(row["date"]) for row in warehouse.added_since("records", version).collect()] == ["2026-01-02"]


@pytest.mark.timeout(300)
@pytest.mark.nightly
def test_a_new_checkpoint_begins_a_stream_and_drops_nothing(warehouse: Warehouse, topic: Topic, tmp_path: Path) -> None:
    topic.send([usage_record(seq=seq) for seq in range(3)])
    run(warehouse, topic, tmp_path / "first")
    run(warehouse, topic, tmp_path / "second")
    assert sequence_numbers(warehouse) == Counter({0: 2, 1: 2, 2: 2})


def test_a_record_from_the_future_counts_when_its_time_has_come(spark: SparkSession, warehouse: Warehouse) -> None:
    rows = [kafka_row(usage_record(time_ms=NOON_MS + 3_600_000), 1), raw_row(b"{broken", offset=2)]
    batch = spark.createDataFrame(rows, KAFKA_COLUMNS).withColumn("now_ms", f.lit(NOON_MS))
    job.write_batch(warehouse, batch, "app", 0)
    assert retry_quarantine(warehouse, NOON_MS) == 0
    assert retry_quarantine(warehouse, NOON_MS + 3_600_000) == 1
    assert [row["kafka_offset"] for row in warehouse.read("records").collect()] == [1]
    (kept,) = warehouse.read("quarantine").collect()
    assert (bytes(kept["value"]), kept["kafka_offset"], kept["topic"]) == (b"{broken", 2, "usage")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_compaction_is_no_change_of_data(warehouse: Warehouse, topic: Topic, tmp_path: Path) -> None:
    topic.send([usage_record(seq=seq) for seq in range(7)])
    run(warehouse, topic, tmp_path / "checkpoint")
    version = warehouse.version("records")
    assert maintain(warehouse, NOON_MS) == 0
    assert warehouse.version("records") > version
    assert warehouse.added_since("records", version).isEmpty()
    assert sequence_numbers(warehouse) == Counter(range(7))


@pytest.mark.timeout(300)
def test_a_snapshot_notes_partitions_sizes_and_end_offsets(warehouse: Warehouse, topic: Topic) -> None:
    topic.send([usage_record(seq=seq) for seq in range(7)])
    to_brokers = ("--bootstrap-server", topic.source.bootstrap_servers)
    snapshot(warehouse, run_tool("LogDirsCommand", *to_brokers, "--describe"), run_tool("GetOffsetShell", *to_brokers))
    row = warehouse.read("storage_snapshots").where(f"topic = '{topic.source.topic}'").first()
    assert (row["partitions"], row["end_offsets"]) == (1, 7)
    assert row["size_bytes"] > 7 * 300
