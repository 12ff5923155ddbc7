"""Structured Streaming from the usage topic to `records` and `quarantine`, each record exactly once over restarts.

A micro-batch is written under the stream's own id, which Spark keeps in the checkpoint, and its batch number. After a
crash between the two tables Spark runs the batch again, and Delta skips the table that has it. A fixed id with a new
checkpoint would drop writes, since batch numbers begin again at 0.

There is no watermark and no deduplication: counters are cumulative, so the report takes late and repeated records.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread

from pyspark.errors import PySparkAttributeError
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.parsing import invalid, parsed, valid


@dataclass(frozen=True, slots=True)
class Source:
    """The usage topic. options: of Spark's Kafka source, such as `kafka.security.protocol`, replace those given here.

    max_offsets: records in one micro-batch at most, which bounds its memory.
    """

    bootstrap_servers: str
    topic: str
    max_offsets: int = 2_000_000
    options: Mapping[str, str] = field(default_factory=dict)


def wall_clock_ms() -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


def ingest(
    warehouse: Warehouse,
    source: Source,
    checkpoint: str,
    *,
    trigger_s: float | None = None,
    now_ms: Column | None = None,
) -> StreamingQuery:
    """Start the stream and return it. One writer for each warehouse.

    checkpoint: a folder for the stream's offsets, kept over restarts. trigger_s: seconds between micro-batches; None
    takes what is there now, in batches of `max_offsets`, and ends (`availableNow`). now_ms: the wall clock in
    milliseconds since 1970; by default the time that Spark notes for each batch, so that a repeated batch has the same.
    """
    for name in ("records", "quarantine"):
        warehouse.create(name)
    reader = warehouse.spark.readStream.format("kafka")
    options = {
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "subscribe": source.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": f"{source.max_offsets}",
        # Offsets that retention removed before they were read are in the log and in the topic's own figures; to stop
        # for them would lose the rest too.
        "failOnDataLoss": "false",
        **source.options,
    }

    root, name = warehouse.root, f"usage {checkpoint}"

    def write(batch: DataFrame, number: int) -> None:
        # Under Spark Connect this runs on the server, and takes no session along.
        own = Warehouse(batch.sparkSession, root, created={"records", "quarantine"})
        write_batch(own, batch, stream_id(own.spark, name), number)

    now_ms = f.unix_millis(f.current_timestamp()) if now_ms is None else now_ms
    writer = (
        reader.options(**options)
        .load()
        .withColumn("now_ms", now_ms)
        .writeStream.queryName(name)
        .foreachBatch(write)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"availableNow": True} if trigger_s is None else {"processingTime": f"{trigger_s} seconds"}
    return writer.trigger(**trigger).start()


def stream_id(spark: SparkSession, name: str) -> str:
    """Within a micro-batch: the id of its stream. name: of the query."""
    try:
        found: str = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    except PySparkAttributeError:  # Spark Connect
        found = next(str(each.id) for each in spark.streams.active if each.name == name)
    return found


def write_batch(warehouse: Warehouse, batch: DataFrame, app_id: str, number: int) -> None:
    """Write one micro-batch of Kafka rows, with `now_ms`; a second time it changes nothing.

    Almost every batch has valid records only. So they are written first, the others are counted on the way, and Kafka
    is read again only where there are some, or where their number is not known: Delta has skipped a repeated write.
    """
    rows = parsed(batch)
    found = Observation()
    counted = rows.observe(found, f.count_if(f.col("reason").isNotNull()).alias("invalid"))
    warehouse.append_once("records", valid(counted), app_id, number)
    if _read_observation(found).get("invalid") != 0:
        warehouse.append_once("quarantine", invalid(rows), app_id, number)


def _read_observation(observation: Observation) -> dict[str, int]:
    """What a write has counted; empty if it was skipped, where `Observation.get` waits for it without end.

    Spark reports the counts shortly after the write.
    """
    found: dict[str, int] = {}

    def read() -> None:
        with suppress(Exception):  # Spark has ended, and nobody waits for it any more
            found.update(observation.get)

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(1)
    return found
