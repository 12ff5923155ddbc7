"""Producers that want more than they may have, one for each client library; the Python ones run as `python -m` this.

All send records of 10 kB in batches of at most 100 kB, which is 2 % of 5 MB/s: so that what is looked for, a second
within 2 % of the limit, is not finer than what one request is. Everything else is the library's default.
"""

import asyncio
import sys
from collections.abc import Callable

from deploy.local.artifacts import KAFKA_4_3_1, KAFKA_TOOLS, class_path
from deploy.local.java import find_java

RECORD_BYTES = 10_000
BATCH_BYTES = 100_000
_FOREVER = 10**9


def command(library: str, bootstrap: str, client_id: str, topic: str) -> list[str]:
    """The command line of a producer that sends until it is killed."""
    if library != "java":
        return [sys.executable, "-m", "bench.flooding_clients", library, bootstrap, client_id, topic]
    properties = {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "acks": "1",
        "enable.idempotence": "false",
        "batch.size": f"{BATCH_BYTES}",
    }
    return [
        find_java(),
        "-Xmx256m",
        "-cp",
        class_path(KAFKA_4_3_1, KAFKA_TOOLS),
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--record-size", f"{RECORD_BYTES}"),
        *("--num-records", f"{_FOREVER}", "--throughput", "-1", "--producer-props"),
        *(f"{name}={value}" for name, value in properties.items()),
    ]


def flood_with_librdkafka(bootstrap: str, client_id: str, topic: str) -> None:
    """Fill librdkafka's queue, wait for room, fill it again."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "acks": 1,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": 32_768,
        }
    )
    value = bytes(RECORD_BYTES)
    while True:
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(0.1)


def flood_with_aiokafka(bootstrap: str, client_id: str, topic: str) -> None:
    """`send` waits by itself while the partition's batch is full."""
    from aiokafka import AIOKafkaProducer

    async def flood() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, client_id=client_id, acks=1, max_batch_size=BATCH_BYTES
        )
        await producer.start()
        value = bytes(RECORD_BYTES)
        while True:
            await producer.send(topic, value)

    asyncio.run(flood())


FLOODS: dict[str, Callable[[str, str, str], None]] = {
    "aiokafka": flood_with_aiokafka,
    "librdkafka": flood_with_librdkafka,
}
LIBRARIES = (*FLOODS, "java")


if __name__ == "__main__":
    FLOODS[sys.argv[1]](*sys.argv[2:])
