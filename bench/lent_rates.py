"""What it costs to lend rates: 1,000 limits get another rate four times a second, as a fleet shares out its quotas.

A change is a `Registry.set_rate`, with what it leads to. Where a frame waits at each limit, and all rates rise at each
change, each timer is set anew: that is the worst case, and has no target. Every limit is changed once in a round of the
proxy's event loop (uvloop). The percentage is of the time of one core.
"""

import asyncio
import gc
import time
from typing import Any, cast

import uvloop
from rich.console import Console

from bench.options import Options
from bench.processes import Cores
from bench.report import Figure, show
from proxy.enforcement.measures import Reply
from proxy.sessions.wakeups import Wakeups
from proxy.streams.held_request import HeldRequest, LifeEvent
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import AlgorithmSettings
from quotas.entity import DEFAULT, Entity
from quotas.entry import QuotaEntry
from quotas.limit_kinds import PRODUCER_BYTE_RATE
from quotas.registry.registry import Registry

NAME = "lent_rates"
LIMITS = 1_000
CHANGES_A_SECOND = 4
RATE = 5_000_000
SECOND_NS = 1_000_000_000
LEASE_NS = 15 * SECOND_NS
TARGET_PERCENT = 2.0
#: How many frames wait, and whether rates rise only.
SCENARIOS = {
    "no frame waits": (0, False),
    "a frame waits at each": (LIMITS, False),
    "a frame waits at each, rates rise": (LIMITS, True),
}


def run(options: Options) -> list[Figure]:
    """CPU of the changes of one second: without waiters; with rates that go up and down, and that rise."""
    rounds = options.rounds or (3 if options.quick else 7)
    figures = []
    for name, (waiters, rises) in SCENARIOS.items():
        scenario = f"{LIMITS:,} limits, {CHANGES_A_SECOND} changes a second, {name}"
        options.progress(scenario)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            costs = runner.run(_costs(waiters, rounds, rises=rises))
        target = None if rises else TARGET_PERCENT
        figures.append(Figure(NAME, scenario, "cpu", "% of a core", "engine", costs, target=target))
    return figures


async def _costs(waiters: int, rounds: int, *, rises: bool) -> tuple[float, ...]:
    """Percent of a core, in each round of one second's changes; the first round warms up."""
    registry = Registry(
        [QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: RATE})], settings=AlgorithmSettings(lends=True)
    )
    wakeups = Wakeups(asyncio.get_running_loop(), time.monotonic_ns)
    registry.rate_observers.append(wakeups.rate_changed)
    limits = [registry.resolve("User:alice", f"client-{index}").produce.limits[0] for index in range(LIMITS)]
    for limit in limits[:waiters]:
        _wait_at(limit, wakeups)
    gc.collect()
    costs = []
    for number in range(rounds + 1):
        started_ns = time.process_time_ns()
        for change in range(CHANGES_A_SECOND):
            for index, limit in enumerate(limits):
                now_ns = time.monotonic_ns()
                step = CHANGES_A_SECOND * number + change
                rate = (RATE + index) * (1_000 + (step if rises else 100 * ((step + index) % 2))) // 1_000
                registry.set_rate(limit, rate, SECOND_NS, now_ns + LEASE_NS, RATE // 100, now_ns)
            await asyncio.sleep(0)  # the loop frees the timers that were cancelled
        costs.append((time.process_time_ns() - started_ns) / SECOND_NS * 100)
    return tuple(costs[1:])


def _wait_at(limit: Limit, wakeups: Wakeups) -> None:
    """A frame waits at this limit, for ten seconds."""
    limit.algorithm.record(10 * RATE, time.monotonic_ns())
    request = HeldRequest(cast("Any", None), Reply.NOTICE, 1)  # type: ignore[abstract]  # it needs no response
    request.limit = limit
    request.on(LifeEvent.WAIT)
    limit.enqueue(request, 1)
    wakeups.add(request, cast("Any", None))


if __name__ == "__main__":
    console = Console()
    show(
        console,
        NAME,
        run(Options(quick=False, rounds=0, scenario="", peers={}, cores=Cores.choose([]), progress=console.print)),
    )
