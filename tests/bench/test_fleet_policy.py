"""The simulation of a fleet: the bound holds, and what is wanted is mostly served."""

import pytest

from bench import fleet_policy
from bench.fleet_policy import DEMANDS, LAN, SLOW, Fleet, Transport, simulate


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
