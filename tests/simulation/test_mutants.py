"""Each broken rule of the product is found by a seed of the simulated world.

Of a fleet's rules, `tests.quotas.fleet.test_rules` and the exhaustive model alone find three breaks. A proxy looks at
its leases before it sends what might renew them (`LeaseRenewedFirst`). The margin for clocks is shorter than the time
that records take here (`NoMargin`). And a member that is dropped by the time of reading must have read nothing for
between 15.6 and 15.7 s (`DroppedByReading`).
"""

from collections.abc import Iterable

import pytest

from simulation.world import Options, simulate
from tests.simulation.mutants import MUTANTS

pytestmark = pytest.mark.pure
OPTIONS = Options(seconds=12)


def is_found(seeds: Iterable[int]) -> bool:
    found = (problem for seed in seeds for problem in simulate(seed, OPTIONS).problems)
    return any("TypeError" not in each and "error: defect" not in each for each in found)  # of the mutant itself


@pytest.mark.parametrize("name", MUTANTS)
def test_each_broken_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its seed, or by one of the next two."""
    mutant = MUTANTS[name]
    mutant.make(monkeypatch)
    assert is_found(range(mutant.seed, mutant.seed + 3))


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_each_broken_rule_is_found_within_200_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name].make(monkeypatch)
    assert is_found(range(1, 201))
