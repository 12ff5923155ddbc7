"""What the quota of producer ids costs: memory of a million ids, CPU time of one check, how many pass for known.

One user at a limit of a million new ids an hour and P = 0.01, who has brought a million in a row, as brokers hand them
out. A check is `ProducerIdQuota.unknown` of one id: of the newest layer ("in use"), of any layer, of none ("new").
"""

import gc
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from bench.options import Options
from bench.processes import Cores
from bench.report import Figure, show
from quotas.algorithms.producer_ids import ProducerIdQuota

NAME = "producer_ids"
WINDOW_NS = 3600 * 1_000_000_000
WINDOW_COUNT = 4
PROBABILITY = 0.01
TARGET_CHECK_US = 5.0
TARGET_MB_OF_A_MILLION = 2.0
TARGET_FALSE_POSITIVES = 1.2 * PROBABILITY


def run(options: Options) -> list[Figure]:
    """Memory, checks of known and new ids, false positives; short: a tenth of the ids, and of the memory's target."""
    count = 100_000 if options.quick else 1_000_000
    rounds, checks = options.rounds or (3 if options.quick else 7), 20_000 if options.quick else 100_000
    options.progress(f"{count:,} producer ids")
    quota = ProducerIdQuota(
        count, window_ns=WINDOW_NS, window_count=WINDOW_COUNT, false_positive_probability=PROBABILITY
    )
    quota.remember(range(count), 0)
    strangers = range(count, count + checks)
    ids = {
        "known, in use": range(count - checks, count),
        "known, of any layer": range(0, count, count // checks),
        "new": strangers,
    }
    scenario = f"{count:,} ids at P = {PROBABILITY}"
    figures = [
        _figure(scenario, "memory", "MB", (_bytes(quota) / 1e6,), TARGET_MB_OF_A_MILLION * count / 1_000_000),
        _figure(
            scenario,
            "new ids that pass for known",
            "",
            (1 - len(quota.unknown(strangers, 0)) / checks,),
            TARGET_FALSE_POSITIVES,
        ),
    ]
    options.progress("checks")
    return figures + [
        _figure(f"check: {name}", "cpu", "µs", _cost_us(quota, each, rounds), TARGET_CHECK_US)
        for name, each in ids.items()
    ]


def _cost_us(quota: ProducerIdQuota, producer_ids: Sequence[int], rounds: int) -> tuple[float, ...]:
    """CPU microseconds of one `unknown`, with the loop around it."""
    return tuple(_spent_ns(quota, producer_ids) / len(producer_ids) / 1000 for _ in range(rounds))


def _spent_ns(quota: ProducerIdQuota, producer_ids: Sequence[int]) -> int:
    unknown = quota.unknown
    started_ns = time.process_time_ns()
    for producer_id in producer_ids:
        unknown((producer_id,), 0)
    return time.process_time_ns() - started_ns


def _bytes(quota: ProducerIdQuota) -> int:
    """Of the quota and all it refers to, classes left out; tracemalloc would make the filling ten times slower."""
    found: dict[int, object] = {}
    to_see: list[object] = [quota]
    while to_see:
        thing = to_see.pop()
        if id(thing) not in found and not isinstance(thing, type):
            found[id(thing)] = thing
            to_see += gc.get_referents(thing)
    return sum(sys.getsizeof(thing) for thing in found.values())


def _figure(scenario: str, metric: str, unit: str, rounds: tuple[float, ...], target: float) -> Figure:
    return Figure(NAME, scenario, metric, unit, "engine", rounds, target=target)


if __name__ == "__main__":
    console = Console()
    show(
        console,
        NAME,
        run(Options(quick=False, rounds=0, scenario="", peers={}, cores=Cores.choose([]), progress=console.print)),
    )
