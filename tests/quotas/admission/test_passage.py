"""Passages: what a frame reserves, what is charged as it passes, and the bound on what passes in any time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit
from quotas.admission.limit_set import admit_all, admit_part, charge_all, limit_set, spend_all
from quotas.admission.passage import Passage, earned
from quotas.algorithms.algorithm import ALGORITHMS, AlgorithmSettings
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import Entity
from quotas.limit_kinds import PRODUCER_BYTE_RATE

SECOND = 1_000_000_000
ETL = Entity(client_id="etl")


def limit_of(rate: int = 100, burst_ns: int = SECOND, name: str = "producer_byte_rate") -> Limit:
    return Limit(name, ETL, TokenBucket(rate, burst_ns))


# ---- a frame under way


def test_a_frame_is_charged_as_it_passes_and_the_rest_is_reserved() -> None:
    limit = limit_of()
    decision, passage = admit_part({limit: 80}, 80, 20, 0)
    assert passage is not None
    assert (decision, passage.left_bytes, limit.reserved) == (ADMITTED, 60, 60)
    assert (limit.algorithm.headroom(0), limit.headroom(0)) == (80, 20)
    passage.passed(50, 0)
    assert (limit.algorithm.headroom(0), limit.headroom(0), passage.left_bytes > 0) == (30, 20, True)
    passage.passed(10, 0)
    assert (limit.algorithm.headroom(0), limit.reserved, passage.left_bytes) == (20, 0, 0)
    passage.end()
    assert (limit.algorithm.headroom(0), limit.reserved) == (20, 0)


def test_the_decision_is_that_of_a_whole_frame() -> None:
    a, b = limit_of(name="a"), limit_of(10, name="b")
    for each in (charge_all({limit_of(): 150}, 0), admit_part({limit_of(): 150}, 150, 1, 0)[0]):
        assert (each.admitted, each.wait_ns) == (True, SECOND // 2)
    decision, _ = admit_part({a: 150, b: 30}, 150, 1, 0)
    assert decision == Decision(True, 2 * SECOND, b, (a, b))
    assert admit_part({a: 1, b: 1}, 1, 1, 0) == (Decision(False, 2 * SECOND, b, (a, b)), None)
    decision, passage = admit_part({limit_of(): 150}, 150, 150, 0)
    assert decision.wait_ns == SECOND // 2
    assert passage is not None
    assert not passage.left_bytes


def test_limits_of_requests_earn_no_bytes() -> None:
    amounts = {limit_of(100): 1_000, limit_of(5, name="request_rate"): 1, limit_of(9, name="bytes_in_rate"): 0}
    assert earned(amounts, 2_000, 3 * SECOND) == [600], "of 2,000 bytes that are charged as 1,000"


def test_what_is_reserved_holds_others_as_a_charge_does() -> None:
    limit = limit_of()
    _, passage = admit_part({limit: 150}, 150, 10, 0)
    assert passage is not None
    limits = limit_set((limit,))
    for each in (limits.check(0), limits.admit(1, 0), limits.charge_control(1, 0)):
        assert (each.wait_ns, each.limit) == (SECOND // 2, limit)
    assert limits.spend(1, 0) == spend_all([(limit, 0)], (1,), 0) == -1
    assert (limit.debt_ns(10 * SECOND), limit.headroom(10 * SECOND)) == (4 * SECOND // 10, 0), "more than the burst"
    passage.end()
    assert (limit.debt_ns(0), limits.headroom(0)) == (0, 90)


def test_topics_late_in_a_frame_are_reserved_when_they_are_found() -> None:
    size, topic = limit_of(1000, name="size"), limit_of(1000, name="topic")
    passage = Passage({size: 100}, 100)
    passage.passed(40, 0)
    passage.add({topic: 30, size: 0})
    assert (size.reserved, topic.reserved) == (60, 30)
    passage.passed(30, 0)
    assert (topic.algorithm.headroom(0), topic.reserved) == (985, 15)
    passage.passed(1000, 0)
    assert [limit.algorithm.headroom(0) for limit in (size, topic)] == [900, 970]


def test_a_part_whose_bytes_have_passed_is_charged_without_bytes() -> None:
    limit = limit_of()
    passage = Passage({limit: 60}, 60)
    for most, left in ((20, 40), (100, 0), (5, 0)):
        passage.charge(limit, most, 0)
        assert (limit.reserved, limit.algorithm.headroom(0)) == (left, 40 + left)
    passage.passed(60, 0)
    assert (limit.reserved, limit.algorithm.headroom(0)) == (0, 40)


def test_new_producer_ids_leave_no_debt_for_their_client() -> None:
    quota = ProducerIdQuota(2, window_ns=SECOND, window_count=4)
    limit = Limit("producer_ids_rate", ETL, quota)
    assert admit_part({limit: 5}, 100, 10, 0)[0] is ADMITTED
    assert not admit_all({limit: 1}, 0).admitted


def test_what_has_not_arrived_must_fit_beside_a_batch_and_is_not_charged() -> None:
    bytes_limit, number = limit_of(), limit_of(10, name="request_rate")
    charges = [(bytes_limit, 0), (number, 1)]
    rest = Passage({bytes_limit: 41}, 41)
    assert spend_all(charges, (60, 3), 0) == -1
    rest.end()
    Passage({bytes_limit: 30}, 30)
    assert spend_all(charges, (60, 3), 0) == 10
    assert [limit.algorithm.headroom(0) for limit in (bytes_limit, number)] == [40, 7]
    assert limit_set((bytes_limit,)).spend(11, 0) == -1
    assert limit_set((bytes_limit,)).spend(10, 0) == 0


@given(
    st.integers(1, 1_000),
    st.lists(st.integers(0, 5_000), min_size=1, max_size=4),
    st.lists(st.integers(0, 400), max_size=20),
    st.booleans(),
)
def test_the_sums_are_exact(size: int, amounts: list[int], parts: list[int], is_whole: bool) -> None:
    """Each limit is charged its amount to the unit, and never more before the last byte than its part."""
    limits = [limit_of(1, 10_000 * SECOND, f"limit {number}") for number in range(len(amounts))]
    passage = Passage(dict(zip(limits, amounts, strict=True)), size)
    passed = 0
    for part in [*parts, *([size] if is_whole else [])]:
        passage.passed(part, 0)
        passed = min(size, passed + part)
        for limit, amount in zip(limits, amounts, strict=True):
            charged = 10_000 - limit.algorithm.headroom(0)
            assert charged * size <= amount * passed
            assert charged + limit.reserved == amount
    assert (passage.left_bytes == 0) == (passed == size)
    passage.end()
    for limit, amount in zip(limits, amounts, strict=True):
        assert limit.reserved == 0
        if passed == size:
            assert 10_000 - limit.algorithm.headroom(0) == amount


# ---- in any time


@dataclass
class Under:
    """A limit, and what has passed it: (time, units)."""

    limit: Limit
    passed: list[tuple[int, int]] = field(default_factory=list)
    largest: int = 0

    def check(self) -> None:
        """rate * T + burst + one request, in any T."""
        rate = self.limit.algorithm.rate
        beyond = last_ns = 0
        for at_ns, amount in self.passed:
            beyond = max(0, beyond - int(rate) * (at_ns - last_ns)) + amount * SECOND
            last_ns = at_ns
            assert beyond <= int(rate) * self.limit.algorithm.burst_ns + self.largest * SECOND


@dataclass
class Frame:
    """A frame of a connection: which limits, its bytes, and its passage after it was admitted."""

    unders: Sequence[Under]
    left: int
    passage: Passage | None = None

    def goes_on(self, arrived: int, now_ns: int) -> None:
        """Bytes arrive; if it has stalled before, it asks again for all that is left."""
        arrived = min(arrived, self.left)
        if self.passage is None:
            amounts = {under.limit: self.left for under in self.unders}
            for under in self.unders:
                under.largest = max(under.largest, self.left)
            _, self.passage = admit_part(amounts, self.left, arrived, now_ns)
            if self.passage is None:
                return
        else:
            self.passage.passed(arrived, now_ns)
        self.left -= arrived
        for under in self.unders:
            under.passed.append((now_ns, arrived))

    def stalls(self) -> None:
        if self.passage is not None:
            self.passage.end()
            self.passage = None


terms = st.tuples(st.integers(1, 1_000), st.sampled_from([0, SECOND // 10, SECOND, 3 * SECOND]))
events = st.lists(
    st.tuples(
        st.sampled_from(["more", "more", "more", "stall", "hang up", "whole", "batch"]),
        st.integers(0, 5),
        st.one_of(st.just(0), st.integers(0, SECOND), st.integers(0, 10 * SECOND)),
        st.one_of(st.integers(0, 300), st.integers(0, 5_000)),
    ),
    max_size=80,
)


@given(st.lists(terms, min_size=1, max_size=3), st.lists(st.integers(1, 7), min_size=6, max_size=6), events)
def test_no_more_passes_in_any_time_than_the_rate_the_burst_and_one_request(
    rates: list[tuple[int, int]], masks: list[int], schedule: list[tuple[str, int, int, int]]
) -> None:
    """With any number of limits, while frames come in parts, stall, ask again, end in the middle and come whole."""
    unders = [Under(limit_of(*each, f"limit {number}")) for number, each in enumerate(rates)]
    own = [[under for bit, under in enumerate(unders) if mask >> bit & 1] or unders[:1] for mask in masks]
    frames: dict[int, Frame] = {}
    now_ns = 0
    for do, which, elapsed_ns, size in schedule:
        now_ns += elapsed_ns
        mine = own[which]
        if do == "more":
            frame = frames.setdefault(which, Frame(mine, 3 * size + 1))
            frame.goes_on(size, now_ns)
            if not frame.left:
                assert frame.passage is not None
                assert not frame.passage.left_bytes
                del frames[which]
        elif do in {"stall", "hang up"} and which in frames:
            frames[which].stalls()
            if do == "hang up":
                del frames[which]
        elif do in {"whole", "batch"} and which not in frames:
            amounts = {under.limit: size for under in mine}
            if do == "whole":
                is_passed = admit_all(amounts, now_ns).admitted
            else:
                is_passed = spend_all([(limit, 0) for limit in amounts], (size,), now_ns) >= 0
            for under in mine:
                under.largest = max(under.largest, size)
                if is_passed:
                    under.passed.append((now_ns, size))
    for frame in frames.values():
        frame.stalls()
    for under in unders:
        under.check()
        assert under.limit.reserved == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_released_reservation_leaves_no_trace(algorithm: str) -> None:
    limit, untouched = (
        Limit(PRODUCER_BYTE_RATE, ETL, AlgorithmSettings().make(PRODUCER_BYTE_RATE, 100, algorithm, None)) for _ in "ab"
    )
    for each in (limit, untouched):
        each.algorithm.record(50, 0)
    Passage({limit: 10**9}, 10**9).end()
    for now_ns in (0, SECOND, 20 * SECOND):
        assert (limit.debt_ns(now_ns), limit.headroom(now_ns)) == (
            untouched.debt_ns(now_ns),
            untouched.headroom(now_ns),
        )
