"""The innocent neighbour: 200 records of 1 KB a second, open loop; prints the latency of each.

    python -m bench.enforcement.neighbour HOST:PORT CLIENT_ID TOPIC

A line for each acknowledged record: the monotonic time of the acknowledgement and the latency since `produce`, in
nanoseconds. librdkafka takes the latency in its own threads.
"""

import sys
import time

from confluent_kafka import KafkaError, Message, Producer

RECORDS_PER_SECOND = 200
RECORD_BYTES = 1_000
#: Five times what it sends: it is never throttled.
LIMIT = 5 * RECORDS_PER_SECOND * RECORD_BYTES
_INTERVAL_NS = 1_000_000_000 // RECORDS_PER_SECOND


def produce(bootstrap: str, client_id: str, topic: str) -> None:
    """Until it is killed."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "acks": 1, "linger.ms": 0})
    value = bytes(RECORD_BYTES)
    next_ns = time.monotonic_ns()
    while True:
        producer.produce(topic, value, on_delivery=_report)
        next_ns += _INTERVAL_NS
        time.sleep(max(0, next_ns - time.monotonic_ns()) / 1e9)
        producer.poll(0)


def _report(error: KafkaError | None, message: Message) -> None:
    if error is None:
        print(time.monotonic_ns(), round((message.latency() or 0.0) * 1e9), flush=True)
    else:
        print(error, file=sys.stderr)


def latencies_ns(lines: bytes, begin_ns: int, end_ns: int) -> tuple[int, ...]:
    """The latencies of records that were acknowledged in that time. A line that is not complete is left out."""
    complete = lines[: lines.rfind(b"\n") + 1]
    pairs = (line.split() for line in complete.splitlines() if line[:1].isdigit())
    return tuple(int(latency) for time_ns, latency in pairs if begin_ns <= int(time_ns) < end_ns)


if __name__ == "__main__":
    produce(*sys.argv[1:])
