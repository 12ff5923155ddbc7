"""A fetch reserves what it may bring (`proxy.streams.fetch_ledger`); its response is charged and ends that."""

import pytest
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.apis import SHARE_FETCH
from protocol.messages import decode
from proxy.enforcement.holds import LAPSE_NS
from proxy.sessions.pump_set import IN_FLIGHT
from proxy.streams.fetch_ledger import LARGEST_BATCH, ledger_of
from quotas.admission.limit import Limit
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.frames import fetch, fetched, heartbeat, heartbeat_answer, metadata, share_fetch, share_fetched
from tests.proxy.streams.pair import Pair, World, correlation_ids, lapse
from tests.proxy.streams.waiting import CUTS, holder, replace_quotas, wait

#: A millisecond for each kilobyte, and a second for each byte.
FAST = without_burst("client-id=etl,consumer_byte_rate=1MB")
SLOW = without_burst("client-id=etl,consumer_byte_rate=1")
OWED = ("client-id:etl", "consumer_byte_rate")


def fetches(pair: Pair, number: int, size: int, client_id: str = "etl") -> int:
    """One that is answered with `size` bytes. Returns those of the whole frame."""
    pair.client_sends(fetch(number, client_id=client_id))
    assert correlation_ids(pair.sent(), requests=True)[-1] == number
    response = fetched(number, size=size)
    pair.broker_sends(response)
    return len(response)


def one_limit(world: World) -> Limit:
    [limit] = world.registry.limits_in_use()
    return limit


@pytest.mark.parametrize("cuts", CUTS)
def test_the_first_reserves_the_largest_batch(cuts: list[int]) -> None:
    world = World([SLOW])
    pair = Pair(world, cuts=cuts)
    pair.client_sends(fetch(1))
    assert world.debts() == {OWED: LARGEST_BATCH}
    response = fetched(1, size=700)
    pair.broker_sends(response)
    assert world.debts() == {OWED: len(response)}
    assert one_limit(world).reserved == 0


def test_after_an_empty_response_a_fetch_reserves_nothing() -> None:
    """A consumer without new data waits for it in the broker: it keeps nothing from others, and is charged little."""
    world = World([FAST])
    pair, other = Pair(world), Pair(world)
    fetches(pair, 1, 90_000)
    for number in range(2, 8):
        wait(world, 0.1)
        empty = fetches(pair, number, 20)
        assert world.debts() == {OWED: empty / 1_000_000}
    wait(world, 0.1)
    pair.client_sends(fetch(9))
    assert world.debts() == {}
    other.client_sends(fetch(1))
    assert len(other.sent()) == 1


def test_connections_that_come_and_receive_nothing_keep_another_waiting_for_one_round() -> None:
    """A first fetch counts little in the queue, but keeps a batch from others until it lapses."""
    world = World([parse_spec("total,consumer_byte_rate=1MB")])
    known = Pair(world)
    fetches(known, 1, 5_000)
    new = [Pair(world) for _ in range(11)]
    for pair in [new[0], known, *new[1:]]:
        pair.client_sends(fetch(2, client_id="etl" if pair is known else "new"))
    for _ in range(len(new)):
        lapse(world)
        wait(world)
        for at, pair in enumerate(new):
            if pair.sent():
                pair.hang_up()
                new[at] = Pair(world)
                new[at].client_sends(fetch(2, client_id="new"))
    assert len(known.sent()) == 2


def test_a_fetch_waits_for_the_response_to_the_one_before() -> None:
    """Without a limit on bytes fetched they are pipelined."""
    for quotas, forwarded in ([FAST], [1]), ([], [1, 2, 3, 4]):
        pair = Pair(World(quotas))
        pair.client_sends(fetch(1), fetch(2), heartbeat(3), fetch(4))
        assert correlation_ids(pair.sent(), requests=True) == forwarded
        assert (pair.requests.paused == IN_FLIGHT) == bool(quotas)
        assert pair.held is None
    pair = Pair(World([FAST]))
    pair.client_sends(heartbeat(1), fetch(2), fetch(3), heartbeat(4))
    pair.broker_sends(heartbeat_answer(1))
    assert len(pair.sent()) == 2
    pair.broker_sends(fetched(2, size=1_000))
    assert holder(pair) == OWED, "decided now"
    wait(pair.world, 0.002)
    assert len(pair.sent()) == 4


