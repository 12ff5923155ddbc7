"""What the limits of a read say, one after the other: see `quotas.admission.frame`."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from quotas.admission.frame import Verdict, decide, in_order, next_number, room_for, worst_debt
from quotas.admission.limit import Limit
from quotas.algorithms.algorithm import ALGORITHMS, UNLIMITED, AlgorithmSettings
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import TOTAL, AnyEntity, Entity, EntityKind, Named
from quotas.limit_kinds import BYTES_IN_RATE, PRODUCER_BYTE_RATE, REQUEST_RATE

SECOND = 1_000_000_000
ETL = Entity(client_id="etl")
GROUP = Named(EntityKind.RESOURCE_GROUP, "jobs")
TOPIC = Named(EntityKind.TOPIC, "orders")


def limit_of(entity: AnyEntity = ETL, rate: int = 100, burst_ns: int = SECOND, name: str = PRODUCER_BYTE_RATE) -> Limit:
    return Limit(name, entity, TokenBucket(rate, burst_ns))


def overdrawn(limit: Limit, by: int, amount: int = 200) -> Limit:
    """This limit, taken into debt by this frame: for a second, unless it is told otherwise."""
    limit.algorithm.record(amount, 0)
    limit.last_charged_by = by
    return limit


# ---- the order


def test_own_limits_come_before_shared_ones() -> None:
    total, topic, group, own, requests = (
        limit_of(TOTAL),
        limit_of(TOPIC, name=BYTES_IN_RATE),
        limit_of(GROUP),
        limit_of(ETL),
        limit_of(Entity("alice"), name=REQUEST_RATE),
    )
    amounts = {total: 1, topic: 2, own: 3, group: 4, requests: 5}
    assert in_order(amounts) == [(own, 3), (requests, 5), (group, 4), (topic, 2), (total, 1)]
    assert in_order({}) == []


# ---- deciding


def test_a_limit_out_of_debt_lets_pass_whose_turn_it_is_and_no_one_else_while_others_wait() -> None:
    limit, shared = limit_of(ETL), limit_of(TOTAL)
    charges = [(limit, 1), (shared, 1)]
    limit.enqueue("early", 1)
    assert decide(charges, next_number(), None, 0) == Verdict(0, limit, 0)
    assert decide(charges, next_number(), limit, 0) == Verdict(2, None, 0)
    shared.enqueue("early", 1)
    assert decide(charges, next_number(), limit, 0) == Verdict(1, shared, 0), "a turn at one limit is none at another"
    overdrawn(limit, next_number())
    assert decide(charges, next_number(), limit, 0) == Verdict(0, limit, SECOND), "a turn is no way round a debt"


def test_the_number_of_a_frame_is_its_own() -> None:
    """0 is none: a limit that was never charged, or last by a request that is no frame."""
    assert 0 < next_number() < next_number()
    assert limit_of().last_charged_by == 0


entities = st.sampled_from([ETL, Entity("alice"), GROUP, TOPIC, TOTAL])
made = st.builds(
    lambda entity, algorithm, rate: Limit(
        BYTES_IN_RATE, entity, AlgorithmSettings().make(BYTES_IN_RATE, rate, algorithm, None)
    ),
    entities,
    st.sampled_from(ALGORITHMS),
    st.integers(1, 1_000),
)


@given(
    st.lists(st.tuples(made, st.integers(0, 500), st.integers(0, 500), st.booleans(), st.booleans()), max_size=6),
    st.integers(0, 5),
    st.integers(0, 12 * SECOND),
)
def test_a_verdict_is_that_of_the_first_limit_that_stops_it_and_changes_nothing(
    limits: list[tuple[Limit, int, int, bool, bool]], at: int, now_ns: int
) -> None:
    frame = next_number()
    turn = limits[at][0] if at < len(limits) else None
    for limit, _, spent, is_waited_for, is_own in limits:
        limit.algorithm.record(spent, 0)
        limit.last_charged_by = frame if is_own else 0
        if is_waited_for:
            limit.enqueue("early", 1)
    charges = in_order({limit: units for limit, units, _, _, _ in limits})
    assert [limit.rank for limit, _ in charges] == sorted(limit.rank for limit, _, _, _, _ in limits)

    def state() -> list[tuple[int, ...]]:
        algorithms = [limit.algorithm for limit, _ in charges]
        levels = [(each.debt_ns(now_ns), each.headroom(now_ns), each.last_ns, each.passed) for each in algorithms]
        return [*levels, *((limit.last_charged_by, limit.waiters.waiting) for limit, _ in charges)]

    before = state()
    verdict = decide(charges, frame, turn, now_ns)
    assert state() == before
    passed = 0
    for limit, _ in charges:
        if limit.last_charged_by != frame and (limit.debt_ns(now_ns) or (limit.waiters.waiting and limit is not turn)):
            assert verdict == (passed, limit, limit.debt_ns(now_ns))
            return
        passed += 1
    assert verdict == (passed, None, 0)


# ---- room and debts


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 700)), min_size=1, max_size=4), st.integers(1, 1_000))
def test_room_leaves_no_limit_in_debt(limits: list[tuple[int, int]], size: int) -> None:
    """Of more reads with the same charges for each byte."""
    charges = [(limit_of(rate=1_000), units) for units, _ in limits]
    for (limit, _), (_, spent) in zip(charges, limits, strict=True):
        limit.algorithm.record(spent, 0)
    room = room_for(charges, size, 0)
    if room == UNLIMITED:
        assert not any(units for _, units in charges)
        return
    shares = [(limit, Fraction(units, size)) for limit, units in charges]
    assert all(share * room <= limit.headroom(0) for limit, share in shares)
    assert any(share * (room + 1) > limit.headroom(0) for limit, share in shares)


def test_the_worst_debt_is_the_longest_and_that_of_waiters_counts_as_well() -> None:
    free, short, long, waited = limit_of(), overdrawn(limit_of(), 1, 150), overdrawn(limit_of(), 1), limit_of()
    waited.enqueue("early", 1)
    assert worst_debt([], 0) == worst_debt([free], 0) == (0, None)
    assert worst_debt([free, short, long, waited], 0) == (SECOND, long)
    assert worst_debt([free, waited], 0) == (0, waited)
    assert worst_debt([waited, short], SECOND // 2) == (0, waited)
