"""The topic of quotas as a source: what is in force after any records, and while the topic is away.

`tests/quotas/stored` has the records, tests/integration real brokers.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest

from protocol.stored_records import Found
from proxy.background.host import Host
from proxy.command.quotas_topic import StoredQuotas
from proxy.config.config import Config, QuotaOptions
from proxy.internal_clients import quotas_topic
from proxy.internal_clients.failures import LogFailed
from proxy.internal_clients.quota_changes import QuotaChanges
from proxy.internal_clients.quotas_log import QuotasLog, pairs
from proxy.internal_clients.quotas_topic import QuotasTopic
from proxy.internal_clients.record_log import Slice
from proxy.observability.metrics import Metrics
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from quotas.stored import table
from quotas.stored.record import Record, encode
from tests.proxy.conversation import lines_of, until

ETL, WEB = parse_spec("client-id=etl,producer_byte_rate=60MB"), parse_spec("client-id=web,producer_byte_rate=1MB")


class FakeLog:
    """Records in memory. `failure`: instead of an answer."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.position = 0
        self.opened = 0
        self.failure: LogFailed | None = None
        self.news = asyncio.Event()

    def add(self, *entries: QuotaEntry) -> None:
        for entry in entries:
            self.put(*encode(Record(entry.entity, entry)))

    def put(self, key: bytes | None, value: bytes | None) -> None:
        self.records.append((key, value))
        self.news.set()

    def fail(self, failure: LogFailed | None) -> None:
        self.failure = failure
        self.news.set()

    async def open(self, *, creates: bool) -> int:
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        self.position = 0
        return len(self.records)

    async def read(self) -> Slice:
        if self.position >= len(self.records) and self.failure is None:
            self.news.clear()
            with suppress(TimeoutError):  # as a broker answers after a while
                async with asyncio.timeout(0.01):
                    await self.news.wait()
        if self.failure is not None:
            raise self.failure
        new = self.records[self.position : self.position + 2]
        at, self.position = self.position, self.position + len(new)
        found = [Found(at + n, at + n + 1, value or b"", key, value is None) for n, (key, value) in enumerate(new)]
        return Slice(found, has_more=self.position < len(self.records))

    async def append(self, records: Sequence[Record]) -> int:
        for pair in pairs(records):
            self.put(*pair)
        return len(self.records) - 1

    async def close(self) -> None:
        pass


class World:
    """A source over a `FakeLog`, attached to what would apply it."""

    def __init__(self) -> None:
        self.config = Config(bootstrap_servers=(("broker", 9092),), quotas=QuotaOptions(topic="quotas"))
        self.topic = QuotasTopic(self.config, Host())
        self.log = FakeLog()
        self.topic.log = self.log
        self.metrics = Metrics()
        self.applied: list[tuple[QuotaEntry, ...]] = []
        self.offsets: list[int] = []
        self.topic.on_applied = self.offsets.append

    async def take(self, entries: tuple[QuotaEntry, ...]) -> None:
        self.applied.append(entries)


