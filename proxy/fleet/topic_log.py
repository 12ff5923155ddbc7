"""The log of a fleet in a Kafka topic, by the proxy's own clients to the real brokers: quotas do not concern them."""

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from proxy.fleet.log import LogChanged, LogFailed, Place
from proxy.fleet.topic_check import check_topic
from proxy.own_client import OwnClient
from quotas.fleet.record import MAX_RECORD_BYTES

PRODUCE_TIMEOUT_MS: Final = 4_000
"""Later, a record is worth little: its lease counts from when it was sent."""
FETCH_WAIT_MS: Final = 2_000
READ_WAIT_MS: Final = 1_000
MAX_RECORDS: Final = 50
"""Of one reading: about 1 ms."""
BATCH_BYTES: Final = MAX_RECORD_BYTES + 10_000
CLOSE_SECONDS: Final = 2.0

T = TypeVar("T")


class TopicLog:
    """A `Log`. Each `open` makes new clients."""

    def __init__(self, client: OwnClient, topic: str) -> None:
        self.position = 0
        self._client = client
        self._topic = topic
        self._partition = TopicPartition(topic, 0)
        self._producer: Any = None
        self._consumer: Any = None

    async def open(self) -> None:
        await self._asked(self._open())

    async def _open(self) -> None:
        client = await self._client.arguments()
        try:
            await check_topic(client, self._topic, self._client.masked)
        except LogFailed as error:  # with a broker's words
            raise type(error)(error.reason, self._client.masked(error.message)) from None
        producer = {"request_timeout_ms": PRODUCE_TIMEOUT_MS, "max_batch_size": BATCH_BYTES, "acks": "all"}
        self._producer = AIOKafkaProducer(**(client | producer))
        await self._producer.start()
        self._consumer = AIOKafkaConsumer(
            **client,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            consumer_timeout_ms=FETCH_WAIT_MS,  # how often it looks for new partitions
            max_partition_fetch_bytes=2 * BATCH_BYTES,
        )
        await self._consumer.start()

    async def append(self, record: bytes) -> Place:
        if self._producer is None:
            raise LogFailed("unreachable", "the topic is not open")
        done = await self._asked(self._producer.send_and_wait(self._topic, record, partition=0))
        return Place(done.offset, done.timestamp)

    async def seek(self, time_ms: int) -> bool:
        return await self._asked(self._seek(time_ms))

    async def _seek(self, time_ms: int) -> bool:
        consumer, partition = self._consumer, self._partition
        consumer.assign([partition])
        found = (await consumer.offsets_for_times({partition: max(0, time_ms)}))[partition]
        first = (await consumer.beginning_offsets([partition]))[partition]
        if found is None:
            raise LogChanged("behind", "the record that was appended just now is not in the topic")
        consumer.seek(partition, found.offset)
        self.position = found.offset
        return bool(found.offset > first)

    async def read(self) -> Sequence[bytes]:
        await asyncio.sleep(0)  # records that are here already come without a turn of the loop
        reading = self._consumer.getmany(self._partition, timeout_ms=READ_WAIT_MS, max_records=MAX_RECORDS)
        messages = (await self._asked(reading)).get(self._partition, ())
        for message in messages:
            if message.offset != self.position:
                raise LogChanged(
                    "gap", f"the record at {self.position} is missing, the next one is at {message.offset}"
                )
            self.position += 1
        return [message.value or b"" for message in messages]

    async def _asked(self, asking: Awaitable[T]) -> T:
        """Errors of the clients as those of a log."""
        try:
            return await asking
        except LogFailed:
            raise
        except OffsetOutOfRangeError as error:
            raise LogChanged("out_of_range", f"the topic ends before {self.position}, which was to be read") from error
        except Exception as error:  # noqa: BLE001 - a library's code
            reason, text = self._client.explain(error)
            servers = ",".join(self._client.servers)
            raise LogFailed(reason, f"--fleet-topic {self._topic} at {servers}: {text}") from None

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        producer, self._producer = self._producer, None
        if consumer is not None:
            await _stopped(consumer.stop())
        if producer is not None and not await _stopped(producer.stop()):
            # aiokafka cannot be stopped without a flush, which waits for the broker.
            await producer._sender.close()
            await producer.client.close()


async def _stopped(stopping: Coroutine[Any, Any, None]) -> bool:
    """In a task of its own: clients that wait for a broker are cancelled, or cancel who stops them."""
    task = asyncio.ensure_future(stopping)
    done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    task.cancel()
    return bool(done) and not task.cancelled() and task.exception() is None
