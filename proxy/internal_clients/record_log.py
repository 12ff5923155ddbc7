"""The records of a `LogTopic`, read in order and appended, through internal clients to the real brokers."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from aiokafka.record.util import calc_crc32c

from protocol.errors import MalformedFrame
from protocol.stored_records import Found, stored_records
from proxy.internal_clients.client import InternalClient, stop
from proxy.internal_clients.failures import LogChanged, LogFailed
from proxy.internal_clients.log_topic import LogTopic
from proxy.internal_clients.partition import READ_WAIT_MS, Partition, next_slice
from proxy.internal_clients.topic import Config
from proxy.observability.logs import EventLog, RateLimited

SAME_WARNING_NS: Final = 3_600_000_000_000

T = TypeVar("T")

_log = EventLog("proxy.internal_clients")


class Slice(NamedTuple):
    """Some records in order, and whether more of them are here already."""

    records: Sequence[Found]
    has_more: bool


class RecordLog:
    """What the logs of fleets and of quotas have in common. All methods except `close` raise LogFailed.

    position  where the next record will be read
    """

    #: The longest value that is read, and the bytes of a fetch, which has room for the largest batch.
    longest: int
    fetch_bytes: int

    def __init__(self, client: InternalClient, topic: LogTopic) -> None:
        self.position = 0
        self._topic = topic
        self._client = client
        self._partition = Partition(topic.name)
        self._producer: Any = None
        self._unread: Iterator[Found] = iter(())
        #: The latest fetch was so large that the next one will probably find more.
        self._is_behind = False
        self._warnings = RateLimited(SAME_WARNING_NS)

    async def _connect(self, *, creates: bool = True) -> Config:
        """Check the topic, and connect to its partition. Returns its settings."""
        client = await self._client.arguments()
        config, unchecked = await self._topic.check(client, creates=creates)
        if unchecked:
            self._warn(self._topic.not_checked, message=self._client.masked(unchecked), hint=self._topic.hint)
        await self._partition.open(client)
        self._unread = iter(())
        return config

    async def _start_producer(self, **settings: object) -> None:
        producer = AIOKafkaProducer(**(await self._client.arguments() | {"acks": "all"} | settings))
        await producer.start()
        self._producer = producer

    def _warn(self, event: str, **fields: object) -> None:
        """Once an hour, however often the log is opened."""
        self._warnings.event(_log.warning, event, event, time.monotonic_ns(), topic=self._topic.name, **fields)

    async def _next(self) -> Slice:
        """The next records; none after a second without any."""
        await asyncio.sleep(0)  # otherwise records that are already here would be returned without running the loop
        found = self._taken()
        if not found.records:
            data = await self._asked(self._partition.fetch(self.position, READ_WAIT_MS, self.fetch_bytes))
            self._is_behind = 2 * len(data) > self.fetch_bytes
            self._unread = stored_records(data, self.longest, calc_crc32c)
            found = self._taken()
        return found

    def _taken(self) -> Slice:
        """The next of the records that were fetched."""
        try:
            found, is_full = next_slice(self._unread, self.position)
        except MalformedFrame as error:
            raise LogFailed("broker_error", f"{self._topic}: {error}") from None
        return Slice(found, has_more=self._is_behind or is_full)

    async def _asked(self, asking: Awaitable[T]) -> T:
        """Turn errors of the clients into errors of a log."""
        try:
            return await asking
        except Exception as error:  # noqa: BLE001 - a library's code
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> LogFailed:
        match error:
            case UnknownTopicOrPartitionError():
                return LogChanged("topic_missing", f"{self._topic} was deleted")
            case OffsetOutOfRangeError():
                return LogChanged("out_of_range", f"{self._topic} ends before {self.position}, which was to be read")
        return self._client.failure(error, str(self._topic))

    async def close(self) -> None:
        """Release what is open."""
        producer, self._producer = self._producer, None
        await self._partition.close()
        if producer is not None:
            await stop(producer)
