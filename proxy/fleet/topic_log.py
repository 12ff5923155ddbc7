"""The log of a fleet in a Kafka topic, through internal clients to the real brokers: quotas do not apply to them."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from aiokafka.record.util import calc_crc32c

from protocol.errors import MalformedFrame
from protocol.stored_records import VOID, Found, stored_records
from proxy.fleet.fleet_topic import check_topic, wrong_timestamps
from proxy.fleet.log import Appended, LogChanged, LogFailed, LogRefused
from proxy.internal_clients.client import InternalClient, stop
from proxy.internal_clients.partition import FIRST_OFFSET, READ_WAIT_MS, Partition, next_slice
from proxy.observability.logs import EventLog, RateLimited
from quotas.fleet.record import MAX_RECORD_BYTES

PRODUCE_TIMEOUT_MS: Final = 4_000
"""A later record is worth little, because its lease counts from when it was sent."""
LOG_APPEND_TIME: Final = 1
SAME_WARNING_NS: Final = 3_600_000_000_000
BATCH_BYTES: Final = MAX_RECORD_BYTES + 10_000

T = TypeVar("T")

_log = EventLog("proxy.fleet")


class TopicLog:
    """A `Log`. Each `open` makes new clients."""

    def __init__(self, client: InternalClient, topic: str) -> None:
        self.position = 0
        self._client = client
        self._topic = topic
        self._partition = Partition(topic)
        self._producer: Any = None
        self._unread: Iterator[Found] = iter(())
        self._warnings = RateLimited(SAME_WARNING_NS)

    async def open(self) -> None:
        await self._asked(self._open())

    async def _open(self) -> None:
        client = await self._client.arguments()
        try:
            for event, fields in await check_topic(client, self._topic):
                about = {name: self._client.masked(text) for name, text in fields.items()}
                self._warnings.event(_log.warning, event, event, time.monotonic_ns(), topic=self._topic, **about)
        except LogFailed as error:  # with a broker's words
            raise type(error)(error.reason, self._client.masked(error.message)) from None
        producer = {"request_timeout_ms": PRODUCE_TIMEOUT_MS, "max_batch_size": BATCH_BYTES, "acks": "all"}
        self._producer = AIOKafkaProducer(**(client | producer))
        await self._producer.start()
        await self._partition.open(client)

    async def append(self, record: bytes) -> Appended:
        if self._producer is None:
            raise LogFailed("unreachable", "the topic is not open")
        done = await self._asked(self._producer.send_and_wait(self._topic, record, partition=0))
        if done.timestamp_type != LOG_APPEND_TIME:  # changed since it was checked, or it could not be
            raise LogRefused("topic_differs", wrong_timestamps(self._topic))
        return Appended(done.offset, done.timestamp)

    async def seek(self, time_ms: int) -> bool:
        return await self._asked(self._seek(time_ms))

    async def _seek(self, time_ms: int) -> bool:
        offset_at = self._partition.offset_at
        first, found = await offset_at(FIRST_OFFSET), await offset_at(max(0, time_ms))
        if found < 0:
            raise LogChanged("behind", "the record that was appended just now is not in the topic")
        self._unread = iter(())
        self.position = found
        return found > first

    async def read(self) -> Sequence[bytes]:
        await asyncio.sleep(0)  # otherwise records that are already here would be returned without running the loop
        found = self._taken()
        if not found:
            self._unread = await self._asked(self._fetched())
            found = self._taken()
        return found

    def _taken(self) -> list[bytes]:
        """The next of the records that were fetched."""
        try:
            found, _ = next_slice(self._unread, self.position)
        except MalformedFrame as error:
            raise LogFailed("broker_error", f"--fleet-topic {self._topic}: {error}") from None
        for each in found:
            if each.offset > self.position:
                missing = f"the record at {self.position} is missing, the next one is at {each.offset}"
                raise LogChanged("gap", missing)
            self.position = each.next_offset
        return [each.value or VOID for each in found]

    async def _fetched(self) -> Iterator[Found]:
        """The records from the position."""
        try:
            data = await self._partition.fetch(self.position, READ_WAIT_MS, 2 * BATCH_BYTES)
        except UnknownTopicOrPartitionError as error:
            raise LogChanged("topic_missing", f"--fleet-topic {self._topic} was deleted") from error
        return stored_records(data, MAX_RECORD_BYTES, calc_crc32c)

    async def _asked(self, asking: Awaitable[T]) -> T:
        """Turn errors of the clients into errors of a log."""
        try:
            return await asking
        except LogFailed:
            raise
        except OffsetOutOfRangeError as error:
            raise LogChanged("out_of_range", f"the topic ends before {self.position}, which was to be read") from error
        except Exception as error:  # noqa: BLE001 - a library's code
            reason, text = self._client.explain(error)
            raise LogFailed(reason, f"--fleet-topic {self._topic} {text}") from None

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        await self._partition.close()
        if producer is not None:
            await stop(producer)
