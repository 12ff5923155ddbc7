"""A producer that sends small records at an even pace, and prints how long each delivery took: one long-lived process.

    python -m bench.online_producer BOOTSTRAP CLIENT_ID RECORDS_PER_SECOND

A line is a monotonic time and the milliseconds from `produce()` to the acknowledgement, which librdkafka measures, so
the pace of this program does not count.
"""

import sys
import time
from itertools import count

from confluent_kafka import KafkaError, Message, Producer

RECORD = bytes(1_000)


def report(error: KafkaError | None, message: Message) -> None:
    took_ms = "inf" if error else f"{1000 * (message.latency() or 0):.2f}"
    print(f"{time.monotonic():.3f} {took_ms}", flush=True)


def main(bootstrap: str, client_id: str, per_second: int) -> None:
    """Send until this process is ended. The topic is called like the client."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "acks": 1, "linger.ms": 0})
    began = time.monotonic()
    for number in count():
        producer.poll(max(0.0, began + number / per_second - time.monotonic()))
        producer.produce(client_id, RECORD, partition=number % 6, on_delivery=report)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
