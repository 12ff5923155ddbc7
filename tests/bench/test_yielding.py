"""A backfill beside online producers, in eleven scenarios: it yields where it must, and only there; and its rule is
compared with a static rate, plain AIMD and the optimum in hindsight.
"""

import pytest

from bench.yielding import SCENARIOS, TWO, Scenario, results

MUST_YIELD = [each for each in SCENARIOS if each.must_yield]
MUST_NOT = [each for each in SCENARIOS if not each.must_yield]


@pytest.mark.parametrize("scenario", MUST_YIELD, ids=lambda each: each.name)
@pytest.mark.claim(
    "limits", "a group yields if brokers are slow, if one is, if it is the cause, or if online clients need more"
)
def test_it_yields_and_uses_what_is_left(scenario: Scenario) -> None:
    found = results(scenario)
    ours, static, aimd, best = (found[name] for name in ("yields", "static", "AIMD", "hindsight"))
    assert ours.cuts > 0
    assert ours.slow_minutes <= 0.6  # of ten
    assert ours.slow_minutes <= static.slow_minutes / 4 or static.slow_minutes == 0
    assert ours.used > static.used
    assert ours.used > aimd.used
    assert ours.used > 0.75
    assert ours.converged <= 60
    assert best.used >= 0.99


@pytest.mark.parametrize("scenario", MUST_NOT, ids=lambda each: each.name)
@pytest.mark.claim(
    "limits", "noise, single slow requests, few of them, a flush, drift, churn and a cold start cut nothing"
)
def test_it_does_not_yield_without_a_reason(scenario: Scenario) -> None:
    found = results(scenario)
    ours, best = found["yields"], found["hindsight"]
    assert ours.cuts == 0
    assert ours.slow_minutes <= best.slow_minutes + 0.05
    few = scenario.name == "too few samples"  # nothing can be judged, so the rate stays at its lower bound
    assert ours.used > (0.01 if few else 0.75)


def test_a_backfill_that_comes_later_gets_the_same_share() -> None:
    ours = results(TWO)["yields"]
    assert ours.fairness > 0.98
    assert ours.slow_minutes <= 0.6
    assert ours.used > 0.7
