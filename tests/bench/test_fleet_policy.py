"""The simulation of a fleet: the bound holds, and what is wanted is mostly served."""

import pytest

from bench import fleet_policy
from bench.fleet_demands import DEMANDS, LAN, SLOW, Transport
from bench.fleet_policy import Fleet, simulate
from bench.fleet_rules import RULES, simulate_rule


def nightly(transport: Transport, seed: int) -> object:
    return pytest.param(transport, seed, marks=pytest.mark.nightly)


@pytest.mark.parametrize("demand", DEMANDS)
@pytest.mark.parametrize(
    ("transport", "seed"), [(LAN, 1), *(nightly(transport, seed) for transport in (LAN, SLOW) for seed in range(2, 7))]
)
def test_little_goes_unserved_and_nothing_passes_but_the_depth_of_the_buckets(
    demand: str, transport: Transport, seed: int
) -> None:
    outcome = simulate(DEMANDS[demand], Fleet(transport, seed), seed, seconds=20)
    print(outcome)
    assert outcome.most_used <= 100
    assert outcome.over_second <= 10
    assert outcome.over_ten_seconds <= 1
    assert outcome.unserved <= (12 if transport is LAN else 30)
    assert outcome.records_per_second < 100


def test_costs_are_measured() -> None:
    """Their size is the benchmark's business."""
    assert fleet_policy.apply_us(members=3, repeat=2) > 0
    assert fleet_policy.plan_us(members=3, keys=5, repeat=2) > 0


@pytest.mark.parametrize("demand", DEMANDS)
def test_a_fleet_serves_more_than_fixed_parts_and_other_rules_are_above_the_quota(demand: str) -> None:
    """Other rules get no worse transport."""
    fleet = simulate(DEMANDS[demand], Fleet(LAN, 1), 1, seconds=20)
    fixed, active, optimistic = (simulate_rule(name, DEMANDS[demand], LAN, 1, seconds=20) for name in RULES)
    assert fixed.over_second <= 10
    assert active.over_ten_seconds <= 1
    if demand not in {"herd", "growth"}:  # there all want the same
        assert fleet.unserved < fixed.unserved / 2
        assert fleet.unserved < active.unserved or demand.startswith("on/off")
    assert optimistic.unserved < 5
