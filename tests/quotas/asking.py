"""What callers do with an algorithm: ask for its debt, then charge."""

from quotas.admission.limit import Limit
from quotas.admission.limit_set import spend_all
from quotas.algorithms.algorithm import Algorithm
from quotas.entity import TOTAL


def admit(algorithm: Algorithm, amount: int, now_ns: int) -> int:
    """Charge `amount` if out of debt. Returns the debt reported then, or, if not charged, minus the debt."""
    debt_ns = algorithm.debt_ns(now_ns)
    return -debt_ns if debt_ns else algorithm.record(amount, now_ns)


def spend(algorithm: Algorithm, amount: int, now_ns: int) -> int:
    """As `spend_all` of one limit with this algorithm."""
    return spend_all([([Limit("limit", TOTAL, algorithm)], amount)], amount, now_ns)
