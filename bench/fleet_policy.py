"""One quota for a fleet, in virtual time: how much of what is wanted goes unserved, how much passes above the quota,
in how many records; and the CPU of a record and of a plan.

The members are real (`quotas.fleet.member`), the log is not: a record is in the log after a part of the transport's
delay, and at each reader after another one. Traffic is fluid and without backlog: what does not pass at once is lost.
Each member has a bucket of 0.1 s of its rate. The quota is 10 MB/s; there may be 100 members (`--fleet-max-members`).
What is wanted: `bench.fleet_demands`.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from rich.console import Console

from bench.fleet_demands import (
    BUCKET_SECONDS,
    DEMANDS,
    LAN,
    MEMBERS,
    QUOTA,
    SECONDS,
    SLOW,
    Outcome,
    Scenario,
    Transport,
    outcome_of,
)
from bench.options import Options
from bench.processes import Cores
from bench.report import Figure, show
from quotas.fleet.member import Member
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.policy import Demand
from quotas.fleet.record import encode
from quotas.time_units import NS_PER_MS, NS_PER_SECOND
from simulation.fleet_topic import FleetTopic
from simulation.kernel import Kernel

NAME = "fleet_policy"
KEY = "client-id=etl,producer_byte_rate"
QUIET_SECONDS = 2
"""Before anything is wanted, so that the members know each other."""
TARGET_UNSERVED = 9.0
TARGET_OVER_SECOND = 10.0
TARGET_OVER_TEN_SECONDS = 1.0
TARGET_APPLY_US = 20.0
TARGET_PLAN_US = 10.0


class Sidecar:
    """A member with a bucket, and what passed lately.

    wanted   of the quota, by the second
    """

    def __init__(self, fleet: "Fleet") -> None:
        self.member = Member("etl", fleet.parameters, partial(fleet.random.getrandbits, 63))
        self.member.set_quota(KEY, 1_000 * QUOTA)
        self.member.begin(fleet.now_ns, is_covered=True)
        self.wanted = 0.0
        self._level = 0.0
        self._tenths = [0.0] * 2  # a complete one, and the present

    def pass_traffic(self, now_ns: int, seconds: float) -> tuple[float, bytes | None]:
        """What passes in this step, and the record that follows from it."""
        rate = self.member.allowed(KEY, now_ns)[0] / 1_000
        self._level = min(self._level + rate * seconds, rate * BUCKET_SECONDS)
        wanted = self.wanted * seconds
        passed = min(wanted, self._level)
        self._level -= passed
        self._tenths[-1] += passed
        peak = round(10_000 * max(self._tenths))
        if now_ns % (100 * NS_PER_MS) < round(seconds * NS_PER_SECOND):
            self._tenths = [*self._tenths[1:], 0.0]
        return passed, self.member.plan(now_ns, {KEY: Demand(peak, passed < 0.999 * wanted)})


class Fleet:
    """Members at one log.

    records   that were sent
    most      the largest sum of uses, as a part of one
    """

    def __init__(self, transport: Transport, seed: int, members: int = MEMBERS, max_members: int = 100) -> None:
        self.kernel = Kernel(seed)
        self.random = self.kernel.random
        self.parameters = Parameters(max_members=max_members)
        self.transport = transport
        self.topic = FleetTopic(self.kernel, self._half)
        self.topic.on_append = self._deliver
        self.records = 0
        self.most = 0.0
        self.sidecars = [Sidecar(self) for _ in range(members)]
        self.stopped: set[int] = set()
        """Members that do nothing any more."""
        self._arrived_ns = [0] * members

    @property
    def now_ns(self) -> int:
        return self.kernel.now_ns

    def step(self) -> list[float]:
        """What passes in the next step, by member."""
        seconds = self.transport.step_ms / 1_000
        passed = [0.0] * len(self.sidecars)
        used = 0
        for number, sidecar in enumerate(self.sidecars):
            if number in self.stopped:
                continue
            passed[number], record = sidecar.pass_traffic(self.now_ns, seconds)
            used += sidecar.member.caps.keys[KEY].use
            if record is not None:
                self.send(record)
        self.most = max(self.most, used / WHOLE)
        self.kernel.run(seconds)
        return passed

    def send(self, record: bytes) -> None:
        self.records += 1
        self.topic.post(record)

    def _half(self) -> float:
        return self.transport.half_ns(self.random) / NS_PER_SECOND

    def _deliver(self, record: bytes) -> None:
        """To each member, in the log's order."""
        for number in range(len(self.sidecars)):
            arrives_ns = max(self._arrived_ns[number] + 1, self.now_ns + self.transport.half_ns(self.random))
            self._arrived_ns[number] = arrives_ns
            self.kernel.at(arrives_ns, partial(self._arrive, number, record))

    def _arrive(self, number: int, record: bytes) -> None:
        if number not in self.stopped:
            self.sidecars[number].member.apply(record, self.now_ns)


