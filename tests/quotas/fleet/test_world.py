"""The bound, for whatever happens to a fleet: random worlds, each from its seed, which a failure names."""

import pytest

from quotas.fleet.caps import Caps
from tests.quotas.fleet import mutants
from tests.quotas.fleet.world import Violation, World

pytestmark = pytest.mark.claim("fleet", "the parts in use never add up to more than the limit")

LARGE = 50
AT_ONCE = 25


def nightly(first: int) -> object:
    return pytest.param(first, marks=[pytest.mark.nightly, pytest.mark.timeout(1_800)])


@pytest.mark.parametrize("first", [0, *(nightly(first) for first in range(AT_ONCE, 1_000, AT_ONCE))])
def test_uses_and_rates_keep_the_bound(first: int) -> None:
    means = []
    for seed in range(first, first + AT_ONCE):
        world = World(seed, size=2 + seed % 7, seconds=60)
        means.append(world.mean)
        print(world)
    assert sum(means) > 0.4 * len(means)  # or there would be nothing to see


@pytest.mark.parametrize("seed", [0, *(nightly(seed) for seed in range(1, 50))])
def test_many_members_keep_the_bound(seed: int) -> None:
    world = World(seed, LARGE, seconds=10)
    print(world)
    assert world.worst > 0.5  # the mean of one whose members state any caps may be 4 %


@pytest.mark.pure
@pytest.mark.parametrize(
    "mutant",
    [
        mutants.DoublesValid,
        mutants.LeaseFromReading,
        mutants.LeaseForEver,
        mutants.ShortSilence,
        mutants.JoinsAtOnce,
        mutants.LeaseFromBefore,
    ],
)
def test_a_broken_rule_is_found(mutant: type[Caps]) -> None:
    with pytest.raises(Violation):
        _ = [World(seed, size=5, seconds=60, make=mutant) for seed in range(AT_ONCE)]
