"""The log of a fleet in a Kafka topic."""

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.stored_records import VOID
from proxy.fleet.log import Appended
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.failures import LogChanged, LogFailed, LogRefused
from proxy.internal_clients.log_topic import LogTopic
from proxy.internal_clients.partition import FIRST_OFFSET
from proxy.internal_clients.record_log import RecordLog
from quotas.fleet.record import MAX_RECORD_BYTES

PRODUCE_TIMEOUT_MS: Final = 4_000
"""A later record is worth little, because its lease counts from when it was sent."""
LOG_APPEND_TIME: Final = 1
BATCH_BYTES: Final = MAX_RECORD_BYTES + 10_000
TIMESTAMPS: Final = "message.timestamp.type"
MUST_BE: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",  # a compacted topic accepts no records without keys
    TIMESTAMPS: "LogAppendTime",  # a new member finds where to start by the broker's clock
    "compression.type": "uncompressed",  # compressed batches are not read
}
_NEW: Final[Mapping[str, str]] = {
    "retention.ms": "3600000",
    "segment.ms": "600000",  # only whole segments are deleted
    "max.message.bytes": "1048588",  # independent of the brokers' own bound, because a batch is fetched as a whole
    "unclean.leader.election.enable": "false",
}
_UNFIXED: Final = "compression.type", "producer"
"""The setting in topics of older versions. Proxies do not compress records, and skip the compressed ones of others."""
_COMPRESSED: Final = "anyone who can write to the topic can store compressed batches, which proxies fetch and skip"


def fleet_topic(name: str) -> LogTopic:
    """What the topic of fleets must be: records in it form one log in one order."""
    events = "fleet_topic_created", "fleet_topic_not_checked"
    return LogTopic("--fleet-topic", name, MUST_BE, _NEW, "the first proxy of a fleet", *events, (_UNFIXED,))


class TopicLog(RecordLog):
    """A `Log`. Each `open` makes new clients."""

    longest = MAX_RECORD_BYTES
    fetch_bytes = 2 * BATCH_BYTES

    def __init__(self, client: InternalClient, topic: str) -> None:
        super().__init__(client, fleet_topic(topic))

    async def open(self) -> None:
        await self._asked(self._open())

    async def _open(self) -> None:
        self._note(await self._connect())
        await self._start_producer(request_timeout_ms=PRODUCE_TIMEOUT_MS, max_batch_size=BATCH_BYTES)

    def _note(self, settings: Mapping[str, str]) -> None:
        key, value = _UNFIXED
        if settings.get(key) == value:
            self._warn("fleet_topic_accepts_compression", effect=_COMPRESSED, hint=self._topic.alter(key))

    async def append(self, record: bytes) -> Appended:
        if self._producer is None:
            raise LogFailed("unreachable", "the topic is not open")
        done = await self._asked(self._producer.send_and_wait(self._topic.name, record, partition=0))
        if done.timestamp_type != LOG_APPEND_TIME:  # changed since it was checked, or it could not be
            [difference] = self._topic.differences({TIMESTAMPS: "CreateTime"})
            raise LogRefused("topic_differs", f"{self._topic}: {difference}")
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
        found, _ = await self._next()
        for each in found:
            if each.offset > self.position:
                raise LogChanged("gap", f"the record at {self.position} is missing, the next one is at {each.offset}")
            self.position = each.next_offset
        return [each.value or VOID for each in found]
