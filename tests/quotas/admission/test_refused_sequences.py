"""Which batches pass after one was refused: against producers that send again what was refused, in order."""

from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.refused_sequences import EXPIRY_NS, SEQUENCES, Arrival, RefusedSequences

CLIENT = ("alice", "etl")
SEVEN = (CLIENT, 7)
ONE = (SEVEN, ("rows", 0))
FREE, LATER, EARLIER = Arrival.FREE, Arrival.LATER, Arrival.EARLIER

sequences = st.integers(0, SEQUENCES - 1)
distances = st.integers(1, SEQUENCES // 2 - 1)


def after(sequence: int, distance: int) -> int:
    return (sequence + distance) % SEQUENCES


@given(first=sequences, distance=distances)
def test_later_ones_are_refused_until_it_has_come_back_and_earlier_ones_pass(first: int, distance: int) -> None:
    """Modulo 2^31."""
    refused = RefusedSequences()
    assert refused.arrival(ONE, 0, first, 0) is FREE
    assert refused.refuse(ONE, 0, first, 0)
    assert refused.arrival(ONE, 0, after(first, distance), 0) is LATER
    assert refused.arrival(ONE, 0, after(first, -distance), 0) is EARLIER
    assert refused.arrival(ONE, 0, first, 0) is FREE
    assert refused.arrival((SEVEN, ("rows", 1)), 0, after(first, distance), 0) is FREE
    refused.passed(ONE, 0, after(first, -distance), after(first, 1 - distance), 0)
    assert refused.arrival(ONE, 0, after(first, distance), 0) is LATER
    refused.passed(ONE, 0, first, after(first, 1), 0)
    assert refused.arrival(ONE, 0, after(first, distance), 0) is FREE
    assert not len(refused)


@given(
    start=sequences,
    sizes=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=20),
    window=st.integers(1, 5),
    data=st.data(),
)
def test_batches_pass_in_order_and_each_refused_one_counts_once(
    start: int, sizes: list[int], window: int, data: st.DataObject
) -> None:
    """A producer with up to `window` requests in flight sends again, in order, what was refused. Whether the limit has
    room for a batch is drawn.
    """
    batches = [after(start, sum(sizes[:at])) for at in range(len(sizes))]
    refused = RefusedSequences()
    passed: list[int] = []
    counted: list[int] = []
    ever_refused: set[int] = set()
    unsent, in_flight, again = list(batches), list[int](), list[int]()
    while unsent or in_flight or again:
        if len(in_flight) < window and (again or unsent) and (not in_flight or data.draw(st.booleans())):
            in_flight.append(again.pop(0) if again else unsent.pop(0))
            continue
        sequence = in_flight.pop(0)
        arrival = refused.arrival(ONE, 3, sequence, 0)
        assert arrival is not EARLIER
        if arrival is LATER or data.draw(st.integers(0, 2)) == 2:
            assert refused.has_room(ONE, 0)
            if refused.refuse(ONE, 3, sequence, 0):
                counted.append(sequence)
            ever_refused.add(sequence)
            # What was sent after it may be in flight still; new batches may be sent before that has come back.
            again = sorted([*again, sequence], key=batches.index)
        else:
            at = batches.index(sequence)
            refused.passed(ONE, 3, sequence, after(sequence, sizes[at]), 0)
            passed.append(sequence)
    assert passed == batches
    assert len(counted) == len(set(counted))
    assert set(counted) == ever_refused
    assert not len(refused)


def test_a_newer_epoch_drops_what_was_refused() -> None:
    refused = RefusedSequences()
    refused.refuse(ONE, 4, 10, 0)
    assert refused.arrival(ONE, 5, 0, 0) is FREE
    assert refused.arrival(ONE, 3, 11, 0) is EARLIER, "brokers refuse an older epoch"
    refused.passed(ONE, 3, 11, 12, 0)
    assert refused.arrival(ONE, 4, 11, 0) is LATER
    assert refused.refuse(ONE, 5, 0, 0)
    assert refused.arrival(ONE, 5, 1, 0) is LATER
    refused.passed(ONE, 6, 0, 1, 0)
    assert not len(refused)


