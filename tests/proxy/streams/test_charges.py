"""What a limit is charged, over whole conversations."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import CREATE_TOPICS
from proxy.config.config import EnforcementOptions
from proxy.streams.memory import READ_SIZE
from quotas.algorithms.token_bucket import AMPLE
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.frames import batch, heartbeat, produce, produce_records, produce_throttle_ms, produced
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


@pytest.mark.parametrize("arrived", [23, 5_000, 9_999])
def test_what_never_came_is_not_charged(arrived: int) -> None:
    world = World([quota(f"{PRODUCE}=1000")])
    pair = Pair(world)
    pair.client_sends(long_frame()[:arrived])
    assert world.debts()[ETL] == pytest.approx((arrived - 4) / 1000)
    pair.hang_up()
    assert world.debts()[ETL] == pytest.approx((arrived - 4) / 1000)


@pytest.mark.parametrize("also", ["", ",request_rate=1000000"])
def test_what_has_not_arrived_of_the_last_request_in_a_batch_is_charged_when_it_comes(also: str) -> None:
    world = World([parse_spec(f"client-id=etl,{PRODUCE}=1GB{also}")])
    pair = Pair(world)
    limit = next(limit for limit in world.registry.resolve("ANONYMOUS", "etl").produce.limits)
    sent = produce(1) + produce(2) + produce(3, 10_000)
    for end in (len(sent) - 8_000, len(sent) - 10, len(sent)):
        pair.client_sends(sent[len(pair.to_broker) : end])
        assert pair.to_broker == sent[:end]
        assert limit.algorithm.passed == end - 3 * 4
        assert pair.connection.identity.entity.produce_bytes == end - 3 * 4


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(100, 60_000), st.integers(0, 60_000)), min_size=1, max_size=4),
    st.sampled_from([[], [400], [30_000, 99]]),
)
def test_held_frames_are_charged_for_what_arrives(
    is_parsed: bool, sizes: list[tuple[int, int]], cuts: list[int]
) -> None:
    """Frames of several clients, each held, partly sent and then left: time and debt are the bytes that arrived."""
    quotas = [replace(parse_spec(f"client-id=etl,{PRODUCE}=100000"), burst_seconds=2)]
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


def test_a_request_that_stalled_while_another_took_the_limit_waits_in_its_middle() -> None:
    """By what is left of it in the queue, once: when it has had its turn, its later reads go first."""
    world = World([quota(f"{PRODUCE}=100000")])
    pair, other, later, small = (Pair(world) for _ in range(4))
    sent = long_frame(100_000)
    pair.client_sends(sent[:25_004])
    pair.client_sends(sent[25_004:26_000])
    assert pair.to_broker == sent[:26_000], "the debt is its own"
    world.clock.pass_seconds(1)
    other.client_sends(produce(1, 50_000))
    pair.client_sends(sent[26_000:30_000])
    assert pair.is_held, "the debt is another's"
    assert pair.to_broker == sent[:26_000]
    later.client_sends(produce(2, 80_000))
    pass_one_hold(world)
    assert pair.to_broker == sent[:30_000], "74,000 bytes were left of it"
    pair.client_sends(sent[30_000:40_000])
    assert pair.to_broker == sent[:40_000]
    pass_one_hold(world)
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


def test_each_byte_is_charged_once_for_a_request_that_is_parsed_and_held() -> None:
    """A walk passes less of a read than has come: what it leaves is not charged again after a hold."""
    records: dict[frames.Topic, list[bytes | None]] = {f"topic-{number}": [batch(1, 61)] for number in range(2_000)}
    sent = produce_records(1, records, 9)
    for cuts in ([], [1_000], [37]):
        world = World([quota(f"{PRODUCE}=1000000"), parse_spec("topic=other,bytes_in_rate=1GB")])
        pair, other = Pair(world, cuts=cuts), Pair(world)
        began_ns = world.clock()
        pair.client_sends(sent[:70_000])
        pass_time(world, world.debts()[ETL])
        between = produce_records(1, {"rows": [batch(1, 61)]})
        other.client_sends(between)
        pair.client_sends(sent[70_000:])
        assert pair.is_held
        pass_holds(world)
        assert pair.to_broker == sent
        total = world.debts().get(ETL, 0.0) + (world.clock() - began_ns) / 1e9
        assert total == pytest.approx((len(sent) - 4 + len(between) - 4) / 1e6, abs=1e-8)


def pass_time(world: World, seconds: float) -> None:
    world.clock.now_ns += round(seconds * 1e9)


def test_a_dry_run_charges_what_came() -> None:
    """A frame that would be held is charged as one that passes."""
    world = World([quota(f"{PRODUCE}=1000")], enforcement=EnforcementOptions(dry_run=True))
    first = Pair(world)
    first.client_sends(produce(1, 5_000))
    before = world.debts()[ETL]
    second = Pair(world)
    second.client_sends(long_frame()[:1_004])
    assert world.debts()[ETL] == pytest.approx(before + 1.0)
    second.hang_up()
    assert world.debts()[ETL] == pytest.approx(before + 1.0)


def test_a_dry_run_counts_what_passes_above_the_largest_debt_that_it_adds_to() -> None:
    """So it shows how many times a limit would be exceeded; else never more than the limit, after two minutes of it."""
    world = World([quota(f"{PRODUCE}=1000")], enforcement=EnforcementOptions(dry_run=True))
    pair = Pair(world)
    sent = [produce(number, 100_000) for number in range(5)]
    for each in sent:
        pair.client_sends(each)
    [limit] = list(world.context.registry.limits_in_use())
    assert limit.passed == sum(len(each) - 4 for each in sent)
    assert world.debts()[ETL] < 240


# ---- request_rate


def test_responses_of_control_requests_carry_the_wait_where_they_have_the_field() -> None:
    world = World([quota("request_rate=10")])
    pair = Pair(world)
    pair.client_sends(heartbeat(1))
    pair.broker_sends(heartbeat_answered(1))
    assert bytes(pair.to_client) == heartbeat_answered(1, 100)
    pair.client_sends(frames.request(12, 0, 2, b"body"))
    pair.broker_sends(frames.heartbeat_answer(2))
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


def test_api_versions_carry_the_wait_too() -> None:
    from tests.proxy.streams.exchanges import negotiate

    pair = Pair(World([quota("request_rate=10")]))
    exchange = negotiate(1)
    pair.client_sends(heartbeat(0), exchange.request)
    pair.broker_sends(heartbeat_answered(0), exchange.response)
    assert exchange.returned is not None
    assert pair.received()[1] == exchange.returned[:-5] + (100).to_bytes(4, "big") + b"\x00"


# ---- notices


NOTICED = {
    "producer_byte_rate": [without_burst("client-id=etl,producer_byte_rate=100")],
    "request_rate": [without_burst("client-id=etl,request_rate=0.5")],
    "topic's bytes": [without_burst("topic=rows,bytes_in_rate=100")],
    "topic's records": [without_burst("topic=rows,messages_in_rate=1")],
    "group's bytes": [without_burst("resource-group=g,client-id=etl,bytes_in_rate=100")],
    "total": [without_burst("total,bytes_in_rate=100")],
}


@pytest.mark.parametrize("name", NOTICED)
def test_an_unrelated_change_keeps_a_notice(name: str) -> None:
    """A client that owes seconds for any limit is told so after other quotas were replaced."""
    quotas = NOTICED[name]
    world = World(quotas)
    pair = Pair(world)
    pair.client_sends(produce_records(1, {"rows": [batch(3, 300)]}, 9))
    asked_ms = -(-(pair.connection.identity.notice.until_ns - world.clock()) // 1_000_000)
    assert asked_ms > 1_000
    world.registry.replace([*quotas, parse_spec("client-id=other,producer_byte_rate=5")], world.clock())
    world.clock.pass_seconds(0.5)
    pair.client_sends(heartbeat(2))
    pair.broker_sends(produced(1))
    assert produce_throttle_ms(pair.received()[0], 9) == min(5_000, asked_ms - 500)


# ---- one count for each request


def total_throttled(world: World) -> int:
    return sum(world.throttled().values())


def test_a_request_that_is_held_counts_as_held_alone() -> None:
    world = World([quota(f"{PRODUCE}=1000")])
    pair = Pair(world)
    pair.client_sends(produce(1))
    assert world.throttled() == {("etl", PRODUCE, "notify"): 1}
    pair.client_sends(produce(2))
    assert total_throttled(world) == 1
    pass_holds(world)
    assert world.throttled() == {("etl", PRODUCE, "notify"): 1, ("etl", PRODUCE, "pause"): 1}


def test_a_request_that_two_limits_hold_counts_once() -> None:
    world = World([quota(f"{PRODUCE}=1000"), without_burst("total,producer_byte_rate=500")])
    pair = Pair(world)
    pair.client_sends(produce(1), produce(2))
    pass_holds(world)
    assert total_throttled(world) == 2


def test_a_long_request_counts_once_however_often_its_records_leave_debt() -> None:
    world = World([without_burst("topic=late,bytes_in_rate=100")])
    records: dict[frames.Topic, list[bytes | None]] = {"late": [batch(1, 30_000) for _ in range(20)]}
    pair = Pair(world, cuts=[20_000])
    pair.client_sends(produce_records(1, records, 9))
    assert len(pair.sent()) == 1
    assert total_throttled(world) == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_each_fetch_counts_once_in_a_dry_run_too(dry_run: bool) -> None:
    world = World([quota("consumer_byte_rate=1000")], enforcement=EnforcementOptions(dry_run=dry_run))
    pair = Pair(world)
    for number in range(1, 6):
        pair.client_sends(frames.fetch(number))
        pass_holds(world)
        pair.broker_sends(frames.fetched(number, size=3_000))
        assert total_throttled(world) == number


def test_a_control_request_counts_once() -> None:
    world = World([quota("request_rate=1,controller_mutation_rate=1")])
    pair = Pair(world)
    pair.client_sends(heartbeat(1), heartbeat(2))
    pair.broker_sends(heartbeat_answered(1), heartbeat_answered(2))
    assert total_throttled(world) == 2
    pair.client_sends(create(3, {"first": 5}))
    pair.broker_sends(created(3, ["first"]))
    pair.client_sends(create(4, {"second": 5}))
    assert told(CREATE_TOPICS, 7, pair.received()[-1]).errors["second"][0] == 89
    assert total_throttled(world) == 4


# ---- how much is read at once


def test_reads_are_short_only_near_a_limit() -> None:
    """Also for a request that is not passed in a batch: the first of its kind."""
    for quotas, is_near in (
        ([], False),
        ([quota("consumer_byte_rate=1")], False),
        ([parse_spec(f"client-id=etl,{PRODUCE}=100MB")], False),
        ([parse_spec(f"client-id=etl,{PRODUCE}=1000")], True),
        ([parse_spec("client-id=etl,request_rate=100000000")], False),
        ([parse_spec("client-id=etl,request_rate=100")], True),
    ):
        pair = Pair(World(quotas))
        pair.client_sends(heartbeat(1), produce(2, 50))
        assert (pair.request_stream.room < READ_SIZE) is is_near, quotas
        assert (pair.request_stream.want < 1_000) is is_near
    assert AMPLE >= 8 * READ_SIZE, "what a bucket counts is enough, with 8 messages in each byte"


# ---- the topics that a hold is about


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (["topic=a,bytes_in_rate=1", "topic=c,bytes_in_rate=1"], "a"),
        (["topic=c,bytes_in_rate=1"], "c"),
        (["total,bytes_in_rate=1"], "a,b,c"),
        (["resource-group=g,topic=b,topic=c,bytes_in_rate=1"], "b,c"),
        (["topic=a,bytes_in_rate=1", "client-id=etl,producer_byte_rate=1"], None),
        (["topic=a,bytes_in_rate=1", "client-id=etl,request_rate=0.01"], None),
    ],
)
def test_the_log_has_the_topics_of_which_the_limit_holds_the_records(
    limits: list[str], named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """None where the limit counts the request itself: without these topics it would be held as well."""
    world = World([without_burst(limit) for limit in limits])
    records: dict[frames.Topic, list[bytes | None]] = {name: [batch(1, 100)] for name in "abc"}
    Pair(world).client_sends(produce_records(1, records))
    world.clock.pass_seconds(10)  # after which the log contains the same limit again
    caplog.clear()
    pair = Pair(world)
    pair.client_sends(produce_records(2, records))
    assert pair.is_held
    [(_, fields)] = lines_of(caplog.records)
    assert fields.get("topics") == named


def test_topics_without_a_known_name_are_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """A limit of the total needs no names."""
    world = World([without_burst("total,bytes_in_rate=1")])
    pair = Pair(world)
    for number in (1, 2):
        world.clock.pass_seconds(10)
        caplog.clear()
        pair.client_sends(produce_records(number, {frames.TOPIC_ID: [batch(1, 100)]}, 13))
    assert pair.is_held
    [(_, fields)] = lines_of(caplog.records)
    assert fields.get("topics") is None


def test_the_limits_of_a_topic_are_looked_up_again_after_a_change_and_an_idle_hour() -> None:
    rows = parse_spec("topic=rows,bytes_in_rate=1000")
    world = World([rows])
    pair = Pair(world)
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
