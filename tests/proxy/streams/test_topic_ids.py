"""Topics by id (Produce 13): names are learned from Metadata responses; unknown ids are requested."""

import uuid

import pytest

from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import REAL_HOST, REAL_PORT, batch, metadata, metadata_answer, produce_records
from tests.proxy.streams.exchanges import NODE, PROXY
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.waiting import CUTS

IDS = {"rows": uuid.UUID(int=7), "cols": uuid.UUID(int=8)}
BY_NAME_AND_TOTAL = [
    without_burst("topic=rows,bytes_in_rate=1"),
    without_burst("total=true,bytes_in_rate=1"),
    without_burst("resource-group=clients,client-id=etl,messages_in_rate=1"),
]


def requested(world: World) -> set[bytes]:
    """Ids that are requested next."""
    return set(world.context.topics._unknown)


@pytest.mark.parametrize("cuts", CUTS)
def test_ids_are_learned_from_metadata_that_passes(cuts: list[int]) -> None:
    world = World(BY_NAME_AND_TOTAL)
    pair = Pair(world, cuts=cuts)
    pair.client_sends(metadata(1))
    pair.broker_sends(metadata_answer(1, {NODE: (REAL_HOST, REAL_PORT)}, named=IDS))
    assert pair.to_client == metadata_answer(1, {NODE: PROXY}, named=IDS)
    pair.client_sends(produce_records(2, {IDS["cols"]: [batch(1, 100)], IDS["rows"]: [batch(2, 200)]}, version=13))
    assert world.debts() == {
        ("topic:rows", "bytes_in_rate"): 200,
        ("total", "bytes_in_rate"): 300,
        ("resource-group:clients", "messages_in_rate"): 3,
    }
    assert requested(world) == set()


@pytest.mark.parametrize("version", [10, 12])
@pytest.mark.parametrize("learns", [False, True])
def test_learning_ids_changes_no_byte_of_metadata(version: int, learns: bool) -> None:
    world = World(BY_NAME_AND_TOTAL if learns else ())
    pair = Pair(world)
    pair.client_sends(metadata(1, version))
    pair.broker_sends(metadata_answer(1, {NODE: (REAL_HOST, REAL_PORT)}, version=version, named=IDS))
    assert pair.to_client == metadata_answer(1, {NODE: PROXY}, version=version, named=IDS)
    assert len(world.context.topics._partitions) == (2 if learns else 0)


@pytest.mark.parametrize("cuts", CUTS)
def test_an_unknown_id_holds_no_frame_and_is_requested(cuts: list[int]) -> None:
    world = World(BY_NAME_AND_TOTAL)
    pair = Pair(world, cuts=cuts)
    pair.client_sends(produce_records(1, {IDS["rows"]: [batch(2, 200)]}, version=13))
    counted = {("total", "bytes_in_rate"): 200, ("resource-group:clients", "messages_in_rate"): 2}
    assert len(pair.sent()) == 1
    assert world.debts() == counted, "what needs no topic counts at once"
    assert requested(world) == {IDS["rows"].bytes}


def test_the_zero_id_is_not_requested() -> None:
    world = World(BY_NAME_AND_TOTAL)
    Pair(world).client_sends(produce_records(1, {uuid.UUID(int=0): [batch(1, 100)]}, version=13))
    assert requested(world) == set()
    assert world.loop.asked == 0


def test_a_limit_on_producer_ids_requests_no_topics() -> None:
    world = World([parse_spec("user=ANONYMOUS,producer_ids_rate=5")])
    Pair(world).client_sends(produce_records(1, {IDS["rows"]: [batch(1, 100)]}, version=13))
    assert requested(world) == set()
