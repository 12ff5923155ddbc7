"""No state that a few members can reach breaks the bound, and each broken rule is found: see `model`."""

from random import Random

import pytest

from quotas.fleet.caps import Caps
from quotas.fleet.parameters import WHOLE
from tests.quotas.fleet import mutants
from tests.quotas.fleet.model import NOTHING, Bounds, Members, Search, Sent

pytestmark = pytest.mark.claim("fleet", "the parts in use never add up to more than the limit")

MOST = 10_000_000


def named(bounds: Bounds) -> str:
    """The bounds that are not the usual ones."""
    usual = Bounds()
    return ",".join(f"{name}={value}" for name, value in bounds._asdict().items() if value != getattr(usual, name))


def nightly(bounds: Bounds) -> object:
    return pytest.param(bounds, marks=[pytest.mark.nightly, pytest.mark.timeout(1_800)])


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(records=3, unread=1),
        Bounds(records=2, copies=1, under_way=2),
        Bounds(records=2, copies=1, units=2),
        Bounds(records=2, ttl=2),
        Bounds(records=2, beats=True),
        Bounds(records=2, unread=1, keys=2),
        Bounds(records=2, unread=1, members=3),
        Bounds(records=2, unread=1, joiners=1, crashes=1),
        Bounds(records=2, unread=1, rejoins=1),
        nightly(Bounds(records=4, unread=1)),
        nightly(Bounds(records=3, copies=1)),
        nightly(Bounds(records=3, unread=1, copies=1, under_way=2)),
        nightly(Bounds(records=3, units=2)),
        nightly(Bounds(records=3, ttl=2)),
        nightly(Bounds(records=3, beats=True)),
        nightly(Bounds(records=3, unread=1, joiners=1)),
        nightly(Bounds(records=3, rejoins=1)),
        nightly(Bounds(records=2, members=3, units=2)),
    ],
    ids=named,
)
def test_all_states_keep_the_bound(bounds: Bounds) -> None:
    result = Search(Caps, bounds).run(MOST)
    assert result.path == []
    assert result.is_complete
    assert result.worst == WHOLE  # all that may be used is used somewhere
    print(f"{result.states:,} states, {result.steps:,} steps")


@pytest.mark.pure
@pytest.mark.parametrize(
    ("mutant", "bounds"),
    [
        (mutants.CutStatedFirst, Bounds(records=3, unread=1)),
        (mutants.UnreadIgnored, Bounds(records=3, unread=1)),
        (mutants.RaisedAtOnce, Bounds(records=3, unread=1)),
        (mutants.LeaseFromReading, Bounds(records=3, unread=1)),
        (mutants.LeaseRenewedFirst, Bounds(records=3, unread=1)),
        (mutants.LeaseForEver, Bounds(records=3, unread=1)),
        (mutants.ShortSilence, Bounds(records=3, unread=1, ttl=2)),
        (mutants.NoMargin, Bounds(records=3, unread=1)),
        (mutants.JoinsAtOnce, Bounds(records=2, unread=1, joiners=1)),
        pytest.param(
            mutants.DoublesValid, Bounds(records=3, unread=1, copies=1, under_way=2), marks=pytest.mark.nightly
        ),
        pytest.param(mutants.LeaseFromBefore, Bounds(records=3, rejoins=1), marks=pytest.mark.nightly),
        pytest.param(mutants.DroppedByReading, Bounds(records=3, ttl=2), marks=pytest.mark.nightly),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else named(each),
)
def test_each_broken_rule_is_found(mutant: type[Caps], bounds: Bounds) -> None:
    assert Search(mutant, bounds).run(MOST).path


def test_a_snapshot_has_all_that_makes_a_difference() -> None:
    """A member that is made anew from its snapshot after each step may use what one may that lives on."""
    used = set()
    for seed in range(300):
        random = Random(seed)
        bounds = Bounds(ttl=random.randint(1, 3), keys=random.randint(1, 2))
        members = Members(Caps, bounds)
        living, clock = members.made(), 0
        living.begin(clock, is_covered=True)
        number = members.new(is_covered=True)
        log: list[Sent] = []
        for _ in range(60):
            match random.choice(["tick", "state", "state", "other", "read", "read", "read", "begin"]):
                case "tick":
                    clock += 1
                    number = members.tick(number)
                case "state":
                    caps = some_caps(random, bounds)
                    living.state(
                        {key: (cap, cap) for key, cap in zip(members.keys, caps, strict=True) if cap != NOTHING}, clock
                    )
                    number = members.state(number, caps)
                    log.append((0, members.seq(number), caps))
                case "other":
                    log.append((1, random.randint(1, 20), some_caps(random, bounds)))
                case "read" if log:
                    sent = log.pop(random.choice([0, random.randrange(len(log))]))
                    living.apply(members.record(sent), clock)
                    number = members.read(number, sent)
                case "begin" if random.random() < 0.2:
                    is_covered = random.random() < 0.5
                    living.begin(clock, is_covered=is_covered)
                    number = members.begin(number, is_covered=is_covered)
            uses = tuple(living.allowed(key, clock)[0] - 1 for key in members.keys)
            assert members.uses(number) == uses, seed
            used.add(uses)
    assert len(used) > 5


def some_caps(random: Random, bounds: Bounds) -> tuple[int, ...]:
    return tuple(random.choice([0, WHOLE // 2, WHOLE, NOTHING]) for _ in range(bounds.keys))
