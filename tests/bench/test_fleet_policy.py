"""The simulation of a fleet: the bound holds, and what is wanted is mostly served."""

import pytest

from bench.fleet_demands import DEMANDS, LAN, SLOW, Transport
from bench.fleet_policy import Fleet, simulate


def nightly(transport: Transport, seed: int) -> object:
    return pytest.param(transport, seed, marks=pytest.mark.nightly)


@pytest.mark.parametrize("demand", DEMANDS)
@pytest.mark.parametrize(
    ("transport", "seed"), [(LAN, 1), *(nightly(transport, seed) for transport in (LAN, SLOW) for seed in range(2, 7))]
)
def test_little_goes_unserved_and_at_most_the_buckets_pass_more(demand: str, transport: Transport, seed: int) -> None:
    outcome = simulate(DEMANDS[demand], Fleet(transport, seed), seed, seconds=20)
    print(outcome)
    assert outcome.most_used <= 100
    assert outcome.over_second <= 10
    assert outcome.over_ten_seconds <= 1
    assert outcome.unserved <= (12 if transport is LAN else 30)
    assert outcome.records_per_second < 100
