"""A broker goes and comes back while every client library produces and a group reads: nothing acknowledged is lost."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Message, Producer
from kafka import KafkaProducer

from tests.conftest import UniqueName
from tests.integration.java_tools import perf_producer
from tests.integration.proxy_process import eventually
from tests.integration.scanned_proxy import ScannedProxy

PACE_SECONDS = 0.05
BATCH = 5
JAVA_RECORDS = 1000
JAVA_RECORDS_PER_SECOND = 75
JAVA_BATCH_SIZE = 500
"""Bytes after which Java takes the next partition: small, so that it soon has records in each."""
FIRST_RECORDS = 100
"""What each producer in Python has sent, and so in each partition, before a broker goes."""

Sent = list[bytes]


def batches(name: str, stop: threading.Event) -> "Callable[[], list[bytes] | None]":
    """The next few values each time it is called, at a steady pace; None when it is enough."""
    count = 0

    def following() -> list[bytes] | None:
        nonlocal count
        if stop.wait(PACE_SECONDS):
            return None
        count += BATCH
        return [f"{name}-{number}".encode() for number in range(count - BATCH, count)]

    return following


def aiokafka_produces(front: ScannedProxy, topic: str, stop: threading.Event, sent: Sent) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=front.bootstrap_servers, enable_idempotence=True, request_timeout_ms=60_000
        )
        await producer.start()
        following = batches("aiokafka", stop)
        try:
            while values := await asyncio.to_thread(following):
                await asyncio.gather(*[producer.send_and_wait(topic, value) for value in values])
                sent.extend(values)
        finally:
            await producer.stop()

    asyncio.run(run())


def librdkafka_produces(front: ScannedProxy, topic: str, stop: threading.Event, sent: Sent) -> None:
    producer = Producer({"bootstrap.servers": front.bootstrap_servers, "acks": "all", "enable.idempotence": True})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            sent.append(message.value() or b"")
        else:
            failed.append(error)

    following = batches("librdkafka", stop)
    while values := following():
        for value in values:
            producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failed == []


def kafka_python_produces(front: ScannedProxy, topic: str, stop: threading.Event, sent: Sent) -> None:
    with closing(KafkaProducer(bootstrap_servers=front.bootstrap_servers, acks="all")) as producer:
        following = batches("kafka-python", stop)
        while values := following():
            for future in [producer.send(topic, value) for value in values]:
                future.get(60)
            sent.extend(values)


def java_produces(front: ScannedProxy, topic: str, _stop: threading.Event, _sent: Sent) -> None:
    """All its records are the same, so they go to a topic of their own and are counted by their acknowledgements."""
    settings = ("acks=all", f"batch.size={JAVA_BATCH_SIZE}")
    to, pace = (front.bootstrap_servers, f"{topic}-java"), JAVA_RECORDS_PER_SECOND
    done = perf_producer(*to, *settings, records=JAVA_RECORDS, size=100, throughput=pace)
    assert f"{JAVA_RECORDS} records sent" in done.stdout, done.stderr


def group_reads(front: ScannedProxy, topic: str, finished: threading.Event, seen: dict[bytes, int]) -> None:
    """Until it is told that it has all."""
    group = {"group.id": topic, "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": front.bootstrap_servers, **group})
    try:
        consumer.subscribe([topic])
        while not finished.is_set():
            for message in consumer.consume(500, timeout=0.2):
                if message.error() is None:
                    value = message.value() or b""
                    seen[value] = seen.get(value, 0) + 1
    finally:
        consumer.close()


def all_go_on(sent: list[Sent], what: str) -> None:
    """Each producer has sent more since now."""
    before = [len(each) for each in sent]
    eventually(lambda: all(len(each) > count for each, count in zip(sent, before, strict=True)), 60, what)


PRODUCERS = (aiokafka_produces, librdkafka_produces, kafka_python_produces, java_produces)


@pytest.mark.parametrize("graceful", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["killed", "stopped"])
@pytest.mark.timeout(250)
def test_nothing_is_lost(front_of_three: ScannedProxy, unique_name: UniqueName, graceful: bool) -> None:
    """The broker goes once each producer has records in every partition.

    Before that, Kafka itself can lose a producer's first batch: a leader without state of the producer takes the second
    one, and refuses the first for ever (KAFKA-15591).
    """
    front = front_of_three
    topic = front.create_topic(unique_name("bounce"))
    java_topic = front.create_topic(f"{topic}-java")
    stop, finished = threading.Event(), threading.Event()
    sent: dict[str, Sent] = {produces.__name__: [] for produces in PRODUCERS}
    seen: dict[bytes, int] = {}
    try:
        with ThreadPoolExecutor(len(PRODUCERS) + 1) as pool:
            reading = pool.submit(group_reads, front, topic, finished, seen)
            producing = [pool.submit(produces, front, topic, stop, sent[produces.__name__]) for produces in PRODUCERS]
            try:
                python = [each for name, each in sent.items() if name != "java_produces"]
                eventually(lambda: min(map(len, python)) >= FIRST_RECORDS and seen, 60, "all produce, the group reads")
                in_each = "Java has records in every partition"
                eventually(lambda: min(front.latest_offsets(java_topic), default=0), 60, in_each)
                front.cluster.stop_broker(2, graceful=graceful)
                all_go_on(python, "with two brokers")
                front.cluster.start_broker(2)
                all_go_on(python, "with three brokers")
                stop.set()
                for each in producing:
                    each.result(90)
                everything = {value for each in python for value in each}
                eventually(lambda: everything <= seen.keys(), 60, "the group has read all that was acknowledged")
            finally:
                stop.set()
                finished.set()
            reading.result(30)
    finally:
        _start_again(front)
    assert sum(front.latest_offsets(java_topic)) == JAVA_RECORDS


def _start_again(front: ScannedProxy) -> None:
    """A test that failed half-way leaves three brokers to the next."""
    front.cluster.start_broker(2)
