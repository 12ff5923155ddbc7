"""New ids per window: against a list of all that was counted and a dict of all that was seen, and the walk."""

import tracemalloc
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from quotas.algorithms.producer_ids import ProducerIdQuota
from tests.quotas.asking import admit

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
WINDOW = HOUR
COUNT = 4
STEP = WINDOW // COUNT
NO_FALSE_POSITIVES = 1e-12


def new(ids_per_window: int | Fraction = 10, window_count: int = COUNT) -> ProducerIdQuota:
    return ProducerIdQuota(
        ids_per_window, window_ns=WINDOW, window_count=window_count, false_positive_probability=NO_FALSE_POSITIVES
    )


def bring(quota: ProducerIdQuota, producer_ids: tuple[int, ...], now_ns: int) -> bool:
    """What the proxy does with a frame; whether it passed."""
    unknown = quota.unknown(producer_ids, now_ns)
    if unknown:
        if quota.debt_ns(now_ns):
            return False
        quota.record(len(unknown), now_ns)
        quota.remember(unknown, now_ns)
    return True


# ---- a frame with producer ids


def test_so_many_new_ids_pass_in_a_window_and_known_ones_always() -> None:
    quota = new(10)
    assert all(bring(quota, (number,), 0) for number in range(10))
    assert not bring(quota, (10,), 0)
    assert not bring(quota, (3, 10), 0)  # the new one holds the frame
    assert all(bring(quota, (number, 9), 1) for number in range(10))
    assert not bring(quota, (10,), WINDOW - 1)
    assert bring(quota, (10,), WINDOW)


events = st.lists(
    st.tuples(
        st.lists(st.integers(0, 40), min_size=1, max_size=4),
        st.one_of(st.integers(0, STEP), st.just(0), st.just(STEP), st.integers(0, 2 * WINDOW), st.integers(-STEP, 0)),
    ),
    max_size=60,
)


