"""What callers do with an algorithm: ask for its debt, then charge."""

from __future__ import annotations

from quotas.algorithms.algorithm import Algorithm


def admit(algorithm: Algorithm, amount: int, now_ns: int) -> int:
    """Charge `amount` if out of debt. Returns the debt reported then, or, if not charged, minus the debt."""
    debt_ns = algorithm.debt_ns(now_ns)
    return -debt_ns if debt_ns else algorithm.record(amount, now_ns)
