"""Producers that want four times what they get: no request times out, no record is lost or written twice."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer

from deploy.local.cluster import KafkaCluster
from deploy.local.tools import tool_command
from proxy.config.floor import JAVA
from tests.conftest import UniqueName
from tests.integration.librdkafka import records_in
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics

pytestmark = [
    pytest.mark.claim(
        "limits",
        "a larger limit, a smaller buffer or a longer delivery timeout is enough for two Spark jobs that share a limit",
    ),
    pytest.mark.claim(
        "enforcement", "no client times out or writes twice because of a throttle, and no group rebalances"
    ),
]

#: Java's defaults, to which each client here is set.
BUFFER_BYTES, REQUEST_TIMEOUT_SECONDS, DELIVERY_TIMEOUT_SECONDS = 33_554_432, 30, 120
#: Above their floor.
LIMIT = 400_000
assert LIMIT > JAVA
RECORD_BYTES = 10_000
WANTED = 4 * LIMIT // RECORD_BYTES
"""Records per second."""

Produce = Callable[[str, str, int, int], int]
"""Sends to a topic through a bootstrap server for some seconds, with a buffer of some bytes. Returns how many records
were sent. Raises AssertionError where one failed, or a request was sent again.
"""


def with_librdkafka(bootstrap: str, topic: str, seconds: int, buffer_bytes: int, acks: int = 1) -> int:
    problems: list[str] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            problems.append(str(error))

    def count(stats: str) -> None:
        problems.extend(
            f"retries {broker['txretries']}, timeouts {broker['req_timeouts']}"
            for broker in json.loads(stats)["brokers"].values()
            if broker["txretries"] or broker["req_timeouts"]
        )

    patience = {
        "message.timeout.ms": DELIVERY_TIMEOUT_SECONDS * 1000,
        "request.timeout.ms": REQUEST_TIMEOUT_SECONDS * 1000,
    }
    watched = {"statistics.interval.ms": 1000, "stats_cb": count, "queue.buffering.max.kbytes": buffer_bytes // 1024}
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": topic, "acks": acks, **patience, **watched})
    began = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - began) < seconds:
        try:
            if sent < elapsed * WANTED:
                producer.produce(topic, bytes(RECORD_BYTES), on_delivery=delivered)
                sent += 1
            producer.poll(0 if sent < elapsed * WANTED else 0.01)
        except BufferError:
            producer.poll(0.1)
    assert producer.flush(DELIVERY_TIMEOUT_SECONDS) == 0
    assert problems == []
    return sent


def with_aiokafka(bootstrap: str, topic: str, seconds: int, _buffer_bytes: int) -> int:
    """Its buffer is one batch for each partition."""

    async def run() -> int:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, client_id=topic, max_batch_size=65_536) as producer:
            began = time.monotonic()
            futures = []
            while time.monotonic() - began < seconds:
                futures.append(await producer.send(topic, bytes(RECORD_BYTES)))
            await asyncio.gather(*futures)
            return len(futures)

    return asyncio.run(run())


def with_java(bootstrap: str, topic: str, seconds: int, buffer_bytes: int) -> int:
    sent = LIMIT * seconds // RECORD_BYTES
    properties = ("acks=1", f"client.id={topic}", f"buffer.memory={buffer_bytes}", "enable.idempotence=false")
    argv = tool_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", str(WANTED)),
        *("--num-records", str(sent), "--record-size", str(RECORD_BYTES), "--print-metrics"),
        *("--command-property", *properties),
    )
    done = subprocess.run(argv, capture_output=True, timeout=2 * seconds + 60, check=True)
    totals = re.findall(r"record-(?:retry|error)-total:.*: (\S+)", done.stdout.decode())
    assert totals, "the tool prints these metrics"
    assert {float(total) for total in totals} == {0.0}
    return sent


PRODUCERS: dict[str, Produce] = {
    "librdkafka": with_librdkafka,
    "librdkafka-acks-0": partial(with_librdkafka, acks=0),
    "aiokafka": with_aiokafka,
    "java": with_java,
}


@pytest.mark.parametrize(
    ("seconds", "buffer_bytes"),
    [
        pytest.param(4, 1 << 20, marks=pytest.mark.timeout(150)),
        pytest.param(300, BUFFER_BYTES, marks=[pytest.mark.nightly, pytest.mark.timeout(700)]),
    ],
)
def test_no_timeout(kafka_cluster: KafkaCluster, unique_name: UniqueName, seconds: int, buffer_bytes: int) -> None:
    """All at once, each under a limit of its own. Each batch is larger than the burst."""
    topics = {library: unique_name(library) for library in PRODUCERS}
    create_topics(kafka_cluster, *topics.values())
    quota = f"client-id=<default>,producer_byte_rate={LIMIT},burst_seconds=0.02"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy:
        with ThreadPoolExecutor(len(PRODUCERS)) as threads:
            running = {
                library: threads.submit(produce, proxy.bootstrap_servers, topics[library], seconds, buffer_bytes)
                for library, produce in PRODUCERS.items()
            }
            sent = {library: each.result() for library, each in running.items()}
        assert proxy.metric("dropped_frames_total") == 0
        for topic in topics.values():
            assert proxy.metric("throttled_total", client_id=topic) > 0
        unanswered = "librdkafka-acks-0"  # its last records are in the sockets' buffers when it ends
        eventually(lambda: records_in(kafka_cluster, topics[unanswered]) >= sent[unanswered], 60, "all is written")
    assert {library: records_in(kafka_cluster, topic) for library, topic in topics.items()} == sent
    assert min(sent.values()) * RECORD_BYTES >= LIMIT * seconds / 2, "each got its limit"
