"""The topic of quotas as a log, read and written whole.

Whoever reads it reads all of it, from the oldest record on: compaction keeps the newest record of each entity.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.failures import LogFailed
from proxy.internal_clients.log_topic import LogTopic
from proxy.internal_clients.partition import FIRST_OFFSET, NEXT_OFFSET
from proxy.internal_clients.record_log import RecordLog, Slice
from quotas.problems import InvalidValue
from quotas.stored.record import MAX_RECORD_BYTES, Record, encode
from quotas.stored.table import Table

DAY_MS: Final = 86_400_000
MUST_BE: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",  # with delete, quotas would end by age
    "compression.type": "uncompressed",  # compressed batches are not read
}
_NEW: Final[Mapping[str, str]] = {
    "min.compaction.lag.ms": str(7 * DAY_MS),  # `log` shows all changes of a week
    "delete.retention.ms": str(7 * DAY_MS),
    "segment.ms": str(DAY_MS),  # only whole segments are compacted
    "message.timestamp.type": "LogAppendTime",  # who reads `log` need not trust the authors' clocks
    "max.message.bytes": "1048588",
    "unclean.leader.election.enable": "false",
}
_CREATOR: Final = "the first proxy that starts with it, or kafka-quota-proxy quotas set,"
BATCH_BYTES: Final = 1_000_000
APPEND_TIMEOUT_MS: Final = 8_000
"""Less than a change may take, so that its answer has the broker's reason."""
AWAY_SECONDS: Final = 5.0
"""Reading fails after this time without a leader that answers."""


class StoredLog(Protocol):
    """The log that the proxy follows. All methods except `close` raise LogFailed.

    position  where the next record will be read
    """

    position: int

    async def open(self, *, creates: bool) -> int:
        """Connect, and read from the oldest record on. Returns the offset that the next record will have."""

    async def read(self) -> Slice:
        """The next records; none after a second without any."""

    async def append(self, records: Sequence[Record]) -> int:
        """Append records, in one batch if they fit into one: all of them or none. Returns the offset of the last one.
        `records` are at least one.
        """

    async def close(self) -> None:
        """Release what is open."""


class QuotasLog(RecordLog):
    """The `StoredLog` in a topic."""

    longest = MAX_RECORD_BYTES
    fetch_bytes = 1_100_000

    def __init__(self, client: InternalClient, topic: str) -> None:
        events = "quotas_topic_created", "quotas_topic_not_checked"
        super().__init__(client, LogTopic("--quotas-topic", topic, MUST_BE, _NEW, _CREATOR, *events))

    async def open(self, *, creates: bool) -> int:
        return await self._asked(self._open(creates=creates))

    async def _open(self, *, creates: bool) -> int:
        await self._connect(creates=creates)
        self.position = await self._partition.offset_at(FIRST_OFFSET)
        return await self._partition.offset_at(NEXT_OFFSET)

    async def read(self) -> Slice:
        found, fault = await self._next(), self._partition.fault
        if fault is not None and time.monotonic() - self._partition.worked_seconds > AWAY_SECONDS:
            raise self._failed(fault)
        if found.records:
            self.position = found.records[-1].next_offset
        return found

    async def append(self, records: Sequence[Record]) -> int:
        return await self._asked(self._append(records))

    async def _append(self, records: Sequence[Record]) -> int:
        if self._producer is None:  # only few proxies may write
            await self._start_producer(request_timeout_ms=APPEND_TIMEOUT_MS, max_batch_size=BATCH_BYTES)
        batch, count = self._producer.create_batch(), 0
        for key, value in await asyncio.to_thread(list, pairs(records)):
            if batch.append(key=key, value=value, timestamp=None) is None:
                await self._send(batch)
                batch, count = self._producer.create_batch(), 0
                batch.append(key=key, value=value, timestamp=None)
            count += 1
        return await self._send(batch) + count - 1

    async def _send(self, batch: Any) -> int:
        """Returns the offset of its first record."""
        sending = asyncio.ensure_future(self._sent(batch))
        # Whoever waits may stop before it fails: asyncio would log an error that nobody has asked for.
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return int((await asyncio.shield(sending)).offset)

    async def _sent(self, batch: Any) -> Any:
        return await (await self._producer.send_batch(batch, self._topic.name, partition=0))


def check_room(table: Table, records: Sequence[Record]) -> None:
    """Raise LogFailed if proxies would ignore one of these records because the topic, with `table`, has no room."""
    try:
        table.check(records)
    except InvalidValue as error:
        raise LogFailed("topic_full", f"nothing was written: {error.message}") from error


def pairs(records: Sequence[Record]) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values. A removal is a record with its author, and one that makes the topic forget both in the end."""
    for record in records:
        key, value = encode(record)
        yield key, value
        if not record.fields:
            yield key, None
