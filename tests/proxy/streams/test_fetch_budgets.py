"""What fetches ask for, how they queue, and when they and their responses wait."""

from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.apis import SHARE_FETCH
from protocol.messages import decode
from proxy.streams.handlers.fetch import FetchRequest
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import fetch, fetch_max_bytes, fetched, share_fetch, share_fetched
from tests.proxy.streams.pair import Pair, World, pass_holds, pass_one_hold, run_until
from tests.proxy.streams.waiting import replace_quotas, wait

RATE = 1_000_000
QUOTA = parse_spec("client-id=<default>,consumer_byte_rate=1MB")
#: A millisecond for each kilobyte, and a second for each byte.
FAST = without_burst("client-id=etl,consumer_byte_rate=1MB")
SLOW = without_burst("client-id=etl,consumer_byte_rate=1")
OWED = ("client-id:etl", "consumer_byte_rate")


def open_fetches(world: World, client_id: str = "etl") -> int:
    return world.registry.resolve("ANONYMOUS", client_id).fetches


# ---- what a fetch asks for
class OpenFetches(RuleBasedStateMachine):
    """Connections of two clients ask, are held, are answered and go in any order, while limits and time change."""

    @initialize()
    def begin(self) -> None:
        self.world = World([QUOTA])
        self.pairs = [Pair(self.world) for _ in range(5)]
        self.number = 0

    @rule(at=st.integers(0, 4), client_id=st.sampled_from(["etl", "etl", "web"]), is_share=st.booleans())
    def asks(self, at: int, client_id: str, is_share: bool) -> None:
        self.number += 1
        if is_share:
            self.pairs[at].client_sends(share_fetch(self.number))
        else:
            self.pairs[at].client_sends(fetch(self.number, client_id=client_id))

    @rule(at=st.integers(0, 4), size=st.integers(0, 3_000_000))
    def is_answered(self, at: int, size: int) -> None:
        in_flight = self.pairs[at].response_stream.in_flight
        if in_flight and self.pairs[at].held_response is None:
            number, request = in_flight[0]
            assert isinstance(request, FetchRequest)
            is_share = request.kind.api_key == SHARE_FETCH
            self.pairs[at].broker_sends(
                share_fetched(number, record_bytes=size) if is_share else fetched(number, size=size)
            )

    @rule(at=st.integers(0, 4))
    def goes(self, at: int) -> None:
        self.pairs[at].hang_up()
        self.pairs[at].hang_up()  # twice changes nothing
        self.pairs[at] = Pair(self.world)

    @rule(ms=st.integers(1, 3_000))
    def time_passes(self, ms: int) -> None:
        run_until(self.world, self.world.clock() + ms * 1_000_000)

    @rule(has_limit=st.booleans())
    def limits_change(self, has_limit: bool) -> None:
        replace_quotas(self.world, [QUOTA] if has_limit else [])

    @invariant()
    def each_that_waits_or_is_open_counts(self) -> None:
        waiting: list[object] = [pair.request_stream.current for pair in self.pairs]
        waiting += [request for pair in self.pairs for _, request in pair.response_stream.in_flight]
        for client_id in ("etl", "web"):
            count = sum(
                isinstance(each, FetchRequest) and not each.size and each.client.entity.client_id == client_id
                for each in waiting
            )
            assert open_fetches(self.world, client_id) == count

    def teardown(self) -> None:
        for pair in self.pairs:
            pair.hang_up()
        assert open_fetches(self.world) == open_fetches(self.world, "web") == 0


TestOpenFetches = OpenFetches.TestCase