def simulate(demand: Scenario, fleet: Fleet, seed: int, seconds: int = SECONDS) -> Outcome:
    """Run a fleet under a demand."""
    wants = demand(len(fleet.sidecars), Random(seed))  # noqa: S311 - no secrets
    steps = 100 // fleet.transport.step_ms
    for _ in range(QUIET_SECONDS * 10 * steps):
        fleet.step()
    wanted = 0.0
    tenths = []
    for tenth in range(seconds * 10):
        served = 0.0
        for step in range(steps):
            each = wants((tenth + step / steps) / 10)
            for sidecar, want in zip(fleet.sidecars, each, strict=True):
                sidecar.wanted = want * QUOTA
            served += sum(fleet.step())
            wanted += min(1.0, sum(each)) * QUOTA / steps / 10
        tenths.append(served)
    return outcome_of(tenths, wanted, fleet.records / (seconds + QUIET_SECONDS), 100 * fleet.most)


def run(options: Options) -> list[Figure]:
    """Each demand on both transports; then CPU."""
    rounds = options.rounds or (1 if options.quick else 3)
    figures: list[Figure] = []
    for transport in (LAN, SLOW):
        for name, demand in DEMANDS.items():
            scenario = f"{name}, {transport.name}"
            if options.scenario not in scenario:
                continue
            options.progress(scenario)
            outcomes = [simulate(demand, Fleet(transport, seed), seed) for seed in range(1, rounds + 1)]
            figures += _figures(scenario, outcomes, has_targets=transport is LAN)
    costs: dict[str, tuple[Callable[[], float], float]] = {
        "record of one key": (apply_us, TARGET_APPLY_US),
        "plan of one key of 200": (plan_us, TARGET_PLAN_US),
    }
    for name, (cost, target) in costs.items():
        if options.scenario in name:
            figures.append(_figure(name, "CPU", "µs", tuple(cost() for _ in range(2 * rounds + 1)), target))
    return figures


def _figures(scenario: str, outcomes: list[Outcome], *, has_targets: bool) -> Iterator[Figure]:
    for name, metric, unit, target in (
        ("unserved", "unserved", "%", TARGET_UNSERVED),
        ("over_second", "over in a second", "%", TARGET_OVER_SECOND),
        ("over_ten_seconds", "over in ten seconds", "%", TARGET_OVER_TEN_SECONDS),
        ("records_per_second", "records", "/s", None),
        ("most_used", "sum of uses, most", "%", 100.0),
    ):
        values = tuple(float(getattr(outcome, name)) for outcome in outcomes)
        yield _figure(scenario, metric, unit, values, target if has_targets else None)


def _figure(scenario: str, metric: str, unit: str, rounds: tuple[float, ...], target: float | None) -> Figure:
    return Figure(NAME, scenario, metric, unit, "fleet", rounds, target=target)


def apply_us(members: int = MEMBERS, repeat: int = 200) -> float:
    """CPU microseconds of a record of one key, among `members` that state it."""
    random = Random(1)  # noqa: S311 - no secrets
    authors = [_member(random, [KEY]) for _ in range(members)]
    reader = authors[0]
    reader.begin(0, is_covered=True)
    cap = WHOLE // members
    records = [encode(each.caps.state({KEY: (cap, cap)}, 0)) for _ in range(repeat) for each in authors]
    started_ns = time.process_time_ns()
    for number, record in enumerate(records):
        reader.apply(record, number * NS_PER_MS)
    return (time.process_time_ns() - started_ns) / len(records) / 1_000


def plan_us(members: int = MEMBERS, keys: int = 200, repeat: int = 50) -> float:
    """CPU microseconds for each key of a plan, when others have just stated another cap of each."""
    random = Random(1)  # noqa: S311 - no secrets
    names = [f"client-id={number},producer_byte_rate" for number in range(keys)]
    planner, *others = [_member(random, names) for _ in range(members)]
    planner.begin(0, is_covered=True)
    demand = dict.fromkeys(names, Demand(1_000 * QUOTA // members, True))
    cap = WHOLE // members
    spent_ns = now_ns = 0
    for number in range(repeat):
        now_ns += 60 * NS_PER_MS
        for each in others if number == 0 else random.sample(others, 1):
            wishes = dict.fromkeys(names, (cap - random.randrange(cap // 10), cap))
            planner.apply(encode(each.caps.state(wishes, now_ns)), now_ns)
        started_ns = time.process_time_ns()
        record = planner.plan(now_ns, demand)
        spent_ns += time.process_time_ns() - started_ns
        if record is not None:
            planner.apply(record, now_ns)
    return spent_ns / repeat / keys / 1_000


def _member(random: Random, names: list[str]) -> Member:
    member = Member("etl", Parameters(), partial(random.getrandbits, 63))
    for name in names:
        member.set_quota(name, 1_000 * QUOTA)
    return member


if __name__ == "__main__":
    console = Console()
    show(
        console,
        NAME,
        run(Options(quick=True, rounds=0, scenario="", peers={}, cores=Cores.choose([]), progress=console.print)),
    )
