"""The rules of seed 004, one by one, and what was decided where it is silent."""

from fractions import Fraction

import pytest

from quotas.admission.topic_thresholds import ThresholdError, Thresholds
from tests.quotas.admission.thresholds import set_topic, set_total

MB = 1_000_000
BYTES = "bytes.in.per.sec.threshold"


def test_a_change_beyond_the_total_is_refused_with_both_numbers_and_changes_nothing() -> None:
    thresholds = Thresholds(BYTES)
    thresholds.replace(10 * MB, {"a": 6 * MB, "b": 4 * MB})
    with pytest.raises(ThresholdError) as raised:
        set_topic(thresholds, "b", 6 * MB)
    assert (raised.value.explicit_sum, raised.value.total, raised.value.limit_name) == (12 * MB, 10 * MB, BYTES)
    assert str(raised.value) == (
        "bytes.in.per.sec.threshold of all topics sums to 12000000, above "
        "total.bytes.in.per.sec.threshold=10000000: raise the total, or lower the thresholds of topics"
    )
    with pytest.raises(ThresholdError) as raised:
        set_total(thresholds, 9 * MB)
    assert (raised.value.explicit_sum, raised.value.total) == (10 * MB, 9 * MB)
    with pytest.raises(ThresholdError) as raised:
        thresholds.replace(5 * MB, {"a": Fraction(5 * MB) + Fraction(1, 2)})
    assert "sums to 5000000.5, above" in str(raised.value)
    assert (thresholds.total, thresholds.share) == (10 * MB, 0)
    assert (thresholds.threshold_of("a"), thresholds.threshold_of("b")) == (6 * MB, 4 * MB)
