"""The soft mark of a limit: how long until as much as that is left again."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.limit import Limit
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import TOTAL

NS_PER_SECOND = 1_000_000_000


@given(st.integers(1, 10**9), st.integers(0, 3_600_000), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_soft_mark(rate: int, burst_ms: int, earned_ns: int, amount: int) -> None:
    """It is what the limit earns in this time, at most half the burst; after the wait the headroom is there again."""
    bucket = TokenBucket(rate, burst_ms * 1_000_000)
    limit = Limit("producer_byte_rate", TOTAL, bucket)
    now_ns = NS_PER_SECOND
    bucket.record(amount, now_ns)
    wait_ns = limit.soft_wait_ns(earned_ns, now_ns)
    mark_ns = min(earned_ns, bucket.burst_ns // 2)
    assert 0 <= wait_ns <= mark_ns
    mark = Fraction(rate * mark_ns, NS_PER_SECOND)
    if not wait_ns:
        assert bucket.headroom(now_ns) + 1 > mark or not mark_ns
    elif not bucket.debt_ns(now_ns):
        assert bucket.headroom(now_ns + wait_ns) + 1 >= mark
