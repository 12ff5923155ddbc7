"""What the members of a fleet want in simulations and benchmarks, how late their records are, and what came of it.

on/off L   each member wants 2 L / N of the quota or nothing, in turn, for 8 s in the mean each
hot        each wants 0.4 / N all the time, one at a time the whole quota, for 8 s of each 10 s
herd       each wants 1.5 / N for 8 s of each 12 s, all at once
zipf       together they want 1.5 of the quota, the k-th 1 / k of the first, in an order that changes each 3 to 8 s
growth     each wants from 0.2 / N, at first, to 1.5 / N
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from quotas.time_units import NS_PER_MS

MEMBERS = 20
SECONDS = 60
QUOTA = 10_000_000
BUCKET_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Transport:
    """Delays from a member to the log and to all members, half of it each way; `stalls` of the records take longer."""

    name: str
    step_ms: int
    fastest_ms: int
    slowest_ms: int
    stalls: float
    stall_ms: int

    def half_ns(self, random: Random) -> int:
        """The delay of one way."""
        ms = random.uniform(self.fastest_ms, self.slowest_ms) / 2
        if random.random() < self.stalls / 2:
            ms += random.uniform(0, self.stall_ms)
        return round(ms * NS_PER_MS)


LAN = Transport("lan", 5, 3, 30, 0.005, 500)
SLOW = Transport("slow log", 20, 20, 300, 0.02, 2_000)

#: What each member wants at a time, as parts of the quota.
Wants = Callable[[float], list[float]]


def on_off(load: float, members: int, random: Random) -> Wants:
    """Each member on its own."""
    is_on = [random.random() < 0.5 for _ in range(members)]
    until = [random.expovariate(1 / 8) for _ in range(members)]

    def wants(seconds: float) -> list[float]:
        for member in range(members):
            while until[member] <= seconds:
                is_on[member] = not is_on[member]
                until[member] += random.expovariate(1 / 8)
        return [2 * load / members if each else 0.0 for each in is_on]

    return wants


def hot(members: int, random: Random) -> Wants:
    """One member wants everything, then another one."""
    hot_members = [random.randrange(members) for _ in range(100)]

    def wants(seconds: float) -> list[float]:
        wanted = [0.4 / members] * members
        if seconds % 10 < 8:
            wanted[hot_members[int(seconds / 10)]] = 1.0
        return wanted

    return wants


def herd(members: int, _random: Random) -> Wants:
    """All at once."""
    return lambda seconds: [1.5 / members if seconds % 12 < 8 else 0.0] * members


def zipf(members: int, random: Random) -> Wants:
    """Few large ones and many small ones, who change places."""
    weights = [1 / (place + 1) for place in range(members)]
    until = 0.0

    def wants(seconds: float) -> list[float]:
        nonlocal until
        if seconds >= until:
            random.shuffle(weights)
            until = seconds + random.uniform(3, 8)
        return [1.5 * weight / sum(weights) for weight in weights]

    return wants


def growth(members: int, _random: Random) -> Wants:
    """From a fifth of the quota to one and a half."""
    return lambda seconds: [(0.2 + 1.3 * seconds / SECONDS) / members] * members


#: Of so many members.
Scenario = Callable[[int, Random], Wants]
DEMANDS: dict[str, Scenario] = {
    "on/off 1.5": partial(on_off, 1.5),
    "on/off 0.8": partial(on_off, 0.8),
    "hot": hot,
    "herd": herd,
    "zipf": zipf,
    "growth": growth,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one simulation, in percent of the demand up to the quota, and of the quota."""

    unserved: float
    over_second: float
    over_ten_seconds: float
    records_per_second: float
    most_used: float


def outcome_of(tenths: list[float], wanted: float, records_per_second: float = 0.0, most_used: float = 0.0) -> Outcome:
    """Of what passed in each tenth of a second, and what was wanted up to the quota."""
    unserved = 100 * (1 - sum(tenths) / wanted)
    return Outcome(unserved, _over(tenths, 1), _over(tenths, 10), records_per_second, most_used)


def _over(tenths: list[float], seconds: int) -> float:
    """The most that passed above the quota in this many seconds, in percent of the quota."""
    window = 10 * seconds
    sums = [sum(tenths[first : first + window]) for first in range(len(tenths) - window + 1)]
    return max(0.0, 100 * (max(sums) / (QUOTA * seconds) - 1))
