"""Consumers that read as fast as they may, one for each client library; the Python ones run as `python -m` this."""

import asyncio
import sys
from collections.abc import Callable

from deploy.local.tools import tool_command

#: The shortest that brokers take by default, so that a stall of a run of 30 s shows as a rebalance.
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 2_000
_FOREVER = 10**9


def command(library: str, bootstrap: str, client_id: str, topic: str) -> list[str]:
    """The command line of a consumer that reads until it is killed."""
    if library != "java":
        return [sys.executable, "-m", "bench.greedy_consumers", library, bootstrap, client_id, topic]
    return tool_command(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", client_id),
        *("--num-records", str(_FOREVER), "--timeout", "600000", "--command-property", f"client.id={client_id}"),
        *("--command-property", f"session.timeout.ms={SESSION_TIMEOUT_MS}"),
        *("--command-property", f"heartbeat.interval.ms={HEARTBEAT_INTERVAL_MS}"),
    )


def read_with_librdkafka(bootstrap: str, client_id: str, topic: str) -> None:
    """A group with one member, from the beginning of the topic."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        }
    )
    consumer.subscribe([topic])
    while True:
        consumer.consume(1000, timeout=1.0)


def read_with_aiokafka(bootstrap: str, client_id: str, topic: str) -> None:
    """The same."""
    from aiokafka import AIOKafkaConsumer

    async def read() -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            client_id=client_id,
            group_id=client_id,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        )
        await consumer.start()
        while True:
            await consumer.getmany(timeout_ms=1000)

    asyncio.run(read())


READS: dict[str, Callable[[str, str, str], None]] = {
    "aiokafka": read_with_aiokafka,
    "librdkafka": read_with_librdkafka,
}
LIBRARIES = (*READS, "java")


if __name__ == "__main__":
    READS[sys.argv[1]](*sys.argv[2:])
