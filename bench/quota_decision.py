"""What the quota engine costs alone: CPU time of one decision, bytes per override and per bucket.

A decision is `LimitSet.spend` for one frame that fits; the clock moves 1 ms between two, so that the bucket fills each
time. "In debt" is the same with a frame each time that leaves debt or is refused. A look-up is `Registry.resolve` by
user and client id, of a client that some session holds. An override that never spoke is an entry of the registry whose
client did not come; a bucket is what the first decision about a client adds.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

from rich.console import Console

from bench.options import Options
from bench.processes import Cores
from bench.report import Figure, show
from quotas.admission.client_limits import ClientLimits
from quotas.admission.limit import Limit
from quotas.admission.limit_set import LimitSet, limit_set
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import DEFAULT, TOTAL, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.limit_kinds import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from quotas.registry.registry import Registry
from quotas.resource_groups import ResourceGroup

NAME = "quota_decision"
FRAME = 16_384
MEMORY_SAMPLE = 50_000
STEP_NS = 1_000_000
PLENTY = 1 << 53
TARGET_FOUR_LIMITS_US = 3.0
TARGET_MANY_TO_FEW = 1.1
TARGET_OVERRIDE_BYTES = 250
TARGET_BUCKET_BYTES = 400


def run(options: Options) -> list[Figure]:
    """Decisions with no, one and four limits; four found by name among few and many overrides; memory."""
    few, many = 10, 100_000 if options.quick else 1_000_000
    rounds, count = options.rounds or (3 if options.quick else 7), 20_000 if options.quick else 100_000
    entity = Entity(client_id="etl")
    cases: dict[str, LimitSet] = {
        f"{number} limits": limit_set(tuple(Limit(f"limit_{i}", entity, TokenBucket(PLENTY)) for i in range(number)))
        for number in (0, 1, 4)
    }
    cases["1 limit, in debt"] = limit_set((Limit("tight", entity, TokenBucket(1000)),))
    figures = [
        _figure(
            f"decision: {name}",
            "cpu",
            "µs",
            tuple(_cost_us(limits.spend, count) for _ in range(rounds)),
            TARGET_FOUR_LIMITS_US if name == "4 limits" else None,
        )
        for name, limits in cases.items()
    ]
    options.progress(f"{few:,} and {many:,} overrides")
    figures += _among_overrides(few, many, rounds, count)
    options.progress(f"memory of {MEMORY_SAMPLE:,} overrides and of their buckets")
    return figures + _memory(MEMORY_SAMPLE)


def _among_overrides(few: int, many: int, rounds: int, count: int) -> list[Figure]:
    """A decision and the look-up before it: a client's own limit, those of two resource groups, the total's."""
    admits = {overrides: _admit_by_name(overrides) for overrides in (few, many)}
    gc.collect()
    gc.freeze()  # a million entries cost the collector time that a decision has no part in
    costs: dict[int, list[float]] = {overrides: [] for overrides in admits}
    for _ in range(rounds):  # one after the other, so that both have the machine in the same state
        for overrides, admit in admits.items():
            costs[overrides].append(_cost_us(admit, count))
    gc.unfreeze()
    figures = [
        _figure(f"look-up and decision: 4 limits, {overrides:,} overrides", "cpu", "µs", tuple(each), None)
        for overrides, each in costs.items()
    ]
    ratio = figures[1].value / figures[0].value
    return [
        replace(figures[0], target=TARGET_FOUR_LIMITS_US),
        replace(figures[1], ratio=ratio, ratio_to=f"{few} overrides", ratio_target=TARGET_MANY_TO_FEW),
    ]


def _admit_by_name(overrides: int) -> Callable[[int, int], object]:
    groups = (ResourceGroup("clients", client_ids=("client-*",)), ResourceGroup("users", users=("User:alice",)))
    registry = Registry(
        (
            *_overrides(overrides, rate=PLENTY),
            *(
                QuotaEntry(Named(EntityKind.RESOURCE_GROUP, each.name), {PRODUCER_BYTE_RATE: PLENTY}, group=each)
                for each in groups
            ),
            QuotaEntry(TOTAL, {PRODUCER_BYTE_RATE: PLENTY}),
        )
    )
    client_id = f"client-{overrides // 2}"
    held = registry.resolve("User:alice", client_id)  # as a session does
    assert len(held.produce.limits) == 4

    def admit(amount: int, now_ns: int, _held: ClientLimits = held) -> object:
        return registry.resolve("User:alice", client_id).produce.spend(amount, now_ns)

    return admit


def _cost_us(admit: Callable[[int, int], object], count: int) -> float:
    """CPU microseconds of one `admit`, the loop around it taken off."""
    return max(0.0, (_spent_ns(admit, count) - _spent_ns(_nothing, count)) / count / 1000)


def _spent_ns(call: Callable[[int, int], object], count: int) -> int:
    now_ns = time.monotonic_ns()
    started_ns = time.process_time_ns()
    for _ in range(count):
        now_ns += STEP_NS
        call(FRAME, now_ns)
    return time.process_time_ns() - started_ns


def _nothing(_amount: int, _now_ns: int) -> None:
    """The loop's own cost, and that of a call."""


def _memory(count: int) -> list[Figure]:
    """Bytes as tracemalloc counts them. The names are the sessions' own, so they do not count for the buckets."""
    names = [f"client-{index}" for index in range(count)]
    same_rates = _buckets_bytes(Registry(_overrides(10)), names)
    tracemalloc.start()
    registry = Registry(_overrides(count))
    override_bytes = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    own_rates = _buckets_bytes(registry, names)
    return [
        _figure("memory", "override that never spoke", "bytes", (override_bytes,), TARGET_OVERRIDE_BYTES),
        _figure("memory", "bucket in use, a default rate", "bytes", (same_rates,), TARGET_BUCKET_BYTES),
        _figure("memory", "bucket in use, a rate of its own", "bytes", (own_rates,), TARGET_BUCKET_BYTES),
    ]


def _buckets_bytes(registry: Registry, names: list[str]) -> float:
    """Two buckets for each name, used once; what each of them adds."""
    now_ns = time.monotonic_ns()
    tracemalloc.start()
    for name in names:
        client = registry.resolve("User:alice", name)
        client.produce.charge(FRAME, now_ns)
        client.fetch.charge(2 * FRAME, now_ns)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(names) / 2


def _overrides(count: int, rate: int = 5_000_000) -> Iterator[QuotaEntry]:
    """A default for everyone, then `count` client ids with two rates of their own each."""
    yield QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: rate, CONSUMER_BYTE_RATE: rate})
    for index in range(count):
        yield QuotaEntry(
            Entity(client_id=f"client-{index}"),
            {PRODUCER_BYTE_RATE: rate + index, CONSUMER_BYTE_RATE: 2 * rate + index},
        )


def _figure(scenario: str, metric: str, unit: str, rounds: tuple[float, ...], target: float | None) -> Figure:
    return Figure(NAME, scenario, metric, unit, "engine", rounds, target=target)


if __name__ == "__main__":
    console = Console()
    show(
        console,
        NAME,
        run(Options(quick=False, rounds=0, scenario="", peers={}, cores=Cores.choose([]), progress=console.print)),
    )
