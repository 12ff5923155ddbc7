"""The topic of quotas: an operator that changes it, what it says, and what may therefore be in force at the proxies.

An operator writes records as `quotas set` does, or sends AlterClientQuotas to a proxy and looks at once at what has
become of it. From all records follows what each proxy may have read by now, and when it must have read the last one.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from protocol.stored_records import Found
from proxy.internal_clients.failures import LogFailed
from proxy.internal_clients.quotas_log import pairs
from proxy.internal_clients.record_log import Slice
from quotas.entity import EntityKind
from quotas.stored.record import Record
from simulation import kafka
from simulation.fleet_topic import FleetTopic, SimLog
from simulation.kernel import SECOND
from simulation.limits import DEFAULT, TOTAL, Table, of_client
from simulation.link import Link
from simulation.process import ProxyProcess
from simulation.scene import Scene
from simulation.taps import NO_LIMIT

TOPIC: Final = "quotas"
HOST: Final = "10.0.6.1"
APPLIED_SECONDS: Final = 2.0
"""After this a record must be in force, where nothing is wrong."""
HEARS_SECONDS: Final = 4.0
"""The same, after a topic has delivered nothing for some time."""
RETRY_SECONDS: Final = 8.0
"""The same, after reading has failed; and for each second without a topic `RETRIES` more, since pauses double."""
RETRIES: Final = 3
RELOAD_SECONDS: Final = 1.5
LOOK_SECONDS: Final = 0.2
HEAL_SECONDS: Final = 80.0
AUDIT: Final = 'topic="audit"'
PRODUCED, FETCHED, RECEIVED = "producer_byte_rate", "consumer_byte_rate", "bytes_in_rate"
OF_CLIENTS: Final = ((of_client("etl"), PRODUCED), (of_client("reader"), FETCHED), (of_client("backfill"), PRODUCED))
BY_API: Final = (*OF_CLIENTS, (DEFAULT, PRODUCED))
JUDGED: Final = (*OF_CLIENTS, (of_client("web"), PRODUCED), (TOTAL, PRODUCED), (AUDIT, RECEIVED))
RATES: Final = (60_000, 150_000, 400_000, 1_500_000, 10**12)
BROKEN: Final = (
    b"\xff\x00 no text",
    b"[" * 16_000,
    b'{"version": 9}',
    b'{"version": 1, "entity": {"client-id": "other"}, "quota": {"producer_byte_rate": 1}}',
    b'{"version": 1, "entity": %s, "quota": {"producer_byte_rate": -5}}',
    b'{"version": 1, "entity": %s, "quota": {"producer_byte_rate": "lots"}}',
    b'{"version": 1, "entity": %s, "quota": {"producer_byte_rate": 5}, "padding": "%s"}',
)
"""Values that no proxy may apply."""
Batch = tuple[tuple[bytes | None, bytes | None], ...]
"""Keys and values that are written together."""


class SimStoredLog:
    """A `StoredLog` of one proxy: a record of its log is a batch of keys and values."""

    def __init__(self, stored: "Stored", log: SimLog) -> None:
        self.log: Any = log  # whose records are bytes in a fleet
        self.position = 0
        self._stored = stored

    def _check(self) -> None:
        if self._stored.is_away:
            self._stored.trouble(RETRY_SECONDS)
            raise LogFailed("unreachable", "no broker answers")

    async def open(self, *, creates: bool) -> int:
        await self.log.open()
        self._check()
        self.log.position = self.position = 0
        return len(self.log.topic.records)

    async def read(self) -> Slice:
        batches: Sequence[Any] = await self.log.read()
        self._check()
        found = [
            Found(offset, offset + 1, value or b"", key, value is None)
            for offset, batch in enumerate(batches, self.position)
            for key, value in batch
        ]
        self.position = self.log.position
        return Slice(found, has_more=False)

    async def append(self, records: Sequence[Record]) -> int:
        self._check()
        return int((await self.log.append(tuple(pairs(records)))).offset)

    async def close(self) -> None:
        await self.log.close()


def _spec(entity: str) -> bytes:
    return entity.replace('"', "").encode()


def _names(entity: str) -> dict[str, object]:
    kind, _, name = entity.replace('"', "").partition("=")
    return {kind: True if entity == TOTAL else None if entity == DEFAULT else name}


def _record(entity: str, limits: Mapping[str, float]) -> tuple[bytes, bytes]:
    """As the command `quotas set` writes it."""
    value = {"version": 1, "entity": _names(entity), "quota": limits, "by": "operator"}
    return _spec(entity), json.dumps(value).encode()


class Stored:
    """`history`: what the topic said since the start, with the times of changes. `is_away`: no proxy can reach it."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.kernel, self.limits = scene, scene.kernel, scene.limits
        self.topic: Any = FleetTopic(self.kernel)
        self.topic.on_append = self._appended
        self.history: list[tuple[int, Table]] = [(self.kernel.now_ns, {})]
        self.is_settled = self.is_away = False
        #: It was made anew, and is empty: proxies that had read the old one keep that.
        self._is_split = False
        self._due_ns = self._troubled_ns = 0
        #: By proxy, until when it may not have done yet what it was asked for.
        self._excused_ns: dict[ProxyProcess, int] = {}
        #: By proxy, the number of the oldest change that may be the latest one that it has in force.
        self._seen: dict[ProxyProcess, int] = {}
        self._broken: set[bytes] = set()
        self._changes = 0
        self._away_seconds = 0.0
        self.kernel.every(LOOK_SECONDS, self._look)

    def new_log(self) -> SimStoredLog:
        """Of a proxy that starts."""
        return SimStoredLog(self, SimLog(self.topic))

    # ---- what it says

    def _appended(self, batch: Any) -> None:
        self._is_split = False
        self._says(self._after({} if len(self.topic.records) == 1 else self.limits.topic, batch))

    def _after(self, table: Table, batch: Batch) -> Table:
        found = dict(table)
        for key, value in batch:
            if value in self._broken or key is None:
                continue
            kind, _, name = key.decode().partition("=")
            entity = TOTAL if kind == "total" else f'{kind}="{name}"'
            quota = {} if value is None else json.loads(value)["quota"]
            found.pop(entity, None)
            if quota:
                found[entity] = {limit: float(rate) for limit, rate in quota.items()}
        return found

    def _says(self, table: Table) -> None:
        self.limits.change(self.limits.topics, table)
        self.history.append((self.kernel.now_ns, table))
        self.disturb(APPLIED_SECONDS)

    def disturb(self, seconds: float) -> None:
        """Proxies may need this long from now on."""
        self.is_settled = False
        self._due_ns = max(self._due_ns, self.kernel.now_ns + int(seconds * SECOND))

    def trouble(self, seconds: float) -> None:
        """The topic does not work, or has not for that long."""
        self.disturb(seconds)
        self._troubled_ns = max(self._troubled_ns, self.kernel.now_ns + int(seconds * SECOND))

    def recreate(self, lag: float = 0.0) -> None:
        self.topic.recreate(lag)
        self._is_split = True
        self.trouble(lag + RETRY_SECONDS)

    def compact(self) -> None:
        """The newest record of each entity stays. An entity whose newest one is broken keeps all."""
        records: list[Any] = self.topic.records
        newest = {key: value for batch, _ in records for key, value in batch}
        seen: set[bytes | None] = {key for key, value in newest.items() if value in self._broken}
        for at in range(len(records) - 1, -1, -1):
            batch, time_ms = records[at]
            kept = tuple(each for each in batch if each[0] not in seen or newest[each[0]] in self._broken)
            seen.update(key for key, _ in kept)
            records[at] = kept, time_ms

    # ---- what is in force

    def _look(self) -> None:
        now_ns, limits = self.kernel.now_ns, self.limits
        running = [each for each in self.scene.proxies if each.exit_code is None]
        # Whoever has heard nothing notices only now that the topic was made anew.
        notice_seconds = self.topic.lag + RETRY_SECONDS if self.topic.age else 0.0
        if self.topic.is_deaf:
            self.trouble(HEARS_SECONDS + notice_seconds)
        if self.is_away:
            self._away_seconds += LOOK_SECONDS
            self.trouble(RETRY_SECONDS + RETRIES * self._away_seconds)
        for each in running:
            is_starting = not hasattr(each.server, "active_config")
            if is_starting and (self._is_split or now_ns < self._troubled_ns) and limits.topics[0]:
                limits.may_be(limits.topics, {})  # it starts without
            if is_starting or each.loop.is_stopped:
                self._excused_ns[each] = now_ns + int((RELOAD_SECONDS + notice_seconds) * SECOND)
                self.disturb(APPLIED_SECONDS + notice_seconds)
        judged = [each for each in running if self._excused_ns.get(each, 0) < now_ns]
        if not self.is_settled and not self._is_split and now_ns >= self._due_ns:
            self.is_settled, self._away_seconds = True, 0.0
            limits.settle(limits.topics)
        for each in judged:
            self._judge(each, limits.topics)

    def _judge(self, proxy: ProxyProcess, topics: Sequence[Table]) -> None:
        """What is in force must follow from one of these, and from the file; from none that is older than before."""
        found, first = self._in_force(proxy), len(self.history) - len(topics)
        fits = [
            first + at
            for at, topic in enumerate(topics)
            if any(found == list(self._expected(file, topic)) for file in self.limits.files)
        ]
        newer = [each for each in fits if each >= self._seen.get(proxy, each)]
        if newer:
            self._seen[proxy] = newer[0]
        else:
            expected = list(self._expected(self.limits.file, topics[-1]))
            about = f"{proxy.address} has {found} in force of {[name for name, _ in self._judged]}"
            self.scene.fail(f"{about}, and --quotas-topic says {expected}, {len(topics)} times")

    @property
    def _judged(self) -> list[tuple[str, str]]:
        """Without those of the cluster, which are lowered."""
        return [each for each in JUDGED if each[0] not in self.limits.cluster]

    def _expected(self, file: Table, topic: Table) -> Iterator[float]:
        return (self.limits.applies(*each, file, topic) for each in self._judged)

    def _in_force(self, proxy: ProxyProcess) -> list[float]:
        configured, found = proxy.server.active_config.quotas.configured, []
        for name, limit in self._judged:
            if name == TOTAL:
                tables: Sequence[Any] = [configured.of_total]
            elif name == AUDIT:
                tables = [configured.find(EntityKind.TOPIC, "audit")]
            else:
                tables = configured.clients.find("", name.split('"')[1])
            found.append(min((float(each[limit].rate) for each in tables if limit in each), default=NO_LIMIT))
        return found

    def check(self) -> None:
        """At the end: each process has reported a broken record once for its key."""
        reported = Counter(
            (address, found["key"])
            for address, _, event, found in self.scene.logged
            if event == "quotas_topic_record_refused"
        )
        runs = Counter(each.address for each in self.scene.started)
        for (address, key), count in reported.items():
            if count > runs[address]:
                self.scene.fail(f"{address} has reported a broken record of {key!r} {count} times")
        is_compacted = "compact" in self.scene.kinds  # before anyone has read it
        if self._broken and not reported and not self._troubled_ns and not is_compacted:
            self.scene.fail("no broken record is reported")

    # ---- the operator

    def write(self, *, doubled: float = 0.0) -> None:
        """Some limit of some entity, as `quotas set` writes it."""
        random = self.kernel.random
        entity, limit = random.choice((*BY_API, (TOTAL, PRODUCED), (AUDIT, RECEIVED)))
        limits = {limit: random.choice(RATES)} if random.random() < 0.8 else {}
        for _ in range(1 + (random.random() < doubled)):
            self.topic.append((_record(entity, limits),))

    def write_broken(self) -> None:
        random = self.kernel.random
        entity, _ = random.choice(BY_API)
        value = random.choice(BROKEN).replace(b"%s", json.dumps(_names(entity)).encode(), 1)
        value = value.replace(b"%s", b"x" * 20_000)
        self._broken.add(value)
        self.topic.append(((random.choice([_spec(entity), _spec(entity), None]), value),))

    def heal(self) -> None:
        """Write all of it, and wait until it is in force."""
        table = self.limits.topic or {of_client("etl"): {PRODUCED: RATES[1]}}
        self.topic.append(tuple(_record(*each) for each in table.items()))
        if not self.kernel.run(HEAL_SECONDS, lambda: self.is_settled):
            self.scene.fail(f"--quotas-topic does not come to rest within {HEAL_SECONDS:g} s")

    def alter(self, proxy: ProxyProcess) -> None:
        """By Kafka's API. Once it is answered, it is in force there, and each node describes it."""
        random = self.kernel.random
        entity, limit = random.choice(BY_API)
        self._changes += 1
        rate = None if random.random() < 0.2 else random.choice(RATES) + self._changes
        names = [("client-id", None if entity == DEFAULT else entity.split('"')[1])]
        operation = limit, float(rate or 0), rate is None
        answered = partial(self._altered, proxy, entity, limit, rate, self.kernel.now_ns)
        self._ask(proxy, kafka.ALTER_QUOTAS, ([(names, [operation])], False), answered)

    def _ask(self, proxy: ProxyProcess, api: int, values: Any, answered: Any) -> None:
        """Any node."""
        host, port = proxy.listens_at
        address = host, port + self.kernel.random.choice([0, 1, 2, 3])

        def connected() -> None:
            if link.is_connected and not link.is_closed and not link.in_flight:
                link.request(api, 1, values, finish)

        def finish(response: Any) -> None:
            link.on_free = lambda: None
            if response is not None:
                link.close("answered")
                answered(response)

        link = Link(self.kernel, self.scene.network, HOST, address, "operator", connected, obeys=False)

    def _altered(
        self, proxy: ProxyProcess, entity: str, limit: str, rate: float | None, asked_ns: int, values: Any
    ) -> None:
        _, [(error, message, _)] = values
        if error:
            if asked_ns > self._troubled_ns and not self._excused_ns.get(proxy, 0) > asked_ns:
                self.scene.fail(f"AlterClientQuotas of {entity} failed with {error}: {message}")
            return
        if rate is None and asked_ns <= max(self._troubled_ns, self._excused_ns.get(proxy, 0)):
            return  # by what it had read, there was nothing to remove
        early_ns = asked_ns - int(APPLIED_SECONDS * SECOND)
        since = [table for ended_ns, table in self._said() if ended_ns > early_ns]
        while since and since[0].get(entity, {}).get(limit) != rate:
            del since[0]
        if not since and asked_ns > self._troubled_ns:
            self.scene.fail(f"{entity} {limit}={rate} is answered, and not in --quotas-topic")
        elif since:
            self._judge(proxy, since)
            self._describe(proxy, entity, limit, len(self.history) - len(since))

    def _said(self) -> Iterator[tuple[int, Table]]:
        """With the time at which the next one was said."""
        ends = [*(at_ns for at_ns, _ in self.history[1:]), self.kernel.now_ns + 1]
        return zip(ends, (table for _, table in self.history), strict=True)

    def _describe(self, proxy: ProxyProcess, entity: str, limit: str, since: int) -> None:
        match: tuple[Any, ...] = ("client-id", 1, None) if entity == DEFAULT else ("client-id", 0, entity.split('"')[1])

        def described(values: Any) -> None:
            _, error, _, entries = values
            found = [value for _, limits in entries or () for name, value in limits if name == limit]
            said = [
                [rate] if rate else []
                for _, table in self.history[since:]
                for rate in [table.get(entity, {}).get(limit)]
            ]
            if error or found not in said:
                self.scene.fail(f"{proxy.address} describes {entity} {limit} as {found} ({error}), after {said}")

        self._ask(proxy, kafka.CLIENT_QUOTAS, ([match], True), described)
