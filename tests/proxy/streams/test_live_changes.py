"""Limits that are set, changed and removed while frames are held and responses are owed."""

import pytest

from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import replace_quotas, wait

ROWS = [produce_records(number, {"rows": [batch(1, 1_000)]}) for number in range(5)]
LONG = produce_records(2, {"rows": [batch(1, 30_000)]})
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
        replace_quotas(world, [limit, parse_spec(f"client-id=web,producer_byte_rate={number + 7}")])
        assert all(each.is_held for each in pairs[: number + 1])
    for number in range(4):
        wait(world, 0.0011)
        assert [pair.is_held for pair in pairs] == [each > number for each in range(4)]


def test_a_limit_of_bytes_that_is_set_while_the_head_of_a_frame_waits() -> None:
    """It counts what is read from then on."""
    limit = without_burst(PRODUCE.format("1MB"))
    world = World([limit])
    pair = Pair(world)
    pair.client_sends(ROWS[1])
    pair.client_sends(LONG)
    head_size = len(pair.requests.backlog.kept)
    assert head_size < 1_000
    replace_quotas(world, [limit, without_burst("total,producer_byte_rate=1")])
    wait(world, 1)
    assert pair.sent() == [ROWS[1], LONG]
    assert world.debts()["total", "producer_byte_rate"] == len(LONG) - head_size
    assert world.throttled()["etl", "producer_byte_rate", "pause"] == 1, "it goes on with its hold"


def test_a_limit_of_topics_that_is_set_while_a_frame_waits_counts_from_the_next_one_on() -> None:
    """Only the head of it has been read, and not for its topics."""
    limit = without_burst(PRODUCE.format("1MB"))
    world = World([limit])
    pair = Pair(world)
    pair.client_sends(ROWS[1])
    pair.client_sends(LONG[:200])
    assert pair.is_held
    replace_quotas(world, [limit, without_burst("topic=rows,bytes_in_rate=1MB")])
    pair.client_sends(LONG[200:], ROWS[3])
    pass_holds(world)
    assert pair.sent() == [ROWS[1], LONG, ROWS[3]]
    assert world.passed()["topic:rows", "bytes_in_rate"] == 1_000