def test_what_is_left_is_divided_by_the_fetches_that_are_open_or_wait() -> None:
    world = World([parse_spec("client-id=<default>,consumer_byte_rate=40MB")])
    budgets = []
    pairs = [Pair(world) for _ in range(4)]
    for number, pair in enumerate(pairs):
        pair.client_sends(fetch(number))
        budgets.append(fetch_max_bytes(pair.sent()[-1]))
    assert budgets == [40_000_000 // count for count in (1, 2, 3, 4)]
    pairs[0].client_sends(fetch(9, client_id="web"))
    assert fetch_max_bytes(pairs[0].sent()[-1], "web") == 40_000_000, "the limit of another client"
    response = fetched(1, size=10_000_000)
    pairs[1].broker_sends(response)
    pairs[1].client_sends(fetch(10))
    left = 40_000_000 - len(response)
    assert fetch_max_bytes(pairs[1].sent()[-1]) == left // 4
    pairs[2].hang_up()
    pairs[3].client_sends(fetch(11))
    assert fetch_max_bytes(pairs[3].sent()[-1]) == left // 4, "one has gone, and this one has two"


@pytest.mark.parametrize("connections", [1, 7])
def test_however_little_is_left_all_together_may_bring_what_the_limit_earns_in_10_ms(connections: int) -> None:
    world = World([without_burst("client-id=etl,consumer_byte_rate=10MB")])
    pairs = [Pair(world) for _ in range(connections)]
    for number, pair in enumerate(pairs):
        pair.client_sends(fetch(number))
    assert [fetch_max_bytes(pair.sent()[-1]) for pair in pairs] == [100_000 // (at + 1) for at in range(connections)]
    slow = Pair(World([SLOW]))
    slow.client_sends(fetch(1))
    assert fetch_max_bytes(slow.sent()[-1]) == 1, "never 0: brokers return nothing for that"


def test_a_share_fetch_asks_for_its_share_of_bytes_and_records() -> None:
    pair = Pair(World([parse_spec("client-id=etl,consumer_byte_rate=1MB")]))
    pair.client_sends(share_fetch(1))
    schema = load_payload_module(SHARE_FETCH, 1, EntityType.request).ShareFetchRequest
    asked = decode(schema, pair.sent()[0], 18)
    assert (asked.min_bytes, asked.max_bytes, asked.max_records) == (1, 1_000_000, 10)


# ---- several at a time
@pytest.mark.claim("enforcement", "what is announced and does not come takes nothing from others")
def test_connections_that_ask_and_go_keep_nothing_from_another() -> None:
    known = Pair(world := World([parse_spec("total,consumer_byte_rate=1MB")]))
    for number in range(20):
        new = [Pair(world) for _ in range(30)]
        for pair in new:
            pair.client_sends(fetch(2, client_id="new"))
        known.client_sends(fetch(number))
        assert len(known.sent()) == number + 1
        known.broker_sends(fetched(number, size=1_000))
        assert len(known.received()) == number + 1
        for pair in new:
            pair.hang_up()
    assert world.debts() == {}


# ---- how a held fetch, and its response, count in the queue
@pytest.mark.parametrize(
    ("sizes", "units"),
    [([], 5_000), ([70_000], 70_000), ([900], 5_000), ([70_000, 90_000], 90_000), ([70_000, 900], 5_000)],
)
def test_a_held_fetch_counts_its_share_or_a_batch_that_was_above_it(sizes: list[int], units: int) -> None:
    world = World([FAST])
    other, pair = Pair(world), Pair(world)
    for number, size in enumerate(sizes):
        pair.exchange(fetch(number), fetched(number, size=size - len(fetched(number, size=0))))
        wait(world, 1)
    other.client_sends(fetch(1), fetch(2))
    other.broker_sends(fetched(1, size=5_000))
    pair.client_sends(fetch(9))
    assert pair.held is not None
    assert pair.held.hold is not None
    assert pair.held.hold[2] == units


def test_a_response_that_waits_for_its_client_and_then_for_the_total_counts_all_of_it_there() -> None:
    world = World([FAST, without_burst("total,consumer_byte_rate=1MB")])
    pairs = [Pair(world) for _ in range(2)]
    web = Pair(world)
    for pair in pairs:
        pair.client_sends(fetch(1))
    web.client_sends(fetch(1, client_id="web"))
    pairs[0].broker_sends(fetched(1, size=10_000))
    response = fetched(1, size=300_000)
    pairs[1].broker_sends(response)
    assert holder_of_response(pairs[1]) == OWED
    world.clock.pass_seconds(0.02)
    web.broker_sends(fetched(1, size=50_000))
    wait(world)
    assert holder_of_response(pairs[1]) == ("total", "consumer_byte_rate")
    assert pairs[1].held_response is not None
    assert pairs[1].held_response.hold is not None
    assert pairs[1].held_response.hold[2] == len(response)
    assert world.debts()[OWED] == len(response) / RATE, "charged when it passed, and once"
    pass_holds(world)
    assert len(pairs[1].to_client) == len(response)
    assert world.passed()["total", "consumer_byte_rate"] == sum(len(pair.to_client) for pair in (*pairs, web))


def holder_of_response(pair: Pair) -> tuple[str, str] | None:
    request = pair.held_response
    return None if request is None or request.limit is None else (str(request.limit.entity), request.limit.name)


# ---- notices
def test_a_notice_counts_held_fetches_of_unknown_size_as_small() -> None:
    """Most likely their responses are small."""
    world = World([without_burst("client-id=etl,consumer_byte_rate=500000")])
    debtor, first, *others = (Pair(world) for _ in range(7))
    debtor.client_sends(fetch(1), fetch(2))
    debtor.broker_sends(fetched(1, size=1_000))
    first.client_sends(fetch(1))
    wait(world, 1)
    assert not first.is_held
    debtor.broker_sends(fetched(2, size=1_000))
    for pair in others:
        pair.client_sends(fetch(1))
    assert all(pair.held is not None for pair in others)
    first.broker_sends(fetched(1, size=75_000 - 13))
    assert first.held_response is not None
    pass_one_hold(world)
    assert all(pair.held is not None for pair in others), "it has had its turn"
    assert 75_000 / 500 <= throttle_ms_of(first) <= 75_000 / 500 + 5 * 10, "its own debt, and 10 ms for each at most"


@pytest.mark.parametrize("also", ["", "consumer_byte_rate=50MB,"])
def test_a_notice_for_a_request_rate_counts_each_held_fetch_as_one_request(also: str) -> None:
    """Not as bytes, nor as none because no response has had a size."""
    world = World([without_burst(f"client-id=etl,{also}request_rate=2")])
    pairs = [Pair(world) for _ in range(4)]
    for pair in pairs:
        pair.client_sends(fetch(1))
    first, *others = pairs
    assert first.held is None
    assert all(pair.held is not None for pair in others)
    first.broker_sends(fetched(1, size=100))
    assert throttle_ms_of(first) == 4 * 1000 / 2, "its own request and three that are held"


def throttle_ms_of(pair: Pair) -> int:
    """In the latest Fetch response that the client received."""
    return int.from_bytes(pair.received()[-1][9:13])


# ---- which of them wait
@pytest.mark.claim("enforcement", "a ShareFetch request always passes, since it acknowledges; its response waits")
@pytest.mark.parametrize("max_bytes", [0, -1, 1, 50_000_000])
@pytest.mark.parametrize("limit", ["consumer_byte_rate=1MB", "request_rate=1"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_share_fetch_always_passes_and_its_response_waits(version: int, limit: str, max_bytes: int) -> None:
    """It acknowledges records: their locks end."""
    world = World([without_burst(f"client-id=etl,{limit}")])
    request_of = partial(share_fetch, version=version, max_bytes=max_bytes)
    first, second = Pair(world), Pair(world)
    first.client_sends(request_of(1))
    second.client_sends(request_of(1))
    response = share_fetched(1, version, record_bytes=90_000)
    first.broker_sends(response)
    second.client_sends(request_of(2))
    assert (len(second.sent()), second.is_held) == (2, False)
    if max_bytes < 50_000_000:
        assert second.sent() == [request_of(1), request_of(2)], "brokers refuse other values"
    second.broker_sends(response)
    if limit.startswith("consumer"):
        assert second.held_response is not None
        assert second.to_client == b""
        pass_one_hold(world)
    assert len(second.received()) == 1


@pytest.mark.claim("enforcement", "records of share groups that come too late are reported")
def test_records_that_come_near_the_end_of_their_lock_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Half of the time of a lock has passed: they may be delivered again."""
    for held_ms, is_reported in ((500, False), (501, True)):
        world = World([FAST])
        first, second = Pair(world), Pair(world)
        for pair in (first, second):
            pair.client_sends(share_fetch(1))
        size = held_ms * 1_000
        record_bytes = size - (len(share_fetched(1, record_bytes=size)) - size)
        first.broker_sends(share_fetched(1, record_bytes=record_bytes, lock_ms=1_000))
        assert world.debts()[OWED] == held_ms / 1_000
        second.broker_sends(share_fetched(1, lock_ms=1_000))
        caplog.clear()
        pass_holds(world)
        assert len(second.received()) == 1
        found = [record for record in caplog.records if getattr(record, "event", "") == "share_lock_at_risk"]
        assert len(found) == is_reported


# ---- limits that change, and that are lifted
def test_a_lifted_limit_is_in_no_later_response() -> None:
    """Fetches and a Produce were in flight when the limit was removed: no client waits for a limit that is gone."""
    world = World([without_burst("client-id=etl,consumer_byte_rate=1000,producer_byte_rate=1000")])
    first, second, third = (Pair(world) for _ in range(3))
    first.client_sends(frames.produce(1, 3_000), frames.fetch(2))
    third.exchange(frames.fetch(1), frames.fetched(1, size=3_000))
    second.client_sends(frames.fetch(3))
    assert second.held is not None
    world.registry.replace([], world.clock())
    first.broker_sends(frames.produced(1), frames.fetched(2, size=400_000))
    assert first.received() == [frames.produced(1), frames.fetched(2, size=400_000)]
    assert second.sent() == [frames.fetch(3)]
    second.broker_sends(frames.fetched(3))
    second.client_sends(frames.fetch(6))
    assert second.sent()[-1] == frames.fetch(6), "with the budget of the client"
    assert second.received() == [frames.fetched(3)]
