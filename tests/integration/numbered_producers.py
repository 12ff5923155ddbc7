"""Producers of three libraries that write numbered records for a noisy and a quiet topic, and measure what passes.

Each writes `QUIET_RECORDS` for the quiet topic, one after the other; then all for the noisy topic as fast as it can,
and meanwhile as many for the quiet one. All are idempotent, which is their default, or librdkafka's setting.
"""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import KafkaError, Message, Producer
from py4j.java_gateway import JavaGateway, launch_gateway

from deploy.local.artifacts import KAFKA_4_3_1, class_path

RECORD_BYTES = 10_000
NOISY_RECORDS = 1_600
"""16 MB: half of Java's buffer."""
QUIET_RECORDS = 50
PARTITIONS = 2
DEADLINE_SECONDS = 90

_FRANZ = Path(__file__).parent / "franz_producer"


@dataclass(frozen=True)
class Written:
    """seconds: from the first noisy record until all are acknowledged; before, during: seconds that each quiet record
    took, without and with noise.
    """

    seconds: float
    before: list[float]
    during: list[float]


def numbered(number: int) -> bytes:
    return b"%08d" % number + bytes(RECORD_BYTES - 8)


def timed(write: Callable[[int], object], first: int) -> list[float]:
    """Seconds for each quiet record from number `first` on."""
    latencies = []
    for number in range(first, first + QUIET_RECORDS):
        began = time.monotonic()
        write(number)
        latencies.append(time.monotonic() - began)
    return latencies


def produce_with_librdkafka(bootstrap: str, client_id: str, noisy: str, quiet: str) -> Written:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": client_id, "enable.idempotence": True, "batch.size": 100_000}
    )
    failed: list[KafkaError] = []
    acknowledged_at: list[float] = []
    quiet_done: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        elif message.topic() == noisy:
            acknowledged_at.append(time.monotonic())
        else:
            quiet_done.append(0)

    def write(number: int) -> None:
        producer.produce(quiet, numbered(number), partition=number % PARTITIONS, on_delivery=delivered)
        while len(quiet_done) <= number and not failed:
            producer.poll(1)

    before = timed(write, 0)
    began = time.monotonic()
    for number in range(NOISY_RECORDS):
        producer.produce(noisy, numbered(number), partition=number % PARTITIONS, on_delivery=delivered)
    during = timed(write, QUIET_RECORDS)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert failed == []
    return Written(acknowledged_at[-1] - began, before, during)


def produce_with_java(bootstrap: str, client_id: str, noisy: str, quiet: str) -> Written:
    [py4j] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port = launch_gateway(classpath=class_path(KAFKA_4_3_1), jarpath=str(py4j), die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=_parameters(port))
    try:
        return _produce_with_java(gateway.jvm, bootstrap, client_id, noisy, quiet)
    finally:
        gateway.shutdown()


def _parameters(port: int) -> Any:
    from py4j.java_gateway import GatewayParameters

    return GatewayParameters(port=port, auto_convert=True)


def _produce_with_java(jvm: Any, bootstrap: str, client_id: str, noisy: str, quiet: str) -> Written:
    clients = jvm.org.apache.kafka.clients.producer
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "key.serializer": serializer,
        "value.serializer": serializer,
        "batch.size": "100000",
    }
    producer = clients.KafkaProducer(settings)

    def send(topic: str, number: int) -> Any:
        return producer.send(clients.ProducerRecord(topic, number % PARTITIONS, None, numbered(number)))

    before = timed(lambda number: send(quiet, number).get(), 0)
    began = time.monotonic()
    sent = [send(noisy, number) for number in range(NOISY_RECORDS)]
    during = timed(lambda number: send(quiet, number).get(), QUIET_RECORDS)
    for each in sent:
        each.get()
    seconds = time.monotonic() - began
    producer.close()
    return Written(seconds, before, during)


def produce_with_franz_go(bootstrap: str, client_id: str, noisy: str, quiet: str) -> Written:
    numbers = map(str, (NOISY_RECORDS, QUIET_RECORDS, RECORD_BYTES, PARTITIONS))
    command = ["go", "run", ".", bootstrap, client_id, noisy, quiet, *numbers]
    done = subprocess.run(command, cwd=_FRANZ, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return Written(**json.loads(done.stdout))
