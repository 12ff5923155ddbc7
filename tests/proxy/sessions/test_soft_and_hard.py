"""Notices before there is debt, stops of all reading after much debt, and the bounds of the proxy as reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.config import EnforcementOptions, SecurityOptions
from proxy.enforcement.report import HARD_DEBT, IN_FLIGHT, MEMORY, SOFT, TOTAL
from proxy.streams.memory import Holding
from quotas.admission.limit import Limit
from quotas.algorithms.token_bucket import TokenBucket
from quotas.entity import TOTAL as TOTAL_ENTITY
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Peer, Stage, lines_of, until, without_burst
from tests.proxy.dialogue import alter
from tests.proxy.frames import (
    correlation_of,
    fetch,
    fetched,
    heartbeat,
    heartbeat_answer,
    produce,
    produce_throttle_ms,
    produced,
)

OpenStage = Callable[..., Stage]
NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
#: Each byte is a millisecond of debt.
QUOTA = without_burst("client-id=etl,producer_byte_rate=1000")


# ---- the soft mark


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**10), st.integers(0, 10**9))
def test_the_soft_mark(rate: int, burst_ms: int, round_trip_ns: int, amount: int) -> None:
    """It is the least of a round trip's earnings and half the burst; after the wait the headroom is there again."""
    bucket = TokenBucket(rate, min(burst_ms, 3_600_000) * NS_PER_MS)
    limit = Limit("producer_byte_rate", TOTAL_ENTITY, bucket)
    now_ns = NS_PER_SECOND
    bucket.record(amount, now_ns)
    wait_ns = limit.soft_wait_ns(round_trip_ns, now_ns)
    mark_ns = min(round_trip_ns, bucket.burst_ns // 2)
    assert 0 <= wait_ns <= mark_ns
    mark = Fraction(rate * mark_ns, NS_PER_SECOND)
    if not wait_ns:
        assert bucket.headroom(now_ns) + 1 > mark or not mark_ns
    elif not bucket.debt_ns(now_ns):
        assert bucket.headroom(now_ns + wait_ns) + 1 >= mark


def soft(stage: Stage, client: Peer, round_trip_ms: int = 40) -> None:
    """The connection has been measured."""
    stage.session_of(client).identity.back_off.round_trip_ns = round_trip_ms * NS_PER_MS


@pytest.mark.parametrize("small", [False, True], ids=["one by one", "in a batch"])
async def test_a_notice_comes_before_the_debt(open_stage: OpenStage, small: bool) -> None:
    """The bucket holds 100 kB, a round trip earns 40 kB: below that the client is to wait for the difference."""
    stage = open_stage(quotas=[parse_spec("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1")])
    client, broker = await stage.pair()
    soft(stage, client)
    sent = [produce(number, 1_000) for number in range(70)] if small else [produce(0, 70_000)]
    await client.send(b"".join(sent))
    size = 0
    for frame in sent:
        assert await broker.frame() == frame
        size += len(frame) - 4
    limit = stage.session_of(client).identity.limits.produce.limits[0]
    assert limit.debt_ns(stage.clock()) == 0
    await broker.send(produced(0))
    left = 100_000 - size
    assert produce_throttle_ms(await client.frame(), 9) == -(-(40_000 - left) // 1_000)
    [waiting] = stage.waiting()
    assert (waiting.reason, waiting.mode) == (SOFT, "notify")
    assert stage.metrics.entities.throttle_reasons[SOFT] > 0
    await client.send(produce(99, 1_000))
    assert correlation_of(await broker.frame()) == 99, "nothing holds without debt"


async def test_a_notice_comes_before_the_debt_of_requests(open_stage: OpenStage) -> None:
    """The bucket holds 100 requests, a round trip earns 40 of them."""
    stage = open_stage(quotas=[parse_spec("client-id=etl,request_rate=1000,burst_seconds=0.1")])
    client, broker = await stage.pair()
    soft(stage, client)
    for number in range(70):
        await client.send(produce(number, 10))
        await broker.frame()
        await broker.send(produced(number))
        assert produce_throttle_ms(await client.frame(), 9) == max(0, number + 1 - 60)
    [waiting] = stage.waiting()
    assert (waiting.reason, waiting.limit) == (SOFT, "request_rate")


@pytest.mark.parametrize(
    ("spec", "version", "measured"),
    [
        ("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1", 9, False),
        ("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1", 5, True),
        ("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1,mode=pause", 9, True),
        ("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1,mode=delay", 9, True),
        ("client-id=etl,producer_byte_rate=1MB,burst_seconds=10", 9, True),
    ],
)
async def test_no_notice_before_the_debt(open_stage: OpenStage, spec: str, version: int, measured: bool) -> None:
    stage = open_stage(quotas=[parse_spec(spec)])
    client, broker = await stage.pair()
    if measured:
        soft(stage, client)
    await client.send(produce(0, 70_000, version))
    await broker.frame()
    await broker.send(produced(0, version))
    assert await client.frame() == produced(0, version)


async def test_the_round_trip_is_measured(open_stage: OpenStage) -> None:
    """To the client by the kernel; the broker's time from one request to its response."""
    stage = open_stage(quotas=[parse_spec("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1")])
    client, broker = await stage.pair()
    await client.send(produce(0, 100_000))  # near its limit from the second request on
    await broker.frame()
    stage.clock.pass_seconds(0.025)
    await broker.send(produced(0))
    await client.frame()
    session = stage.session_of(client)
    assert session.identity.broker_ns == 25 * NS_PER_MS
    session.sweep(stage.clock())
    assert 0 < session.identity.back_off.round_trip_ns < NS_PER_SECOND


async def test_no_long_poll_is_taken_for_a_round_trip(open_stage: OpenStage) -> None:
    """Brokers answer a fetch when there is data, and a JoinGroup when all members have come."""
    stage = open_stage(quotas=[parse_spec("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1")])
    client, broker = await stage.pair()
    await client.send(produce(0, 1_000) + fetch(1))
    assert await broker.frame() == produce(0, 1_000)
    await broker.send(produced(0))
    await client.frame()
    session = stage.session_of(client)
    session.request_stream.is_timing = True  # as the sweep sets it
    await client.send(fetch(2))
    for _ in range(2):
        await broker.frame()
    stage.clock.pass_seconds(0.5)
    await broker.send(fetched(1) + fetched(2))
    for _ in range(2):
        await client.frame()
    assert session.identity.broker_ns == 0


# ---- hard debt


async def stopped(stage: Stage, size: int = 3_000) -> tuple[Peer, Peer, int]:
    """A connection with more than a second of debt. Returns the debt in ms, too."""
    client, broker = await stage.pair()
    await client.send(produce(1, size) + heartbeat(2))
    debt_ms = len(await broker.frame()) - 4
    await until(lambda: stage.paused().get("hard_debt", 0) == 1)
    return client, broker, debt_ms


def hard(max_throttle_ms: int = 5_000) -> EnforcementOptions:
    return EnforcementOptions(hard_debt_seconds=1, max_throttle_ms=max_throttle_ms)


async def test_much_debt_stops_all_reading(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    """Until it is within the bound; then data alone is held. The notice is sent all the same."""
    caplog.set_level(logging.WARNING)
    stage = open_stage(quotas=[QUOTA], enforcement=hard())
    client, broker, debt_ms = await stopped(stage)
    await broker.send(produced(1))
    assert produce_throttle_ms(await client.frame(), 9) == debt_ms
    [waiting] = stage.waiting()
    assert (waiting.reason, waiting.mode, waiting.limit) == (HARD_DEBT, "pause", "producer_byte_rate")
    assert waiting.remaining_seconds == (debt_ms - 1_000) / 1_000
    stage.clock.pass_seconds((debt_ms - 1_000) / 1_000)
    stage.session_of(client).throttles.end()
    assert await broker.frame() == heartbeat(2)
    assert stage.paused() == {}
    assert [fields["reason"] for _, fields in lines_of(caplog.records)] == [HARD_DEBT]
    assert stage.metrics.entities.throttle_reasons[HARD_DEBT] == 1
    await broker.send(heartbeat_answer(2))
    await client.frame()


async def test_a_stop_is_bounded_and_ends_by_itself(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=hard(max_throttle_ms=5))
    _, broker, _ = await stopped(stage)
    stage.clock.pass_seconds(0.005)
    assert await broker.frame() == heartbeat(2)


async def test_less_debt_holds_data_alone(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=hard())
    client, broker = await stage.pair()
    await client.send(produce(1, 500) + heartbeat(2) + produce(3) + heartbeat(4))
    await broker.frame()
    assert await broker.frame() == heartbeat(2)
    await until(lambda: stage.paused() == {"quota": 1})


@pytest.mark.parametrize("end", ["drain", "close", "hang up"])
async def test_what_ends_a_stop_early(open_stage: OpenStage, end: str) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=hard())
    client, broker, _ = await stopped(stage)
    session = stage.session_of(client)
    if end == "drain":
        session.drain()
        await broker.send(produced(1))
        await client.frame()
    elif end == "close":
        session.close()
    else:
        client.close()
        await until(lambda: session.client.peer_has_gone)
        session.sweep(stage.clock())
        broker.close()
    await stage.no_sessions()
    assert stage.shared.wakeups._delays == {}


async def test_a_second_stop_extends_the_first(open_stage: OpenStage) -> None:
    """It has one timer, and ends once."""
    quota = without_burst("client-id=etl,producer_byte_rate=1000,consumer_byte_rate=1000")
    stage = open_stage(quotas=[quota], enforcement=hard())
    client, broker = await stage.pair()
    await client.send(fetch(0))
    await broker.frame()
    await client.send(produce(1, 3_000) + heartbeat(2))
    await broker.frame()
    await until(lambda: stage.paused().get("hard_debt", 0) == 1)
    session = stage.session_of(client)
    stop = session.connection.stop
    assert stop is not None
    first_ns = stop.until_ns
    await broker.send(fetched(0, size=4_000))
    await client.frame()
    assert stop.until_ns > first_ns
    stage.clock.now_ns = first_ns
    await until(lambda: len(stage.shared.wakeups._delays) == 1)
    session.throttles.end()
    assert await broker.frame() == heartbeat(2)
    assert stage.shared.wakeups._delays == {}


@pytest.mark.parametrize("away", [False, True], ids=["raised", "removed"])
async def test_a_change_of_its_limit_ends_a_stop(open_stage: OpenStage, away: bool) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=hard())
    client, broker, _ = await stopped(stage)
    alter(stage, f"client-id=etl,producer_byte_rate={1 if away else 10**12}", away=away)
    stage.clock.pass_seconds(0.000_001)
    stage.session_of(client).sweep(stage.clock())
    assert await broker.frame() == heartbeat(2)


async def test_a_dry_run_stops_nothing(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=replace(hard(), dry_run=True))
    client, broker = await stage.pair()
    await client.send(produce(1, 3_000) + heartbeat(2))
    await broker.frame()
    assert await broker.frame() == heartbeat(2)


# ---- other reasons


async def test_the_limit_of_the_whole_proxy_is_a_reason(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("total,producer_byte_rate=1000")])
    client, broker = await stage.pair()
    await client.send(produce(1, 100) + produce(2, 100))
    await broker.frame()
    await until(lambda: stage.paused() == {"quota": 1})
    assert [waiting.reason for waiting in stage.waiting()] == [TOTAL]
    assert stage.metrics.entities.throttle_reasons[TOTAL] == 1


@pytest.mark.parametrize("reason", [MEMORY, IN_FLIGHT])
async def test_a_bound_of_the_proxy_is_a_reason(
    open_stage: OpenStage, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that is not read receives notices as long as that lasts."""
    caplog.set_level(logging.WARNING)
    stage = open_stage()
    client, broker = await stage.pair()
    session = stage.session_of(client)
    others = Holding()
    await client.send(produce(1))
    await broker.frame()
    if reason == MEMORY:
        stage.memory.update(others, 0, 2 * stage.memory.limit, 0)
        session.requests._wait_for_memory()
    else:
        await client.send(
            b"".join(heartbeat(number) for number in range(2, SecurityOptions().max_pending_requests + 2))
        )
    await until(lambda: stage.paused() == {reason: 1})
    session.sweep(stage.clock())
    [waiting] = stage.waiting()
    assert (waiting.reason, waiting.entity) == (reason, "proxy")
    assert [fields["reason"] for _, fields in lines_of(caplog.records)] == [reason]
    await broker.send(produced(1))
    assert produce_throttle_ms(await client.frame(), 9) == 100
    stage.memory.forget(others)