@example(2, 5, [([0], -12 * MINUTE), *[([0], 15 * MINUTE)] * 4])
@example(1, 5, [([1], -12 * MINUTE), *[([0], 15 * MINUTE)] * 3, ([1], 15 * MINUTE)])
@given(st.integers(1, 30), st.integers(1, 6), events)
def test_against_a_dict_of_ids_and_a_list_of_what_passed(
    ids_per_window: int, window_count: int, frames: list[tuple[list[int], int]]
) -> None:
    quota = new(ids_per_window, window_count)
    step_ns = -(-WINDOW // window_count)
    last_seen_ns: dict[int, int] = {}
    counted: list[tuple[int, int]] = []
    now_ns, latest_ns = 0, -(2**63)  # the first time may be below zero
    for producer_ids, elapsed_ns in frames:
        now_ns += elapsed_ns
        latest_ns = max(latest_ns, now_ns)
        unknown = quota.unknown(producer_ids, now_ns)
        assert unknown == tuple(number for number in dict.fromkeys(producer_ids) if number in unknown), "each once"
        for number in set(producer_ids):
            since_ns = latest_ns - last_seen_ns[number] if number in last_seen_ns else WINDOW
            if since_ns <= WINDOW - step_ns:
                assert number not in unknown  # no false negative, ever
            elif since_ns >= WINDOW:
                assert number in unknown
            if number not in unknown:
                last_seen_ns[number] = latest_ns
        surely = sum(amount for at_ns, amount in counted if latest_ns - at_ns <= WINDOW - step_ns)
        at_most = sum(amount for at_ns, amount in counted if latest_ns - at_ns < WINDOW)
        debt_ns = quota.debt_ns(now_ns)
        assert 0 <= debt_ns <= WINDOW
        assert quota.debt_ns(now_ns, 100) == debt_ns, "no client waits for ids that are new now"
        if surely >= ids_per_window:
            assert debt_ns > 0
        if at_most < ids_per_window:
            assert debt_ns == 0
        assert max(0, ids_per_window - at_most) <= quota.headroom(now_ns) <= max(0, ids_per_window - surely)
        if unknown:
            answer = admit(quota, len(unknown), now_ns)
            if debt_ns:
                assert answer == -debt_ns
            else:
                assert answer >= 0
                counted.append((latest_ns, len(unknown)))
                quota.remember(unknown, now_ns)
                last_seen_ns.update(dict.fromkeys(unknown, latest_ns))
    assert quota.empty_ns <= latest_ns + WINDOW


@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, STEP // 3)), min_size=1, max_size=150),
)
def test_in_no_window_do_more_pass_than_the_limit_one_steps_share_and_a_frame(
    ids_per_window: int, window_count: int, frames: list[tuple[int, int]]
) -> None:
    quota = new(ids_per_window, window_count)
    passed: list[tuple[int, int]] = []
    now_ns = 0
    for amount, elapsed_ns in frames:
        now_ns += elapsed_ns
        if admit(quota, amount, now_ns) >= 0:
            passed.append((now_ns, amount))
    share = -(-ids_per_window // window_count)
    for start_ns, _ in passed:
        within = [amount for at_ns, amount in passed if start_ns <= at_ns < start_ns + WINDOW]
        assert sum(within) <= ids_per_window - 1 + max(within) + max(share, max(within))


# ---- the limit's algorithm


def test_debt_lasts_until_enough_of_the_head_has_expired() -> None:
    quota = new(8)  # two for each step
    for number in range(4):
        assert quota.record(2, number * MINUTE) == 0  # who brought them has nothing to wait for
        assert quota.debt_ns(number * MINUTE) == (0 if number < 3 else WINDOW - 3 * MINUTE)
    assert quota.debt_ns(WINDOW - 1) == 1
    assert quota.debt_ns(WINDOW) == 0
    assert quota.headroom(WINDOW) == 2
    quota.record(7, 3 * MINUTE)  # seven beyond: three steps of two are not enough
    assert quota.debt_ns(3 * MINUTE) == WINDOW


# ---- live changes


def test_a_new_limit_keeps_what_was_counted_and_what_is_known() -> None:
    quota = new(10)
    for number in range(10):
        assert bring(quota, (number,), 0)
    quota.set_limit(12)
    assert quota.headroom(0) == 2
    quota.set_limit(4)
    assert quota.rate == Fraction(4, 3600)
    assert quota.debt_ns(0) == WINDOW
    assert quota.unknown(range(11), 0) == (10,)


# ---- storms


def test_a_storm_that_is_held_costs_no_memory() -> None:
    quota = new(10)
    for number in range(10):
        bring(quota, (number,), 0)
    tracemalloc.start()
    assert not any(bring(quota, (number,), number) for number in range(10, 5000))
    grown_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown_bytes < 10_000  # had the filter taken them in, it would be 37,000 or more


def test_an_id_takes_at_most_two_bytes() -> None:
    """At a limit of 10,000; a million at a limit of a million are the benchmark's."""
    quota = ProducerIdQuota(10_000, window_ns=WINDOW, window_count=COUNT)
    every = range(10_000)
    tracemalloc.start()
    quota.remember(every, 0)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes <= 2 * 10_000
    assert quota.unknown(every, 0) == ()
    strangers = range(10_000, 40_000)
    assert len(quota.unknown(strangers, 0)) >= (1 - 1.2 * 0.01) * len(strangers)


@given(st.lists(st.tuples(st.integers(0, WINDOW), st.integers(0, 30)), max_size=12), st.integers(0, 2 * WINDOW))
def test_until_then_a_known_id_needs_not_be_asked_for(others: list[tuple[int, int]], start_ns: int) -> None:
    """Whatever other ids come meanwhile: it stays known, and asking for it changes nothing."""
    asked, spared = (ProducerIdQuota(5, window_ns=WINDOW, window_count=4) for _ in range(2))
    for quota in (asked, spared):
        assert quota.known_until_ns(7, 0) is None
        quota.remember([7], 0)
    until_ns = asked.known_until_ns(7, start_ns)
    assert until_ns == spared.known_until_ns(7, start_ns)
    if until_ns is None:
        assert start_ns >= WINDOW
        return
    assert until_ns > start_ns
    now_ns = start_ns
    for elapsed_ns, producer_id in others:
        now_ns += elapsed_ns
        for quota in (asked, spared):
            quota.remember(quota.unknown([producer_id], now_ns), now_ns)
        if now_ns < until_ns:
            assert asked.unknown([7], now_ns) == ()
        assert [layer.filter.count for layer in asked._filter.layers] == [
            layer.filter.count for layer in spared._filter.layers
        ]
