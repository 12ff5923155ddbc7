"""The log of a fleet in a Kafka topic, by the proxy's own clients to the real brokers: quotas do not concern them."""

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.util import calc_crc32c

from protocol.errors import MalformedFrame
from protocol.stored_records import VOID, Found, stored_records
from proxy.fleet.log import LogChanged, LogFailed, LogRefused, Place
from proxy.fleet.topic_check import check_topic, wrong_timestamps
from proxy.observability.logs import EventLog, RateLimited
from proxy.own_client import OwnClient
from quotas.fleet.record import MAX_RECORD_BYTES

PRODUCE_TIMEOUT_MS: Final = 4_000
"""Later, a record is worth little: its lease counts from when it was sent."""
READ_WAIT_MS: Final = 1_000
MAX_RECORDS: Final = 50
READ_BYTES: Final = 65_536
"""One reading ends with the record that reaches this: 50 records are about 1 ms, and so is one of this size."""
RETRY_SECONDS: Final = 0.2
"""Between two attempts to reach the leader, of which there may be none for a moment."""
FIRST_OFFSET: Final = -2
"""Stands for a time in a request for offsets."""
LOG_APPEND_TIME: Final = 1
SAME_WARNING_NS: Final = 3_600_000_000_000
BATCH_BYTES: Final = MAX_RECORD_BYTES + 10_000
CLOSE_SECONDS: Final = 2.0

T = TypeVar("T")

_log = EventLog("proxy.fleet")


class TopicLog:
    """A `Log`. Each `open` makes new clients. aiokafka's consumer would decompress whatever someone has written."""

    def __init__(self, client: OwnClient, topic: str) -> None:
        self.position = 0
        self._client = client
        self._topic = topic
        self._partition = TopicPartition(topic, 0)
        self._producer: Any = None
        self._reader: Any = None
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
        self._reader = AIOKafkaClient(**client)
        await self._reader.bootstrap()
        await self._reader._wait_on_metadata(self._topic)

    async def append(self, record: bytes) -> Place:
        if self._producer is None:
            raise LogFailed("unreachable", "the topic is not open")
        done = await self._asked(self._producer.send_and_wait(self._topic, record, partition=0))
        if done.timestamp_type != LOG_APPEND_TIME:  # changed since it was checked, or it could not be
            raise LogRefused("topic_differs", wrong_timestamps(self._topic))
        return Place(done.offset, done.timestamp)

    async def seek(self, time_ms: int) -> bool:
        return await self._asked(self._seek(time_ms))

    async def _seek(self, time_ms: int) -> bool:
        first, found = await self._offset_at(FIRST_OFFSET), await self._offset_at(max(0, time_ms))
        if found < 0:
            raise LogChanged("behind", "the record that was appended just now is not in the topic")
        self._unread = iter(())
        self.position = found
        return found > first

    async def _offset_at(self, time_ms: int) -> int:
        """Of the first record appended at this time or later; below 0: there is none."""
        *_, offset = await self._of_leader(OffsetRequest(-1, 0, [(self._topic, [(0, time_ms)])]))
        return int(offset)

    async def read(self) -> Sequence[bytes]:
        await asyncio.sleep(0)  # records that are here already come without a turn of the loop
        found = self._taken()
        if not found:
            self._unread = await self._asked(self._fetched())
            found = self._taken()
        return found

    def _taken(self) -> list[bytes]:
        """The next records of those that were fetched."""
        values: list[bytes] = []
        size = 0
        try:
            for each in self._unread:
                if each.next_offset <= self.position:  # of a batch that begins before
                    continue
                if each.offset > self.position:
                    missing = f"the record at {self.position} is missing, the next one is at {each.offset}"
                    raise LogChanged("gap", missing)
                self.position = each.next_offset
                values.append(each.value or VOID)  # what is skipped is work, too
                size += len(values[-1])
                if len(values) >= MAX_RECORDS or size >= READ_BYTES:
                    break
        except MalformedFrame as error:
            raise LogFailed("broker_error", f"--fleet-topic {self._topic}: {error}") from None
        return values

    async def _fetched(self) -> Iterator[Found]:
        """From the position on; nothing after a while without a record, or while the partition has no leader."""
        partition = 0, self.position, 2 * BATCH_BYTES
        try:
            *_, data = await self._of_leader(
                FetchRequest(READ_WAIT_MS, 1, 2 * BATCH_BYTES, 0, [(self._topic, [partition])])
            )
        except KafkaError as error:
            if not error.retriable:
                raise
            self._reader.force_metadata_update()
            await asyncio.sleep(RETRY_SECONDS)
            return iter(())
        return stored_records(data or b"", MAX_RECORD_BYTES, calc_crc32c)

    async def _of_leader(self, request: Any) -> Sequence[Any]:
        """What the leader answers about the partition, without the error code. Raises errors of aiokafka."""
        leader = self._reader.cluster.leader_for_partition(self._partition)
        response = await self._reader.send(-1 if leader is None else leader, request)
        [(_, [(_, code, *answer)])] = response.topics
        if code:
            raise for_code(code)(self._topic)
        return list(answer)

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
        reader, self._reader = self._reader, None
        producer, self._producer = self._producer, None
        if reader is not None:
            await _stopped(reader.close())
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
