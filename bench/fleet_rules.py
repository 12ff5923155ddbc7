"""Other rules by which members share a quota, in the virtual time of `bench.fleet_policy`: the same demands, transports
and buckets, and no records that are lost or late by more than the transport's delays.

    1/N          each has its part, used or not (`--quota-share`)
    active       quota / members with traffic in the last second: each hears of the others' traffic after a delay. As
                 Confluent divides a tenant's quota among the brokers with its traffic
    optimistic   each reports each 100 ms what was wanted, and lets the part pass that the last answer of a central
                 counter named: quota / all that was wanted. As Databricks' rate limiter
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from bench.fleet_demands import BUCKET_SECONDS, MEMBERS, QUOTA, SECONDS, Outcome, Scenario, Transport, outcome_of
from quotas.fleet.parameters import NS_PER_MS, NS_PER_SECOND

REPORT_NS = 100 * NS_PER_MS


class Rule(Protocol):
    """`pass_traffic`: what passes in a step of so many seconds, by member; `wants`: bytes per second of each."""

    def pass_traffic(self, now_ns: int, wants: Sequence[float], seconds: float) -> list[float]: ...


class Fixed:
    """1/N."""

    def __init__(self, _transport: Transport, _random: Random) -> None:
        self._levels = [0.0] * MEMBERS

    def rates(self, _now_ns: int, _wants: Sequence[float]) -> list[float]:
        """Of each member."""
        return [QUOTA / MEMBERS] * MEMBERS

    def pass_traffic(self, now_ns: int, wants: Sequence[float], seconds: float) -> list[float]:
        passed = []
        for member, rate in enumerate(self.rates(now_ns, wants)):
            level = min(self._levels[member] + rate * seconds, rate * BUCKET_SECONDS)
            passed.append(min(wants[member] * seconds, level))
            self._levels[member] = level - passed[-1]
        return passed


class Active(Fixed):
    """quota / members with traffic."""

    def __init__(self, transport: Transport, random: Random) -> None:
        super().__init__(transport, random)
        self._transport, self._random = transport, random
        self._used_ns = [-NS_PER_SECOND] * MEMBERS
        #: What each member has heard of each other one, and what it will hear.
        self._heard = [[False] * MEMBERS for _ in range(MEMBERS)]
        self._is_active = [False] * MEMBERS
        self._coming: list[tuple[int, int, int, bool]] = []

    def rates(self, now_ns: int, wants: Sequence[float]) -> list[float]:
        for member, wanted in enumerate(wants):
            if wanted > 0:
                self._used_ns[member] = now_ns
            is_active = now_ns - self._used_ns[member] < NS_PER_SECOND
            if is_active != self._is_active[member]:
                self._is_active[member] = is_active
                for other in range(MEMBERS):
                    delay_ns = 0 if other == member else sum(self._transport.half_ns(self._random) for _ in range(2))
                    self._coming.append((now_ns + delay_ns, other, member, is_active))
        for due in [each for each in self._coming if each[0] <= now_ns]:
            self._coming.remove(due)
            self._heard[due[1]][due[2]] = due[3]
        return [QUOTA / max(1, sum(heard)) for heard in self._heard]


class Optimistic:
    """A central counter."""

    def __init__(self, transport: Transport, random: Random) -> None:
        self._transport, self._random = transport, random
        self._parts = [1.0] * MEMBERS
        self._wanted = [0.0] * MEMBERS
        self._reported = [0.0] * MEMBERS
        self._due_ns = [random.randrange(REPORT_NS) for _ in range(MEMBERS)]
        self._reports: list[tuple[int, int, float]] = []
        self._answers: list[tuple[int, int, float]] = []

    def pass_traffic(self, now_ns: int, wants: Sequence[float], seconds: float) -> list[float]:
        half = self._transport.half_ns
        for member, wanted in enumerate(wants):
            self._wanted[member] += wanted * seconds
            if now_ns >= self._due_ns[member]:
                self._due_ns[member] += REPORT_NS
                self._reports.append((now_ns + half(self._random), member, self._wanted[member]))
                self._wanted[member] = 0.0
        for report in [each for each in self._reports if each[0] <= now_ns]:
            self._reports.remove(report)
            self._reported[report[1]] = report[2]
            part = min(1.0, QUOTA * REPORT_NS / NS_PER_SECOND / max(1.0, sum(self._reported)))
            self._answers.append((now_ns + half(self._random), report[1], part))
        for answer in [each for each in self._answers if each[0] <= now_ns]:
            self._answers.remove(answer)
            self._parts[answer[1]] = answer[2]
        return [wanted * seconds * part for wanted, part in zip(wants, self._parts, strict=True)]


RULES: dict[str, Callable[[Transport, Random], Rule]] = {"1/N": Fixed, "active": Active, "optimistic": Optimistic}


def simulate_rule(name: str, demand: Scenario, transport: Transport, seed: int, seconds: int = SECONDS) -> Outcome:
    """A rule under a demand."""
    rule = RULES[name](transport, Random(seed))  # noqa: S311 - no secrets
    wants = demand(MEMBERS, Random(seed))  # noqa: S311 - no secrets
    step_ns, wanted = transport.step_ms * NS_PER_MS, 0.0
    tenths = [0.0] * (seconds * 10)
    for now_ns in range(0, seconds * NS_PER_SECOND, step_ns):
        each = [part * QUOTA for part in wants(now_ns / NS_PER_SECOND)]
        tenths[now_ns * 10 // NS_PER_SECOND] += sum(rule.pass_traffic(now_ns, each, step_ns / NS_PER_SECOND))
        wanted += min(QUOTA, sum(each)) * step_ns / NS_PER_SECOND
    return outcome_of(tenths, wanted)
