"""The benchmark of real fleets: what it asks for, and how it counts."""

import pytest

from bench.fleet import QUOTA, STEPS, WANTS_EACH_SECONDS, most_in, wants_of
from bench.fleet_demands import DEMANDS, MEMBERS

S = 1_000_000_000


def test_the_most_of_any_window_is_found() -> None:
    acks = [(0, 5), (S // 2, 5), (S, 7), (3 * S, 1), (3 * S + 1, 20)]
    assert most_in(acks, 1) == 21
    assert most_in(acks[:3], 1) == 12, "a window has one of its ends"
    assert most_in(acks, 10) == 38
    assert most_in([], 1) == 0


@pytest.mark.parametrize("name", [*DEMANDS, STEPS])
def test_what_each_member_wants_is_known_for_each_moment(name: str) -> None:
    wants = wants_of(name, 20)
    assert len(wants) == 20 / WANTS_EACH_SECONDS
    assert {len(each) for each in wants} == {MEMBERS}
    assert wants == wants_of(name, 20), "the same for all that are compared"
    assert max(map(sum, wants)) > 0.9 * QUOTA


def test_steps_are_four_changes_a_second() -> None:
    wants = wants_of(STEPS, 20)
    changes = sum(
        before != after
        for step in range(1, len(wants))
        for before, after in zip(wants[step - 1], wants[step], strict=True)
    )
    assert changes == pytest.approx(4 * 20, abs=4)
