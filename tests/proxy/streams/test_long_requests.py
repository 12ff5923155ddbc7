"""Produce requests longer than one read that are held in parts, or never arrive whole."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.algorithms.token_bucket import TokenBucket
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.streams.pair import Pair, World, lapse, pass_holds
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
    assert pair.connection.frame is None
    assert (world.clock() - began_ns) / 1e9 <= most_seconds
    assert world.reserved() == {}


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
    """A request that stalled and asks for its rest, and its bytes."""
    pair, sent = Pair(world), produce(1, 1_000_000)
    pair.client_sends(sent[:500_000])
    lapse(world)
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
def test_each_record_is_charged_once_however_often_a_request_lapses(
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
    with charges() as of_whole:
        Pair(World(limits)).client_sends(sent)
    cut = World(limits)
    pair = Pair(cut)
    at = 66_000 if is_late else 0
    with charges() as of_cut:
        pair.client_sends(sent[:at])
        for size, is_stall in pieces:
            pair.client_sends(sent[at : at + size])
            at += size
            if is_stall:
                lapse(cut)
                assert sum(of_cut.values()) <= sum(of_whole.values())
        pair.client_sends(sent[at:])
        pass_holds(cut)
    assert pair.to_broker == sent
    assert sorted(of_cut.values()) == sorted(of_whole.values())
    assert cut.reserved() == {}


@contextmanager
def charges() -> Iterator[Counter[TokenBucket]]:
    """What each bucket is charged meanwhile."""
    charged: Counter[TokenBucket] = Counter()
    record, spend = TokenBucket.record, TokenBucket.spend

    def recorded(bucket: TokenBucket, amount: int, now_ns: int) -> int:
        charged[bucket] += amount
        return record(bucket, amount, now_ns)

    def spent(bucket: TokenBucket, amount: int, beside: int, now_ns: int) -> int:
        left = spend(bucket, amount, beside, now_ns)
        charged[bucket] += amount if left >= 0 else 0
        return left

    with patch.object(TokenBucket, "record", recorded), patch.object(TokenBucket, "spend", spent):
        yield charged


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
