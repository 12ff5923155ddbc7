"""One partition of a topic, read from its leader by an internal client, without a group.

aiokafka's consumer would decompress whatever someone has written, so records are fetched as bytes.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from protocol.stored_records import VOID, Found
from proxy.internal_clients.client import stopped

RETRY_SECONDS: Final = 0.2
"""Between two attempts to reach the leader, because for a moment there may be none."""
FIRST_OFFSET: Final = -2
NEXT_OFFSET: Final = -1
"""These stand for a time in a request for offsets: the oldest record, and the one that will be appended next."""
READ_WAIT_MS: Final = 1_000
MAX_RECORDS: Final = 50
READ_BYTES: Final = 65_536
"""A slice ends with the record that reaches this: 50 records take about 1 ms, and so does one of this size."""


class Partition:
    """Partition 0 of a topic. All methods except `close` raise errors of aiokafka.

    fault           why the latest fetch found no leader; None: it was answered
    worked_seconds  when the latest one was answered, by the monotonic clock
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._partition = TopicPartition(topic, 0)
        self._reader: Any = None
        self.fault: KafkaError | None = None
        self.worked_seconds = time.monotonic()

    async def open(self, client: Mapping[str, Any], *, waits: bool = True) -> None:
        """Connect. `client`: arguments of aiokafka's clients. `waits`: for a topic that is missing, some seconds."""
        self._reader = AIOKafkaClient(**client)
        await self._reader.bootstrap()
        if not waits and self._topic not in (await self._reader.fetch_all_metadata()).topics():
            raise UnknownTopicOrPartitionError(self._topic)
        await self._reader._wait_on_metadata(self._topic)
        self.fault, self.worked_seconds = None, time.monotonic()

    async def offset_at(self, time_ms: int) -> int:
        """The offset of the first record appended at this time or later; below 0 if there is no such record."""
        *_, offset = await self._of_leader(OffsetRequest(-1, 0, [(self._topic, [(0, time_ms)])]))
        return int(offset)

    async def fetch(self, position: int, wait_ms: int, size: int) -> bytes:
        """Record batches from the position on; empty after `wait_ms` without any, or while there is no leader.

        A topic that was deleted is UnknownTopicOrPartitionError.
        """
        try:
            *_, data = await self._of_leader(FetchRequest(wait_ms, 1, size, 0, [(self._topic, [(0, position, size)])]))
        except KafkaError as error:
            if not error.retriable:
                raise
            self.fault = error
            self._reader.force_metadata_update()
            await asyncio.sleep(RETRY_SECONDS)
            if self._reader.cluster.partitions_for_topic(self._topic) is None:  # by the metadata that has arrived since
                raise UnknownTopicOrPartitionError(self._topic) from error
            return b""
        self.fault, self.worked_seconds = None, time.monotonic()
        return data or b""

    async def _of_leader(self, request: Any) -> Sequence[Any]:
        """What the leader answers about the partition, without the error code."""
        leader = self._reader.cluster.leader_for_partition(self._partition)
        response = await self._reader.send(-1 if leader is None else leader, request)
        [(_, [(_, code, *answer)])] = response.topics
        if code:
            raise for_code(code)(self._topic)
        return list(answer)

    async def close(self) -> None:
        """Release what is open."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await stopped(reader.close())


def next_slice(unread: Iterator[Found], position: int) -> tuple[Sequence[Found], bool]:
    """The next records from the position on, as many as the loop has time for, and whether a bound ended the slice.
    Raises MalformedFrame.
    """
    found: list[Found] = []
    size, is_full = 0, False
    for each in unread:
        if each.next_offset <= position:  # from a batch that starts earlier
            continue
        position = each.next_offset
        found.append(each)
        size += len(each.value or VOID)
        is_full = len(found) >= MAX_RECORDS or size >= READ_BYTES
        if is_full:
            break
    return found, is_full
