"""The limit of the disk guard while producers are stopped and go on."""

from hypothesis import given
from hypothesis import strategies as st

from quotas.adaptive.producer_guard import HOLD_NS, MAX_TRANSACTIONS, TRANSACTION_NS, ProducerGuard
from quotas.exemption import Exemption
from quotas.registry.registry import Registry
from quotas.time_units import NS_PER_SECOND

TICK_NS = NS_PER_SECOND // 10


@given(st.lists(st.tuples(st.sampled_from([0, 0, 1, 1_000, 10**9]), st.integers(1, 1200)), min_size=1, max_size=20))
def test_while_the_rate_is_0_nothing_is_out_of_debt_at_any_time(steps: list[tuple[int, int]]) -> None:
    """Renewed ten times a second, whatever the rate was before, and at most a minute late."""
    registry, guard, now_ns = Registry(), ProducerGuard(), 0
    registry.guard_producers(guard)
    for rate, ticks in steps:
        for _ in range(min(ticks, 30)):
            registry.set_rate(guard.limit, *guard.terms(rate, now_ns), now_ns)
            if not rate:
                guard.stay_stopped(now_ns)
                assert guard.limit.debt_ns(now_ns + 29 * NS_PER_SECOND) > 0
            elif not guard.limit.debt_ns(now_ns):
                guard.limit.charge(100, now_ns)
            now_ns += TICK_NS * ticks


def test_after_a_stop_the_rate_applies_at_once() -> None:
    registry, guard = Registry(), ProducerGuard()
    registry.guard_producers(guard)
    for rate in (0, 1_000_000):
        registry.set_rate(guard.limit, *guard.terms(rate, 0), 0)
        if not rate:
            guard.stay_stopped(0)
    assert guard.limit.debt_ns(0) <= 10_000, "one byte"


def test_half_of_a_timeout_but_never_for_long() -> None:
    assert [ProducerGuard.hold_ns(ms) for ms in (0, -1, 1000, 2**31 - 1)] == [0, 0, NS_PER_SECOND // 2, HOLD_NS]


def test_transactions_that_have_ended_are_remembered_in_bounded_number() -> None:
    guard = ProducerGuard()
    assert not guard.spares(b"tx", 1, 0), "producers are not stopped"
    guard.stopped(10**9, 0)
    assert not guard.spares(b"", 1, 0), "no transaction"
    for number in range(MAX_TRANSACTIONS + 5):
        guard.transaction_ended(b"%d" % number, 0)
    assert not guard.spares(b"7", 1, 0)
    assert guard.spares(b"%d" % MAX_TRANSACTIONS, 1, TRANSACTION_NS - 1)
    assert not guard.spares(b"new", 1, TRANSACTION_NS)
    guard.stopped(10**9, TRANSACTION_NS)
    assert guard.spares(b"7", 1, TRANSACTION_NS), "it may be another one"
    guard.resumed()
    assert not guard.spares(b"7", 1, TRANSACTION_NS)


def test_each_exemption_counts() -> None:
    exempt = (Exemption(("root",)), Exemption((), ("ops-*",)))
    guard = ProducerGuard(exempt)
    found = [guard.applies_to(*each) for each in (("root", "x"), ("bob", "ops-1"), ("bob", "etl"))]
    assert found == [False, False, True]
