"""Limits that are set, changed and removed while frames are held and responses are owed."""

import pytest

from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce_records
from tests.proxy.streams.pair import Pair, World
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
    assert (pair.sent(), pair.world.queues) == (ROWS[1:3], [])


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
