"""The disk guard in a model of disks: any flood, replication that lags, and brokers that vanish."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quotas.adaptive.disk_guard import (
    CONFIRMING_POLL_NS,
    FASTEST_POLL_NS,
    LAG_NS,
    QUICKEST_SECONDS,
    SLOWEST_POLL_NS,
    STALE_NS,
    DiskGuard,
    DiskMarks,
    Reading,
    State,
)

SECOND = 1_000_000_000
TICK_NS = SECOND // 10
TOTAL = 1_000_000_000
MARKS = DiskMarks(Fraction(85, 100), Fraction(95, 100), "85%..95%")
SOFT, HARD = 850_000_000, 950_000_000
ROOM = HARD - SOFT


def guard_at(*used: int, marks: DiskMarks = MARKS) -> DiskGuard:
    guard = DiskGuard(marks, 0)
    for broker, each in enumerate(used, 1):
        guard.take(broker, [Reading("/data", TOTAL, TOTAL - each)], 0)
    return guard


def read(guard: DiskGuard, used: int, now_ns: int, broker: int = 1) -> None:
    guard.take(broker, [Reading("/data", TOTAL, TOTAL - used)], now_ns)


# ---- the model


@dataclass
class World:
    """Disks whose writes arrive late; `shares`: the part of each byte that is written on each disk."""

    shares: list[float]
    lag_ns: int
    used: list[float]
    now_ns: int = 0
    passed: float = 0.0
    _late: list[tuple[int, float]] = field(default_factory=list)

    def write(self, size: float) -> None:
        self.passed += size
        self._late.append((self.now_ns + self.lag_ns, size))

    def settle(self) -> None:
        while self._late and self._late[0][0] <= self.now_ns:
            size = self._late.pop(0)[1]
            self.used = [used + size * share for used, share in zip(self.used, self.shares, strict=True)]

    @property
    def in_the_end(self) -> float:
        """The fullest disk once all that has passed is written."""
        late = sum(size for _, size in self._late)
        return max(used + late * share for used, share in zip(self.used, self.shares, strict=True))


def play(guard: DiskGuard, world: World, floods: list[float], silent: set[int], seconds: int) -> float:
    """The fullest that a disk gets. `floods`: bytes per second that producers want, each for some seconds."""
    polled_ns, fullest = 0, world.in_the_end
    decision = guard.decide(int(world.passed), world.now_ns)
    for number in range(seconds * SECOND // TICK_NS):
        world.now_ns += TICK_NS
        world.settle()
        if world.now_ns - polled_ns >= decision.poll_ns:
            polled_ns = world.now_ns
            for broker, used in enumerate(world.used, 1):
                if broker not in silent:
                    read(guard, int(used), polled_ns, broker)
        decision = guard.decide(int(world.passed), world.now_ns)
        wanted = floods[number * TICK_NS // (20 * SECOND) % len(floods)]
        allowed = wanted if decision.rate is None else min(wanted, decision.rate)
        world.write(allowed * TICK_NS / SECOND)
        fullest = max(fullest, world.in_the_end)
    return fullest


@pytest.mark.claim("operate", "the disk approaches HARD and does not pass it")
@given(
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=3),
    lag_ns=st.integers(0, LAG_NS - SECOND),
    floods=st.lists(st.floats(0, 50e6), min_size=1, max_size=4),
    begin=st.floats(0, 0.94),
    silent=st.sets(st.integers(1, 3)),
)
@settings(max_examples=40, deadline=None)
def test_no_disk_passes_hard_whatever_floods_it_and_however_late_it_is_written(
    shares: list[float], lag_ns: int, floods: list[float], begin: float, silent: set[int]
) -> None:
    """Not even one that gives no more readings, and gets all that passed when it is back."""
    used = int(begin * TOTAL)
    guard = guard_at(*[used] * len(shares))
    world = World(shares, lag_ns, [float(used)] * len(shares))
    fullest = play(guard, world, floods, silent, seconds=120)
    assert fullest <= HARD + max(floods) * TICK_NS / SECOND


def test_a_disk_approaches_hard_exponentially_from_the_rate_at_which_producers_came() -> None:
    speed = ROOM / 100
    guard = guard_at(SOFT - int(20 * speed))
    world = World([1.0], 0, [SOFT - 20 * speed])
    rates = []
    decision = guard.decide(0, 0)
    for number in range(3600):
        world.now_ns += TICK_NS
        world.settle()
        if number % 50 == 0:
            read(guard, int(world.used[0]), world.now_ns)
        decision = guard.decide(int(world.passed), world.now_ns)
        rate = speed if decision.rate is None else min(speed, decision.rate)
        rates.append(rate / speed)
        world.write(rate * TICK_NS / SECOND)
    assert rates[99] == 1
    assert all(after <= before + 0.12 for before, after in pairwise(rates)), "smoothly"
    at_half = next(n for n, each in enumerate(rates) if each < 0.5)
    at_quarter = next(n for n, each in enumerate(rates) if each < 0.25)
    assert 500 <= at_quarter - at_half <= 900, "the half-life is 69 s"
    assert SOFT + 0.9 * ROOM < world.in_the_end < HARD


@given(st.lists(st.integers(0, TOTAL // 100), min_size=1, max_size=50), st.floats(0.86, 0.99))
def test_a_broker_that_vanishes_never_raises_the_factor(steps: list[int], used: float) -> None:
    guard = guard_at(int(used * TOTAL), TOTAL // 2)
    now_ns, passed, before = 0, 0, 1.0
    for step in steps:
        now_ns += 30 * SECOND
        passed += step
        read(guard, TOTAL // 2, now_ns, broker=2)
        factor = guard.decide(passed, now_ns).factor
        assert factor <= before
        before = factor


def test_a_broker_that_vanishes_counts_what_it_will_copy_and_is_stale_after_five_minutes() -> None:
    guard = guard_at(900_000_000, TOTAL // 2)
    guard.decide(0, 0)
    for now_ns in range(SECOND, 10 * SECOND, SECOND):
        guard.decide(0, now_ns)
    before = guard.decide(20_000_000, STALE_NS - 1)
    assert (before.state, before.stale) == (State.SLOWING, ())
    read(guard, TOTAL // 2, STALE_NS, broker=2)
    after = guard.decide(50_000_000, STALE_NS)
    assert (after.state, after.stale, after.worst and after.worst.broker) == (State.FULL, (1,), 1)


def test_without_any_reading_nothing_is_limited() -> None:
    assert DiskGuard(MARKS, 0).decide(0, STALE_NS)[:5] == (State.OPEN, 1.0, 1.0, None, None)


@pytest.mark.parametrize(
    ("usage", "states"),
    [
        ([0.84, 0.851, 0.81, 0.81], "OSSS"),  # not lower by 5 points
        ([0.86, 0.79, 0.86, 0.79, 0.79], "SSSSO"),  # two readings, one after the other
        ([0.97, 0.91, 0.89, 0.89, 0.89], "FFFSS"),
        ([0.97, 0.5, 0.5, 0.5], "FFOO"),  # at once to where it belongs
        ([0.949], "F"),  # producers stop just below HARD
        ([0.94, 0.95, 0.94], "SFF"),
    ],
)
def test_a_mark_counts_as_left_after_two_readings_that_are_five_points_lower(usage: list[float], states: str) -> None:
    guard = DiskGuard(MARKS, 0)
    seen = ""
    for number, used in enumerate(usage):
        read(guard, int(used * TOTAL), number * 10 * SECOND)
        seen += guard.decide(0, number * 10 * SECOND).state.name[0]
    assert seen == states


def test_marks_in_free_bytes_are_left_half_of_their_distance_lower() -> None:
    marks = DiskMarks(Fraction(150_000_000), Fraction(50_000_000), "150MB..50MB", is_free=True)
    assert marks.used(TOTAL) == (SOFT, HARD, 50_000_000)
    assert marks.used(10_000_000) == (0, 1, 0), "a disk that is smaller than the marks"


def test_what_passed_shortly_before_a_reading_counts_as_on_its_way() -> None:
    guard = guard_at(780_000_000)
    for tick in range(1, 101):
        guard.decide(tick * 1_000_000, tick * TICK_NS)
    read(guard, 880_000_000, 10 * SECOND)
    worst = guard.decide(100_000_000, 10 * SECOND).worst
    assert worst is not None
    assert str(worst) == "broker 1 at 93.0 %, 5.0 % of it on its way, in /data"


def test_the_lowest_factor_of_a_fleet_applies_and_never_raises_the_own_one() -> None:
    guard = guard_at(TOTAL // 2)
    guard.decide(0, 0)
    guard.decide(10_000_000, 10 * SECOND)
    slowed = guard.decide(10_000_000, 10 * SECOND, others=0.25)
    assert (slowed.state, slowed.factor, slowed.own_factor) == (State.SLOWING, 0.25, 1.0)
    assert slowed.rate is not None
    assert slowed.rate <= 250_000
    assert guard.decide(10_000_000, 11 * SECOND, others=0.0)[:1] == (State.FULL,)
    assert guard.decide(10_000_000, 12 * SECOND, others=1.0).rate is None
    full = guard_at(HARD)
    assert full.decide(0, 0, others=0.5).rate == 0


@given(st.integers(1, 200), st.floats(0, 1e12))
def test_all_members_together_need_at_least_half_a_minute_from_mark_to_mark(members: int, speed: float) -> None:
    guard = guard_at(SOFT)
    [disk] = guard.disks.values()
    assert members * disk.speed(speed, members) <= ROOM / QUICKEST_SECONDS * 1.001


def test_readings_are_taken_more_often_the_sooner_a_mark_is_reached() -> None:
    guard = guard_at(500_000_000)
    assert guard.decide(0, 0).poll_ns == SLOWEST_POLL_NS
    now_ns = 20 * SECOND
    for number in range(1, 201):
        guard.decide(number * 1_000_000, number * TICK_NS)
    read(guard, 520_000_000, now_ns)
    assert guard.decide(200_000_000, now_ns).poll_ns == 8_250_000_000, "330 MB are left, and 10 MB/s pass"
    assert guard.decide(600_000_000, now_ns).poll_ns == CONFIRMING_POLL_NS
    read(guard, SOFT, now_ns)
    assert guard.decide(600_000_000, now_ns).poll_ns == FASTEST_POLL_NS
