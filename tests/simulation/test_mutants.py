"""Each broken rule of the product is found by a seed of the simulated world.

Silent members and lost records are in `tests.quotas.fleet.test_world`: a world of members alone finds rules that they
break in less time, and a proxy enforces some of them twice.
"""

from collections.abc import Iterable

import pytest

from simulation.world import Options, simulate
from tests.simulation.mutants import MUTANTS

pytestmark = pytest.mark.pure
OPTIONS = Options(seconds=12)


def is_found(seeds: Iterable[int]) -> bool:
    return any(simulate(seed, OPTIONS).problems for seed in seeds)


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
