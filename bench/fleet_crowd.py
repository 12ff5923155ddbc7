"""A fleet of 200 members at one real broker, without traffic: how late a record is, and what a member costs.

All are members of the real class, and all write and read. Ten of them are whole: the shell of the proxy with clients of
its own, in two processes, which are measured. The other 190 share a producer and a consumer: 200 consumers on one
machine would measure the machine. So 190 readers are missing at the broker.

Of the ten, five are at rest. The others, and five of the 190, are told each second or so that clients wait for a limit,
or that it is unused: five changes a second in all, each of which the others answer.
"""

import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import IO, cast

import uvloop

from bench.load import percentile
from bench.options import Options
from bench.processes import PeerError, cpu_ns, running
from bench.real_broker import printed
from bench.report import Figure
from deploy.local.cluster import KafkaCluster
from proxy.config.config import Config
from proxy.fleet.clock import boottime_ns
from proxy.fleet.fleet import Fleet
from proxy.fleet.shared_limits import SharedLimits
from proxy.fleet.topic_log import TopicLog
from proxy.observability.fleet import FleetMetrics
from proxy.observability.tallies import Histogram
from proxy.own_client import OwnClient
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from quotas.fleet.policy import UNUSED, Demand
from quotas.parsing.parse import parse_spec
from quotas.registry.registry import Registry

NAME = "fleet"
SCENARIO = "200 members without traffic"
ROLES = ("rest", "change", "crowd")
MEMBERS, WHOLE_ONES = 200, 5
"""All of them; the whole ones of each of two processes."""
CHANGING = 5
QUOTA = 8_000_000
TOPIC = "crowd"
SPEC = f"client-id=etl,producer_byte_rate={QUOTA}"
KEY = "client-id:etl producer_byte_rate"
PACE_SECONDS = 2.0
TICK_SECONDS = 0.05
START_SECONDS = 120.0
SETTLE_SECONDS = 5.0
SIGN_SECONDS = 1.0
_random = Random()  # noqa: S311 - no secret


def run(options: Options, cluster: KafkaCluster, seconds: int) -> list[Figure]:
    """CPU of a whole member at rest and with changes, and the delays of their records."""
    options.progress(f"{SCENARIO}, {seconds} s")
    with ExitStack() as stack:
        parts = {role: stack.enter_context(_part(role, cluster.bootstrap_servers)) for role in ROLES}
        deadline = time.monotonic() + START_SECONDS
        while not all(part.last() for part in parts.values()):
            if time.monotonic() > deadline:
                raise PeerError(f"not all members have joined within {START_SECONDS:g} s")
            time.sleep(SIGN_SECONDS)
        time.sleep(SETTLE_SECONDS)
        whole = parts["rest"], parts["change"]
        before = [(part.last(), cpu_ns(part.pid)) for part in whole]
        began_ns = time.monotonic_ns()
        time.sleep(seconds)
        after = [(part.last(), cpu_ns(part.pid)) for part in whole]
        took_ns = time.monotonic_ns() - began_ns
    cpu = [100 * (last - first) / took_ns / WHOLE_ONES for (_, first), (_, last) in zip(before, after, strict=True)]
    records = (after[0][0]["read"][0] - before[0][0]["read"][0]) / WHOLE_ONES / (took_ns / 1e9)
    pairs = zip(before, after, strict=True)
    delays = [delay for (first, _), (last, _) in pairs for delay in last["delays"][len(first["delays"]) :]]
    return [
        _figure("CPU of a member at rest", "% of a core", cpu[0], 3),
        _figure("CPU of a member with changes", "% of a core", cpu[1], 3),
        _figure("records", "/s", records),
        _figure("delay of a record, p50", "ms", 1_000 * percentile(delays, 0.5)),
        _figure("delay of a record, p99", "ms", 1_000 * percentile(delays, 0.99), 200),
    ]


def _figure(metric: str, unit: str, value: float, target: float | None = None) -> Figure:
    return Figure(NAME, SCENARIO, metric, unit, "fleet", (value,), target=target)


