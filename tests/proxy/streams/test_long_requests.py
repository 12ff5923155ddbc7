"""Produce requests longer than one read that are held in parts, or never arrive whole."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import decide_again

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
    pair, sent = held_in_its_middle(world)
    world.registry.replace(after, world.clock())
    decide_again(world)
    began_ns = world.clock()
    pass_holds(world)
    assert pair.to_broker == sent
    assert pair.request_stream.current is None
    assert (world.clock() - began_ns) / 1e9 <= most_seconds


def test_the_rest_of_a_held_request_waits_for_no_forgotten_debt() -> None:
    """The debt of a dry run or of the time without enforcement is forgotten when enforcement begins."""
    world = World([limit_of(100_000)])
    pair, sent = held_in_its_middle(world)
    assert pair.held is not None
    assert pair.held.limit is not None
    pair.held.limit.algorithm.record(100_000_000, world.clock())
    world.registry.forget_debts(world.clock(), most=100)
    decide_again(world)
    began_ns = world.clock()
    pass_holds(world)
    assert pair.to_broker == sent
    assert world.clock() - began_ns < 2_000_000_000


def held_in_its_middle(world: World) -> tuple[Pair, bytes]:
    """A request that stalled while another one took the limit into debt, and its bytes."""
    pair, other, sent = Pair(world), Pair(world), produce(1, 1_000_000)
    pair.client_sends(sent[:500_000])
    [debt] = world.debts().values()
    world.clock.pass_seconds(debt + 1)
    other.client_sends(produce(1, 900_000))
    pair.client_sends(sent[500_000:])
    assert pair.held is not None
    assert pair.to_broker == sent[:500_000]
    return pair, sent


# ---- records that are announced and do not arrive


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
def test_records_that_never_arrive_are_not_charged(spec: str, is_known: bool) -> None:
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


SEVERAL: dict[frames.Topic, list[bytes | None]] = {
    "rows": [batch(10, 3_000), batch(7, 500) + batch(70, 4_001)],
    "cols": [None, batch(1, 61), batch(9, 2_000) + b"no batch"],
}


@given(
    st.integers(9, 12),
    st.lists(st.tuples(st.integers(1, 4_000), st.booleans()), max_size=8),
    st.booleans(),
)
def test_each_record_is_charged_once_however_often_a_request_is_held(
    version: int, pieces: list[tuple[int, bool]], is_late: bool
) -> None:
    """At any place: what a whole request is charged, and a part never costs more."""
    specs = [
        "topic=rows,bytes_in_rate=1000",
        "topic=cols,messages_in_rate=10",
        "total,bytes_in_rate=1000",
        "total,messages_in_rate=10",
    ]
    limits = [without_burst(spec) for spec in specs]
    records = SEVERAL | ({"late": [batch(5, 70_000), batch(3, 900)]} if is_late else {})
    sent = produce_records(1, records, version)
    between = produce_records(2, {"rows": [batch(1, 61)], "cols": [batch(1, 61)]}, version)
    of_whole, of_between = charged(World(limits), sent), charged(World(limits), between)
    world = World(limits)
    pair, other = Pair(world), Pair(world)
    count = 0
    at = 66_000 if is_late else 0
    pair.client_sends(sent[:at])
    for size, takes_over in pieces:
        pair.client_sends(sent[at : at + size])
        at += size
        if takes_over:  # what follows of the request waits for the debt of this one
            other.client_sends(between)
            pass_holds(world)
            world.clock.pass_seconds(200)
            other.client_sends(between)
            count += 2
            assert all(
                passed - count * of_between.get(limit, 0) <= of_whole[limit]
                for limit, passed in passed_by(world).items()
            )
    pair.client_sends(sent[at:])
    pass_holds(world)
    assert pair.to_broker == sent
    assert other.to_broker == between * count
    assert passed_by(world) == {limit: units + count * of_between[limit] for limit, units in of_whole.items()}


def charged(world: World, request: bytes) -> dict[str, int]:
    """What each limit is charged for it."""
    Pair(world).client_sends(request)
    return passed_by(world)


def passed_by(world: World) -> dict[str, int]:
    return {repr(limit): limit.algorithm.passed for limit in world.registry.limits_in_use()}


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
