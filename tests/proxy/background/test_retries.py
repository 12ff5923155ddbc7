"""When the proxy's own clients try again, and what they report."""

from random import Random

import pytest

from proxy.background.retries import Retries

pytestmark = pytest.mark.claim(
    "fleet", "a topic that cannot be used is tried ever more rarely, with one line for each reason"
)


class Even(Random):
    def uniform(self, _low: float, _high: float) -> float:
        return 1.0


def test_pauses_grow_to_a_bound_and_begin_anew_once_it_worked() -> None:
    retries = Retries(Even())
    pauses = []
    for _ in range(7):
        retries.failed("authorization")
        pauses.append(retries.pause_seconds())
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    for _ in range(10_000):
        retries.failed("authorization")
    assert retries.pause_seconds() == 30
    retries.worked()
    assert not retries.is_failing
    retries.failed("unreachable")
    assert retries.pause_seconds() == 1


def test_pauses_differ() -> None:
    retries = Retries(Random(1))
    retries.failed("unreachable")
    pauses = {retries.pause_seconds() for _ in range(100)}
    assert len(pauses) > 90
    assert 0.5 <= min(pauses) < 0.6
    assert 1.4 < max(pauses) <= 1.5


def test_each_reason_is_reported_once_until_it_worked() -> None:
    retries = Retries(Random(1))
    assert [retries.failed(reason) for reason in "aabaab"] == [True, False, True, False, False, False]
    retries.worked()
    assert retries.failed("a")
