"""Produce requests longer than one read that are held in parts, or never arrive whole."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.streams.steps import HOLD
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds, pass_one_hold

RATE = "producer_byte_rate"


def limit_of(rate: int, entity: str = "client-id=etl") -> QuotaEntry:
    return without_burst(f"{entity},{RATE}={rate}")


# ---- limits that change while a part of a request is held


@pytest.mark.parametrize(
    ("after", "most_seconds"),
    [([], 0.0), ([limit_of(1_000_000)], 1.0), ([limit_of(1_000_000, "user=ANONYMOUS")], 1.0)],
)
def test_the_rest_of_a_held_request_waits_for_the_limits_of_now(after: list[QuotaEntry], most_seconds: float) -> None:
    world = World([limit_of(10_000)])
    pair = Pair(world)
    sent = produce(1, 10_000) + produce(2, 1_000_000)
    pair.client_sends(sent)
    pass_one_hold(world)
    assert pair.held is not None, "the first part has passed"
    world.registry.replace(after, world.clock())
    decide_again(world)
    began_ns = world.clock()
    pass_holds(world)
    assert pair.to_broker == sent
    assert pair.connection.turn is None
    assert (world.clock() - began_ns) / 1e9 <= most_seconds


def test_the_rest_of_a_held_request_waits_for_no_forgotten_debt() -> None:
    """The debt of a dry run or of the time without enforcement is forgotten when enforcement begins."""
    world = World([limit_of(1_000_000)])
    pair = Pair(world)
    sent = produce(1, 10_000) + produce(2, 1_000_000)
    pair.client_sends(sent)
    pass_one_hold(world)
    assert pair.held is not None
    pair.held.limit.algorithm.record(100_000_000, world.clock())
    world.registry.forget_debts(world.clock(), most=100)
    decide_again(world)
    began_ns = world.clock()
    pass_holds(world)
    assert pair.to_broker == sent
    assert world.clock() - began_ns < 2_000_000_000


def decide_again(world: World) -> None:
    """What the shell does after a change of limits."""
    for limit in list(world.holds.limits):
        for hold in world.holds.take_all(limit):
            assert hold.waiter is not None
            hold.waiter.release(hold)


# ---- records that are charged before they arrive


@cache
def long_records(size: int = 5_000_000) -> bytes:
    return produce_records(1, {"rows": [batch(size // 5_000, size)]})


RECORD_LIMITS = (
    "topic=rows,bytes_in_rate=1MB",
    "resource-group=g,topic=rows,bytes_in_rate=1MB",
    "resource-group=g,client-id=etl,bytes_in_rate=1MB",
    "total=true,bytes_in_rate=1MB",
    "topic=rows,messages_in_rate=200",
)


@pytest.mark.parametrize("spec", RECORD_LIMITS)
@pytest.mark.parametrize("is_known", [False, True])
def test_records_that_never_arrive_are_refunded(spec: str, is_known: bool) -> None:
    """Also where an earlier request with the same topic makes it pass in a batch (`is_known`)."""
    world = World([parse_spec(f"{spec},burst_seconds=10") if is_known else without_burst(spec)])
    pair = Pair(world)
    if is_known:
        for number in (1, 2):
            pair.client_sends(produce_records(number, {"rows": [batch(1, 100)]}))
        world.clock.pass_seconds(1)
    before = world.levels()
    pair.client_sends(long_records(1_000_000)[:70_000])
    pair.hang_up()
    ((debt_ns, room),) = world.levels().values()
    arrived_seconds = debt_ns / 1e9
    if is_known:
        rate = 200 if "messages" in spec else 1_000_000
        ((_, room_before),) = before.values()
        arrived_seconds = (room_before - room) / rate
    assert arrived_seconds == pytest.approx(0.07, abs=0.006)


@pytest.mark.parametrize("spec", RECORD_LIMITS)
def test_a_request_does_not_wait_for_records_that_have_not_arrived(spec: str) -> None:
    world = World([without_burst(spec)])
    first, second = Pair(world), Pair(world)
    first.client_sends(long_records()[:70_000])
    began_ns = world.clock()
    second.client_sends(produce_records(2, {"rows": [batch(1, 100)]}))
    assert second.requests.stopped == HOLD
    pass_holds(world)
    assert len(second.sent()) == 1
    assert world.clock() - began_ns < 80_000_000
    first.hang_up()
    second.hang_up()
    assert world.holds._overdrafts == {}


@pytest.mark.parametrize("spec", RECORD_LIMITS)
def test_waiters_do_not_wait_for_what_is_announced_after_them(spec: str) -> None:
    """The second partition of the first request is announced when another request waits already."""
    world = World([without_burst(spec)])
    debtor, first, second = Pair(world), Pair(world), Pair(world)
    debtor.client_sends(produce_records(1, {"rows": [batch(1, 1_000)]}))
    sent = produce_records(1, {"rows": [batch(14, 70_000), batch(1_000, 5_000_000)]})
    first.client_sends(sent[:68_000])
    second.client_sends(produce_records(2, {"rows": [batch(15, 75_000)]}))
    began_ns = world.clock()
    while first.held is not None:
        pass_one_hold(world)
    assert second.held is not None
    first.client_sends(sent[68_000:72_000])
    pass_holds(world)
    assert len(second.sent()) == 1
    assert world.clock() - began_ns < 100_000_000


SEVERAL: dict[frames.Topic, list[bytes | None]] = {
    "rows": [batch(10, 3_000), batch(7, 500) + batch(70, 4_001)],
    "cols": [None, batch(1, 61), batch(9, 2_000) + b"no batch"],
}


@given(
    st.integers(9, 12),
    st.lists(st.tuples(st.integers(1, 4_000), st.booleans()), max_size=8),
    st.booleans(),
)
def test_each_record_is_charged_once_however_often_it_is_refunded(
    version: int, pieces: list[tuple[int, bool]], is_late: bool
) -> None:
    """Refunds at any place change nothing of what a whole request is charged, and a part never costs more."""
    specs = [
        "topic=rows,bytes_in_rate=1000",
        "topic=cols,messages_in_rate=10",
        "total,bytes_in_rate=1000",
        "total,messages_in_rate=10",
    ]
    limits = [without_burst(spec) for spec in specs]
    records = SEVERAL | ({"late": [batch(5, 70_000), batch(3, 900)]} if is_late else {})
    whole, cut = World(limits), World(limits)
    sent = produce_records(1, records, version)
    Pair(whole).client_sends(sent)
    pair = Pair(cut)
    at = 66_000 if is_late else 0
    pair.client_sends(sent[:at])
    for size, is_refunded in pieces:
        pair.client_sends(sent[at : at + size])
        at += size
        if is_refunded:
            pair.request_stream.refund_rest(cut.clock())
            assert all(debt <= whole.debts()[key] for key, debt in cut.debts().items())
    pair.client_sends(sent[at:])
    assert pair.to_broker == sent
    assert cut.debts() == whole.debts()


# ---- counts


def test_a_request_near_several_limits_counts_once() -> None:
    world = World([parse_spec(f"{entity},{RATE}=100000") for entity in ("client-id=etl", "total=true")])
    pair = Pair(world)
    pair.client_sends(produce(1, 99_000))
    assert world.throttled() == {("etl", RATE, "notify"): 1}
    assert world.metrics.entities.throttle_reasons["soft"] == 1


def test_all_holds_of_a_request_count_together() -> None:
    world = World([limit_of(100_000)])
    pair = Pair(world)
    pair.client_sends(produce(1, 1_000_000))
    for number in range(2, 5):
        began_ns = world.clock()
        counted = held_seconds(world)
        pair.client_sends(produce(number, 1_000_000))
        pass_holds(world)
        assert held_seconds(world) - counted == pytest.approx((world.clock() - began_ns) / 1e9)
        assert world.throttled() == {("etl", RATE, "notify"): 1, ("etl", RATE, "pause"): number - 1}


def test_the_holds_of_a_request_that_never_arrives_whole_count() -> None:
    world = World([limit_of(100_000)])
    pair = Pair(world)
    pair.client_sends(produce(1, 100_000))
    began_ns = world.clock()
    pair.client_sends(produce(2, 1_000_000)[:700_000])
    pass_holds(world)
    pair.hang_up()
    assert world.throttled()["etl", RATE, "pause"] == 1
    assert held_seconds(world) == pytest.approx((world.clock() - began_ns) / 1e9)


def held_seconds(world: World) -> float:
    histogram = world.metrics.entities.of("ANONYMOUS", "etl").throttles.get((RATE, "pause"))
    return 0.0 if histogram is None else histogram.sum_seconds
