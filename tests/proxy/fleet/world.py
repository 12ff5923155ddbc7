"""Proxies that share limits through a log in memory, in virtual time: the real shell, and a log that tests break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from proxy.fleet.fleet import Fleet
from proxy.fleet.log import LogChanged, LogFailed, Place
from proxy.fleet.shared_limits import SharedLimits
from proxy.observability.fleet import FleetMetrics
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.entity import Entity
from quotas.entry import QuotaEntry
from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from quotas.fleet.policy import Demand
from quotas.limit_kinds import PRODUCER_BYTE_RATE
from quotas.registry.registry import Registry
from tests.proxy.conversation import NS_PER_SECOND, Clock
from tests.proxy.timers import Timers

QUOTA = 1_000_000
STEP_SECONDS = 0.05
KEY = f"client-id:etl {PRODUCER_BYTE_RATE}"


def entry(rate: int = QUOTA, client_id: str = "etl") -> QuotaEntry:
    return QuotaEntry(Entity(client_id=client_id), {PRODUCER_BYTE_RATE: rate})


class Topic:
    """Records and when they were appended."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.records: list[tuple[bytes, int]] = []
        self._waiters: list[asyncio.Future[None]] = []

    def append(self, record: bytes) -> Place:
        self.records.append((record, self.clock() // 1_000_000))
        self.wake()
        return Place(len(self.records) - 1, self.records[-1][1])

    def recreate(self) -> None:
        self.records = []
        self.wake()

    def wake(self) -> None:
        """Readers look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        self._waiters.append(asyncio.get_running_loop().create_future())
        await self._waiters[-1]


class FakeLog:
    """A `Log`. `error`: what every call raises, if it is set; `is_silent`: appended records get lost; `is_blind`: it
    does not see that the topic has become shorter.
    """

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.position = 0
        self.error: Exception | None = None
        self.is_silent = self.is_blind = False
        self.is_closed = True
        self.opened = self.reads = 0
        self.on_append: Callable[[bytes], None] = lambda _: None

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    async def open(self) -> None:
        self.opened += 1
        self._check()
        self.is_closed = False

    async def append(self, record: bytes) -> Place:
        self._check()
        self.on_append(record)
        if self.is_silent:
            raise LogFailed("timeout", "no acknowledgement")
        return self.topic.append(record)

    async def seek(self, time_ms: int) -> bool:
        self._check()
        self.position = sum(at < time_ms for _, at in self.topic.records)
        return self.position > 0

    async def read(self) -> Sequence[bytes]:
        while True:
            self._check()
            if self.position > len(self.topic.records) and not self.is_blind:
                raise LogChanged("out_of_range", "the topic ends before")
            found = [record for record, _ in self.topic.records[self.position :]]
            if found:
                self.reads += 1
                self.position += len(found)
                return found
            await self.topic.wait()

    async def close(self) -> None:
        self.is_closed = True


class VirtualLoop:
    """Timers on the clock of the test; tasks of the loop that runs it."""

    def __init__(self, clock: Clock) -> None:
        self.timers = Timers(clock)
        self.call_later = self.timers.call_later

    def create_task(self, task: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(task)


class Limits(SharedLimits):
    """`looked`: how often it was looked at what is in use."""

    looked = 0

    def demand(self, now_ns: int) -> dict[str, Demand]:
        self.looked += 1
        return super().demand(now_ns)


class Proxy:
    """One member. `wants`: whether its client `etl` always wants more, and waits; `wanted`: limits of which others do,
    and are told to wait.
    """

    def __init__(self, world: World, number: int, entries: Iterable[QuotaEntry], parameters: Parameters) -> None:
        random = Random(number)
        self.clock = world.clock
        self.registry = Registry(entries, settings=AlgorithmSettings(lends=True))
        self.member = Member("team", parameters, lambda: random.getrandbits(63), f"pod-{number}")
        self.limits = Limits(self.member, self.registry, self.clock)
        self.registry.lend_by(self.limits)
        self.log = FakeLog(world.topic)
        self.metrics = FleetMetrics()
        self.fleet = Fleet(self.member, self.limits, self.log, self.metrics, self.clock)
        self.loop = VirtualLoop(self.clock)
        self.wants = False
        self.wanted: list[Limit] = []
        self.is_stopped = False

    @property
    def limit(self) -> Limit:
        return self.registry.resolve("alice", "etl").produce.limits[0]

    @property
    def rate(self) -> float:
        """What it may use now; its bucket ends a lease when it is asked."""
        self.limit.algorithm.headroom(self.clock())
        return self.limit.rate

    def step(self) -> None:
        if self.is_stopped:
            return
        for limit in [*self.wanted, *([self.limit] if self.wants else [])]:
            use_up(limit, self.clock())
        if not self.wants:
            self.limit.waiters.discard(self)
        elif not self.limit.waiters.waiting:
            self.limit.enqueue(self, 1)
        self.loop.timers.pass_seconds(0)


class World:
    """Proxies and their topic. After each step the sum of what they may use is checked, but for those without a lease.

    `excess`: by how much it may be above the quota.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.now_ns = 1_000 * NS_PER_SECOND
        self.topic = Topic(self.clock)
        self.proxies: list[Proxy] = []
        self.excess = 0.0
        self.most = 0.0

    async def join(
        self, *entries: QuotaEntry, max_members: int = 10, shares_fallback: bool = True, settles: bool = True
    ) -> Proxy:
        parameters = Parameters(max_members=max_members, shares_fallback=shares_fallback)
        proxy = Proxy(self, len(self.proxies), entries or (entry(),), parameters)
        assert proxy.rate <= QUOTA / max_members, "before it has read anything"
        self.proxies.append(proxy)
        proxy.fleet.start(proxy.loop)  # type: ignore[arg-type]
        if settles:
            await self.until(lambda: proxy.metrics.is_joined, 20)
        return proxy

    async def pass_seconds(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_SECONDS)):
            self.clock.pass_seconds(STEP_SECONDS)
            for proxy in self.proxies:
                proxy.step()
            await settle()
            total = sum(proxy.rate for proxy in self.proxies if not proxy.is_stopped)
            self.most = max(self.most, total)
            assert total <= QUOTA * (1 + self.excess), [proxy.rate for proxy in self.proxies]

    async def until(self, is_so: Callable[[], object], seconds: float) -> float:
        """Returns after how many seconds of virtual time it is so."""
        for step in range(round(seconds / STEP_SECONDS)):
            if is_so():
                return step * STEP_SECONDS
            await self.pass_seconds(STEP_SECONDS)
        raise AssertionError(f"not within {seconds} s: {[proxy.rate for proxy in self.proxies]}")


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        for proxy in world.proxies:
            proxy.log.error = proxy.log.error or LogFailed("unreachable", "the test is over")
            world.topic.wake()
            await proxy.fleet.close()


def use_up(limit: Limit, now_ns: int) -> None:
    """As clients do that always have more to send: until there is debt."""
    while not limit.debt_ns(now_ns):
        limit.algorithm.record(int(limit.rate * STEP_SECONDS) + 1, now_ns)


async def settle() -> None:
    """Until all that can be done at this time is done."""
    for _ in range(12):
        await asyncio.sleep(0)
