"""Frames that two limits hold one after the other: they reserve at the first, wait for the second, and pass or end.

etl    1 MB/s and a burst of one second for the client, which owes 20 ms after a first request
total  100 MB/s without a burst, which another client brings into debt while etl waits for its own limit
"""

import pytest

from quotas.admission.limit import Limit
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import holder, replace_quotas, wait

OWN = ("client-id:etl", "producer_byte_rate")
TOTAL = ("total", "producer_byte_rate")
QUOTAS = [parse_spec("client-id=etl,producer_byte_rate=1MB"), without_burst("total=true,producer_byte_rate=100MB")]
BURST = 1_000_000
SECOND = produce(2, 100)
SIZE = len(SECOND) - 4


def limit_of(world: World, key: tuple[str, str]) -> Limit:
    return next(each for each in world.registry.limits_in_use() if (str(each.entity), each.name) == key)


def long_frame(size: int, client_id: str = "etl") -> bytes:
    """A request that is charged so many bytes."""
    return produce(1, size - (len(produce(1, 0, client_id=client_id)) - 4), client_id=client_id)


def with_a_reservation(second: bytes = SECOND) -> Pair:
    """The client's second frame has had its turn at its own limit, and waits 6 ms for the total."""
    world = World(QUOTAS)
    pair = Pair(world)
    pair.client_sends(long_frame(1_020_000))
    pair.client_sends(second)
    assert holder(pair) == OWN
    wait(world, 0.011)
    Pair(world).client_sends(long_frame(1_500_000, "web"))
    wait(world, 0.009)
    assert holder(pair) == TOTAL
    reserved = min(BURST, int.from_bytes(second[:4], "big"))
    assert limit_of(world, OWN).reserved == reserved
    assert world.debts() == {OWN: reserved / 1_000_000, TOTAL: 0.006}
    return pair


def test_a_frame_is_charged_once() -> None:
    pair = with_a_reservation()
    world, own = pair.world, limit_of(pair.world, OWN)
    wait(world, 0.006)
    assert pair.sent()[1:] == [SECOND]
    assert own.headroom(world.clock()) == 6_000 - SIZE
    assert world.debts() == {TOTAL: SIZE / 100_000_000}
    assert own.reserved == 0


def test_a_frame_that_never_passes_releases_what_it_reserves_and_others() -> None:
    """A reservation of a second, for which a frame queued after it was to wait."""
    pair = with_a_reservation((30_000_000).to_bytes(4, "big") + SECOND[4:])
    world = pair.world
    other = Pair(world)
    other.client_sends(produce(3))
    wait(world, 0.005)
    assert holder(other) == OWN
    pair.hang_up()
    wait(world)
    wait(world, 0.001)
    assert other.sent() == [produce(3)]
    assert limit_of(world, OWN).reserved == 0


def test_a_limit_removed_under_a_reservation() -> None:
    pair = with_a_reservation()
    world, own = pair.world, limit_of(pair.world, OWN)
    replace_quotas(world, QUOTAS[1:])
    assert own.reserved == 0
    assert holder(pair) == TOTAL
    wait(world, 0.006)
    assert pair.sent()[1:] == [SECOND]
    replace_quotas(world, QUOTAS)
    assert OWN not in world.debts()


@pytest.mark.parametrize("gap", [0, 1])
def test_a_frame_with_a_reservation_needs_more_bytes(gap: int) -> None:
    """A limit of topics is set while a frame waits of which only the head has been read: it begins anew."""
    sent = produce_records(3, {"rows": [batch(1, 90_000)]})
    pair = with_a_reservation(sent[:200])
    world, own = pair.world, limit_of(pair.world, OWN)
    replace_quotas(world, [*QUOTAS, parse_spec("topic=rows,bytes_in_rate=1GB")])
    assert pair.connection.frame is None
    assert len(pair.sent()) == 1
    assert own.reserved == 0
    wait(world, 0.006 + gap)
    pair.client_sends(sent[200:])
    pass_holds(world)
    assert pair.sent()[1:] == [sent]
    assert own.reserved == 0
