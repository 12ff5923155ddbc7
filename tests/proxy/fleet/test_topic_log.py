"""A Kafka topic as the log of a fleet: what one reading takes, and what is wrong with a topic.

`test_stored_records` has the bytes, tests/integration real brokers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors
from aiokafka.protocol.fetch import FetchRequest

from proxy.config.config import Config
from proxy.fleet.topic_log import TopicLog
from proxy.internal_clients import partition
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.failures import LogChanged, LogFailed, LogRefused
from proxy.internal_clients.partition import MAX_RECORDS, READ_BYTES
from quotas.fleet.record import MAX_RECORD_BYTES
from tests.protocol.test_stored_records import GZIP, batch, changed
from tests.proxy.conversation import lines_of

pytestmark = pytest.mark.claim(
    "fleet", "what is in the topic is never decompressed, and a few records at a time are read"
)


class Leader:
    """What the log's client is asked for, and what the leader has: `code` or `error` instead of batches."""

    def __init__(self, *batches: bytes) -> None:
        self.data = b"".join(batches)
        self.code = 0
        self.error: Exception | None = None
        self.fetched: list[int] = []
        self.updates = 0
        self.has_topic = True
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda _: None if self.error else 1,
            partitions_for_topic=lambda _: {0} if self.has_topic else None,
        )

    async def send(self, _leader: int, request: Any) -> Any:
        assert isinstance(request, FetchRequest)
        if self.error is not None:
            raise self.error
        [(topic, [(partition, position, _)])] = request.topics
        self.fetched.append(position)
        return SimpleNamespace(topics=[(topic, [(partition, self.code, 0, self.data)])])

    def force_metadata_update(self) -> None:
        self.updates += 1


def reading(leader: Leader, position: int = 0) -> TopicLog:
    log = TopicLog(InternalClient(Config(bootstrap_servers=(("broker", 9092),)), "fleet"), "fleet")
    log._partition._reader, log.position = leader, position
    return log


async def test_one_reading_takes_a_few_records_or_one_that_is_large() -> None:
    small, large = [b"x"] * (MAX_RECORDS + 1), [b"y" * READ_BYTES] * 2
    leader = Leader(batch(small), batch(large, len(small)))
    log = reading(leader)
    assert [len(await log.read()) for _ in range(3)] == [MAX_RECORDS, 2, 1]
    assert (log.position, leader.fetched) == (len(small) + 2, [0])


@pytest.mark.parametrize("count", [1, 3 * MAX_RECORDS])
async def test_what_is_skipped_is_work_too(count: int) -> None:
    """It may be all that a fetch brings: millions of empty batches are read in turns."""
    one = changed(batch([b"x"]), 21, ">h", GZIP)
    leader = Leader(*(number.to_bytes(8, "big") + one[8:] for number in range(count)), batch([b"y"], count))
    log = reading(leader)
    values: list[bytes] = []
    while log.position <= count:
        found = await log.read()
        assert 0 < len(found) <= MAX_RECORDS
        values += found
    assert values == [b""] * count + [b"y"]
    assert leader.fetched == [0]


async def test_a_record_that_no_member_writes_is_not_copied() -> None:
    log = reading(Leader(batch([b"x" * (MAX_RECORD_BYTES + 1), b"y"])))
    assert await log.read() == [b"", b"y"]


async def test_a_batch_may_begin_before_the_position() -> None:
    log = reading(Leader(batch([b"a", b"b", b"c"], 5)), 6)
    assert await log.read() == [b"b", b"c"]


async def test_a_missing_record_is_noticed() -> None:
    log = reading(Leader(batch([b"a"], 6)), 5)
    with pytest.raises(LogChanged, match="the record at 5 is missing, the next one is at 6"):
        await log.read()


async def test_a_batch_that_was_damaged_is_no_record() -> None:
    log = reading(Leader(batch([b"abc"])[:-1] + b"!"))
    with pytest.raises(LogFailed, match="checksum"):
        await log.read()


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (errors.OffsetOutOfRangeError.errno, LogChanged, "out_of_range"),
        (errors.TopicAuthorizationFailedError.errno, LogFailed, "authorization"),
    ],
)
async def test_what_the_leader_refuses(code: int, kind: type[LogFailed], reason: str) -> None:
    leader = Leader()
    leader.code = code
    with pytest.raises(kind) as raised:
        await reading(leader).read()
    assert raised.value.reason == reason


async def test_without_a_leader_there_is_nothing_to_read_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "RETRY_SECONDS", 0)
    leader = Leader(batch([b"a"]))
    log = reading(leader)
    leader.error = errors.NodeNotReadyError()
    assert await log.read() == []
    leader.error, leader.code = None, errors.NotLeaderForPartitionError.errno
    assert await log.read() == []
    assert leader.updates == 2
    leader.code = 0
    assert await log.read() == [b"a"]


@pytest.mark.parametrize("code", [errors.UnknownTopicOrPartitionError.errno, errors.NotLeaderForPartitionError.errno])
async def test_a_topic_that_was_deleted_is_noticed_at_once(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "RETRY_SECONDS", 0)
    leader = Leader()
    log = reading(leader)
    leader.code, leader.has_topic = code, False
    with pytest.raises(LogChanged, match="--fleet-topic fleet was deleted") as raised:
        await log.read()
    assert raised.value.reason == "topic_missing"


async def test_a_timestamp_type_that_was_changed_is_seen_in_the_acknowledgement() -> None:
    class Producer:
        async def send_and_wait(self, *_: object, **__: object) -> Any:
            return SimpleNamespace(offset=1, timestamp=5, timestamp_type=0)

    log = reading(Leader())
    log._producer = Producer()
    with pytest.raises(LogRefused, match=r"message.timestamp.type is CreateTime.*--add-config message.timestamp.type="):
        await log.append(b"{}")


@pytest.mark.parametrize(
    ("compression", "refused", "warned"),
    [("uncompressed", False, False), ("producer", False, True), ("zstd", True, False), ("gzip", True, False)],
)
async def test_a_topic_that_stores_compressed_records(
    compression: str, refused: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One of an older version accepts what it gets: its records are readable, and those of others are skipped."""
    config, log = {"compression.type": compression}, reading(Leader())
    differences = list(log._topic.differences(config))
    assert bool(differences) is refused
    assert all("--add-config compression.type=uncompressed" in each for each in differences)
    for _ in range(2):
        log._note(config)
    lines = [name for name, _ in lines_of(caplog.records)]
    assert lines == ["fleet_topic_accepts_compression"] * warned, "once"
