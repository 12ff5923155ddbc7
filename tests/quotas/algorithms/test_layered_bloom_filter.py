"""The seed's three cases by name, who is known for how long, false positives of the whole, and sizes under a storm."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.bloom import spread
from quotas.algorithms.layered_bloom_filter import LayeredBloomFilter

SECOND = 1_000_000_000
WINDOW = 60 * SECOND
COUNT = 4
STEP = WINDOW // COUNT
N = 100
NO_FALSE_POSITIVES = 1e-12


def new(ids_per_layer: int = N, probability: float = NO_FALSE_POSITIVES) -> LayeredBloomFilter:
    return LayeredBloomFilter(
        ids_per_layer, window_ns=WINDOW, window_count=COUNT, false_positive_probability=probability
    )


def holds(layered: LayeredBloomFilter, number: int, now_ns: int) -> bool:
    """As `see`, without a change."""
    return any(layer.filter.holds(spread(number, 0)) for layer in layered.layers if layer.expires_ns > now_ns)


def counts(layered: LayeredBloomFilter) -> list[int]:
    return [layer.filter.count for layer in layered.layers]


def created(layered: LayeredBloomFilter) -> list[int]:
    return [layer.created_ns for layer in layered.layers]


# ---- the cases of seed 001


def test_case_1_fewer_than_n_ids_do_not_fill_a_layer_before_the_next_is_added() -> None:
    layered = new()
    for number in range(10 * (N - 1)):
        layered.put(number, number // (N - 1) * STEP)
    assert counts(layered) == [N - 1] * COUNT
    assert created(layered) == [6 * STEP, 7 * STEP, 8 * STEP, 9 * STEP]


@pytest.mark.parametrize(
    ("early_ns", "made_ns"),
    [
        (0, [6 * STEP, 7 * STEP, 8 * STEP, 9 * STEP]),  # the step is over: as case 1
        (1, [6 * (STEP - 1), 7 * (STEP - 1), 8 * (STEP - 1), 9 * (STEP - 1)]),  # the layer is full: as case 3
    ],
)
def test_case_2_n_ids_are_processed_as_case_1_or_3_by_timing(early_ns: int, made_ns: list[int]) -> None:
    layered = new()
    for number in range(10 * N):
        layered.put(number, number // N * (STEP - early_ns))
    assert counts(layered)[-COUNT:] == [N] * COUNT
    assert created(layered)[-COUNT:] == made_ns


def test_case_3_more_than_n_ids_fill_the_layer_and_a_new_one_lives_a_window_from_then() -> None:
    layered = new()
    for number in range(2 * N + 1):
        layered.put(number, number)  # one each nanosecond
    assert counts(layered) == [N, N, 1]
    assert created(layered) == [0, N, 2 * N]
    assert [layer.expires_ns for layer in layered.layers] == [WINDOW, N + WINDOW, 2 * N + WINDOW]
    # The case that leads to more than one layer to remove:
    layered.put(-1, 2 * N + WINDOW)
    assert created(layered) == [2 * N + WINDOW]


def test_the_last_case_a_filter_is_empty_a_window_after_the_last_id() -> None:
    layered = new()
    layered.put(1, 0)
    layered.put(2, STEP - 1)
    assert layered.clean_up(WINDOW - 1) == 0
    assert layered.clean_up(STEP - 1 + WINDOW) == 1
    assert layered.layers == []


# ---- checkExtend, filterCleanup


def test_a_layer_is_due_when_there_is_none_when_the_step_is_over_and_when_the_newest_is_full() -> None:
    layered = new(ids_per_layer=2)
    assert layered.is_due(0)
    layered.put(1, 0)
    assert not layered.is_due(STEP - 1)
    assert layered.is_due(STEP)
    layered.put(2, 0)
    assert layered.is_due(0)


def test_a_window_that_count_does_not_divide_never_has_a_layer_more() -> None:
    layered = LayeredBloomFilter(N, window_ns=100, window_count=3)
    assert layered.layer_ns == 34
    for now_ns in range(1000):
        layered.put(now_ns, now_ns)
        assert len(layered.layers) <= 3


# ---- who is known


@pytest.mark.parametrize("last_seen_ns", [0, STEP // 2, STEP - 1])
def test_an_id_is_known_until_the_layer_that_saw_it_last_expires(last_seen_ns: int) -> None:
    layered = new()
    layered.put(1, 0)
    assert layered.see(1, last_seen_ns)
    assert holds(layered, 1, WINDOW - 1)
    assert not holds(layered, 1, WINDOW)
    assert not layered.see(1, WINDOW)


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "see", "holds", "clean"]),
        st.integers(0, 12),
        st.one_of(st.integers(0, STEP), st.integers(-STEP, 0), st.integers(0, 2 * WINDOW), st.just(STEP), st.just(0)),
    ),
    max_size=60,
)


@given(st.integers(1, 5), st.integers(1, 6), steps)
def test_against_a_dict_of_when_each_was_seen_last(
    ids_per_layer: int, window_count: int, schedule: list[tuple[str, int, int]]
) -> None:
    """Known for sure up to a window less a step after it was seen, and not after a window; P is next to nothing."""
    layered = LayeredBloomFilter(
        ids_per_layer, window_ns=WINDOW, window_count=window_count, false_positive_probability=NO_FALSE_POSITIVES
    )
    last_seen_ns: dict[int, int] = {}
    now_ns = 0
    latest_ns = 0
    for do, number, elapsed_ns in schedule:
        now_ns += elapsed_ns
        at_ns = latest_ns = max(latest_ns, now_ns)  # what its owner makes of a clock that goes back
        if do == "clean":
            layered.clean_up(at_ns)
            continue
        if do == "put":
            layered.put(number, at_ns)
            known = True
        else:
            known = layered.see(number, at_ns) if do == "see" else holds(layered, number, at_ns)
            if number not in last_seen_ns:
                assert not known
            elif at_ns - last_seen_ns[number] <= WINDOW - layered.layer_ns:
                assert known
            elif at_ns - last_seen_ns[number] >= WINDOW:
                assert not known
        if known and do != "holds":
            last_seen_ns[number] = at_ns
        expiries = [layer.expires_ns for layer in layered.layers]
        assert expiries == sorted(expiries)


def test_a_clock_that_goes_back_makes_no_layer_that_expires_before_an_older_one() -> None:
    layered = new(ids_per_layer=1)
    layered.put(1, WINDOW)
    layered.put(2, 0)  # the newest is full
    assert created(layered) == [WINDOW, WINDOW]
    assert holds(layered, 1, 0)
    assert holds(layered, 2, 2 * WINDOW - 1)


# ---- false positives


@pytest.mark.parametrize(
    ("ids_per_layer", "window_count", "probability"),
    [(1, 4, 0.01), (5, 4, 0.01), (40, 11, 0.01), (3000, 4, 0.01), (3000, 4, 0.1), (20_000, 1, 0.01), (3000, 11, 0.05)],
)
def test_the_whole_filter_keeps_to_p_at_n_per_layer(ids_per_layer: int, window_count: int, probability: float) -> None:
    """At most 1.2 P, and four standard deviations of the sample: of some 40,000 strangers, ids in a row as Kafka's."""
    held = ids_per_layer * window_count
    taken_for_known = asked = 0
    while asked < 40_000:
        layered = LayeredBloomFilter(
            ids_per_layer,
            window_ns=WINDOW,
            window_count=window_count,
            false_positive_probability=probability,
            salt=asked * 0x9E3779B97F4A7C15,
        )
        number = 0
        while sum(counts(layered)) < held:
            layered.put(number, 0)
            number += 1
        assert counts(layered) == [ids_per_layer] * window_count
        strangers = range(number, number + max(1000, held // 2))
        taken_for_known += sum(holds(layered, stranger, 0) for stranger in strangers)
        asked += len(strangers)
    assert taken_for_known / asked <= 1.2 * probability + 4 * sqrt(probability / asked)


# ---- sizes


def test_a_new_size_is_for_the_next_layer() -> None:
    layered = new(ids_per_layer=2)
    layered.put(1, 0)
    layered.ids_per_layer = 3
    for number in range(2, 7):
        layered.put(number, 0)
    assert counts(layered) == [2, 3, 1]
    assert [layer.ids for layer in layered.layers] == [2, 3, 3]


def test_layers_grow_only_beyond_one_more_than_the_window_has() -> None:
    layered = new(ids_per_layer=10)
    for number in range(61):
        layered.put(number, 0)
    assert [layer.ids for layer in layered.layers] == [10] * (COUNT + 2) + [60]


def test_a_storm_makes_few_layers() -> None:
    layered = new(ids_per_layer=1)
    for number in range(20_000):
        layered.put(number, 0)
    assert len(layered.layers) <= COUNT + 15  # 2 ** 15 > 20,000
    assert all(holds(layered, number, 0) for number in range(20_000))


def test_many_ids_in_constant_use_need_one_layer_for_each_step() -> None:
    """2,000 ids come back in each step, at a limit that is made for 10 new ones."""
    layered = new(ids_per_layer=10, probability=0.01)
    for number in range(2000):
        layered.put(number, 0)
    for step in range(1, 3 * COUNT):
        for number in range(2000):
            assert layered.see(number, step * STEP)
    assert len(layered.layers) == COUNT
    assert counts(layered)[-1] == pytest.approx(2000, abs=20)
    assert layered.layers[-1].ids == pytest.approx(2000, abs=20)
    # Nobody comes any more: the size is the limit's again.
    for step in range(3 * COUNT, 5 * COUNT):
        layered.put(-step, step * STEP)
    assert layered.layers[-1].ids == 10
