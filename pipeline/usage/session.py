"""How the jobs get their Spark session: from spark-submit where that started them, else a local one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from pipeline.spark_session import job_session

PROJECT: Final = Path(__file__).resolve().parents[2]
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
REQUIRED = {
    # Every time in the tables is UTC.
    "spark.sql.session.timeZone": "UTC",
    # A task has a file open for each date that it writes to, up to so many; else it sorts its rows by date first.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # Compaction joins files below 128 MB only, so that a file is not written again with each later one.
    "spark.databricks.delta.optimize.minFileSize": "134217728",
    "spark.databricks.delta.optimize.maxFileSize": "268435456",
    # The tables have few files. Delta's own state of each, in as many tasks as it has by default, takes seconds.
    "spark.databricks.delta.snapshotPartitions": "1",
    # A query for the list of all files in each version's checksum, a list that this Delta never reads.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # The points of 100,000 series and quarter hours are collected without a sort of the records; a task reads less: so
    # many bytes, in row groups of that size, since none is read by two tasks.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    "spark.sql.files.maxPartitionBytes": "8388608",
    "parquet.block.size": "8388608",
    # A sum or a cast that overflows is an error, not a null or a wrapped number.
    "spark.sql.ansi.enabled": "true",
}
LOCAL = {
    **DELTA,
    **REQUIRED,
    # Each column expression would be noted with its place in the source, at several calls into the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # After a shuffle a task has less than that, too.
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "32",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "33554432",
    # No checksum file beside each file: Hadoop starts a process for the permissions of every file that it writes.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}

FEW_ROWS = {
    # To compile the queries takes longer than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One task for each stage, however many files it reads, and no job of its own for each table that a join broadcasts.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.default.parallelism": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
    # To infer filters from others takes longer than they save, and nobody reads the statistics of so small a write.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.history.metricsEnabled": "false",
}


@contextmanager
def session(
    *,
    cores: int = 2,
    memory: str = "1g",
    shuffle_partitions: int = 4,
    settings: Mapping[str, str] | None = None,
    short: bool = False,
) -> Iterator[SparkSession]:
    """The session for one command. Started by spark-submit it is the cluster's, else a local one that ends with this.

    The arguments are for the local one; `settings` are more Spark settings, `short` is for jobs of seconds.
    Raises pipeline.spark_session.SparkStartError.
    """
    more = {
        **LOCAL,
        "spark.master": f"local[{cores}]",
        # The Python workers of `simulate` start in Spark's scratch folder, and import this project.
        "spark.executorEnv.PYTHONPATH": str(PROJECT),
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": f"{shuffle_partitions}",
        **(settings or {}),
    }
    with job_session("usage", with_delta=True, settings=more, short=short) as spark:
        for name, setting in REQUIRED.items():
            spark.conf.set(name, setting)
        yield spark
