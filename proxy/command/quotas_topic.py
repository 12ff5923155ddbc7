"""What the command `quotas` does with the topic of quotas: reads it, changes it, and waits until fleets apply it."""

import asyncio
import getpass
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from protocol.errors import ProtocolError
from protocol.stored_records import Found
from proxy.config.config import Config
from proxy.fleet.followers import FleetReader
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.quotas_log import QuotasLog, check_room
from quotas.entity import TOTAL, AnyEntity
from quotas.entry import QuotaEntry
from quotas.fleet.versions import Versions
from quotas.problems import InvalidValue
from quotas.stored.changes import lines_of
from quotas.stored.record import Author, Record
from quotas.stored.table import Table

CLIENT_NAME: Final = "kafka-quota-proxy-command"

Records = Mapping[AnyEntity, Record]


def author_of(config: Config) -> Author:
    """Who runs this command: the user that it logs in as, or else that of this machine."""
    login, user = config.internal_client.login, ""
    with suppress(OSError, KeyError):  # a container's user may have no name
        user = getpass.getuser()
    by = login.username if login is not None and login.username else user
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Author(by, f"kafka-quota-proxy quotas on {socket.gethostname()}", at)


def records_of(entries: Sequence[QuotaEntry], author: Author) -> Records:
    """The records of the entries of a quotas file."""
    return {entry.entity: Record(entry.entity, entry, author=author) for entry in entries}


class Change(NamedTuple):
    """One change in the log. `time_ms`: since 1970, by the broker's clock."""

    offset: int
    time_ms: int
    author: Author
    lines: Sequence[str]


class StoredQuotas:
    """The topic of quotas, read to its end. Methods raise LogFailed.

    table    what it has
    changes  all that it still has, in order
    refused  records that proxies ignore, too, with the reasons
    """

    def __init__(self, log: QuotasLog) -> None:
        self.table = Table()
        self.changes: list[Change] = []
        self.refused: list[str] = []
        self._log = log

    async def read_to(self, end: int) -> None:
        """Read until the record before this offset."""
        more = True
        while more or self._log.position < end:
            found, more = await self._log.read()
            for each in found:
                self._take(each)

    def _take(self, found: Found) -> None:
        if found.value is None:  # nothing that can be read
            return
        key = found.key or b""
        before = self.table.get(key)
        try:
            self.table.apply(found.offset, found.key, None if found.is_null else found.value)
        except InvalidValue as error:
            self.refused.append(f"offset {found.offset}, key {key.decode(errors='replace')!r}: {error.message}")
            return
        after = self.table.latest or Record(before.entity if before is not None else TOTAL)  # removed by a program
        lines = list(lines_of(before, after))
        if lines:
            self.changes.append(Change(found.offset, found.time_ms, after.author, lines))

    async def write(self, records: Sequence[Record]) -> int:
        """Append records, and read them back. Returns the offset of the last one."""
        check_room(self.table, records)
        offset = await self._log.append(records)
        await self.read_to(offset + 1)
        return offset


@asynccontextmanager
async def stored_quotas(config: Config, *, creates: bool) -> AsyncIterator[StoredQuotas]:
    """Raises LogFailed."""
    assert config.quotas.topic is not None  # noqa: S101 - the command has checked it
    log = QuotasLog(InternalClient(config, CLIENT_NAME), config.quotas.topic)
    try:
        stored = StoredQuotas(log)
        await stored.read_to(await log.open(creates=creates))
        yield stored
    finally:
        await log.close()


class Waiting:
    """Waits for the members of fleets. Open it before anything is written: it reads who is there."""

    def __init__(self, config: Config) -> None:
        assert config.quotas.topic is not None  # noqa: S101 - the command has checked it
        self._reader = FleetReader(InternalClient(config, CLIENT_NAME), config.fleet.topic, config.quotas.topic)
        self._is_open = False
        #: Why fleets cannot be read.
        self.problem = ""

    async def open(self) -> None:
        with self._noting():
            self._is_open = await self._reader.open()

    async def wait(self, offset: int, timeout_seconds: float) -> Versions:
        """Until all members have applied the quotas up to this offset, or the time is over."""
        versions, until = Versions(0, [], []), time.monotonic() + timeout_seconds
        with self._noting():
            while self._is_open:
                await self._reader.read()
                versions = self._reader.followers.versions(offset)
                if not versions.missing or time.monotonic() >= until:
                    break
                await asyncio.sleep(0)
        return versions

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (KafkaError, ProtocolError, OSError) as error:
            self.problem = f"{type(error).__name__}: {error}"

    async def close(self) -> None:
        await self._reader.close()
