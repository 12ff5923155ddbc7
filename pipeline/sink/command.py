"""Writes the lines of text files to a Kafka topic with Spark Structured Streaming, at the pace of a quota. A sink that
was killed continues from its checkpoint: no record is lost, and at most one micro-batch is written twice, with the same
keys.

examples:
  # all files that are there now, through a proxy with --quota 'client-id=orders-sink,producer_byte_rate=5MB'
  python -m pipeline.sink --input /data/orders --checkpoint /data/checkpoints/orders \\
      --bootstrap-servers 127.0.0.1:19092 --topic orders --client-id orders-sink --rate 5MB

  # keep running, a micro-batch each minute at the most; the order's number is the key
  python -m pipeline.sink ... --every 60 --key "get_json_object(line, '$.order_id')"

  # on a cluster
  zip -r pipeline.zip pipeline -i '*.py'
  spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 --py-files pipeline.zip \\
      pipeline/sink/__main__.py --input s3a://bucket/orders --checkpoint s3a://bucket/checkpoints/orders ...

exit code: 0 at the end of the input, 1 when the query failed, 2 for a wrong option or no broker, 130 after Ctrl-C.
docs: docs/pipeline/sink.md
"""

# This is also what spark-submit runs: argparse, PySpark and the standard library, nothing else.

import argparse
import signal
from collections.abc import Callable, Sequence
from threading import Event

from pyspark.sql import SparkSession

from pipeline.brokers import client_settings, require_topic
from pipeline.client_metrics import blocked_seconds, longest_throttle_seconds
from pipeline.failures import InputError, exit_code
from pipeline.options import count, heap, key_value, positive
from pipeline.sink.follow import Waited, follow
from pipeline.sink.sizing import Sizing, parse_rate
from pipeline.sink.stream import CONTENT_KEY, Job, start
from pipeline.spark_session import job_session


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; an error is one line on stderr."""
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(
        lambda: _run(given), "stopped; with the same --checkpoint the next run repeats the micro-batch in flight"
    )


def parser() -> argparse.ArgumentParser:
    """All options. The help is the text of this module."""
    description, _, examples = (__doc__ or "").partition("\n\n")
    top = argparse.ArgumentParser(
        prog="python -m pipeline.sink",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = top.add_argument_group("from files to a topic")
    text = "text files, one record a line; a file appears by a rename"
    where.add_argument("--input", required=True, metavar="FOLDER", help=text)
    where.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT[,...]", help="the proxy, or brokers")
    where.add_argument("--topic", required=True, help="an existing topic")
    where.add_argument("--client-id", default="sink", help="the quota's client id (default: %(default)s)")
    text = "folder that records which files are done; use one for each input and topic"
    where.add_argument("--checkpoint", required=True, metavar="FOLDER", help=text)
    records = top.add_argument_group("records")
    text = "expression over `line`, best an id; where it is null the default applies (default: %(default)s)"
    records.add_argument("--key", default=CONTENT_KEY, metavar="SQL", help=text)
    records.add_argument("--value", default="line", metavar="SQL", help="expression too (default: %(default)s)")
    pace = top.add_argument_group("pace")
    text = "this job's quota in bytes per second: 5MB, 512KiB; it sizes micro-batches, buffer and timeouts"
    pace.add_argument("--rate", required=True, type=parse_rate, metavar="BYTES", help=text)
    text = "how long a micro-batch takes at that rate: what a kill repeats at most (default: %(default)g)"
    pace.add_argument("--batch-seconds", type=positive, default=10.0, metavar="S", help=text)
    text = "that share the rate (default: what Spark is configured for)"
    pace.add_argument("--executors", type=count, metavar="N", help=text)
    text = "keep running, a micro-batch every S seconds (default: take the files that are there, then end)"
    pace.add_argument("--every", type=positive, metavar="S", help=text)
    spark = top.add_argument_group("Spark and Kafka")
    for name, what in (
        ("--option", "Kafka sink, repeatable: kafka.compression.type=zstd, kafka.security.protocol=SASL_PLAINTEXT"),
        ("--source-option", "file source, repeatable: cleanSource=delete, recursiveFileLookup=true"),
    ):
        text = f"of Spark's {what}"
        spark.add_argument(name, action="append", default=[], type=key_value, metavar="KEY=VALUE", help=text)
    spark.add_argument("--memory", type=heap, default="1g", help="heap of a local Spark (default: %(default)s)")
    spark.add_argument("--cores", type=count, default=2, help="of a local Spark (default: %(default)s)")
    return top


def _run(given: argparse.Namespace) -> int:
    local = {"spark.master": f"local[{given.cores}]", "spark.driver.memory": given.memory}
    with job_session("sink", settings=local) as spark:
        sizing = Sizing(given.rate, given.executors or executors(spark), given.batch_seconds)
        job = Job(
            source=given.input,
            bootstrap_servers=given.bootstrap_servers,
            topic=given.topic,
            client_id=given.client_id,
            checkpoint=given.checkpoint,
            sizing=sizing,
            key=given.key,
            value=given.value,
            source_options=dict(given.source_option),
            sink_options=dict(given.option),
        )
        settings = {**client_settings(job.sink_options), "client.id": f"{job.client_id}-check"}
        require_topic(spark, job.bootstrap_servers, job.topic, settings)
        _show(
            f"{job.topic} at {sizing.rate_bytes_per_s / 1e6:g} MB/s: micro-batches of "
            f"{sizing.batch_bytes / 1e6:g} MB; {sizing.producers} x buffer.memory {sizing.buffer_bytes / 1e6:.1f} MB "
            f"drains in {sizing.drain_seconds:.1f} s, "
            f"delivery.timeout.ms {job.kafka_options['kafka.delivery.timeout.ms']}"
        )
        query = start(spark, job, every_s=given.every)
        interrupted = Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # An exception inside of a call into the JVM is a stack trace on stderr.
            signal.signal(number, lambda *_: interrupted.set())
        waited = _waits(spark, job.client_id)
        written = follow(query, sizing, show=_show, waited=waited, interrupted=interrupted.is_set)
    _show(f"done: {written}" if written.batches else f"done: nothing new in {job.source}")
    return 0


def executors(spark: SparkSession) -> int:
    """How many producers there will be: one in each executor, one in a local Spark."""
    settings = spark.sparkContext.getConf()
    if spark.sparkContext.master.startswith("local"):
        return 1
    dynamic = settings.get("spark.dynamicAllocation.enabled", "false") == "true"
    name = "spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances"
    number = settings.get(name, "")
    if not number.isdigit():
        raise InputError(f"{name} is not set: give --executors N, the most executors that share the rate")
    return int(number)


def _waits(spark: SparkSession, client_id: str) -> Callable[[], Waited | None]:
    """See `follow`. None on a cluster, where the producers are in other JVMs."""
    before = 0.0

    def waited() -> Waited | None:
        nonlocal before
        total = blocked_seconds(spark, client_id)
        if total is None:
            return None
        # A producer that Spark closed, idle for ten minutes, took its counters along.
        blocked = total - before if total >= before else total
        before = total
        return Waited(blocked, longest_throttle_seconds(spark, client_id))

    return waited


def _show(line: str) -> None:
    print(line, flush=True)