def test_what_was_refused_an_hour_ago_is_dropped() -> None:
    refused = RefusedSequences(most=1)
    refused.refuse(ONE, 0, 10, 0)
    assert refused.arrival(ONE, 0, 11, EXPIRY_NS - 1) is LATER
    assert refused.arrival(ONE, 0, 11, EXPIRY_NS) is FREE
    assert not refused.has_room((SEVEN, ("rows", 1)), EXPIRY_NS - 1)
    assert refused.has_room((SEVEN, ("rows", 1)), EXPIRY_NS)
    assert not len(refused)
    refused.refuse(ONE, 0, 10, EXPIRY_NS)
    assert refused.refuse(ONE, 0, 11, 2 * EXPIRY_NS), "and counts again"


def test_batches_that_are_sent_again_do_not_prolong_the_hour() -> None:
    """A batch with a made-up sequence of another producer was refused, and never comes back."""
    refused = RefusedSequences(most=2)
    refused.refuse(ONE, 0, 10, 0)
    refused.refuse((SEVEN, ("rows", 1)), 0, 10, 1)
    for now_ns in range(1, EXPIRY_NS, EXPIRY_NS // 100):
        assert refused.arrival(ONE, 0, 20, now_ns) is LATER
        refused.refuse(ONE, 0, 20, now_ns)
    assert refused.arrival(ONE, 0, 20, EXPIRY_NS) is FREE
    assert refused.refused_for_ns(ONE, EXPIRY_NS) == 0
    assert refused.has_room((SEVEN, ("rows", 2)), EXPIRY_NS), "it is dropped, before the other one"


def test_a_producer_that_makes_progress_keeps_its_order_for_longer_than_an_hour() -> None:
    refused = RefusedSequences()
    for number in range(4):
        now_ns = number * (EXPIRY_NS - 1)
        assert refused.arrival(ONE, 0, number + 1, now_ns) is (LATER if number else FREE)
        refused.refuse(ONE, 0, number, now_ns)
        refused.refuse(ONE, 0, number + 1, now_ns)
        refused.passed(ONE, 0, number, number + 1, now_ns)
        refused.expire(now_ns)
        assert refused.arrival(ONE, 0, number + 2, now_ns) is LATER


def test_the_number_of_entries_is_bounded() -> None:
    refused = RefusedSequences(most=2)
    keys = [(SEVEN, ("rows", index)) for index in range(3)]
    for key in keys[:2]:
        assert refused.has_room(key, 0)
        refused.refuse(key, 0, 0, 0)
    assert all(refused.has_room(key, 0) for key in keys[:2]), "those that are known take no room"
    assert not refused.has_room(keys[2], 0)
    refused.passed(keys[0], 0, 0, 1, 0)
    assert refused.has_room(keys[2], 0)
    assert refused.has_refused(SEVEN)
    assert refused.has_refused((CLIENT, "rows"))
    assert not refused.has_refused((CLIENT, "other"))
    assert not refused.has_refused((CLIENT, 8))
    refused.passed(keys[1], 0, 0, 1, 0)
    assert not refused.has_refused(SEVEN)


def test_one_client_leaves_room_for_the_others() -> None:
    refused = RefusedSequences(most=10, most_of_client=2)
    other = ("bob", "etl")
    for index in range(2):
        refused.refuse((SEVEN, ("rows", index)), 0, 0, 0)
    assert not refused.has_room(((CLIENT, 8), ("rows", 0)), 0), "nor with another producer id"
    assert refused.has_room(ONE, 0), "what is known takes no room"
    assert refused.has_room(((other, 7), ("rows", 0)), 0)
    refused.passed(ONE, 0, 0, 1, 0)
    assert refused.has_room(((CLIENT, 8), ("rows", 0)), 0)


def test_for_how_long_a_partition_has_been_refused() -> None:
    refused = RefusedSequences()
    assert refused.refused_for_ns(ONE, 5) == 0
    refused.refuse(ONE, 0, 10, 5)
    refused.refuse(ONE, 0, 12, 6)
    refused.refuse(ONE, 0, 10, 8)
    assert refused.refused_for_ns(ONE, 9) == 4
    refused.passed(ONE, 0, 10, 12, 9)
    assert refused.arrival(ONE, 0, 14, 9) is LATER, "than 12, which has not come back"
    assert not refused.refuse(ONE, 0, 12, 20), "it has been counted"
    assert refused.refused_for_ns(ONE, 21) == 12
    refused.passed(ONE, 0, 12, 14, 22)
    assert refused.refused_for_ns(ONE, 23) == 0


def test_batches_that_were_joined_when_they_were_sent_again() -> None:
    refused = RefusedSequences()
    refused.refuse(ONE, 0, 10, 0)
    refused.refuse(ONE, 0, 12, 0)
    refused.passed(ONE, 0, 10, 14, 0)
    assert not len(refused)
