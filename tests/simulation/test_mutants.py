"""Each broken rule of the product is found by a seed of the simulated world.

Of a fleet's rules, `tests.quotas.fleet.test_caps` and the exhaustive model alone find three breaks. A proxy looks at
its leases before it sends what might renew them (`LeaseRenewedFirst`). The margin for clocks is shorter than the time
that records take here (`NoMargin`). A member that drops others by the time of reading (`DroppedByReading`) must have
read nothing for 15.6 s, and then read a claim of its own that is less than 14.9 s old.
"""

from collections.abc import Iterable

import pytest

from simulation.run import simulate
from tests.simulation.mutants import Mutant
from tests.simulation.topic_mutants import MUTANTS

pytestmark = pytest.mark.pure


def is_found(mutant: Mutant, seeds: Iterable[int]) -> bool:
    found = (problem for seed in seeds for problem in simulate(seed, mutant.options).problems)
    return any("TypeError" not in each and "error: defect" not in each for each in found)  # of the mutant itself


@pytest.mark.parametrize("name", MUTANTS)
def test_each_broken_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its seed, or by one of the next two."""
    mutant = MUTANTS[name]
    mutant.make(monkeypatch)
    assert is_found(mutant, range(mutant.seed, mutant.seed + 3))


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_each_broken_rule_is_found_within_200_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.make(monkeypatch)
    assert is_found(mutant, range(1, 201))
