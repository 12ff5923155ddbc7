"""Which batches pass after one was refused. Producers that send again what was refused: `test_refusals`."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.streams.handlers.reject.sequences import SEQUENCES, RefusedSequences

ONE = ("rows", 0)
SEVEN = (7, 3)

sequences = st.integers(0, SEQUENCES - 1)
distances = st.integers(1, SEQUENCES // 2 - 1)


def after(sequence: int, distance: int) -> int:
    return (sequence + distance) % SEQUENCES


@given(first=sequences, distance=distances)
def test_later_ones_are_refused_until_it_has_come_back_and_earlier_ones_pass(first: int, distance: int) -> None:
    """Modulo 2^31."""
    refused = RefusedSequences()
    assert not refused.is_later(ONE, SEVEN, first)
    assert refused.refuse(ONE, SEVEN, first, 0)
    assert refused.is_later(ONE, SEVEN, after(first, distance))
    assert not refused.is_later(ONE, SEVEN, after(first, -distance))
    assert not refused.is_later(ONE, SEVEN, first)
    assert not refused.is_later(("rows", 1), SEVEN, after(first, distance))
    refused.passed(ONE, SEVEN, after(first, -distance), after(first, 1 - distance), 0)
    assert refused.is_later(ONE, SEVEN, after(first, distance))
    refused.passed(ONE, SEVEN, first, after(first, 1), 0)
    assert not refused.is_later(ONE, SEVEN, after(first, distance))
    assert not refused.entries


def test_an_earlier_one_that_is_refused_has_to_pass_first() -> None:
    refused = RefusedSequences()
    refused.refuse(ONE, SEVEN, 10, 0)
    assert not refused.refuse(ONE, SEVEN, 8, 0)
    assert refused.is_later(ONE, SEVEN, 10)
    refused.passed(ONE, SEVEN, 8, 10, 0)
    assert not refused.is_later(ONE, SEVEN, 10)
    assert refused.is_later(ONE, SEVEN, 12)


def test_another_producer_or_epoch_drops_what_was_refused() -> None:
    for other in ((7, 4), (8, 3)):
        refused = RefusedSequences()
        refused.refuse(ONE, SEVEN, 10, 0)
        assert not refused.is_later(ONE, other, 11)
        assert refused.refuse(ONE, other, 0, 0)
        assert refused.is_later(ONE, other, 1)
        assert not refused.is_later(ONE, SEVEN, 11)
        refused.passed(ONE, SEVEN, 11, 12, 0)
        assert not refused.entries


def test_for_how_long_a_partition_has_been_refused() -> None:
    refused = RefusedSequences()
    assert refused.refused_for_ns(ONE, 5) == 0
    refused.refuse(ONE, SEVEN, 10, 5)
    refused.refuse(ONE, SEVEN, 12, 6)
    refused.refuse(ONE, SEVEN, 10, 8)
    assert refused.refused_for_ns(ONE, 9) == 4
    refused.passed(ONE, SEVEN, 10, 12, 9)
    assert refused.is_later(ONE, SEVEN, 14), "than 12, which has not come back"
    assert not refused.refuse(ONE, SEVEN, 12, 20), "it has been counted"
    assert refused.refused_for_ns(ONE, 21) == 12
    refused.passed(ONE, SEVEN, 12, 14, 22)
    assert refused.refused_for_ns(ONE, 23) == 0


def test_batches_that_were_joined_when_they_were_sent_again() -> None:
    refused = RefusedSequences()
    refused.refuse(ONE, SEVEN, 10, 0)
    refused.refuse(ONE, SEVEN, 12, 0)
    refused.passed(ONE, SEVEN, 10, 14, 0)
    assert not refused.entries
