"""A refund reduces the sample that was charged, and is never better for a client than not to have been charged."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.topic_thresholds import Thresholds
from quotas.algorithms.algorithm import ALGORITHMS, Algorithm, AlgorithmSettings
from quotas.algorithms.ewma import ALPHA, TICK_NS, Meter
from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import TokenBucket
from quotas.limit_kinds import PRODUCER_BYTE_RATE, PRODUCER_IDS_RATE

MS = 1_000_000
SECOND = 1_000_000_000
HUGE = 10**15

rates = st.one_of(st.integers(1, 1000), st.fractions(Fraction(1, 10), 100, max_denominator=50))
amounts = st.one_of(st.integers(0, 200), st.just(HUGE))
pauses = st.one_of(st.integers(0, 3 * SECOND), st.sampled_from([0, 0, 1, MS, SECOND, 30 * SECOND, -SECOND]))
others = st.lists(st.tuples(pauses, amounts), max_size=8)


def made(which: str, rate: int | Fraction = 100) -> Algorithm:
    """A new one of each; "thresholds" is a topic under a total of the same rate."""
    if which == "thresholds":
        thresholds = Thresholds("bytes.in.per.sec.threshold")
        thresholds.replace(rate, {})
        return thresholds.topic("orders")
    if which == "producer-ids":
        return AlgorithmSettings().make(PRODUCER_IDS_RATE, rate, None, None)
    return AlgorithmSettings().make(PRODUCER_BYTE_RATE, rate, which, None)


everyone = pytest.mark.parametrize("which", [*ALGORITHMS, "thresholds", "producer-ids"])


@everyone
@given(rate=rates, amount=amounts, at_ns=st.integers(0, SECOND))
def test_a_refund_at_once_leaves_what_was_before(which: str, rate: int | Fraction, amount: int, at_ns: int) -> None:
    algorithm, untouched = made(which, rate), made(which, rate)
    for _ in range(3):
        algorithm.record(amount, at_ns)
        algorithm.refund(amount, at_ns, at_ns)
        for later_ns in (at_ns, at_ns + SECOND, at_ns + 20 * SECOND):
            assert algorithm.debt_ns(later_ns) == untouched.debt_ns(later_ns)
            assert algorithm.headroom(later_ns) == untouched.headroom(later_ns)


@given(
    rates,
    st.integers(0, 2 * SECOND),
    others,
    st.tuples(pauses, amounts),
    others,
    pauses,
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3),
)
def test_a_token_bucket_never_has_more_than_without_the_charge(
    rate: int | Fraction,
    burst_ns: int,
    before: list[tuple[int, int]],
    charge: tuple[int, int],
    after: list[tuple[int, int]],
    pause_ns: int,
    other_refunds: list[tuple[int, int]],
) -> None:
    """`other_refunds`: after which of the charges, which other charge is refunded, the same in both buckets."""
    bucket, without = TokenBucket(rate, burst_ns), TokenBucket(rate, burst_ns)
    now_ns, charged_ns = 0, 0
    charges: list[tuple[int, int]] = []
    for nth, (elapsed_ns, amount) in enumerate([*before, charge, *after]):
        now_ns += elapsed_ns
        bucket.record(amount, now_ns)
        if nth == len(before):
            charged_ns = now_ns
        else:
            without.record(amount, now_ns)
            charges.append((amount, now_ns))
        for at, which in other_refunds:
            if at == nth and which < len(charges):
                for each in (bucket, without):
                    each.refund(*charges[which], now_ns)
                charges[which] = (0, 0)
    now_ns += pause_ns
    bucket.refund(charge[1], charged_ns, now_ns)
    now_ns = max(now_ns, bucket.last_ns)
    assert bucket.debt_ns(now_ns) >= without.debt_ns(now_ns)
    assert bucket.headroom(now_ns) <= without.headroom(now_ns)


@given(rates, st.lists(st.tuples(st.integers(1, 3 * SECOND), st.integers(0, 200)), min_size=2, max_size=12), st.data())
def test_a_token_bucket_has_exactly_what_it_had_without_the_charge(
    rate: int | Fraction, schedule: list[tuple[int, int]], data: st.DataObject
) -> None:
    bucket, without = TokenBucket(rate), TokenBucket(rate)
    refunded = data.draw(st.integers(0, len(schedule) - 1))
    now_ns, charged_ns = 0, 0
    for nth, (elapsed_ns, amount) in enumerate(schedule):
        now_ns += elapsed_ns
        bucket.record(amount, now_ns)
        if nth == refunded:
            charged_ns = now_ns
        else:
            without.record(amount, now_ns)
    now_ns += SECOND // 7
    bucket.refund(schedule[refunded][1], charged_ns, now_ns)
    assert (bucket.debt_ns(now_ns), bucket.headroom(now_ns)) == (without.debt_ns(now_ns), without.headroom(now_ns))


def test_a_bucket_that_was_full_in_between_gives_nothing_back() -> None:
    bucket = TokenBucket(100)
    bucket.record(60, 0)
    bucket.record(100, 2 * SECOND)
    bucket.refund(60, 0, 2 * SECOND)
    assert bucket.headroom(2 * SECOND) == 0
    bucket.refund(100, 2 * SECOND, 2 * SECOND)
    assert bucket.headroom(2 * SECOND) == 100


def test_a_bucket_that_was_nearly_full_in_between_gives_back_what_it_would_have_kept() -> None:
    bucket = TokenBucket(100)
    bucket.record(60, 0)
    bucket.record(100, SECOND // 2)  # it held 90
    bucket.refund(60, 0, SECOND // 2)
    assert bucket.headroom(SECOND // 2) == 0
    assert bucket.debt_ns(SECOND // 2) == 0


def test_many_peaks_are_kept_in_bounded_memory_and_cost_little_of_a_refund() -> None:
    bucket = TokenBucket(1_000_000)
    bucket.record(1, 0)
    for step in range(1, 10_000):
        bucket.record(150, step * 100_000)  # 50 more than it earns
    now_ns = 10_000 * 100_000
    headroom = bucket.headroom(now_ns)
    bucket.refund(150, 5_000 * 100_000, now_ns)
    assert headroom < bucket.headroom(now_ns) <= headroom + 150
    assert bucket._peaks is not None
    assert len(bucket._peaks._entries) <= 64


def test_a_frame_announced_and_never_sent_gives_all_back() -> None:
    bucket = TokenBucket(1_000_000)
    bucket.record(100_000_000, 0)
    for at in range(1, 20):
        bucket.record(100, at * SECOND // 20)
    bucket.refund(100_000_000, 0, SECOND)
    assert bucket.debt_ns(SECOND) == 0
    assert bucket.headroom(SECOND) >= 990_000


# ---- sampled windows


@given(
    rates,
    st.one_of(st.integers(1, 4), st.just(11)),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 60), st.booleans(), st.integers(0, 3000)), max_size=40),
)
def test_what_passes_less_what_is_refunded_keeps_the_bound(
    rate: int | Fraction, samples: int, first_window: bool, schedule: list[tuple[int, int, bool, int]]
) -> None:
    window = SampledWindow(rate, samples=samples, window_ns=SECOND, first_window=first_window)
    net: list[tuple[int, int]] = []
    now_ms = 0
    for pause_ms, amount, refunds, refund_after_ms in schedule:
        now_ms += pause_ms
        if window.admit(amount, now_ms * MS) < 0:
            continue
        before = sum(each for at_ms, each in net if now_ms - at_ms < samples * 1000)
        assert before <= rate * (samples + 1) + Fraction(rate, 2000)
        charged_ms = now_ms
        if refunds:
            now_ms += refund_after_ms
            window.refund(amount, charged_ms * MS, now_ms * MS)
        else:
            net.append((charged_ms, amount))


@pytest.mark.parametrize("samples", [1, 2, 11])
@pytest.mark.parametrize("first_window", [True, False])
def test_empty_long_polls_bring_nothing_beyond_the_limit(samples: int, first_window: bool) -> None:
    """Each poll reserves 1 MB and is answered empty 12 s later; meanwhile others bring data under 1 MB/s."""
    rate = 1_000_000
    window = SampledWindow(rate, samples=samples, window_ns=SECOND, first_window=first_window)
    passed = 0
    polls: list[int] = []
    for step in range(600):
        now_ns = step * SECOND // 10
        while polls and polls[0] + 12 * SECOND <= now_ns:
            window.refund(1_000_000, polls.pop(0), now_ns)
        if window.admit(1_000_000, now_ns) >= 0:
            polls.append(now_ns)
        if window.admit(100_000, now_ns) >= 0:
            passed += 100_000
    assert passed <= rate * 60 + rate * (samples + 1)


def test_a_forgotten_window_gives_nothing() -> None:
    window = SampledWindow(100, samples=2, window_ns=SECOND, first_window=True)
    window.record(100, 0)
    window.record(100, 2 * SECOND)
    window.refund(100, 0, 2 * SECOND)
    assert window.headroom(2 * SECOND) == 0
    window.refund(50, 2 * SECOND, 2 * SECOND)
    assert window.headroom(2 * SECOND) == 50


def test_a_refund_reduces_the_window_that_was_charged_and_no_other() -> None:
    window = SampledWindow(100, samples=3, window_ns=SECOND, first_window=True)
    window.record(10, 0)
    window.record(20, SECOND)
    window.record(30, 2 * SECOND)
    window.refund(15, SECOND, 2 * SECOND)
    assert window.headroom(2 * SECOND) == 200 - 45
    window.refund(HUGE, 0, 2 * SECOND)
    assert window.headroom(2 * SECOND) == 200 - 35
    assert window.headroom(4 * SECOND) == 200 - 30


def test_the_debt_that_is_kept_shrinks_with_the_window() -> None:
    window = SampledWindow(1, samples=11, window_ns=SECOND, first_window=False)
    window.record(100, 0)
    window.record(50, SECOND)
    window.refund(100, 0, 10 * SECOND)
    assert window.debt_ns(10 * SECOND) == 40 * SECOND
    window.refund(50, SECOND, 13 * SECOND)  # forgotten: the debt stays
    assert window.debt_ns(13 * SECOND) == 37 * SECOND


@pytest.mark.parametrize("samples", [1, 2, 11])
def test_a_charge_that_is_refunded_does_not_make_a_history(samples: int) -> None:
    window = SampledWindow(20, samples=samples, window_ns=SECOND, first_window=True)
    window.record(1, 0)
    window.refund(1, 0, SECOND // 2)
    assert window.headroom(60 * SECOND) == 20


# ---- one-minute rates


@given(st.lists(st.tuples(st.integers(0, 8 * SECOND), st.integers(0, 10_000)), min_size=2, max_size=20), st.data())
def test_a_mean_is_what_it_is_without_the_charge(schedule: list[tuple[int, int]], data: st.DataObject) -> None:
    refunded = data.draw(st.integers(0, len(schedule) - 1))
    meter, without = Meter(), Meter()
    for each in (meter, without):
        each.record(1, 0)  # the same ticks for both
    now_ns, charged_ns = 0, 0
    for nth, (elapsed_ns, amount) in enumerate(schedule):
        now_ns += elapsed_ns
        meter.record(amount, now_ns)
        if nth == refunded:
            charged_ns = now_ns
        else:
            without.record(amount, now_ns)
    now_ns += data.draw(st.integers(0, 20 * SECOND))
    meter.refund(schedule[refunded][1], charged_ns, now_ns)
    assert meter.count == without.count
    for later_ns in range(now_ns, now_ns + 15 * SECOND, SECOND):
        assert meter.one_minute_rate(later_ns) == pytest.approx(without.one_minute_rate(later_ns), abs=1e-6)


def test_an_amount_that_a_tick_has_taken_in_is_taken_back_with_its_share() -> None:
    meter = Meter()
    meter.record(500, 0)
    meter.record(1000, TICK_NS)
    meter.refund(1000, TICK_NS, 2 * TICK_NS)
    assert meter.one_minute_rate(2 * TICK_NS) == pytest.approx(100 * (1 - ALPHA))
