"""Frames that two limits hold one after the other: they are charged by the first, wait for the second, and pass or end.

etl    1 MB/s and a burst of one second for the client, which owes 20 ms after a first request
total  100 MB/s without a burst, which another client brings into debt while etl waits for its own limit
"""

import pytest

from proxy.streams.memory import HEAD_READ_SIZE
from quotas.admission.limit import Limit
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import holder, replace_quotas, wait

OWN = ("client-id:etl", "producer_byte_rate")
TOTAL = ("total", "producer_byte_rate")
QUOTAS = [parse_spec("client-id=etl,producer_byte_rate=1MB"), without_burst("total=true,producer_byte_rate=100MB")]
SECOND = produce(2, 100)
SIZE = len(SECOND) - 4


def limit_of(world: World, key: tuple[str, str]) -> Limit:
    return next(each for each in world.registry.limits_in_use() if (str(each.entity), each.name) == key)


def long_frame(size: int, client_id: str = "etl") -> bytes:
    """A request that is charged so many bytes."""
    return produce(1, size - (len(produce(1, 0, client_id=client_id)) - 4), client_id=client_id)


def at_the_total(second: bytes = SECOND) -> Pair:
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
    read = min(len(second), HEAD_READ_SIZE) - 4  # no more is read close to a limit
    assert world.debts() == {OWN: read / 1_000_000, TOTAL: 0.006}
    assert limit_of(world, TOTAL).waiters.queued == int.from_bytes(second[:4], "big")
    return pair


def test_a_frame_is_charged_once_by_each() -> None:
    pair = at_the_total()
    world = pair.world
    wait(world, 0.006)
    assert pair.sent()[1:] == [SECOND]
    assert limit_of(world, OWN).headroom(world.clock()) == 6_000 - SIZE
    assert world.debts() == {TOTAL: SIZE / 100_000_000}
    assert limit_of(world, OWN).algorithm.passed == 1_020_000 + SIZE
    assert limit_of(world, TOTAL).algorithm.passed == 1_020_000 + 1_500_000 + SIZE


def test_a_frame_that_never_passes_was_charged_for_one_read() -> None:
    """However long it says it is: one that is queued after it waits for no byte that has not arrived."""
    pair = at_the_total((30_000_000).to_bytes(4, "big") + SECOND[4:])
    world = pair.world
    other = Pair(world)
    other.client_sends(produce(3))
    assert holder(other) == OWN
    pair.hang_up()
    assert limit_of(world, TOTAL).waiters.waiting == 0
    assert world.debts()[OWN] == SIZE / 1_000_000
    wait(world, SIZE / 1_000_000)
    assert holder(other) == TOTAL
    wait(world, 0.006)
    assert other.sent() == [produce(3)]
    assert limit_of(world, OWN).algorithm.passed == 1_020_000 + 2 * SIZE


def test_a_frame_that_waits_at_the_total_keeps_its_own_limit_from_no_other() -> None:
    pair = at_the_total()
    world = pair.world
    other = Pair(world)
    other.client_sends(produce(3))
    assert holder(other) == OWN
    wait(world, 0.001)
    assert holder(other) == TOTAL
    wait(world, 0.005)
    assert pair.sent()[1:] == [SECOND]
    wait(world, 0.001)
    assert other.sent() == [produce(3)]


def test_the_own_limit_is_removed_while_a_frame_waits_at_the_total() -> None:
    pair = at_the_total()
    world = pair.world
    replace_quotas(world, QUOTAS[1:])
    assert holder(pair) == TOTAL
    wait(world, 0.006)
    assert pair.sent()[1:] == [SECOND]
    replace_quotas(world, QUOTAS)
    assert OWN not in world.debts()


def test_the_total_is_removed_while_a_frame_waits_there() -> None:
    pair = at_the_total()
    own = limit_of(pair.world, OWN)
    replace_quotas(pair.world, QUOTAS[:1])
    assert pair.sent()[1:] == [SECOND]
    assert own.algorithm.passed == 1_020_000 + SIZE


@pytest.mark.parametrize("gap", [0, 1])
def test_a_limit_of_topics_that_is_set_while_a_frame_waits_counts_from_the_next_one_on(gap: int) -> None:
    """Only the head of it has been read, and not for its topics."""
    sent = produce_records(3, {"rows": [batch(1, 90_000)]})
    pair = at_the_total(sent[:200])
    world = pair.world
    replace_quotas(world, [*QUOTAS, without_burst("topic=rows,bytes_in_rate=1MB")])
    assert holder(pair) == TOTAL
    wait(world, 0.006 + gap)
    pair.client_sends(sent[200:], produce_records(4, {"rows": [batch(1, 700)]}))
    pass_holds(world)
    assert pair.sent()[1:] == [sent, produce_records(4, {"rows": [batch(1, 700)]})]
    assert limit_of(world, ("topic:rows", "bytes_in_rate")).algorithm.passed == 700
