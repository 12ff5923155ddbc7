"""Producers that want more than they may have, one for each client library; the Python ones run as `python -m` this.

All send records of 10 kB in batches of at most 100 kB: 2 % of 5 MB/s, the tolerance of a second. The first
`DISTINCT_BYTES` of a value differ from record to record (a number; from Java's own tool, random letters), so that a
record that was written twice is found in the topic. No producer is idempotent: a request that is sent again is written
again. Requests time out after 10 s, so that a run of 30 s can show it. Everything else is the library's default.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from deploy.local.artifacts import KAFKA_4_3_1, KAFKA_TOOLS, class_path, spark_jars
from deploy.local.java import find_java

RECORD_BYTES = 10_000
BATCH_BYTES = 100_000
DISTINCT_BYTES = 32
REQUEST_TIMEOUT_MS = 10_000
_FOREVER = 10**9
PYSPARK = "pyspark"
#: As Java's client names them.
JAVA_SETTINGS = {
    "acks": "1",
    "enable.idempotence": "false",
    "batch.size": f"{BATCH_BYTES}",
    "request.timeout.ms": f"{REQUEST_TIMEOUT_MS}",
}


def command(library: str, bootstrap: str, client_id: str, topic: str, records_per_second: int = 0) -> list[str]:
    """The command line of a producer that sends until it is killed. `records_per_second`: 0 for all that it can."""
    if library != "java":
        module = [sys.executable, "-m", "bench.flooding_clients"]
        return [*module, library, bootstrap, client_id, topic, f"{records_per_second}"]
    properties = {"bootstrap.servers": bootstrap, "client.id": client_id, **JAVA_SETTINGS}
    return [
        find_java(),
        "-Xmx256m",
        "-cp",
        class_path(KAFKA_4_3_1, KAFKA_TOOLS),
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--record-size", f"{RECORD_BYTES}"),
        *("--num-records", f"{_FOREVER}", "--throughput", f"{records_per_second or -1}", "--producer-props"),
        *(f"{name}={value}" for name, value in properties.items()),
    ]


def paced_values(records_per_second: int) -> Iterator[tuple[float, bytes]]:
    """Numbered records, each with the seconds to wait before it is sent. 0 records per second: no wait."""
    filler = bytes(RECORD_BYTES - DISTINCT_BYTES)
    start = time.monotonic()
    for number in count():
        due = start + number / records_per_second if records_per_second else 0.0
        yield max(0.0, due - time.monotonic()), b"%0*d" % (DISTINCT_BYTES, number) + filler


def flood_with_librdkafka(bootstrap: str, client_id: str, topic: str, records_per_second: int) -> None:
    """Fill librdkafka's queue, wait for room, fill it again."""
    from confluent_kafka import KafkaError, Message, Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "acks": 1,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": 32_768,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
        }
    )

    def report(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            print(error.name(), error, flush=True)

    for wait_seconds, value in paced_values(records_per_second):
        time.sleep(wait_seconds)
        while True:
            try:
                producer.produce(topic, value, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.1)


def flood_with_aiokafka(bootstrap: str, client_id: str, topic: str, records_per_second: int) -> None:
    """`send` waits on its own while the partition's batch is full."""
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def flood() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            acks=1,
            max_batch_size=BATCH_BYTES,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        await producer.start()
        for wait_seconds, value in paced_values(records_per_second):
            if wait_seconds:
                await asyncio.sleep(wait_seconds)
            try:
                await producer.send(topic, value)
            except KafkaError as error:
                print(repr(error), flush=True)

    asyncio.run(flood())


def flood_with_pyspark(bootstrap: str, client_id: str, topic: str, _records_per_second: int) -> None:
    """One batch job on two cores, which cannot be paced. Prints Spark's log, with the warnings of its Kafka client."""
    from pyspark.sql import functions as f

    from pipeline.spark_session import spark_session

    with spark_session(spark_jars(), log=Path("/dev/stdout")) as spark:
        spark.sparkContext.setLogLevel("WARN")
        value = f.rpad(f.lpad(f.col("id").cast("string"), DISTINCT_BYTES, "0"), RECORD_BYTES, "x")
        sink = spark.range(_FOREVER, numPartitions=2).select(value.alias("value")).write.format("kafka")
        for name, setting in {"bootstrap.servers": bootstrap, "client.id": client_id, **JAVA_SETTINGS}.items():
            sink = sink.option(f"kafka.{name}", setting)
        sink.option("topic", topic).save()


FLOODS: dict[str, Callable[[str, str, str, int], None]] = {
    "aiokafka": flood_with_aiokafka,
    "librdkafka": flood_with_librdkafka,
    PYSPARK: flood_with_pyspark,
}
LIBRARIES = ("aiokafka", "librdkafka", "java")


if __name__ == "__main__":
    _, library, bootstrap, client_id, topic, records_per_second = sys.argv
    FLOODS[library](bootstrap, client_id, topic, int(records_per_second))
