"""PySpark's Kafka sink and source through the proxy: batch, Structured Streaming, and a restart of the proxy."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from deploy.local import artifacts
from deploy.local.cluster import KafkaCluster
from pipeline.spark_session import spark_session
from tests.integration.scanned_proxy import ScannedProxy

ROWS = 2_000
# PySpark leaves it to the collector to close the sockets through which results come.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One JVM for this file."""
    with spark_session(artifacts.spark_jars(), app_name="proxy-tests") as session:
        yield session


def rows(spark: SparkSession, first: int, count: int = ROWS) -> DataFrame:
    numbers = spark.range(first, first + count, numPartitions=2)
    return numbers.selectExpr("cast(id as string) as key", "concat('row-', cast(id as string)) as value")


def write(frame: DataFrame, front: ScannedProxy, topic: str, client_id: str) -> None:
    sink = frame.write.format("kafka").option("kafka.bootstrap.servers", front.bootstrap_servers)
    sink.option("kafka.client.id", client_id).option("topic", topic).save()


def read(spark: SparkSession, front: ScannedProxy, topic: str) -> list[str]:
    """All values, through Spark's own source."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", front.bootstrap_servers)
    frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    return sorted(row.value for row in frame.selectExpr("cast(value as string) as value").collect())


def values(first: int, count: int = ROWS) -> list[str]:
    return sorted(f"row-{number}" for number in range(first, first + count))


@pytest.mark.timeout(200)
def test_what_the_sink_wrote_the_source_reads(
    spark: SparkSession, front_of: ScannedProxy, unique_name: Callable[[str], str]
) -> None:
    topic = front_of.create_topic(unique_name("batch"))
    write(rows(spark, 0), front_of, topic, unique_name("etl"))
    assert read(spark, front_of, topic) == values(0)


@pytest.mark.timeout(250)
def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, front_of: ScannedProxy, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Topic to topic, so that source and sink are both streams. Each run takes what is there and ends."""
    source, sink = (front_of.create_topic(unique_name(name)) for name in ("from", "to"))
    for run in range(2):
        write(rows(spark, run * ROWS), front_of, source, unique_name("etl"))
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", front_of.bootstrap_servers)
        loaded = stream.option("subscribe", source).option("startingOffsets", "earliest").load()
        writer = loaded.select("key", "value").writeStream.format("kafka").option("topic", sink)
        writer = writer.option("kafka.bootstrap.servers", front_of.bootstrap_servers)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(100)
        assert read(spark, front_of, sink) == values(0, (run + 1) * ROWS)


@pytest.mark.timeout(200)
def test_executors_cached_producers_outlive_a_restart_of_the_proxy(
    spark: SparkSession, kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """Spark keeps producers for ten minutes after their last use; they know the ports of the proxy that has gone."""
    client_id = unique_name("etl")
    with ScannedProxy(kafka_cluster) as front:
        topic = front.create_topic(unique_name("restart"))
        write(rows(spark, 0), front, topic, client_id)
        front.proxy.stop()
        front.proxy.start()
        write(rows(spark, ROWS), front, topic, client_id)
        assert read(spark, front, topic) == values(0, 2 * ROWS)
        assert front.relay.sightings == 0
