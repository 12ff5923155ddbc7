"""Cycles count and cut frames of any size; a client id names a shape completely."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.shapes import Cycle, Fetch, Produce, shape_of


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 40))
def test_a_cycle_counts_frames_and_bytes_over_many_laps(sizes: list[int], count: int) -> None:
    cycle = Cycle(bytes(size) for size in sizes)
    laps = (sizes * 41)[: count + 1]

    assert cycle.bytes_in(count) == sum(laps[:count])
    assert cycle.frames_in(cycle.bytes_in(count)) == count
    assert cycle.frames_in(cycle.bytes_in(count) + laps[count] - 1) == count
    assert [len(cycle.frame(number)) for number in range(len(sizes))] == sizes


@pytest.mark.parametrize(
    "made",
    [
        Produce(1024),
        Produce(1024, version=12, rotation=12, is_idempotent=True, one_by_one=True),
        Produce(16_384, topics=3, partitions=6, is_compressed=True, varies=True),
        Fetch(1 << 20, 50),
    ],
    ids=lambda made: made.name,
)
def test_the_name_of_a_shape_is_enough_to_build_it(made: Produce | Fetch) -> None:
    ours, theirs = made.build(), shape_of(made.name)

    assert theirs.requests.data == ours.requests.data
    assert theirs.answers.data == ours.answers.data
    assert theirs.one_by_one == ours.one_by_one
    assert len(ours.requests.ends) == len(ours.answers.ends)


@pytest.mark.parametrize("name", ["anyone", "produce-1024-x", "fetch-1-2-3", "list-offsets-1"])
def test_a_client_id_that_names_no_shape_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"no load has the client id '{name}'"):
        shape_of(name)
