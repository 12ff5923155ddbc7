"""Produce requests longer than one read that are held in parts, or never arrive whole."""

from __future__ import annotations

import pytest

from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import produce
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
    assert pair.hold is not None, "the first part has passed"
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
    assert pair.hold is not None
    pair.hold.limit.algorithm.record(100_000_000, world.clock())
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
            hold.waiter.release(hold)


# ---- counts


def test_a_request_near_several_limits_counts_once() -> None:
    world = World([parse_spec(f"{entity},{RATE}=100000") for entity in ("client-id=etl", "total=true")])
    pair = Pair(world)
    pair.connection.identity.back_off.round_trip_ns = 200_000_000
    pair.client_sends(produce(1, 95_000))
    assert world.throttled() == {("etl", RATE, "notify"): 1}
    assert world.metrics.entities.throttle_reasons["soft"] == 1
