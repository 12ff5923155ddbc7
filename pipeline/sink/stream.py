"""The query: lines of files to keyed records, into Spark's Kafka sink, with a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from pipeline.sink.sizing import Sizing

OBSERVED: Final = "written"
CONTENT_KEY: Final = "sha2(line, 256)"
"""The same for each attempt at a line. Two lines with the same text have one key."""
# Spark ignores files that are older than the newest one by more than this: by default 7 days, without a word.
_MAX_FILE_AGE: Final = "3650d"


@dataclass(frozen=True, slots=True)
class Job:
    """Where from, where to.

    source: folder (or glob) of text files, plain or compressed, one record a line; a file must appear whole, by a
    rename. checkpoint: a folder that belongs to this source and topic. key, value: SQL expressions over the column
    `line`. source_options, sink_options: of Spark's file source and Kafka sink, in place of those given here.
    """

    source: str
    bootstrap_servers: str
    topic: str
    client_id: str
    checkpoint: str
    sizing: Sizing
    key: str = CONTENT_KEY
    value: str = "line"
    source_options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def kafka_options(self) -> dict[str, str]:
        """Of Spark's Kafka sink, except for the addresses and the topic."""
        settings = {**self.sizing.producer_settings, "client.id": self.client_id}
        return {**{f"kafka.{name}": value for name, value in settings.items()}, **self.sink_options}


def start(spark: SparkSession, job: Job, *, every_s: float | None = None) -> StreamingQuery:
    """Start the query and return it.

    every_s: seconds from the start of a micro-batch to that of the next; None takes the files that are there and ends.
    """
    options = {
        "maxBytesPerTrigger": f"{job.sizing.batch_bytes}",
        "maxFileAge": _MAX_FILE_AGE,
        **job.source_options,
    }
    lines = spark.readStream.format("text").options(**options).load(job.source)
    sink = (
        keyed(lines.select(f.col("value").alias("line")), job.key, job.value)
        .observe(OBSERVED, f.count(f.lit(1)).alias("records"), f.sum(_size("key") + _size("value")).alias("bytes"))
        .writeStream.format("kafka")
        .options(**job.kafka_options)
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("topic", job.topic)
        .option("checkpointLocation", job.checkpoint)
    )
    trigger = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s} seconds"}
    return sink.trigger(**trigger).start()


def keyed(lines: DataFrame, key: str, value: str) -> DataFrame:
    """Records as the Kafka sink takes them, from the column `line`. A line without a key gets CONTENT_KEY."""
    found = f.coalesce(f.expr(key).cast("string"), f.expr(CONTENT_KEY))
    return lines.select(found.alias("key"), f.expr(value).cast("string").alias("value"))


def _size(name: str) -> Column:
    """Bytes of a column; 0 for a null, which is a record without a value."""
    return f.coalesce(f.octet_length(name), f.lit(0))
