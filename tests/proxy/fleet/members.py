"""Members of a fleet at the simulated topic, without clients and brokers: for examples of one rule each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random

from proxy.background.host import Host
from proxy.fleet.fleet import Fleet
from proxy.fleet.shared_limits import SharedLimits
from proxy.observability.fleet_counts import FleetCounts
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.entity import Entity
from quotas.entry import QuotaEntry
from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from quotas.limit_kinds import PRODUCER_BYTE_RATE
from quotas.registry.registry import Registry
from simulation.fleet_topic import FleetTopic, SimLog
from simulation.kernel import Kernel, MachineClock, nothing
from simulation.loop import SimLoop

QUOTA = 1_000_000
STEP_SECONDS = 0.05
KEY = f"client-id:etl {PRODUCER_BYTE_RATE}"


def entry(rate: int = QUOTA, client_id: str = "etl") -> QuotaEntry:
    return QuotaEntry(Entity(client_id=client_id), {PRODUCER_BYTE_RATE: rate})


class Proxy:
    """One member. `wants`: whether its client `etl` always wants more, and waits; `wanted`: limits of which others do,
    and are told to wait.
    """

    def __init__(self, world: Members, number: int, entries: Iterable[QuotaEntry], parameters: Parameters) -> None:
        random = Random(number)
        self.clock = world.clock
        self.registry = Registry(entries, settings=AlgorithmSettings(leases=True))
        self.member = Member("team", parameters, lambda: random.getrandbits(63), f"pod-{number}")
        self.limits = SharedLimits(self.member, self.registry, self.clock)
        self.registry.grant_by(self.limits)
        self.log = SimLog(world.topic, fetch=(0.001, 0.005))
        self.metrics = FleetCounts()
        self.fleet = Fleet(self.member, self.limits, self.log, self.metrics, Host(clock=self.clock))
        self.loop = SimLoop(world.kernel, nothing)  # type: ignore[arg-type]
        self.wants = False
        self.wanted: list[Limit] = []
        self.fleet.start(self.loop)
        self.loop.wake()

    @property
    def is_stopped(self) -> bool:
        return self.loop.is_stopped

    @is_stopped.setter
    def is_stopped(self, value: bool) -> None:
        self.loop.is_stopped = value
        self.loop.wake()

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


class Members:
    """Proxies and their topic. `most`: the most that all of them together might use."""

    def __init__(self) -> None:
        self.kernel = Kernel(0)
        self.clock = MachineClock(self.kernel)
        self.topic = FleetTopic(self.kernel, lambda: 0.0)
        self.proxies: list[Proxy] = []
        self.most = 0.0

    def join(
        self, *entries: QuotaEntry, max_members: int = 10, shares_fallback: bool = True, settles: bool = True
    ) -> Proxy:
        parameters = Parameters(max_members=max_members, shares_fallback=shares_fallback)
        proxy = Proxy(self, len(self.proxies), entries or (entry(),), parameters)
        assert proxy.rate <= QUOTA / max_members, "before it has read anything"
        self.proxies.append(proxy)
        if settles:
            self.until(lambda: proxy.metrics.is_joined, 20)
        return proxy

    def pass_seconds(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_SECONDS)):
            self.run(STEP_SECONDS - 0.01)
            for proxy in self.proxies:
                proxy.step()
            self.run(0.01)
            self.most = max(self.most, sum(proxy.rate for proxy in self.proxies if not proxy.is_stopped))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass in which no client does anything."""
        for proxy in self.proxies:
            proxy.loop.plan()
        return self.kernel.run(seconds, until)

    def until(self, is_so: Callable[[], object], seconds: float) -> float:
        """Returns after how many seconds of virtual time it is so."""
        for step in range(round(seconds / STEP_SECONDS)):
            if is_so():
                return step * STEP_SECONDS
            self.pass_seconds(STEP_SECONDS)
        raise AssertionError(f"not within {seconds} s: {[proxy.rate for proxy in self.proxies]}")


@contextmanager
def a_fleet() -> Iterator[Members]:
    world = Members()
    try:
        yield world
    finally:
        for proxy in world.proxies:
            proxy.loop.die()
            proxy.loop.close()


def use_up(limit: Limit, now_ns: int) -> None:
    """As clients do that always have more to send: until there is debt."""
    while not limit.debt_ns(now_ns):
        limit.algorithm.record(int(limit.rate * STEP_SECONDS) + 1, now_ns)
