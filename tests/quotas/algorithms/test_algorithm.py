"""Which algorithm measures what, and that all of them keep the one interface."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.limit import Limit
from quotas.admission.limit_set import spend_all
from quotas.admission.topic_thresholds import Thresholds
from quotas.algorithms.algorithm import ALGORITHMS, EWMA, SAMPLED_WINDOW, TOKEN_BUCKET, Algorithm, AlgorithmSettings
from quotas.algorithms.ewma import Ewma
from quotas.algorithms.paced_window import PacedWindow
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.algorithms.sampled_window import SampledWindow
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import TOTAL
from quotas.limit_kinds import (
    CONNECTION_CREATION_RATE,
    PRODUCER_BYTE_RATE,
    PRODUCER_IDS_RATE,
    REQUEST_RATE,
)
from tests.quotas.asking import admit, spend

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DEFAULTS = AlgorithmSettings()


@pytest.mark.parametrize(
    ("limit_name", "own", "flag", "expected"),
    [
        (PRODUCER_BYTE_RATE, None, TOKEN_BUCKET, TokenBucket),
        (PRODUCER_BYTE_RATE, None, EWMA, Ewma),
        (PRODUCER_BYTE_RATE, SAMPLED_WINDOW, EWMA, SampledWindow),
        (REQUEST_RATE, TOKEN_BUCKET, SAMPLED_WINDOW, TokenBucket),
        (CONNECTION_CREATION_RATE, None, TOKEN_BUCKET, PacedWindow),
        (CONNECTION_CREATION_RATE, None, EWMA, PacedWindow),
        (CONNECTION_CREATION_RATE, SAMPLED_WINDOW, EWMA, SampledWindow),
        (CONNECTION_CREATION_RATE, TOKEN_BUCKET, SAMPLED_WINDOW, TokenBucket),
        (PRODUCER_IDS_RATE, EWMA, SAMPLED_WINDOW, ProducerIdQuota),
    ],
)
def test_the_entrys_algorithm_then_the_limits_then_the_flags(
    limit_name: str, own: str | None, flag: str, expected: type
) -> None:
    settings = replace(DEFAULTS, algorithm=flag)
    algorithm = settings.make(limit_name, 7, own, None)
    assert type(algorithm) is expected
    assert settings.class_of(limit_name, own) is expected


def test_the_flags_numbers_reach_the_algorithms() -> None:
    settings = AlgorithmSettings(
        burst_ns=3 * SECOND,
        window_num=4,
        window_ns=2 * SECOND,
        first_window=False,
        producer_ids_window_ns=HOUR // 2,
        producer_ids_window_count=5,
    )
    assert settings.make(PRODUCER_BYTE_RATE, 10, None, None).headroom(0) == 30
    assert settings.make(PRODUCER_BYTE_RATE, 10, None, SECOND // 2).headroom(0) == 5
    window = settings.make(PRODUCER_BYTE_RATE, 10, SAMPLED_WINDOW, None)
    assert (window.burst_ns, window.headroom(0)) == (8 * SECOND, 60)  # three whole windows are taken for empty
    assert replace(settings, first_window=True).make(PRODUCER_BYTE_RATE, 10, SAMPLED_WINDOW, None).headroom(0) == 20
    ids = settings.make(PRODUCER_IDS_RATE, 100, None, None)
    assert isinstance(ids, ProducerIdQuota)
    assert (ids.ids_per_window, ids.burst_ns, ids.rate) == (100, HOUR // 2, Fraction(1, 18))


@pytest.mark.parametrize(("value", "ids"), [(100, 100), (Fraction(5, 2), 2), (Fraction(1, 3), 1)])
def test_producer_ids_are_given_per_window_whole_and_at_least_one(value: int | Fraction, ids: int) -> None:
    made = DEFAULTS.make(PRODUCER_IDS_RATE, value, None, None)
    changed = DEFAULTS.make(PRODUCER_IDS_RATE, 9, None, None)
    changed.set_rate(DEFAULTS.per_second(PRODUCER_IDS_RATE, value), 0, 0)
    for quota in (made, changed):
        assert isinstance(quota, ProducerIdQuota)
        assert (quota.ids_per_window, quota.rate) == (ids, made.rate)
    assert DEFAULTS.per_second(PRODUCER_BYTE_RATE, value) == value


def test_a_salt_decides_which_ids_pass_for_known() -> None:
    def taken_for_known(salt: int) -> set[int]:
        quota = replace(DEFAULTS, producer_ids_salt=salt).make(PRODUCER_IDS_RATE, 500, None, None)
        assert isinstance(quota, ProducerIdQuota)
        quota.remember(range(500), 0)
        strangers = range(1000, 21_000)
        return set(strangers) - set(quota.unknown(strangers, 0))

    assert taken_for_known(1) == taken_for_known(1)
    assert taken_for_known(1) != taken_for_known(2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"algorithm": "leaky-bucket"}, "algorithm must be one of token-bucket, sampled-window, ewma"),
        ({"burst_ns": -1}, "burst_ns must not be below zero"),
        ({"window_num": 0}, "samples must be at least 1"),
        ({"window_ns": 0}, "window_ns must be whole milliseconds above zero"),
        ({"window_ns": SECOND + 1}, "window_ns must be whole milliseconds above zero"),
        ({"producer_ids_window_ns": 0}, "window_ns"),
        ({"producer_ids_window_count": 0}, "window_count"),
    ],
)
def test_settings_that_could_not_be_used_are_refused_when_they_are_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlgorithmSettings(**wrong)


EVERY: list[Callable[[], Algorithm]] = [
    *(partial(DEFAULTS.make, PRODUCER_BYTE_RATE, 10, own, None) for own in ALGORITHMS),
    partial(replace(DEFAULTS, leases=True).make, PRODUCER_BYTE_RATE, 10, None, None),
    partial(replace(DEFAULTS, first_window=False).make, PRODUCER_BYTE_RATE, 10, SAMPLED_WINDOW, None),
    partial(DEFAULTS.make, CONNECTION_CREATION_RATE, 10, None, None),
    partial(DEFAULTS.make, PRODUCER_IDS_RATE, 10, None, None),
]


SPENDS = st.lists(st.tuples(st.sampled_from(["record", "admit", "spend", "ask", "rate"]), st.integers(0, 12)))


@pytest.mark.parametrize("which", range(len(EVERY)))
@given(steps=SPENDS, elapsed_ns=st.integers(0, SECOND))
def test_what_passed_is_what_was_charged(which: int, steps: list[tuple[str, int]], elapsed_ns: int) -> None:
    """It only grows, by whole units; what was spent and undone, since another limit refused, leaves it as before."""
    algorithm = EVERY[which]()
    now_ns = charged = 0
    for do, amount in steps:
        now_ns += elapsed_ns
        match do:
            case "record":
                algorithm.record(amount, now_ns)
                charged += amount
            case "admit":
                charged += amount if admit(algorithm, amount, now_ns) >= 0 else 0
            case "spend":
                refusing = Limit("full", TOTAL, TokenBucket(1, 0))
                limits = [Limit("limit", TOTAL, algorithm), refusing]
                assert spend_all([(limits, amount + 1)], amount + 1, now_ns) == -1
                assert algorithm.passed == charged
                charged += amount if spend(algorithm, amount, now_ns) >= 0 else 0
            case "ask":
                algorithm.debt_ns(now_ns, amount)
                algorithm.headroom(now_ns)
            case "rate":
                algorithm.set_rate(amount + 1, SECOND, now_ns)
        assert algorithm.passed == charged


def test_what_passed_a_threshold_is_what_brokers_accepted() -> None:
    thresholds = Thresholds("bytes.in.per.sec.threshold")
    thresholds.replace(10, {})
    topic = thresholds.topic("orders")
    topic.record(5, 0)
    assert spend(topic, 5, 0) >= 0
    assert topic.passed == 0
    topic.record_accepted(7, 0)
    topic.forget_rate()
    topic.record_accepted(2, SECOND)
    assert topic.passed == 9


@pytest.mark.parametrize(
    ("bound", "most"),
    [
        pytest.param(lambda: Ewma(5_000_000), 400, id="ewma"),
        pytest.param(
            lambda: SampledWindow(5_000_000, samples=11, window_ns=SECOND, first_window=True), 440, id="sampled window"
        ),
    ],
)
def test_a_quiet_one_is_small(bound: Callable[[], Algorithm], most: int) -> None:
    """A default quota may give a million clients one each."""
    many = 1000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        bounds = [bound() for _ in range(many)]
        for at, each in enumerate(bounds):
            each.record(100_000 + at, SECOND + at)
            each.record(100_000 + at, 7 * SECOND + at)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / many <= most


@pytest.mark.parametrize("rate", [0, -1, Fraction(-1, 3)])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, PRODUCER_IDS_RATE])
def test_a_rate_is_above_zero(algorithm: str, rate: int | Fraction) -> None:
    name, own = (algorithm, None) if algorithm == PRODUCER_IDS_RATE else (PRODUCER_BYTE_RATE, algorithm)
    with pytest.raises(ValueError, match="must be above zero"):
        DEFAULTS.make(name, rate, own, None)
    with pytest.raises(ValueError, match="must be above zero"):
        Ewma(1).set_rate(rate, 0, 0)