class _Part:
    """A process with some of the members."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: IO[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._output = output

    def last(self) -> dict[str, list[float]]:
        """What it has printed last; {} before all of its members have joined. Raises PeerError."""
        text = printed(self._output).decode(errors="replace")
        if self._process.poll() is not None:
            raise PeerError(f"a part of the fleet ended: {text[-2000:]}")
        lines = [line for line in text.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]
        found: dict[str, list[float]] = json.loads(lines[-1]) if lines else {}
        return found


@contextmanager
def _part(role: str, servers: str) -> Iterator[_Part]:
    with running([sys.executable, "-m", "bench.fleet_crowd", role, servers], None) as (process, output):
        yield _Part(process, output)


# ---- in the processes


class Delays(Histogram):
    """Keeps each of them."""

    def __init__(self) -> None:
        super().__init__(())
        self.all: list[float] = []

    def observe(self, seconds: float) -> None:
        self.all.append(seconds)


def _member() -> Member:
    return Member("bench", Parameters(max_members=MEMBERS), lambda: secrets.randbits(63))


def _log(servers: str) -> TopicLog:
    host, _, port = servers.rpartition(":")
    return TopicLog(OwnClient(Config(own_servers=((host, int(port)),)), "bench"), TOPIC)


async def whole_ones(servers: str, *, changes: bool) -> None:
    """Members as in a proxy."""
    loop = asyncio.get_running_loop()
    fleets: list[Fleet] = []
    for _ in range(WHOLE_ONES):
        member, registry = _member(), Registry([parse_spec(SPEC)], settings=AlgorithmSettings(lends=True))
        limits = SharedLimits(member, registry, boottime_ns)
        registry.lend_by(limits)
        limit = registry.resolve("alice", "etl").produce.limits[0]
        fleets.append(Fleet(member, limits, _log(servers), FleetMetrics(delivery=Delays()), boottime_ns))
        fleets[-1].start(loop)
        if changes:
            loop.call_later(_random.uniform(0, PACE_SECONDS), _change, loop, limit)
    while True:
        await asyncio.sleep(SIGN_SECONDS)
        if all(fleet.member.caps.is_joined(boottime_ns()) for fleet in fleets):
            delays = [delay for fleet in fleets for delay in cast("Delays", fleet.metrics.delivery).all]
            print(json.dumps({"read": [sum(fleet.metrics.read for fleet in fleets)], "delays": delays}), flush=True)


def _change(loop: asyncio.AbstractEventLoop, limit: Limit) -> None:
    """A client waits, or none does any more."""
    if limit.waiters.waiting:
        limit.waiters.discard("client")
    else:
        limit.enqueue("client", 1)
    loop.call_later(_random.uniform(0.5, 1.5) * PACE_SECONDS, _change, loop, limit)


async def crowd(servers: str) -> None:
    """The other members: one log for all."""
    members = [_member() for _ in range(MEMBERS - 2 * WHOLE_ONES)]
    log = _log(servers)
    await log.open()
    for member in members:
        member.set_quota(KEY, 1_000 * QUOTA)
        member.begin(boottime_ns(), is_covered=False)
    first = members[0].plan(boottime_ns(), {})
    assert first is not None
    await log.seek((await log.append(first)).time_ms)
    for member in members:
        member.begin(boottime_ns(), is_covered=False)
    async with asyncio.TaskGroup() as group:
        group.create_task(_plan(group, log, members))
        while True:
            for record in await log.read():
                for member in members:
                    member.apply(record, boottime_ns())
                await asyncio.sleep(0)


async def _plan(group: asyncio.TaskGroup, log: TopicLog, members: Sequence[Member]) -> None:
    limited: set[int] = set()
    changes_ns = [0] * CHANGING
    signs_ns = 0
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now_ns = boottime_ns()
        for number in range(CHANGING):
            if now_ns >= changes_ns[number]:
                limited ^= {number}
                changes_ns[number] = now_ns + round(_random.uniform(0.5, 1.5) * PACE_SECONDS * 1e9)
        for number, member in enumerate(members):
            record = member.plan(now_ns, {KEY: Demand(0, True) if number in limited else UNUSED})
            if record is not None:
                group.create_task(log.append(record))
        if now_ns >= signs_ns and all(member.caps.is_joined(now_ns) for member in members):
            signs_ns = now_ns + round(SIGN_SECONDS * 1e9)
            print(json.dumps({"members": [len(members[0].heard)]}), flush=True)


if __name__ == "__main__":
    role, servers = sys.argv[1:]
    uvloop.run(crowd(servers) if role == "crowd" else whole_ones(servers, changes=role == "change"))