def of(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The fields of all events of this name."""
    return [fields for event, fields in lines_of(caplog.records) if event == name]


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    world = World()
    task = asyncio.ensure_future(world.topic.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.background.retries.Retries.pause_seconds", lambda _: 0.0)
    monkeypatch.setattr(quotas_topic, "REST_FACTOR", 0)


async def test_all_that_is_there_is_read_before_the_proxy_starts() -> None:
    async with running() as world:
        world.log.add(ETL, WEB, WEB, ETL, WEB)
        assert await world.topic.wait_read(asyncio.Event()) == (ETL, WEB)
        world.topic.attach(world.take, world.metrics)
        assert world.metrics.reload_ok["quotas_topic"] is True
        world.log.put(encode(Record(ETL.entity))[0], None)
        await until(lambda: world.applied and world.applied[-1] == (WEB,))
        assert world.offsets[-1] == world.topic.applied == 5


@pytest.mark.claim("kafka-quotas", "a proxy that starts waits a bounded time for the topic, and reports that")
async def test_a_proxy_starts_without_a_topic_that_is_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas_topic, "START_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    async with running() as world:
        world.log.fail(LogFailed("unreachable", "no broker"))
        assert await world.topic.wait_read(asyncio.Event()) == ()
        assert [each["topic"] for each in of(caplog, "quotas_topic_not_read")] == ["quotas"]
        world.topic.attach(world.take, world.metrics)
        assert world.metrics.reload_ok["quotas_topic"] is False
        world.log.add(ETL)
        world.log.fail(None)
        await until(lambda: world.applied)
        assert (world.applied[-1], world.metrics.reload_ok["quotas_topic"]) == ((ETL,), True)
        assert len(of(caplog, "quotas_topic_failed")) == 1, "once, however often it is tried"
        assert len(of(caplog, "quotas_topic_recovered")) == 1


@pytest.mark.claim("kafka-quotas", "what was read last stays in force while the topic is away, or made anew and empty")
async def test_what_was_read_last_stays_in_force(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as world:
        world.log.add(ETL)
        await world.topic.wait_read(asyncio.Event())
        world.topic.attach(world.take, world.metrics)
        await until(lambda: world.applied)
        world.log.records.clear()
        world.log.fail(LogFailed("out_of_range", "it was created again"))
        opened = world.log.opened
        await until(lambda: world.log.opened > opened + 3)
        assert world.offsets[-1] == -1, "whatever is written to the new topic is not applied yet"
        world.log.fail(None)
        await until(lambda: of(caplog, "quotas_topic_empty"))
        assert (world.applied, world.topic.table.entries) == ([(ETL,)], (ETL,))
        world.log.add(WEB)
        await until(lambda: len(world.applied) > 1)
        assert world.applied == [(ETL,), (WEB,)]


@pytest.mark.claim("kafka-quotas", "the response to a change means that it is in force at this proxy")
async def test_a_change_in_a_topic_that_was_made_anew_is_answered_once_that_is_read() -> None:
    """Before, its offset is one that the proxy had applied of the old topic."""
    async with running() as world:
        world.log.add(WEB, WEB)
        await world.topic.wait_read(asyncio.Event())
        world.topic.attach(world.take, world.metrics)
        world.log.records.clear()
        problems: list[str] = []
        QuotaChanges(world.topic, Host()).submit(lambda _: [Record(ETL.entity, ETL)], problems.append)
        await until(lambda: world.log.records)
        await asyncio.sleep(0.05)  # longer than a few reads take
        assert not problems
        world.log.fail(LogFailed("out_of_range", "it was created again"))
        opened = world.log.opened
        await until(lambda: world.log.opened > opened)
        world.log.fail(None)
        await until(lambda: problems)
        assert (problems, world.applied[-1]) == ([""], (ETL,))


async def test_changes_are_decided_outside_of_the_loop() -> None:
    """Hundreds of them, as operators send, would stop all clients for half a second."""
    async with running() as world:
        await world.topic.wait_read(asyncio.Event())
        world.topic.attach(world.take, world.metrics)
        threads, problems = list[int](), list[str]()

        def decide(_: object) -> list[Record]:
            threads.append(threading.get_ident())
            return [Record(ETL.entity, ETL)]

        QuotaChanges(world.topic, Host()).submit(decide, problems.append)
        await until(lambda: problems)
        assert (problems, world.applied[-1]) == ([""], (ETL,))
        assert threads != [threading.get_ident()]


@pytest.mark.claim("kafka-quotas", "a change that does not fit into the topic is refused and not written")
@pytest.mark.pure  # it changes a constant
async def test_a_change_for_which_there_is_no_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_ENTITIES", 1)
    async with running() as world:
        world.log.add(WEB)
        await world.topic.wait_read(asyncio.Event())
        world.topic.attach(world.take, world.metrics)
        changes, problems = QuotaChanges(world.topic, Host()), list[str]()
        changes.submit(lambda _: [Record(WEB.entity, WEB), Record(ETL.entity, ETL)], problems.append)
        await until(lambda: problems)
        assert (problems, len(world.log.records)) == (["nothing was written: there are 1 entities already"], 1)
        stored = StoredQuotas(cast("QuotasLog", world.log))
        stored.table.apply(0, *encode(Record(WEB.entity, WEB)))
        with pytest.raises(LogFailed, match="nothing was written: there are 1 entities already"):
            await stored.write([Record(ETL.entity, ETL)])
        changes.submit(lambda _: [Record(WEB.entity), Record(ETL.entity, ETL)], problems.append)
        await until(lambda: problems[1:])
        assert (problems[1], world.applied[-1]) == ("", (ETL,))


@pytest.mark.claim("kafka-quotas", "a hostile record stops nothing, is reported once, and what was valid stays")
async def test_what_anyone_may_write_is_ignored_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as world:
        world.log.add(ETL)
        await world.topic.wait_read(asyncio.Event())
        world.topic.attach(world.take, world.metrics)
        for value in (b"{}", b"[" * 16_000, b"\xff\x00", b'{"version":9}', b""):
            world.log.put(b"client-id=etl", value)
        world.log.put(None, b"no key")
        world.log.add(WEB)
        await until(lambda: world.applied and world.applied[-1] == (ETL, WEB))
        refused = of(caplog, "quotas_topic_record_refused")
        assert [each["key"] for each in refused] == ["client-id=etl", ""]
        assert world.metrics.sources.quotas_topic() == {"offset": 7, "entities": 2, "refused_records": 6}


async def test_a_defect_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as world:
        world.log.add(ETL)
        await world.topic.wait_read(asyncio.Event())

        async def refuse(_: object) -> None:
            world.topic.attach(world.take, world.metrics)
            raise ZeroDivisionError

        world.topic.attach(refuse, world.metrics)
        world.log.add(WEB)
        await until(lambda: world.applied and world.applied[-1] == (ETL, WEB))
        assert [each["reason"] for each in of(caplog, "quotas_topic_failed")] == ["defect"]
