"""`producer_ids_rate`: new producer ids of a user are counted per window, known ones cost nothing."""

import pytest

from proxy.config.config import EnforcementOptions
from quotas.parsing.parse import parse_spec
from tests.proxy.frames import batch, produce_records
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import CUTS, holder, wait

TWO = parse_spec("user=ANONYMOUS,producer_ids_rate=2")
WINDOW_SECONDS = 3_600


def of(number: int, *producer_ids: int, version: int = 9, acks: int = 1) -> bytes:
    """A request with a batch of each of these producers."""
    records = [batch(1, 100, producer_id=each) for each in producer_ids]
    return produce_records(number, {"rows": list(records)}, version, acks)


def counted(world: World) -> int:
    """How many of the two ids that are allowed are used up."""
    [limit] = world.registry.limits_in_use()
    return 2 - limit.algorithm.headroom(world.clock())


@pytest.mark.parametrize("cuts", CUTS)
def test_the_third_new_id_waits_and_a_known_one_never(cuts: list[int]) -> None:
    world = World([TWO])
    pair, other = Pair(world, cuts=cuts), Pair(world)
    pair.client_sends(*(of(number, each) for number, each in enumerate((7, 7, 8, 7, 8, 8))))
    assert len(pair.sent()) == 6
    assert counted(world) == 2
    pair.client_sends(of(9, 9))
    assert holder(pair) == ("user:ANONYMOUS", "producer_ids_rate")
    other.client_sends(*(of(number, 8) for number in range(3)))
    assert len(other.sent()) == 3, "the ids are the user's, whichever connection they come over"
    wait(world, WINDOW_SECONDS - 1)
    assert pair.is_held
    wait(world, 1)
    assert pair.sent()[6:] == [of(9, 9)]
    assert counted(world) == 1


def test_an_id_that_becomes_known_while_its_frame_waits() -> None:
    world = World([TWO])
    first, second = Pair(world), Pair(world)
    first.client_sends(of(1, 1, 2), of(2, 3))
    second.client_sends(of(2, 3))
    assert (first.is_held, second.is_held) == (True, True)
    wait(world, WINDOW_SECONDS)
    assert (first.is_held, second.is_held) == (False, False)
    assert counted(world) == 1, "the second of them brings nothing new"


def test_an_id_that_comes_late_in_a_long_request() -> None:
    """Else any number of ids would pass after the first 64 KiB."""
    pair = Pair(world := World([TWO]))
    records = [batch(1, 70_000, producer_id=1), *(batch(1, 100, producer_id=each) for each in (1, 2, 3))]
    long = produce_records(1, {"rows": records})
    pair.client_sends(long[:67_000])
    assert counted(world) == 1
    pair.client_sends(long[67_000:])
    assert pair.to_broker == long
    assert counted(world) == 2, "all of them, of which there are three"
    pair.client_sends(of(2, 1, 2, 3))
    assert pair.sent()[1:] == [of(2, 1, 2, 3)], "they are known"
    pair.client_sends(of(3, 4))
    assert pair.is_held
    wait(world, WINDOW_SECONDS)
    assert pair.sent()[2:] == [of(3, 4)]
    assert counted(world) == 1


def test_an_id_that_comes_late_waits_in_the_middle_of_its_request() -> None:
    world = World([TWO])
    pair, other = Pair(world), Pair(world)
    long = produce_records(1, {"rows": [batch(1, 70_000, producer_id=1), batch(1, 100, producer_id=2)]})
    pair.client_sends(long[:67_000])
    other.client_sends(of(1, 3))
    pair.client_sends(long[67_000:])
    assert holder(pair) == ("user:ANONYMOUS", "producer_ids_rate")
    assert len(pair.to_broker) == 67_000
    wait(world, WINDOW_SECONDS)
    assert pair.to_broker == long
    assert counted(world) == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_ids_of_a_request_that_never_arrives_whole_count(dry_run: bool) -> None:
    """They are known from then on, and would cost nothing later."""
    pair = Pair(world := World([TWO], enforcement=EnforcementOptions(dry_run=dry_run)))
    records = [batch(1, 70_000, producer_id=1), batch(1, 70_000, producer_id=2), batch(1, 70_000)]
    sent = produce_records(1, {"rows": records})
    pair.client_sends(sent[:67_000])
    assert counted(world) == 1
    pair.client_sends(sent[67_000:150_000])
    pair.hang_up()
    assert counted(world) == 2


def test_the_last_allowed_id_gets_no_throttle_time() -> None:
    """Clients wait for that, and the next request of this one, with an id that is known, would pass at once."""
    pair = Pair(world := World([TWO]))
    pair.client_sends(of(0, 0), of(1, 1))
    assert world.debts()
    assert pair.connection.identity.notice.throttle_time_ms(world.clock()) == 0
