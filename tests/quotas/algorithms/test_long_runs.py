"""The algorithms against their slow models over long random schedules: a million steps each in the nightly run.

Plain pseudo-random schedules with a seed each, which take a fraction of Hypothesis's time; the properties themselves,
and their extremes, are tested with Hypothesis beside the models.
"""

from fractions import Fraction
from random import Random

import pytest

from tests.quotas.algorithms import test_ewma as ewma
from tests.quotas.algorithms import test_sampled_window as window
from tests.quotas.algorithms import test_token_bucket as bucket

SECOND = 1_000_000_000
LONGEST = 50

few_or_a_million = pytest.mark.parametrize(
    "steps", [5_000, pytest.param(1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1_800)])]
)


def some_rate(random: Random) -> int | Fraction:
    rates: tuple[int | Fraction, ...] = (
        random.randint(1, 200),
        random.randint(1, 1 << 53),
        Fraction(random.randint(1, 9999), 1000),
    )
    return random.choice(rates)


def some_time_ns(random: Random) -> int:
    return random.choice([0, random.randint(0, 1000), random.randint(0, 3 * SECOND), random.randint(-SECOND, 0)])


def some_amount(random: Random) -> int:
    return random.randint(0, 1 << random.randint(0, 54))


@few_or_a_million
def test_token_bucket(steps: int) -> None:
    kinds = ("admit", "admit", "spend", "record", "ask")
    for seed in range(steps // LONGEST):
        random = Random(seed)
        schedule = [
            bucket.Step(random.choice(kinds), some_time_ns(random), some_amount(random)) for _ in range(LONGEST)
        ]
        bucket.check_against_the_slow_model(some_rate(random), random.randint(0, 10 * SECOND), schedule)


@few_or_a_million
def test_sampled_window(steps: int) -> None:
    kinds = ("admit", "admit", "admit", "spend", "record", "ask", "change")
    for seed in range(steps // LONGEST):
        random = Random(seed)
        schedule = [
            window.Step(
                random.choice(kinds),
                random.choice([random.randint(0, 5), random.randint(0, 48)]),
                some_time_ns(random),
                random.choice([0, some_amount(random)]),
                random.randint(0, 30),
                some_rate(random),
            )
            for _ in range(LONGEST)
        ]
        window.check_against_the_slow_model(
            some_rate(random),
            random.choice([1, 2, 3, 4, 11]),
            random.choice([1, 7, 100, 1000]),
            random.choice([True, False]),
            schedule,
        )


@few_or_a_million
def test_one_minute_rate(steps: int) -> None:
    for seed in range(steps // LONGEST):
        random = Random(seed)
        schedule = [(some_time_ns(random) * random.choice([1, 5, 60]), some_amount(random)) for _ in range(LONGEST)]
        ewma.check_against_yammers_meter(schedule, some_time_ns(random))
