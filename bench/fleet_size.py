"""What a fleet costs at rest by its size, in virtual time: CPU of one member, and bytes that all members read.

All members use their part of each limit, and nothing changes. One member reads the records of all; it samples what it
uses 20 times a second. The others are real, too, but each reads only its own records, since 1,000 members would need
ten cores: they want less than their fair share, so what others advertise makes no difference to them.

Fan-out: bytes of all records, with 70 bytes of a batch each, times the members that read them.
"""

import time
from collections.abc import Iterator
from functools import partial
from random import Random

from bench.options import Options
from bench.report import Figure
from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from quotas.fleet.policy import Demand
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

NAME = "fleet_size"
QUOTA = 8_000_000_000
BATCH_BYTES = 70
TICK_NS = 50 * NS_PER_MS
TICKS_OF_AUTHORS = 20
WAITING_TICKS = 60
"""Limits take part once clients wait for them."""
QUIET_SECONDS = 20
TARGET_CPU, TARGET_MB = 3.0, 100.0
#: Members, limits, and whether the targets apply.
SIZES = [(100, 50, False), (200, 1, False), (200, 50, False), (1_000, 1, False), (1_000, 50, True)]


def _member(random: Random, names: list[str], members: int, now_ns: int) -> Member:
    made = Member("etl", Parameters(max_members=members), partial(random.getrandbits, 63), "executor-17")
    for name in names:
        made.set_quota(name, QUOTA)
    made.begin(now_ns, is_covered=True)
    return made


def measure(members: int, limits: int, seconds: int) -> tuple[float, float, float]:
    """Percent of a core of a member, MB/s that all read, and the records of all in a second."""
    random = Random(1)  # noqa: S311 - no secrets
    names = [f"client-id:app-{number:03d} producer_byte_rate" for number in range(limits)]
    now_ns = NS_PER_SECOND
    reader, *authors = [_member(random, names, members, now_ns) for _ in range(members)]
    fits = dict.fromkeys(names, Demand(QUOTA * 9 // 10 // members, False))
    waits = dict.fromkeys(names, Demand(0, True))
    spent_ns = size = count = 0
    for tick in range((QUIET_SECONDS + seconds) * NS_PER_SECOND // TICK_NS):
        now_ns += TICK_NS
        records = []
        for author in authors[tick % TICKS_OF_AUTHORS :: TICKS_OF_AUTHORS]:
            record = author.plan(now_ns, waits if tick < WAITING_TICKS else fits)
            if record is not None:
                author.apply(record, now_ns)
                records.append(record)
        began_ns = time.process_time_ns()
        for record in records:
            reader.apply(record, now_ns)
        own = reader.plan(now_ns, waits if tick < WAITING_TICKS else fits)
        if own is not None:
            reader.apply(own, now_ns)
            records.append(own)
        if tick * TICK_NS >= QUIET_SECONDS * NS_PER_SECOND:
            spent_ns += time.process_time_ns() - began_ns
            size += sum(len(record) + BATCH_BYTES for record in records)
            count += len(records)
    return spent_ns / seconds / 1e7, size * members / seconds / 1e6, count / seconds


def run(options: Options) -> list[Figure]:
    """Each size; the statements of a large fleet are advertised in full once in 105 s."""
    return [figure for size in SIZES for figure in _figures(options, *size)]


def _figures(options: Options, members: int, limits: int, has_targets: bool) -> Iterator[Figure]:
    scenario = f"{members} members, {limits} limits"
    if options.scenario not in scenario:
        return
    options.progress(scenario)
    cpu, size, records = measure(members, limits, 15 if options.quick else 105)
    for metric, unit, value, target in (
        ("CPU of a member", "% of a core", cpu, TARGET_CPU),
        ("fan-out", "MB/s", size, TARGET_MB),
        ("records", "/s", records, None),
    ):
        yield Figure(NAME, scenario, metric, unit, "fleet", (value,), target=target if has_targets else None)