@pytest.mark.parametrize("how", ["its response is small", "its connection ends", "its response is late"])
def test_the_end_of_a_reservation_releases_others(how: str) -> None:
    world = World([FAST])
    first, second = Pair(world), Pair(world)
    first.client_sends(fetch(1))
    second.client_sends(fetch(1))
    assert second.is_held
    if how == "its response is small":
        first.broker_sends(fetched(1, size=987))
    elif how == "its connection ends":
        first.hang_up()
    else:
        wait(world, (LAPSE_NS - 1) / 1e9)
        world.shared.wakeups.lapse(world.clock())
        assert one_limit(world).reserved == LARGEST_BATCH
        wait(world, 1e-9)
        world.shared.wakeups.lapse(world.clock())
    assert one_limit(world).reserved == 0
    assert min(timer.due_ns for timer in world.loop.pending) <= world.clock() + 2_000_000, "its timer is set again"
    wait(world, 0.001)
    assert len(second.sent()) == 1
    if how == "its response is late":
        first.broker_sends(fetched(1, size=LARGEST_BATCH))
        assert world.debts()[OWED] > 2, "it is charged in full when it comes, besides the other's reservation"


def test_a_connection_is_ready_until_it_ends_or_changes_its_client_id() -> None:
    world = World([without_burst("client-id=<default>,consumer_byte_rate=1GB")])
    etl, web = (ledger_of(world.registry.resolve("ANONYMOUS", name)) for name in ("etl", "web"))
    pairs = [Pair(world) for _ in range(3)]

    def ready() -> tuple[int, int]:
        return etl.ready(world.clock()), web.ready(world.clock())

    for number, pair in enumerate(pairs):
        wait(world, 0.1)
        fetches(pair, number, 700)
    assert ready() == (3, 0)
    wait(world, 0.1)
    pairs[0].client_sends(fetch(10))
    assert ready() == (2, 0), "while its fetch is open it is not"
    pairs[0].broker_sends(fetched(10))
    wait(world, 0.1)
    fetches(pairs[1], 20, 700, client_id="web")
    assert ready() == (2, 1)
    for pair in pairs:
        pair.hang_up()
    assert ready() == (0, 0)


def test_limits_that_come_and_go_while_fetches_are_open() -> None:
    world = World([SLOW])
    pair = Pair(world)
    wait(world, fetches(pair, 1, 700))
    pair.client_sends(fetch(2))
    before = one_limit(world)
    replace_quotas(world, [])
    pair.client_sends(heartbeat(3))
    replace_quotas(world, [parse_spec("total=true,consumer_byte_rate=1GB")])
    pair.client_sends(metadata(4))
    total = one_limit(world)
    headroom = total.headroom(world.clock())
    response = fetched(2, size=100)
    pair.broker_sends(response)
    assert total.headroom(world.clock()) == headroom - len(response), "charged to the limits of now"
    assert (before.reserved, total.reserved) == (0, 0)


def test_a_share_fetch_is_lowered_and_reserves() -> None:
    world = World([FAST])
    pair = Pair(world)
    pair.client_sends(share_fetch(1))
    schema = load_payload_module(SHARE_FETCH, 1, EntityType.request).ShareFetchRequest
    asked = decode(schema, pair.sent()[0], 18)
    assert (asked.min_bytes, asked.max_bytes) == (1, 10_000), "what the client earns in 10 ms"
    assert world.debts() == {OWED: LARGEST_BATCH / 1_000_000}
    response = share_fetched(1, record_bytes=5_000)
    pair.broker_sends(response)
    assert len(pair.to_client) == len(response)
    assert world.debts() == {OWED: len(response) / 1_000_000}
    pair.client_sends(share_fetch(2))
    assert pair.is_held
