"""Exempt clients pass while others are held by the same limit, and are not charged."""

import pytest

from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce_records, produced
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import holder, wait

ROWS = [produce_records(number, {"rows": [batch(1, 1_000)]}) for number in range(6)]
FREE = [produce_records(number, {"rows": [batch(1, 1_000)]}, client_id="free") for number in range(6)]


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        ("total,producer_byte_rate=10000,exempt-client-id=free", "producer_byte_rate"),
        ("total,bytes_in_rate=10000,exempt-client-id=fr*", "bytes_in_rate"),
        ("topic=rows,bytes_in_rate=10000,exempt-client-id=free", "bytes_in_rate"),
    ],
)
def test_an_exempt_client_passes_those_that_wait(spec: str, limit: str) -> None:
    world = World([without_burst(spec)])
    pair, free = Pair(world), Pair(world)
    pair.client_sends(ROWS[0], ROWS[1])
    before = world.debts()
    [(key, debt_seconds)] = before.items()
    assert holder(pair) == key
    assert key[1] == limit
    for number in range(5):  # alone, and several at once
        free.client_sends(*FREE[: number + 1])
        free.broker_sends(*(produced(each) for each in range(number + 1)))
    assert len(free.sent()) == 15
    assert free.received()[-5:] == [produced(each) for each in range(5)], "without a notice"
    assert world.debts() == before
    wait(world, debt_seconds)
    assert pair.sent() == ROWS[:2]
