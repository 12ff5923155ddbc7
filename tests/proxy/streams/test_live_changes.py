"""Limits that are set, changed and removed while frames are held and responses are owed."""

from dataclasses import replace

import pytest

from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import (
    batch,
    produce_records,
)
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import replace_quotas, wait

ROWS = [produce_records(number, {"rows": [batch(1, 1_000)]}) for number in range(5)]
PRODUCE = "client-id=etl,producer_byte_rate={}"
#: A limit with a debt of many seconds, and the same with another rate.
SLOW = [
    PRODUCE,
    "client-id=<default>,producer_byte_rate={}",
    "user=ANONYMOUS,client-id=etl,producer_byte_rate={}",
    "total=true,producer_byte_rate={}",
    "client-id=etl,request_rate={}",
    "topic=rows,bytes_in_rate={}",
    "topic=<default>,messages_in_rate={}",
    "total=true,bytes_in_rate={}",
]


def slowest(spec: str) -> float:
    return 0.01 if "request" in spec else 1


def held(spec: str) -> Pair:
    """A client whose second frame is held."""
    pair = Pair(World([without_burst(spec)]))
    pair.client_sends(ROWS[1], ROWS[2])
    assert pair.is_held
    return pair


@pytest.mark.parametrize("spec", SLOW)
def test_a_removed_limit_releases_at_once(spec: str) -> None:
    pair = held(spec.format(slowest(spec)))
    replace_quotas(pair.world, [])
    assert pair.sent() == ROWS[1:3]
    assert pair.world.queues == []


@pytest.mark.parametrize("spec", SLOW)
def test_debt_of_a_raised_limit_is_paid_at_the_new_rate(spec: str) -> None:
    pair = held(spec.format(slowest(spec)))
    world = pair.world
    [(key, before)] = world.debts().items()
    rate = 10 if "request" in spec or "messages" in spec else 100_000
    replace_quotas(world, [without_burst(spec.format(rate))])
    assert pair.is_held
    [(key_now, now)] = world.debts().items()
    assert key_now == key
    assert now == pytest.approx(before * slowest(spec) / rate, rel=1e-6)
    wait(world, now)
    assert pair.sent() == ROWS[1:3]


def test_changes_of_other_limits_keep_the_order() -> None:
    limit = without_burst(PRODUCE.format("1MB"))
    world = World([limit])
    Pair(world).client_sends(ROWS[0])
    pairs = [Pair(world) for _ in range(4)]
    for number, pair in enumerate(pairs):
        pair.client_sends(ROWS[number])
    for _ in range(3):
        replace_quotas(world, [limit, parse_spec("client-id=web,producer_byte_rate=7")])
        replace_quotas(world, [limit])
        assert all(pair.is_held for pair in pairs)
    for number in range(4):
        wait(world, 0.0011)
        assert [pair.is_held for pair in pairs] == [each > number for each in range(4)]


def test_a_limit_of_bytes_that_is_set_while_the_head_of_a_frame_waits() -> None:
    """It counts what is read from then on."""
    limit = without_burst(PRODUCE.format("1MB"))
    world = World([limit])
    pair = Pair(world)
    long = produce_records(2, {"rows": [batch(1, 30_000)]})
    pair.client_sends(ROWS[1])
    pair.client_sends(long)
    head_size = len(pair.requests.backlog.kept)
    assert head_size < 1_000
    replace_quotas(world, [limit, without_burst("total,producer_byte_rate=1")])
    wait(world, 1)
    assert pair.sent() == [ROWS[1], long]
    assert world.debts()["total", "producer_byte_rate"] == len(long) - head_size
    assert world.throttled()["etl", "producer_byte_rate", "pause"] == 1, "it goes on with its hold"


@pytest.mark.parametrize("cuts", [[], [90_000]])
def test_limits_that_come_and_go_while_a_request_passes(cuts: list[int]) -> None:
    any_topic = parse_spec("topic=<default>,bytes_in_rate=1GB")
    world = World([any_topic])
    pair = Pair(world, cuts=cuts)
    long = produce_records(1, {"early": [batch(1, 70_000)], "late": [batch(3, 1_000)], "last": [batch(1, 300_000)]})
    for number, quotas in enumerate(([], [any_topic])):
        pair.client_sends(long[:90_000])
        assert len(pair.requests.backlog.kept) < 100
        replace_quotas(world, quotas)
        pair.client_sends(long[90_000:], ROWS[number])
        assert pair.sent()[2 * number :] == [long, ROWS[number]]


def test_a_storm_of_changes_while_many_are_held() -> None:
    limit = without_burst(PRODUCE.format("1MB"))
    world = World([limit])
    sent = {
        number: [produce_records(each, {f"t{number}": [batch(1, 500)]}) for each in range(8)] for number in range(6)
    }
    pairs = [Pair(world) for _ in sent]
    for pair, frames in zip(pairs, sent.values(), strict=True):
        pair.client_sends(*frames)
    for step in range(40):
        quotas = [replace(limit, limits={"producer_byte_rate": 1_000_000 + step})]
        quotas += [parse_spec("topic=<default>,bytes_in_rate=2MB")] if step % 3 else []
        quotas += [parse_spec("total=true,producer_byte_rate=1MB")] if step % 4 else []
        replace_quotas(world, quotas)
        wait(world, 0.0001)
    assert any(pair.is_held for pair in pairs)
    pass_holds(world)
    assert [pair.sent() for pair in pairs] == list(sent.values())
    assert all(not each.waiters.queued for each in world.registry.limits_in_use())
