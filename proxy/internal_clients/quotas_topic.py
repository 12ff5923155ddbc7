"""Follows the topic of quotas in the event loop: what it says is in force a moment later.

What was read last stays in force while the topic is away. A topic that was made anew counts from its first record on:
an empty one says nothing. Anyone who can write to it can write anything, so each slice of records is followed by a
pause as long as it took. While more records are here already, the proxy applies what it has once a second, and after
each time it rests for `REST_FACTOR` times what that took.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from proxy.background.host import Host
from proxy.background.retries import Retries
from proxy.config.config import Config
from proxy.config.quota_sources import TOPIC
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.failures import LogFailed
from proxy.internal_clients.quotas_log import QuotasLog, StoredLog, check_room, pairs
from proxy.observability.logs import SAME_RECORD_NS, EventLog, RateLimited, one_line
from proxy.observability.metrics import Metrics
from quotas.entity import AnyEntity
from quotas.entry import QuotaEntry
from quotas.problems import InvalidValue, Problem
from quotas.stored.record import Record
from quotas.stored.table import Table
from quotas.time_units import NS_PER_SECOND

CLIENT_NAME: Final = "kafka-quota-proxy-quotas"
START_SECONDS: Final = 10.0
"""How long a proxy that starts waits for the topic."""
BUSY_NS: Final = 1_000_000
"""How long applying records may take before a pause must follow."""
REST_FACTOR: Final = 4
MOST_REST_SECONDS: Final = 1.0
"""So that a change is in force within 2 s."""
MAX_NAMED: Final = 100
"""Entities whose broken records are logged: anyone who can write to the topic can invent any number."""
NOT_ENFORCED: Final = "the topic keeps these for Kafka's API, and no proxy enforces them"

_log = EventLog("proxy.quotas_topic")

Records = Mapping[AnyEntity, Record]
Pair = tuple[bytes | None, bytes | None]
Take = Callable[[tuple[QuotaEntry, ...]], Awaitable[None]]


class QuotasTopic:
    """Runs until cancelled. `log`: replaces the topic itself.

    name     of the topic
    table    what was read last, complete
    applied  the offset of the record up to which the quotas are in force; -1: none was
    refused  records that were ignored
    on_applied
             called with each new `applied`, and with -1 when the topic cannot be read any more: it may be made anew
    """

    def __init__(self, config: Config, host: Host, log: StoredLog | None = None) -> None:
        assert config.quotas.topic is not None  # noqa: S101 - the caller has checked it
        self.name = config.quotas.topic
        self.table = Table()
        self.applied = -1
        self.refused = 0
        self.on_applied: Callable[[int], object] = lambda _: None
        self.log = log or QuotasLog(InternalClient(config, CLIENT_NAME), self.name)
        self._host = host
        self._take: Take | None = None
        self._metrics: Metrics | None = None
        self._problem: Problem | None = None
        self._is_read = asyncio.Event()
        self._has_applied = asyncio.Condition()
        self._retries = Retries(host.random)
        self._refusals = RateLimited(SAME_RECORD_NS, MAX_NAMED)
        self._left_out: set[str] = set()
        #: Key and value of the last record that is being written, and its offset once it has been read.
        self._awaited: Pair | None = None
        self._awaited_offset: int | None = None

    # ---- around the start of the proxy

    async def wait_read(self, stop: asyncio.Event) -> tuple[QuotaEntry, ...]:
        """The entries with which the proxy starts, once the topic has been read to its end; without, if that takes
        longer than `START_SECONDS`.
        """
        waiting = [asyncio.ensure_future(each.wait()) for each in (self._is_read, stop)]
        await asyncio.wait(waiting, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if not self._is_read.is_set():
            effect = "the proxy starts with its flags and its file, and applies the topic as soon as it is read"
            _log.warning("quotas_topic_not_read", topic=self.name, seconds=START_SECONDS, effect=effect)
        self.applied = self.table.offset
        return self.table.entries

    def attach(self, take: Take, metrics: Metrics) -> None:
        """The proxy has started: `take` applies entries."""
        self._take, self._metrics = take, metrics
        if self._problem is None and not self._is_read.is_set():
            self._problem = Problem(TOPIC, "was not read yet")
        metrics.note_reload("quotas_topic", *filter(None, [self._problem]))
        metrics.sources.quotas_topic = self._counts

    def _counts(self) -> dict[str, float]:
        return {"offset": self.applied, "entities": len(self.table), "refused_records": self.refused}

    # ---- following

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except LogFailed as error:
                self._failed(error.reason, error.message)
            except Exception as error:  # noqa: BLE001 - a bug here must not end the following
                self._failed("defect", f"{type(error).__name__}: {error}", exc_info=True)
            finally:
                await self.log.close()
            await asyncio.sleep(self._retries.pause_seconds())

    async def _follow(self) -> None:
        """Read the topic to its end, then apply each change until reading fails."""
        end = await self.log.open(creates=not self._is_read.is_set())
        self._awaited_offset = None  # of the topic before, if this one was made anew
        table, more = Table(), True
        while self.log.position < end or more:
            more = await self._read(table)
        if table.offset >= 0 or not len(self.table):
            self.table = table
        else:
            effect = "the quotas that were read before stay in force until something is written to it"
            _log.warning("quotas_topic_empty", topic=self.name, effect=effect)
        self._worked()
        done, applied_ns = -1, self._host.clock()
        while True:
            waited_seconds = (self._host.clock() - applied_ns) / NS_PER_SECOND
            if table.offset != done and (not more or waited_seconds >= MOST_REST_SECONDS):
                self.table = table
                if await self._apply():
                    done, applied_ns = table.offset, self._host.clock()
            more = await self._read(table)

    async def _read(self, table: Table) -> bool:
        """Apply some records to the table. Returns whether more of them are here already."""
        found, more = await self.log.read()
        began_ns = self._host.clock()
        for each in found:
            if each.value is None:  # a batch that is not read
                table.offset = each.offset
                continue
            key, value = each.key, None if each.is_null else each.value
            if (key, value) == self._awaited:
                self._awaited_offset = each.offset
            try:
                table.apply(each.offset, key, value)
            except InvalidValue as error:
                self._refuse(key, error)
        took_ns = self._host.clock() - began_ns
        if took_ns >= BUSY_NS:  # however much others write, sessions get half of the loop's time
            await asyncio.sleep(took_ns / NS_PER_SECOND)
        return more

    async def _apply(self) -> bool:
        """Put the table in force, and rest. Returns whether the proxy has started, so that there is one."""
        table, began_ns = self.table, self._host.clock()
        offset, latest = table.offset, table.latest
        self._note_left_out()
        if self._take is None:
            return False
        await self._take(table.entries)
        about = (
            {} if latest is None else {"changed": latest.entity, "by": latest.author.by, "origin": latest.author.origin}
        )
        about = {name: one_line(str(text)) for name, text in about.items()}
        _log.info("quotas_topic_applied", offset=offset, entities=len(table), **about)
        async with self._has_applied:
            self.applied = offset
            self._has_applied.notify_all()
        self.on_applied(offset)
        await asyncio.sleep(min(MOST_REST_SECONDS, REST_FACTOR * (self._host.clock() - began_ns) / NS_PER_SECOND))
        return True

    # ---- for changes

    @property
    def is_read(self) -> bool:
        return self._is_read.is_set()

    async def write(self, records: Sequence[Record]) -> None:
        """Returns once they have been read back and are in force; one call at a time. They are known by what they
        contain: a topic that was deleted meanwhile had had records at their offsets. Raises LogFailed.
        """
        await asyncio.to_thread(check_room, self.table, records)
        *_, self._awaited = pairs(records[-1:])
        self._awaited_offset = None
        try:
            await self.log.append(records)
            async with self._has_applied:
                await self._has_applied.wait_for(lambda: self._has_read_back)
        finally:
            self._awaited = None

    @property
    def _has_read_back(self) -> bool:
        return self._awaited_offset is not None and self._awaited_offset <= self.applied

    # ---- what is reported

    def _worked(self) -> None:
        if self._retries.is_failing:
            _log.info("quotas_topic_recovered", topic=self.name, entities=len(self.table))
        elif not self._is_read.is_set():
            _log.info("quotas_topic_read", topic=self.name, entities=len(self.table), offset=self.table.offset)
        self._is_read.set()
        self._retries.worked()
        self._problem = None
        if self._metrics is not None:
            self._metrics.note_reload("quotas_topic")

    def _failed(self, reason: str, message: str, *, exc_info: bool = False) -> None:
        """Logged once for each reason, until it works again."""
        self.applied = -1
        self.on_applied(-1)
        self._problem = Problem(TOPIC, f"{reason}: {one_line(message)}")
        if self._metrics is not None:
            self._metrics.note_reload("quotas_topic", self._problem)
        if self._retries.failed(reason):
            effect = "the quotas that were read last, if any, stay in force"
            about = {"reason": reason, "message": one_line(message), "effect": effect}
            _log.warning("quotas_topic_failed", **about, exc_info=exc_info)

    def _refuse(self, key: bytes | None, error: InvalidValue) -> None:
        """Logged once an hour for each entity."""
        self.refused += 1
        about = {"key": one_line((key or b"").decode(errors="replace")), "message": one_line(error.message)}
        effect = "it is ignored, and the last valid record of its entity, if any, stays in force"
        now_ns = self._host.clock()
        self._refusals.event(_log.warning, "quotas_topic_record_refused", key, now_ns, **about, effect=effect)

    def _note_left_out(self) -> None:
        found = self.table.not_enforced
        new = found.keys() - self._left_out
        if new:
            self._left_out |= new
            listed = ", ".join(f"{name} of {found[name]} entities" for name in sorted(new))
            _log.warning("quotas_topic_left_out", limits=listed, effect=NOT_ENFORCED)
