"""Who gets how much, how soon: real members on the simulated log of the benchmark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fleet_demands import LAN, QUOTA
from bench.fleet_policy import KEY, Fleet
from quotas.fleet.parameters import WHOLE
from quotas.fleet.policy import fair_level

MORE_THAN_FAIR = 2.0


def run(fleet: Fleet, seconds: float) -> None:
    for _ in range(round(1_000 * seconds / LAN.step_ms)):
        fleet.step()


def use(fleet: Fleet, member: int) -> float:
    """A part of the quota."""
    sidecar = fleet.sidecars[member]
    return 0 if member in fleet.stopped else sidecar.member.allowed(KEY, fleet.now_ns)[0] / QUOTA / 1_000


def want(fleet: Fleet, part: float, *members: int) -> None:
    """They want this part of the quota each."""
    for member in members:
        fleet.sidecars[member].wanted = part * QUOTA


def greedy(members: int) -> Fleet:
    """All members but the first want more than there is, and have it."""
    fleet = Fleet(LAN, seed=members, members=members)
    run(fleet, 1)
    want(fleet, MORE_THAN_FAIR / members, *range(1, members))
    run(fleet, 3)
    return fleet


@given(st.lists(st.integers(0, WHOLE), min_size=1, max_size=200))
def test_the_fair_level_is_the_largest_that_fits(wants: list[int]) -> None:
    level = fair_level(wants)
    assert sum(min(want, level) for want in wants) <= WHOLE
    if level < WHOLE:
        assert sum(min(want, level + 1) for want in wants) > WHOLE


@pytest.mark.parametrize(
    ("wants", "level"),
    [
        ([0], WHOLE),
        ([WHOLE], WHOLE),
        ([WHOLE] * 4, WHOLE // 4),
        ([100_000, WHOLE, WHOLE], 450_000),
        ([300_000] * 3, WHOLE),
    ],
)
def test_the_fair_level(wants: list[int], level: int) -> None:
    assert fair_level(wants) == level


@pytest.mark.parametrize("members", [2, 20, 50])
def test_one_that_wakes_up_has_its_fair_share_within_a_second(members: int) -> None:
    """However many have all of it before, and however little each of them has above the new level."""
    fleet = greedy(members)
    want(fleet, MORE_THAN_FAIR / members, 0)
    run(fleet, 1)
    assert use(fleet, 0) > 0.9 / members
    assert all(use(fleet, member) > 0.9 / members for member in range(members))


def test_all_wake_up_at_once() -> None:
    fleet = Fleet(LAN, seed=1)
    run(fleet, 1)
    want(fleet, 0.075, *range(20))
    run(fleet, 0.5)
    assert all(use(fleet, member) > 0.9 / 20 for member in range(20))


def test_those_that_want_little_have_it_and_the_others_the_rest() -> None:
    fleet = Fleet(LAN, seed=1)
    run(fleet, 1)
    want(fleet, 0.01, *range(18))
    want(fleet, 1, 18, 19)
    run(fleet, 2)
    assert all(use(fleet, member) > 0.0095 for member in range(18))
    assert use(fleet, 18) + use(fleet, 19) > 0.98 - 18 * 0.0125


def test_what_a_killed_member_had_is_used_again_within_20_seconds() -> None:
    fleet = greedy(10)
    before = use(fleet, 5)
    assert before > 0.1
    fleet.stopped.add(5)
    run(fleet, 10)
    assert sum(use(fleet, member) for member in range(10)) < 0.99 - before + 0.01
    run(fleet, 10)
    assert sum(use(fleet, member) for member in range(10)) > 0.97


def test_at_rest_each_member_sends_one_record_in_five_seconds() -> None:
    fleet = Fleet(LAN, seed=1)
    run(fleet, 10)
    before = fleet.records
    run(fleet, 10)
    assert fleet.records - before == 20 * 2
