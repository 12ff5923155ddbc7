"""What a limit is charged, over whole conversations, and which requests count as throttled."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import CREATE_TOPICS
from quotas.entry import QuotaEntry
from quotas.limit_options import LimitOptions
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, heartbeat, produce, produce_records, produced
from tests.proxy.mutation_frames import create, created, told
from tests.proxy.streams.exchanges import heartbeat_answered
from tests.proxy.streams.pair import Pair, World, pass_holds, pass_one_hold

PRODUCE = "producer_byte_rate"
ETL = ("client-id:etl", PRODUCE)


def quota(limits: str) -> QuotaEntry:
    return without_burst(f"client-id=etl,{limits}")


def long_frame(size: int = 10_000) -> bytes:
    return produce(1, size)


# ---- frames that do not come whole
@pytest.mark.claim("enforcement", "what is announced and does not come takes nothing from others")
@pytest.mark.parametrize("arrived", [23, 5_000, 9_999])
def test_what_never_came_is_not_charged(arrived: int) -> None:
    pair = Pair(world := World([quota(f"{PRODUCE}=1000")]))
    pair.client_sends(long_frame()[:arrived])
    assert world.debts()[ETL] == pytest.approx((arrived - 4) / 1000)
    pair.hang_up()
    assert world.debts()[ETL] == pytest.approx((arrived - 4) / 1000)


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(100, 60_000), st.integers(0, 60_000)), min_size=1, max_size=4),
    st.sampled_from([[], [400], [30_000, 99]]),
)
def test_held_frames_are_charged_as_they_arrive(is_parsed: bool, sizes: list[tuple[int, int]], cuts: list[int]) -> None:
    """Frames of several clients, each held, partly sent and then left: time and debt are the bytes that arrived."""
    quotas = [replace(parse_spec(f"client-id=etl,{PRODUCE}=100000"), options=LimitOptions(burst_seconds=2))]
    world = World([*quotas, parse_spec("topic=other,bytes_in_rate=1GB")] if is_parsed else quotas)
    began_ns = world.clock()
    pairs = [Pair(world, cuts=cuts) for _ in (..., *sizes)]
    pairs[0].client_sends(produce_records(0, {"rows": [batch(1, 210_000)]}))
    for pair, (size, left_out) in zip(pairs[1:], sizes, strict=True):
        frame = produce_records(1, {"rows": [batch(1, size)]})
        pair.client_sends(frame[: max(200, len(frame) - left_out)])
    pass_holds(world)
    for pair in pairs:
        pair.hang_up()
    [limit] = [limit for limit in world.registry.limits_in_use() if limit.name == PRODUCE]
    left = limit.algorithm.headroom(world.clock()) - world.debts().get(ETL, 0) * 100_000
    earned = (world.clock() - began_ns) / 10_000
    assert 200_000 + earned - left == pytest.approx(sum(max(0, len(pair.to_broker) - 4) for pair in pairs), abs=20)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9_000)), min_size=1, max_size=6),
    st.lists(st.integers(1, 9_000), max_size=6),
    st.sampled_from(["", ",request_rate=1000000"]),
    st.sampled_from([[], ["topic=other,bytes_in_rate=1GB"]]),
    st.sampled_from([10**3, 10**9]),
)
def test_a_request_is_charged_its_bytes_or_its_cost_however_it_arrives(
    drawn: list[tuple[int, int]], cuts: list[int], also: str, parsed: list[str], rate: int
) -> None:
    """Together or one by one, whole or in pieces, held or not; and a limit without a cost is charged the bytes."""
    specs = [f"client-id=etl,{PRODUCE}={rate},request_cost=2kB{also}", f"total,{PRODUCE}={rate},request_cost=5kB"]
    specs += [f"resource-group=g,client-id=etl,{PRODUCE}=1GB", *parsed]
    pair = Pair(world := World([without_burst(each) for each in specs]), cuts=cuts)
    sent = [produce_records(1, {"rows": [batch(1, 61 + size)]}) for count, size in drawn for _ in range(count)]
    for number in range(0, len(sent), 3):
        pair.client_sends(*sent[number : number + 3])
    pass_holds(world)
    assert pair.to_broker == b"".join(sent)
    sizes, passed = [len(each) - 4 for each in sent], world.passed()
    assert passed[ETL] == sum(max(2_000, size) for size in sizes)
    assert passed["total", PRODUCE] == sum(max(5_000, size) for size in sizes)
    assert passed["resource-group:g", PRODUCE] == pair.connection.identity.entity.produce_bytes == sum(sizes)


SEVERAL: dict[frames.Topic, list[bytes | None]] = {
    "rows": [batch(10, 3_000), batch(7, 500) + batch(70, 4_001)],
    "cols": [None, batch(1, 61), batch(9, 2_000) + b"no batch"],
}


@given(st.integers(9, 12), st.lists(st.tuples(st.integers(1, 4_000), st.booleans()), max_size=8), st.booleans())
def test_each_record_is_charged_once(version: int, pieces: list[tuple[int, bool]], is_late: bool) -> None:
    """At any place: what a whole request is charged, and a part never costs more."""
    specs = [
        "topic=rows,bytes_in_rate=1000",
        "topic=cols,messages_in_rate=10",
        "total,bytes_in_rate=1000",
        "total,messages_in_rate=10",
    ]
    limits = [without_burst(spec) for spec in specs]
    records = SEVERAL | ({"late": [batch(5, 70_000), batch(3, 900)]} if is_late else {})
    sent = produce_records(1, records, version)
    between = produce_records(2, {"rows": [batch(1, 61)], "cols": [batch(1, 61)]}, version)
    of_whole, of_between = charged(World(limits), sent), charged(World(limits), between)
    world = World(limits)
    pair, other = Pair(world), Pair(world)
    count = 0
    at = 66_000 if is_late else 0
    pair.client_sends(sent[:at])
    for size, takes_over in pieces:
        pair.client_sends(sent[at : at + size])
        at += size
        if takes_over:  # what follows of the request waits for the debt of this one
            other.client_sends(between)
            pass_holds(world)
            world.clock.pass_seconds(200)
            other.client_sends(between)
            count += 2
            assert all(
                passed - count * of_between.get(limit, 0) <= of_whole[limit] for limit, passed in world.passed().items()
            )
    pair.client_sends(sent[at:])
    pass_holds(world)
    assert pair.to_broker == sent
    assert other.to_broker == between * count
    assert world.passed() == {limit: units + count * of_between[limit] for limit, units in of_whole.items()}


def charged(world: World, request: bytes) -> dict[tuple[str, str], int]:
    """What each limit is charged for it."""
    Pair(world).client_sends(request)
    return world.passed()


def test_a_request_that_stalled_while_another_took_the_limit_waits_in_its_middle() -> None:
    """By what is left of it in the queue, once: when it has had its turn, its later reads go first."""
    world = World([quota(f"{PRODUCE}=100000")])
    pair, other, later, small = (Pair(world) for _ in range(4))
    sent = long_frame(100_000)
    pair.client_sends(sent[:26_000])
    world.clock.pass_seconds(1)
    other.client_sends(produce(1, 50_000))
    pair.client_sends(sent[26_000:30_000])
    assert pair.held is not None, "the debt is another's"
    assert pair.held.hold is not None
    assert pair.held.hold[2] == len(sent) - 26_000, "its size in the queue"
    assert pair.to_broker == sent[:26_000]
    later.client_sends(produce(2, 80_000))
    pass_one_hold(world)
    assert pair.to_broker == sent[:30_000]
    pair.client_sends(sent[30_000:40_000])
    pass_one_hold(world)
    assert pair.to_broker == sent[:40_000]
    assert later.sent() == [produce(2, 80_000)]
    small.client_sends(produce(3, 10))
    pair.client_sends(sent[40_000:50_000])
    assert (pair.is_held, small.is_held) == (True, True)
    pass_one_hold(world)
    assert pair.to_broker == sent[:50_000]
    assert small.is_held
    pair.client_sends(sent[50_000:])
    assert pair.to_broker == sent
    pass_holds(world)
    assert small.sent() == [produce(3, 10)]


# ---- request_rate
def test_responses_of_control_requests_carry_the_wait_where_they_have_the_field() -> None:
    pair = Pair(world := World([quota("request_rate=10")]))
    pair.exchange(heartbeat(1), heartbeat_answered(1))
    assert bytes(pair.to_client) == heartbeat_answered(1, 100)
    pair.exchange(frames.request(12, 0, 2, b"body"), frames.heartbeat_answer(2))
    assert pair.received()[-1] == frames.heartbeat_answer(2), "version 0 has no such field"
    world.clock.pass_seconds(3)
    pair.client_sends(produce(3), heartbeat(4))
    pair.broker_sends(produced(3), heartbeat_answered(4))
    assert pair.received()[-1] == heartbeat_answered(4, 100)
    world.clock.pass_seconds(3)
    pair.client_sends(heartbeat(5))
    world.clock.pass_seconds(0.2)
    pair.broker_sends(heartbeat_answered(5, 7))
    assert pair.received()[-1] == heartbeat_answered(5, 7), "the wait is over: the broker's own stands"


# ---- one count for each request
LATE: dict[frames.Topic, list[bytes | None]] = {"late": [batch(1, 30_000) for _ in range(20)]}


@pytest.mark.parametrize(
    ("limits", "sent", "counted"),
    [
        ([quota(f"{PRODUCE}=1000")], [produce(1)], {"notify": 1}),
        ([quota(f"{PRODUCE}=1000")], [produce(1), produce(2)], {"notify": 1, "pause": 1}),
        (
            [quota(f"{PRODUCE}=1000"), without_burst(f"total,{PRODUCE}=500")],
            [produce(1), produce(2)],
            {"notify": 1, "pause": 1},
        ),
        (
            [parse_spec(f"{entity},{PRODUCE}=100000") for entity in ("client-id=etl", "total=true")],
            [produce(1, 99_000)],
            {"notify": 1},
        ),
        ([without_burst("topic=late,bytes_in_rate=100")], [produce_records(1, LATE)], {"notify": 1}),
    ],
    ids=["passes", "is held", "two limits hold it", "near two limits", "leaves debt again and again"],
)
def test_a_request_counts_once(limits: list[QuotaEntry], sent: list[bytes], counted: Mapping[str, int]) -> None:
    """One that is held does not count for the debt that it leaves as well."""
    pair = Pair(world := World(limits), cuts=[20_000])
    pair.client_sends(*sent)
    pass_holds(world)
    assert pair.sent() == sent
    assert {mode: count for (_, _, mode), count in world.throttled().items()} == counted


def test_a_control_request_counts_once() -> None:
    pair = Pair(world := World([quota("request_rate=1,controller_mutation_rate=1")]))
    pair.client_sends(heartbeat(1), heartbeat(2))
    pair.broker_sends(heartbeat_answered(1), heartbeat_answered(2))
    assert sum(world.throttled().values()) == 2
    pair.exchange(create(3, {"first": 5}), created(3, ["first"]))
    pair.client_sends(create(4, {"second": 5}))
    assert told(CREATE_TOPICS, 7, pair.received()[-1]).errors["second"][0] == 89
    assert sum(world.throttled().values()) == 4


# ---- what applies later
def test_the_limits_of_a_topic_are_looked_up_again_after_a_change_and_an_idle_hour() -> None:
    rows = parse_spec("topic=rows,bytes_in_rate=1000")
    pair = Pair(world := World([rows]))
    sent = produce_records(1, {"rows": [batch(1, 900)]})
    for seconds in (0, 4_000, 4_000):
        world.clock.pass_seconds(seconds)
        world.registry.expire(world.clock())
        pair.client_sends(sent)
        assert world.levels() == {("topic:rows", "bytes_in_rate"): (0, 100)}
    world.registry.replace([parse_spec("topic=<default>,bytes_in_rate=5000"), rows], world.clock())
    world.clock.pass_seconds(1)
    pair.client_sends(sent, produce_records(2, {"cols": [batch(1, 900)]}))
    assert world.levels() == {("topic:rows", "bytes_in_rate"): (0, 100), ("topic:cols", "bytes_in_rate"): (0, 4_100)}
