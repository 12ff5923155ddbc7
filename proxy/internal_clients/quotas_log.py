"""The topic of quotas as a log: created if it is missing, refused if it would lose records, read and written whole.

Whoever reads it reads all of it, from the oldest record on: compaction keeps the newest record of each entity.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.record.util import calc_crc32c

from protocol.errors import MalformedFrame
from protocol.stored_records import Found, stored_records
from proxy.internal_clients.client import InternalClient, stop
from proxy.internal_clients.partition import FIRST_OFFSET, NEXT_OFFSET, READ_WAIT_MS, Partition, next_slice
from proxy.internal_clients.topic import NotCreated, create, existing, written
from proxy.observability.logs import EventLog
from quotas.stored.record import MAX_RECORD_BYTES, Record, encode

REPLICAS: Final = 3
DAY_MS: Final = 86_400_000
MUST_BE: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",  # with delete, quotas would end by age
    "compression.type": "uncompressed",  # compressed batches are not read
}
_NEW: Final[Mapping[str, str]] = {
    **MUST_BE,
    "min.compaction.lag.ms": str(7 * DAY_MS),  # `log` shows all changes of a week
    "delete.retention.ms": str(7 * DAY_MS),
    "segment.ms": str(DAY_MS),  # only whole segments are compacted
    "message.timestamp.type": "LogAppendTime",  # who reads `log` need not trust the authors' clocks
    "max.message.bytes": "1048588",
    "unclean.leader.election.enable": "false",
}
FETCH_BYTES: Final = 1_100_000
"""A batch is fetched as a whole."""
BATCH_BYTES: Final = 1_000_000
AWAY_SECONDS: Final = 5.0
"""Reading fails after this time without a leader that answers."""

T = TypeVar("T")

_log = EventLog("proxy.quotas_topic")


class TopicFailed(Exception):
    """`reason` is one word; `message` is what happened and what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


class Slice(NamedTuple):
    """Some records in order, and whether more of them are here already."""

    records: Sequence[Found]
    has_more: bool


class QuotasLog:
    """All methods except `close` raise TopicFailed. `position` is where the next record will be read."""

    def __init__(self, client: InternalClient, topic: str) -> None:
        self.position = 0
        self._client = client
        self._topic = topic
        self._partition = Partition(topic)
        self._producer: Any = None
        self._unread: Iterator[Found] = iter(())
        #: The latest fetch was as large as it may be, so that the next one will probably find more.
        self._is_behind = False

    async def open(self, *, creates: bool) -> int:
        """Connect, and read from the oldest record on. Returns the offset that the next record will have."""
        return await self._asked(self._open(creates=creates))

    async def _open(self, *, creates: bool) -> int:
        client = await self._client.arguments()
        creating = _create if creates else _missing
        async with existing(client, self._topic, MUST_BE, creating) as (admin, found, unchecked):
            [described] = await admin.describe_topics([self._topic])
        differing = [(key, value) for key, value in MUST_BE.items() if found.get(key, value) != value]
        wrong = [f"{key} is {found[key]}, and must be {value}" for key, value in differing]
        if len(described["partitions"]) > 1:
            wrong.append("it has several partitions, and must have one")
        if wrong:
            how = f"change it with kafka-configs.sh --alter --topic {self._topic} --add-config, or name another topic"
            raise TopicFailed("topic_differs", f"--quotas-topic {self._topic}: {'; '.join(wrong)}: {how}")
        if unchecked:
            _log.info("quotas_topic_not_checked", topic=self._topic, message=self._client.masked(unchecked))
        await self._partition.open(client)
        self._unread = iter(())
        self.position = await self._partition.offset_at(FIRST_OFFSET)
        return await self._partition.offset_at(NEXT_OFFSET)

    async def read(self) -> Slice:
        """The next records; none after a second without any."""
        await asyncio.sleep(0)  # otherwise records that are already here would be returned without running the loop
        found = self._taken()
        if not found.records:
            data = await self._asked(self._partition.fetch(self.position, READ_WAIT_MS, FETCH_BYTES))
            fault = self._partition.fault
            if fault is not None and time.monotonic() - self._partition.worked_seconds > AWAY_SECONDS:
                await self._asked(_raise(fault))
            self._is_behind = 2 * len(data) > FETCH_BYTES
            self._unread = stored_records(data, MAX_RECORD_BYTES, calc_crc32c)
            found = self._taken()
        return found

    def _taken(self) -> Slice:
        try:
            found, is_full = next_slice(self._unread, self.position)
        except MalformedFrame as error:
            raise TopicFailed("broker_error", f"--quotas-topic {self._topic}: {error}") from None
        if found:
            self.position = found[-1].next_offset
        return Slice(found, has_more=self._is_behind or is_full)

    async def append(self, records: Sequence[Record]) -> int:
        """Append records, in one batch if they fit into one: all of them or none. Returns the offset of the last one.
        `records` are at least one.
        """
        return await self._asked(self._append(records))

    async def _append(self, records: Sequence[Record]) -> int:
        if self._producer is None:
            client = await self._client.arguments()
            producer = AIOKafkaProducer(**(client | {"acks": "all", "max_batch_size": BATCH_BYTES}))
            await producer.start()
            self._producer = producer
        batch, count = self._producer.create_batch(), 0
        for key, value in _pairs(records):
            if batch.append(key=key, value=value, timestamp=None) is None:
                await self._send(batch)
                batch, count = self._producer.create_batch(), 0
                batch.append(key=key, value=value, timestamp=None)
            count += 1
        return await self._send(batch) + count - 1

    async def _send(self, batch: Any) -> int:
        """Returns the offset of its first record."""
        return int((await (await self._producer.send_batch(batch, self._topic, partition=0))).offset)

    async def _asked(self, asking: Awaitable[T]) -> T:
        """Turn errors of the clients into TopicFailed."""
        try:
            return await asking
        except TopicFailed:
            raise
        except NotCreated as error:
            raise TopicFailed("topic_missing", self._client.masked(str(error))) from None
        except OffsetOutOfRangeError:
            message = f"--quotas-topic {self._topic}: its records up to {self.position} are gone, so it is read again"
            raise TopicFailed("out_of_range", message) from None
        except Exception as error:  # noqa: BLE001 - a library's code
            reason, text = self._client.explain(error)
            raise TopicFailed(reason, f"--quotas-topic {self._topic} {text}") from None

    async def close(self) -> None:
        """Release what is open."""
        producer, self._producer = self._producer, None
        await self._partition.close()
        if producer is not None:
            await stop(producer)


def _pairs(records: Sequence[Record]) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values. A removal is a record with its author, and one that makes the topic forget both in the end."""
    for record in records:
        key, value = encode(record)
        yield key, value
        if not record.fields:
            yield key, None


async def _raise(error: Exception) -> None:
    raise error


async def _missing(_admin: Any, topic: str) -> None:
    hint = "the first proxy that starts with it creates it, and so does kafka-quota-proxy quotas set"
    raise TopicFailed("topic_missing", f"--quotas-topic {topic} does not exist: {hint}")


async def _create(admin: Any, topic: str) -> None:
    brokers = len((await admin.describe_cluster())["brokers"])
    replicas = min(REPLICAS, brokers)
    config = dict(_NEW) | ({"min.insync.replicas": "2"} if replicas == REPLICAS else {})
    how = f"one partition, {REPLICAS} replicas, {written(config)}"
    if await create(admin, NewTopic(topic, 1, replicas, topic_configs=config), "--quotas-topic", how):
        settings = {key.replace(".", "_"): value for key, value in config.items()}
        _log.info("quotas_topic_created", topic=topic, replicas=replicas, **settings)
