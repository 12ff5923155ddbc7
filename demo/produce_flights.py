"""The PySpark batch job: writes the flights to a Kafka topic with Spark's own Kafka sink.

It knows nothing of the proxy. Whether its bytes are held to a quota is decided by the address alone:

    python -m demo.produce_flights --bootstrap-servers 127.0.0.1:19092 --topic flights --client-id flights-etl
"""

import argparse
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from demo.flights import FLIGHTS, prepare
from deploy.local import artifacts
from deploy.local.errors import PlaygroundError
from pipeline.failures import JobFailedError, reason
from pipeline.spark_session import SparkStartError, spark_session

# Settings of the Java producer inside Spark's sink.
PRODUCER_SETTINGS = {
    # Bytes in the table and the picture are comparable only without compression.
    "compression.type": "none",
    # Kafka's default. A request carries at most one batch for each partition: far less than a second's quota.
    "batch.size": "16384",
    # Full batches instead of whatever a task has written so far.
    "linger.ms": "50",
    # Idempotent (the client's default): a retried batch is never written twice.
    "enable.idempotence": "true",
    "acks": "all",
    # Spark fills whatever there is as fast as it can, and takes every core for that: with Kafka's default of 32 MiB,
    # for the first seconds of a job.
    "buffer.memory": "8388608",
    # With a quota, a full send buffer waits for seconds. A batch expires only after ten minutes ...
    "delivery.timeout.ms": "600000",
    # ... and a request only after one: the broker's own quota may keep an answer back for more than ten seconds.
    "request.timeout.ms": "60000",
}


def read_flights(spark: SparkSession, prepared: Path, rows: int = FLIGHTS) -> DataFrame:
    """The first `rows` records of the prepared file, as the columns `key` and `value` that the sink takes."""
    columns = f.split(f.col("value"), "\t", 3)
    records = spark.read.text(str(prepared.resolve())).select(columns[0].alias("key"), columns[2].alias("value"))
    return records if rows >= FLIGHTS else records.where(f.col("key").cast("int") <= rows)


def produce(records: DataFrame, *, bootstrap_servers: str, topic: str, client_id: str) -> None:
    """Write `records` to `topic`; returns when the brokers have acknowledged every one of them.

    Raises JobFailedError.
    """
    sink = records.write.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    for name, value in {**PRODUCER_SETTINGS, "client.id": client_id}.items():
        sink = sink.option(f"kafka.{name}", value)
    try:
        sink.save()
    except (PySparkException, Py4JError, OSError) as error:
        raise JobFailedError(reason(error)) from error


def main() -> int:
    """Run the job on its own. Returns the exit code: 1, and one line on stderr, when it fails."""
    parser = argparse.ArgumentParser(prog="python -m demo.produce_flights", description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT[,...]")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--client-id", default="flights-etl")
    parser.add_argument("--rows", type=int, default=FLIGHTS, help=f"only the first rows (default: all {FLIGHTS:,})")
    arguments = parser.parse_args()
    try:
        prepared = prepare(artifacts.CACHE / "flights")
        with spark_session(artifacts.spark_jars()) as spark:
            produce(
                read_flights(spark, prepared, arguments.rows),
                bootstrap_servers=arguments.bootstrap_servers,
                topic=arguments.topic,
                client_id=arguments.client_id,
            )
    except (JobFailedError, SparkStartError, PlaygroundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{min(arguments.rows, FLIGHTS):,} flights are in topic {arguments.topic}, acknowledged by the brokers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
