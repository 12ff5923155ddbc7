"""When the proxy's own clients try again, and what they report."""

import pytest

from proxy import retries as retries_module
from proxy.retries import Retries


def test_pauses_grow_to_a_bound_and_begin_anew_once_it_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries_module, "uniform", lambda _low, _high: 1.0)
    retries = Retries()
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
    retries = Retries()
    retries.failed("unreachable")
    pauses = {retries.pause_seconds() for _ in range(100)}
    assert len(pauses) > 90
    assert 0.5 <= min(pauses) < 0.6
    assert 1.4 < max(pauses) <= 1.5


def test_each_reason_is_reported_once_until_it_worked() -> None:
    retries = Retries()
    assert [retries.failed(reason) for reason in "aabaab"] == [True, False, True, False, False, False]
    retries.worked()
    assert retries.failed("a")
