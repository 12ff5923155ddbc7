"""The clients of a connection: whose limits and counters, and the throttle times of its responses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.enforcement.identity import Notice, throttle_time_ms
from proxy.enforcement.report import DEBT
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import without_burst
from tests.proxy.enforcement.test_throttle_actions import NS_PER_MS, NS_PER_SECOND, QUOTA, Scene, identity
from tests.proxy.streams.pair import World

# ---- notices


@given(st.integers(-5_000_000_000, 50_000_000_000), st.integers(1, 30_000))
def test_a_throttle_time_is_rounded_up_and_bounded(wait_ns: int, most_ms: int) -> None:
    told_ms = throttle_time_ms(wait_ns, most_ms * NS_PER_MS)
    assert 0 <= told_ms <= most_ms
    if 0 < wait_ns <= most_ms * NS_PER_MS:
        assert (told_ms - 1) * NS_PER_MS < wait_ns <= told_ms * NS_PER_MS


def test_a_notice_keeps_the_longer_wait_and_ends() -> None:
    scene = Scene()
    notice = Notice(5_000)
    other = scene.who.limits.requests.limits[0]
    notice.extend(scene.limit, 3 * NS_PER_SECOND, DEBT)
    notice.extend(other, 2 * NS_PER_SECOND, DEBT)
    assert notice.limit is scene.limit
    notice.extend(other, 9 * NS_PER_SECOND, DEBT)
    assert notice.limit is other
    assert notice.throttle_time_ms(NS_PER_SECOND) == 5_000
    assert notice.throttle_time_ms(9 * NS_PER_SECOND - 1) == 1
    assert (notice.throttle_time_ms(9 * NS_PER_SECOND), notice.until_ns) == (0, 0)


KINDS = [
    "client-id=etl,producer_byte_rate=100",
    "client-id=etl,consumer_byte_rate=100",
    "client-id=etl,request_rate=1",
    "client-id=etl,controller_mutation_rate=1",
    "user=ANONYMOUS,producer_ids_rate=2",
    "topic=rows,bytes_in_rate=100",
    "topic=rows,messages_in_rate=1",
    "resource-group=g,client-id=etl,bytes_in_rate=100",
    "total,producer_byte_rate=100",
    "total,messages_in_rate=1",
]


@pytest.mark.parametrize("spec", KINDS)
def test_a_reload_keeps_the_notice_of_any_limit_that_stays(spec: str) -> None:
    world = World([without_burst(spec)])
    who = identity(world)
    world.registry.topic("rows", world.clock())
    (limit,) = world.registry.limits_in_use()
    now_ns = world.clock()
    limit.algorithm.record(1_000, now_ns)
    debt_ns = limit.debt_ns(now_ns)
    assert debt_ns > NS_PER_SECOND
    who.notice.extend(limit, now_ns + debt_ns, DEBT)
    world.registry.replace([without_burst(spec), parse_spec("client-id=other,request_rate=7")], now_ns)
    assert who.generation != world.registry.generation
    who.refresh(now_ns)
    assert who.notice.until_ns == now_ns + debt_ns
    world.registry.replace([], now_ns)
    who.client.refresh(now_ns)
    assert who.generation != world.registry.generation, "though a fetch has looked up the limits"
    who.refresh(now_ns)
    assert (who.notice.until_ns, who.limits.produce.limits) == (0, ()), "a limit that is gone asks for nothing"


def test_a_raised_rate_shortens_a_notice_and_a_lower_one_does_not_prolong_it() -> None:
    scene = Scene()
    now_ns = scene.now_ns
    scene.limit.algorithm.record(4_000, now_ns)
    scene.who.notice.extend(scene.limit, now_ns + 4 * NS_PER_SECOND, DEBT)
    for rate, seconds in ((2_000, 2), (500, 2)):
        scene.world.registry.replace([without_burst(f"client-id=etl,producer_byte_rate={rate}")], now_ns)
        scene.who.refresh(now_ns)
        assert scene.who.notice.until_ns == now_ns + seconds * NS_PER_SECOND


# ---- identity
def test_a_client_outlives_the_next_client_id() -> None:
    """A fetch in flight keeps it: its limits stay up to date, and it counts as no session."""
    world = World([QUOTA])
    who = identity(world)
    before = who.client
    who.identify("another", 0)
    assert (before.entity.client_id, before.entity.sessions, who.entity.sessions) == ("etl", 0, 1)
    world.registry.replace([without_burst("client-id=etl,producer_byte_rate=7")], world.clock())
    before.refresh(world.clock())
    assert [limit.rate for limit in before.limits.produce.limits] == [7]
    assert before.limits.generation == world.registry.generation
    who.refresh(world.clock())
    who.leave()
    assert (before.entity.sessions, who.entity.sessions) == (0, 0)
