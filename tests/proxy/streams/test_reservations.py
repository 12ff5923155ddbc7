"""What passes in any time is at most burst + rate * T + one request, whatever clients announce and do not send; and
announced bytes that do not come delay others by a second at most.
"""

from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config.config import UsageOptions
from proxy.streams.handlers.data import HEAD_READ_SIZE
from quotas.parsing.parse import parse_spec
from tests.protocol.fetch_responses import Partitions, fetch_response, record_bytes
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, fetch, fetched, heartbeat, heartbeat_answer, produce_records
from tests.proxy.streams.pair import (
    Pair,
    World,
    lapse,
    pass_holds,
    pass_one_hold,
    pass_time,
    release_due,
    run_until,
)
from tests.proxy.streams.waiting import decide_again

SECOND = 1_000_000_000
MB = 1_000_000
PRODUCE = "client-id=etl,producer_byte_rate=1MB"
#: 100 messages a MB.
LIMITS = [
    PRODUCE,
    "total,producer_byte_rate=1MB",
    "topic=rows,bytes_in_rate=1MB",
    "topic=rows,messages_in_rate=100",
    "resource-group=g,topic=rows,bytes_in_rate=1MB",
]


class Passed:
    """What has passed, and when."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sizes: list[tuple[int, int]] = []

    def add(self, size: int) -> None:
        self.sizes.append((self.world.clock(), size))

    def above(self, rate: int) -> int:
        """The most bytes that have passed in any time T, less rate * T."""
        most = lowest = level = last_ns = 0
        for now_ns, size in self.sizes:
            level -= rate * (now_ns - last_ns) // SECOND
            last_ns = now_ns
            lowest = min(lowest, level)
            level += size
            most = max(most, level - lowest)
        return most


def note(passed: Passed, pairs: Iterable[Pair]) -> None:
    """Add what brokers have received since the last call."""
    for pair in pairs:
        if pair.to_broker:
            passed.add(len(pair.to_broker))
            pair.to_broker.clear()


# ---- fetches


@pytest.mark.parametrize("connections", [1, 100])
@pytest.mark.parametrize("request_of", [fetch, frames.share_fetch])
def test_a_consumer_passes_one_response_at_a_time_whatever_it_asks_for(connections: int, request_of: object) -> None:
    """12 empty responses, then 100 pipelined fetches for one byte; a broker returns each first batch whole: 1 MB."""
    assert callable(request_of)
    world = World([parse_spec("client-id=etl,consumer_byte_rate=1MB")])
    pairs = [Pair(world) for _ in range(connections)]
    passed = Passed(world)
    for number in range(12):
        for pair in pairs:
            pair.client_sends(request_of(number, max_bytes=1))
            pair.broker_sends(fetched(number) if request_of is fetch else frames.share_fetched(number))
    run_until(world, world.clock() + SECOND)
    size = MB if connections == 1 else MB // 10
    response = fetched(0, size=size) if request_of is fetch else frames.share_fetched(0, record_bytes=size)
    for pair in pairs:
        pair.client_sends(*(request_of(number, max_bytes=1) for number in range(12, 112)))
    ends_ns = world.clock() + 20 * SECOND
    while world.clock() < ends_ns:
        for pair in pairs:
            assert len(pair.connection.in_flight) <= 1
            if pair.connection.in_flight:
                number, _ = pair.connection.in_flight[0]
                passed.add(len(response))
                pair.broker_sends(response[:4] + number.to_bytes(4) + response[8:])
                pair.to_client.clear()
        run_until(world, world.clock() + 5_000_000)
    assert passed.above(MB) <= MB + connections * len(response)
    assert sum(each for _, each in passed.sizes) >= 20 * MB, "it is not kept from its limit"


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_fetch_is_charged_to_the_client_that_sent_it(is_reloaded: bool) -> None:
    """Its connection has another client id by the time of the response."""
    specs = [f"client-id={name},consumer_byte_rate=1000,producer_byte_rate=1000" for name in ("etl", "victim")]
    quotas = [without_burst(spec) for spec in specs]
    world = World(quotas, usage=UsageOptions(by_topic=True))
    pair = Pair(world)
    pair.client_sends(fetch(1), heartbeat(2, "victim"))
    if is_reloaded:
        world.registry.replace([*quotas, parse_spec("client-id=other,request_rate=7")], world.clock())
    topics: list[Partitions] = [[batch(4, 3_000)]]
    response = frames.frame(fetch_response(12, topics))
    response = response[:4] + (1).to_bytes(4) + response[8:]
    pair.broker_sends(response, heartbeat_answer(2))
    assert world.debts() == {("client-id:etl", "consumer_byte_rate"): len(response) / 1000}
    assert world.reserved() == {}
    fetched_by = {each.client_id: (each.fetch_bytes, each.fetch_requests) for each in world.metrics.entities}
    assert fetched_by == {"etl": (len(response), 1), "victim": (0, 0)}
    assert {key: each[2] for key, each in world.topics().items()} == {
        ("etl", "topic-0"): record_bytes(12, topics)["topic-0"]
    }
    assert set(world.throttled()) == {("etl", "consumer_byte_rate", "notify")}
    pair.client_sends(fetch(3, client_id="victim"))
    assert pair.held is None
    assert pair.connection.in_flight, "the other client owes nothing"


def test_fetches_that_were_sent_before_there_was_a_limit_do_not_pass_one_by_one_for_each() -> None:
    world = World()
    pair = Pair(world)
    pair.client_sends(*(fetch(number) for number in range(100)))
    world.registry.replace([parse_spec("client-id=etl,consumer_byte_rate=1MB")], world.clock())
    pair.client_sends(*(fetch(number) for number in range(100, 200)))
    for number in range(99):
        pair.broker_sends(fetched(number))
        assert len(pair.connection.in_flight) == 99 - number
    pair.broker_sends(fetched(99))
    assert len(pair.connection.in_flight) == 1


# ---- produce requests that stall


@cache
def long_request(size: int = 10 * MB) -> bytes:
    return produce_records(1, {"rows": [batch(size // 10_000, size)]})


@pytest.mark.parametrize("spec", LIMITS)
def test_requests_that_stall_and_then_all_come_pass_as_the_limit_earns(spec: str) -> None:
    """20 requests of 10 MB, of which the head comes at once and the rest 30 s later."""
    world = World([parse_spec(spec)])
    passed = Passed(world)
    sent = long_request()
    pairs = [Pair(world) for _ in range(20)]
    for pair in pairs:
        pair.client_sends(sent[:70_000])
        note(passed, pairs)
    noted_run(world, passed, pairs, 30 * SECOND)
    assert sum(size for _, size in passed.sizes) == 20 * 70_000
    for pair in pairs:
        pair.client_sends(sent[70_000:])
        note(passed, pairs)
    noted_run(world, passed, pairs, 5 * SECOND)
    # A charge is rounded up to a message, and a limit on records does not count what is around them.
    assert passed.above(MB) <= MB + len(sent) + 20 * 10_000
    assert sum(size for _, size in passed.sizes) >= 5 * MB


def noted_run(world: World, passed: Passed, pairs: list[Pair], time_ns: int) -> None:
    """Let time pass, and note what brokers receive."""
    ends_ns = world.clock() + time_ns
    while world.clock() < ends_ns:
        due_ns = [limit.debt_ns(world.clock()) for limit in world.holds.limits]
        pass_time(world, max(1, min([*due_ns, ends_ns - world.clock()])))
        while release_due(world):
            note(passed, pairs)


@pytest.mark.parametrize("spec", LIMITS[1:])
def test_others_wait_a_second_for_announced_bytes_that_do_not_come(spec: str) -> None:
    """20 requests of 10 MB are announced at once, and each waits for its turn behind those of others."""
    world = World([parse_spec(spec)])
    pairs = [Pair(world) for _ in range(20)]
    for pair in pairs:
        pair.client_sends(long_request()[:70_000])
    other = Pair(world)
    for number in range(10):
        waited_ns = wait_of(world, other, number)
        assert waited_ns <= 1_400_000_000  # a check each 0.1 s, and what has come of the announced requests


@pytest.mark.parametrize("bytes_per_second", [33 * 1_024, 500_000])
@pytest.mark.parametrize("spec", LIMITS[1:])
def test_others_wait_a_second_for_a_request_that_comes_slower_than_the_limit(spec: str, bytes_per_second: int) -> None:
    """100 MB at this rate, at 1 MB/s: after the first second it reserves portions."""
    world = World([parse_spec(spec)])
    slow, other = Pair(world), Pair(world)
    sent = long_request(100 * MB)
    at = 70_000
    slow.client_sends(sent[:at])
    for number in range(40):
        size = bytes_per_second // 10
        slow.client_sends(sent[at : at + size])
        at += size
        run_until(world, world.clock() + SECOND // 10)
        waited_ns = wait_of(world, other, number)
        assert waited_ns <= (1_200_000_000 if number == 0 else 200_000_000)


def test_a_client_with_a_small_limit_keeps_the_total_for_a_second() -> None:
    """What it sends is more than its own limit earns, and a small part of what it has announced to the total."""
    world = World([parse_spec("total,producer_byte_rate=10MB"), parse_spec("client-id=slow,producer_byte_rate=32768")])
    slow, pair = Pair(world), Pair(world)
    request = frames.produce(1, 100 * MB, client_id="slow")
    slow.client_sends(request[:1_000])
    pair.client_sends(frames.produce(1, 1_000, client_id="other"))
    assert pair.is_held
    for at in range(1_000, 51_000, 4_000):
        slow.client_sends(request[at : at + 4_000])
        run_until(world, world.clock() + SECOND // 10)
    assert not pair.is_held


def test_a_frame_that_lapsed_waits_in_its_turn_each_time() -> None:
    world = World([parse_spec(PRODUCE)])
    long, others = Pair(world), [Pair(world) for _ in range(3)]
    request = frames.produce(1, 50 * MB)
    long.client_sends(request[:1_000])
    lapse(world)
    for other in others:
        other.client_sends(*[frames.produce(number, 30_000) for number in range(300)])
    at, ends_ns = 1_000, world.clock() + 20 * SECOND
    while world.clock() < ends_ns:
        if not long.is_held:
            long.client_sends(request[at : at + 40_000])
            at += 40_000
        pass_one_hold(world)
    passed = [len(each.to_broker) for each in (long, *others)]
    assert min(passed) >= max(passed) / 2, passed


def test_the_holds_of_a_lapsed_frame_keep_few_bytes() -> None:
    """The first one keeps a read."""
    world = World([parse_spec("client-id=etl,producer_byte_rate=100kB")])
    pair = Pair(world)
    request = frames.produce(1, 10 * MB)
    pair.client_sends(request[:300_000])
    lapse(world)
    pair.client_sends(request[300_000:2_000_000])
    kept = []
    for _ in range(10):
        assert pair.is_held
        kept.append(len(pair.requests.backlog.kept))
        pass_one_hold(world)
    assert max(kept[1:]) <= HEAD_READ_SIZE


def wait_of(world: World, pair: Pair, number: int) -> int:
    """How long a small request of another client waits."""
    began_ns = world.clock()
    pair.client_sends(produce_records(number, {"rows": [batch(1, 1_000)]}, client_id="web"))
    while pair.held is not None:
        due_ns = [limit.debt_ns(world.clock()) for limit in world.holds.limits]
        pass_time(world, max(1, min(due_ns)))
        while pair.held is not None and release_due(world):
            pass
    assert len(pair.sent()) == number + 1
    return world.clock() - began_ns


#: At 100 kB/s with a burst of half a second.
RATE, BURST, LARGEST = 100_000, 50_000, 300_000
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["begins", "sends", "sends", "sends", "hangs up", "time passes", "stalls", "reload"]),
        st.integers(1, LARGEST),
    ),
    max_size=14,
)
HEAD_OF_REQUEST = 200


@cache
def request_of_size(size: int) -> bytes:
    return produce_records(1, {"rows": [batch(1, size)]})


@settings(max_examples=2_000)
@given(
    st.sampled_from([f"{spec}={{}}" for spec in ("client-id=etl,producer_byte_rate", "topic=rows,bytes_in_rate")]),
    EVENTS,
)
def test_no_more_passes_in_any_time_than_rate_burst_and_one_request(
    spec: str, events: list[tuple[int, str, int]]
) -> None:
    """Whatever begins, stalls, goes on, hangs up or is decided again."""
    quotas = [parse_spec(spec.format(RATE) + ",burst_seconds=0.5")]
    world = World(quotas)
    passed = Passed(world)
    pairs = [Pair(world) for _ in range(3)]
    left = [b""] * 3
    for at, event, number in events:
        if event == "begins" and not left[at]:
            size = max(100, number // 1_000 * 1_000)
            left[at] = b"".join(request_of_size(max(100, size // each)) for each in range(1, number % 4 + 2))
            event, number = "sends", number // 2
        if event == "sends":
            pairs[at].client_sends(left[at][:number])
            left[at] = left[at][number:]
        elif event == "hangs up":
            note(passed, pairs)
            pairs[at].hang_up()
            pairs[at], left[at] = Pair(world), b""
        elif event == "time passes":
            noted_run(world, passed, pairs, number * 1_000)
        elif event == "stalls":
            noted_run(world, passed, pairs, 2 * SECOND)
        elif event == "reload":
            world.registry.replace([*quotas, parse_spec(f"client-id=other,request_rate={number}")], world.clock())
            decide_again(world)
        note(passed, pairs)
    for at in range(3):
        pairs[at].client_sends(left[at])
        note(passed, pairs)
    noted_run(world, passed, pairs, 2 * SECOND)
    assert passed.above(RATE) <= BURST + LARGEST + HEAD_OF_REQUEST * 4 * len(events)
    for pair in pairs:
        pair.hang_up()
    assert world.reserved() == {}
    assert world.holds._reserving == {}
    pass_holds(world)
