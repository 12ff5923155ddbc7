"""`--handshake-timeout`, `--connections-max-idle`, `--max-connection-age`: which connections end, how many at once."""

import asyncio
from itertools import pairwise

import pytest

from proxy.config.config import ListeningOptions, SecurityOptions
from proxy.sessions.lifecycle import State
from proxy.sessions.sweep import PARTS
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import OpenStage, Peer, Stage, lines_of, nobody_accepts, until, without_burst
from tests.proxy.dialogue import held
from tests.proxy.frames import (
    api_versions,
    batch,
    fetch,
    heartbeat,
    heartbeat_answer,
    produce,
    produce_records,
    produced,
    share_fetch,
    share_fetched,
)
from tests.proxy.mutation_frames import create
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.test_authenticate import chosen, handshake, sasl

HANDSHAKE = SecurityOptions(handshake_timeout_seconds=30)
AGE = ListeningOptions(max_connection_age_seconds=100, broker_ports=None, address=("127.0.0.1", 0))
IDLE = SecurityOptions(handshake_timeout_seconds=0, connections_max_idle_seconds=600)


async def exchange(client: Peer, broker: Peer) -> None:
    await client.send(heartbeat(1))
    assert await broker.frame() == heartbeat(1)
    await broker.send(heartbeat_answer(1))
    assert await client.frame() == heartbeat_answer(1)


def closed(stage: Stage) -> dict[str, int]:
    return {reason: count for reason, count in stage.metrics.connections.closed.items() if count}


# The first request


@pytest.mark.parametrize("sent", [b"", heartbeat(1)[:3], heartbeat(1)[:-1], produce(1, 1_000)[:500]])
async def test_without_a_complete_request_a_connection_is_closed(
    open_stage: OpenStage, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(security=HANDSHAKE)
    client, _ = await stage.pair()
    session = stage.session_of(client)
    await client.send(sent)
    await until(lambda: not stage.unread(session))
    stage.sweep()
    stage.clock.pass_seconds(29.9)
    stage.sweep()
    assert stage.sessions == {session}
    stage.clock.pass_seconds(0.1)
    stage.sweep()
    await client.closed()
    assert closed(stage) == {"handshake_timeout": 1}
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["reason"], fields["timeout_seconds"]) == ("connection_closed", "handshake_timeout", 30)
    assert fields["peer"] == session.identity.client.peer


async def test_a_request_that_is_collected_is_not_complete(open_stage: OpenStage) -> None:
    stage = open_stage(security=HANDSHAKE, quotas=[parse_spec("total,controller_mutation_rate=10")])
    client, _ = await stage.pair()
    await client.send(create(1, {"topic": 1})[:-1])
    await until(lambda: stage.session_of(client).requests.backlog.kept)
    stage.sweep()
    stage.clock.pass_seconds(30)
    stage.sweep()
    assert closed(stage) == {"handshake_timeout": 1}


@pytest.mark.parametrize("request_", ["in flight", "answered", "answered by the proxy", "without a response"])
async def test_after_one_request_it_is_not(open_stage: OpenStage, request_: str) -> None:
    stage = open_stage(security=HANDSHAKE)
    client, broker = await stage.pair()
    if request_ == "answered by the proxy":
        await client.send(api_versions(1, 99))
        await client.frame()
    elif request_ == "without a response":
        await client.send(produce(1, 100, acks=0))
        await broker.frame()
    else:
        await client.send(heartbeat(1) + heartbeat(2)[:9])
        assert await broker.frame() == heartbeat(1)
    if request_ == "answered":
        await broker.send(heartbeat_answer(1))
        await client.frame()
    stage.clock.pass_seconds(100)
    stage.sweep()
    assert closed(stage) == {}


@pytest.mark.parametrize("first", [1, 20, 60_000])
@pytest.mark.parametrize("quota", ["client-id=other,producer_byte_rate=1", "topic=<default>,bytes_in_rate=1GB"])
async def test_a_complete_request_counts_though_each_check_finds_the_next_one_begun(
    open_stage: OpenStage, first: int, quota: str
) -> None:
    """No response, and no moment between two requests at which a sweep runs."""
    stage = open_stage(security=HANDSHAKE, quotas=[parse_spec(quota)])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    frame = produce_records(1, {"rows": [batch(10, 100_000)]}, acks=0)
    received = asyncio.ensure_future(broker.read(4 * len(frame)))
    for sent in (frame[:first], frame[first:60_000], *[frame[60_000:] + frame[:60_000]] * 3):
        await client.send(sent)
        await until(lambda: not stage.unread(session))
        stage.clock.pass_seconds(10)
        stage.sweep()
    assert closed(stage) == {}
    await client.send(frame[60_000:])
    assert await received == frame * 4


async def test_the_time_begins_when_the_connection_is_served_and_read(open_stage: OpenStage) -> None:
    """Not while a broker is connected to, and not while a limit holds the first request."""
    with nobody_accepts() as address:
        stage = open_stage(security=HANDSHAKE, bootstrap_servers=(address,))
        client = await stage.client()
        await until(lambda: stage.sessions)
        stage.clock.pass_seconds(100)
        stage.sweep()
        assert closed(stage) == {}
    stage = open_stage(security=HANDSHAKE, quotas=[without_burst("total,producer_byte_rate=1")])
    first, _ = await stage.pair()
    await first.send(produce(1, 100))
    client, _ = await stage.pair()
    await client.send(produce(1, 100))
    await held(stage)
    for _ in range(3):
        stage.clock.pass_seconds(29)
        stage.sweep()
    assert closed(stage) == {}


async def test_logins_that_stall_do_not_keep_half_of_the_memory(open_stage: OpenStage) -> None:
    """Each is a client that has not logged in, with a part of a message that the proxy collects."""
    stage = open_stage(security=SecurityOptions(max_buffered_bytes=4 << 20, stalled_client_timeout_seconds=30.0))
    clients = []
    for _ in range(14):
        client, broker = await stage.pair()
        await client.send(handshake(1))
        await broker.frame()
        await broker.send(chosen(1))
        await client.frame()
        await client.send(sasl(2, bytes(120_000))[:-1])
        clients.append(client)
    memory = stage.context.memory
    await until(lambda: memory.keeps_much)
    stage.sweep()
    stage.clock.pass_seconds(30)
    stage.sweep()
    assert not memory.keeps_much
    assert 0 < closed(stage)["stalled"] < len(clients)


async def test_one_round_closes_a_bounded_number(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.sessions.sweep.CHECKED_AT_ONCE", 3)
    stage = open_stage(security=HANDSHAKE)
    for _ in range(4 * PARTS):
        await stage.client()
        await stage.broker.accept()
    await until(lambda: sum(session.upstream is not None for session in stage.sessions) == 4 * PARTS)
    stage.clock.pass_seconds(31)
    stage.sweep(ticks=1)
    assert closed(stage)["handshake_timeout"] == 3, "of the four in this part"
    stage.sweep(ticks=1)
    assert closed(stage)["handshake_timeout"] == 4
    for _ in range(3):
        stage.sweep()
    assert closed(stage)["handshake_timeout"] == 4 * PARTS


# Idle connections


async def test_an_idle_connection_is_closed(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage(security=IDLE)
    client, broker = await stage.pair()
    caplog.set_level("INFO")
    for _ in range(3):
        await exchange(client, broker)
        stage.sweep()
        stage.clock.pass_seconds(599)
        stage.sweep()
        assert closed(stage) == {}
    stage.clock.pass_seconds(1)
    stage.sweep()
    await client.closed()
    assert closed(stage) == {"max_idle": 1}
    name, fields = lines_of(caplog.records)[-1]
    assert (name, fields["reason"], fields["timeout_seconds"]) == ("connection_closed", "max_idle", 600)


@pytest.mark.parametrize("security", [SecurityOptions(), SecurityOptions(handshake_timeout_seconds=0)])
async def test_without_the_option_none_is(open_stage: OpenStage, security: SecurityOptions) -> None:
    stage = open_stage(security=security)
    client, broker = await stage.pair()
    if security.handshake_timeout_seconds:
        await exchange(client, broker)
    stage.clock.pass_seconds(86_400)
    stage.sweep()
    assert closed(stage) == {}


async def test_a_part_of_a_request_is_traffic_once(open_stage: OpenStage) -> None:
    stage = open_stage(security=IDLE)
    client, broker = await stage.pair()
    await exchange(client, broker)
    data = heartbeat(2)
    for nth in range(4):
        await client.send(data[nth : nth + 1])
        await until(lambda: not stage.unread(next(iter(stage.sessions))))
        stage.sweep()
        stage.clock.pass_seconds(599)
        stage.sweep()
    assert closed(stage) == {}
    stage.clock.pass_seconds(1)
    stage.sweep()
    assert closed(stage) == {"max_idle": 1}


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_request_that_is_held_or_in_flight_is_not_idle(open_stage: OpenStage, is_held: bool) -> None:
    stage = open_stage(security=IDLE, quotas=[without_burst("total,producer_byte_rate=100")])
    client, broker = await stage.pair()
    await client.send(produce(1, 10_000, acks=0) + produce(2, 100, acks=0) if is_held else fetch(1))
    await broker.frame()
    if is_held:
        await held(stage)
    stage.sweep()
    for _ in range(3):
        stage.clock.pass_seconds(600)
        stage.sweep()
    assert closed(stage) == {}


async def test_a_client_that_waits_for_its_throttle_time_is_not_idle(open_stage: OpenStage) -> None:
    stage = open_stage(security=IDLE, quotas=[without_burst("total,producer_byte_rate=10")])
    client, broker = await stage.pair()
    await client.send(produce(1, 10_000))
    size = len(await broker.frame())
    await broker.send(produced(1))
    await client.frame()
    stage.sweep()
    stage.clock.pass_seconds(size / 10 - 1)
    stage.sweep()
    assert closed(stage) == {}
    stage.clock.pass_seconds(10)
    stage.sweep()
    stage.clock.pass_seconds(600)
    stage.sweep()
    assert closed(stage) == {"max_idle": 1}


# The age


async def test_an_old_connection_ends_behind_its_responses(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(listening=AGE)
    client, broker = await stage.pair()
    caplog.set_level("INFO")
    await exchange(client, broker)
    stage.clock.pass_seconds(89)
    stage.sweep()
    assert closed(stage) == {}
    await client.send(heartbeat(2) + produce(3, 1_000)[:400])
    await broker.read(len(heartbeat(2)) + 400)
    session = stage.session_of(client)
    stage.clock.pass_seconds(22)
    stage.sweep()
    stage.sweep()
    assert session.state is State.DRAINING
    assert closed(stage) == {"max_age": 1}
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["reason"]) == ("connection_closed", "max_age")
    await client.send(produce(3, 1_000)[400:] + heartbeat(4) + produce(5, acks=0))
    sent = produce(3, 1_000)[400:] + produce(5, acks=0)
    assert await broker.read(len(sent)) == sent, "the client will send the heartbeat again"
    await broker.send(heartbeat_answer(2) + produced(3))
    assert await client.rest() == heartbeat_answer(2) + produced(3)
    await client.send(produce(6, acks=0) + heartbeat(7))
    assert await broker.frame() == produce(6, acks=0), "it may not have seen the end yet"
    client.close()
    assert await broker.rest() == b""
    broker.close()
    await stage.no_sessions()
    assert not any(stage.metrics.errors.protocol.values())


async def test_an_old_connection_ends_behind_the_first_response_with_nothing_under_way(open_stage: OpenStage) -> None:
    """The client has no request without a response then: it reports nothing."""
    stage = open_stage(listening=AGE)
    client, broker = await stage.pair()
    await client.send(heartbeat(1))
    await broker.frame()
    stage.clock.pass_seconds(111)
    stage.sweep()
    await client.send(heartbeat(2))
    assert await broker.frame() == heartbeat(2)
    await broker.send(heartbeat_answer(1))
    assert await client.frame() == heartbeat_answer(1)
    await broker.send(heartbeat_answer(2))
    assert await client.rest() == heartbeat_answer(2)
    client.close()
    await stage.no_sessions()
    assert closed(stage) == {"max_age": 1}


async def test_a_client_that_does_not_close_is_closed_when_it_is_quiet(open_stage: OpenStage) -> None:
    stage = open_stage(listening=AGE)
    client, broker = await stage.pair()
    await exchange(client, broker)
    stage.clock.pass_seconds(111)
    stage.sweep()
    assert await client.rest() == b""
    session = stage.session_of(client)
    for number in range(3):
        stage.clock.pass_seconds(0.9)
        await client.send(produce(number, acks=0))
        await broker.frame()
        stage.sweep()
        assert session.state is State.LINGERING
    stage.clock.pass_seconds(1)
    stage.sweep()
    assert session.state is State.FLUSHING
    assert await broker.rest() == b"", "the end of the stream follows the last request"
    broker.close()
    await stage.no_sessions()


async def test_what_is_held_is_served_first(open_stage: OpenStage) -> None:
    stage = open_stage(listening=AGE, quotas=[without_burst("total,producer_byte_rate=50")])
    client, broker = await stage.pair()
    await client.send(produce(1, 10_000) + produce(2, 100))
    await broker.frame()
    await broker.send(produced(1))
    await client.frame()
    await held(stage)
    session = stage.session_of(client)
    stage.clock.pass_seconds(111)
    states = []
    for _ in range(2):
        stage.sweep()
        states.append(session.state)
    assert states == [State.OPEN, State.DRAINING]
    stage.clock.pass_seconds(100)
    stage.shared.wakeups.limits_changed()
    assert await broker.frame() == produce(2, 100)
    stage.sweep()
    assert closed(stage) == {"max_age": 1}
    await broker.send(produced(2))
    assert len(await client.rest()) == len(produced(2))


@pytest.mark.parametrize(
    ("sent", "is_limited", "ends"),
    [
        (produce(1, acks=0), True, False),
        (produce(1, acks=0), False, True),
        (produce(1), True, True),
        (share_fetch(1), False, False),
        (fetch(1), False, True),
    ],
    ids=["acks=0 under a limit", "acks=0", "acks=1", "share session", "fetch session"],
)
def test_what_would_lose_its_order_or_its_records_does_not_end(sent: bytes, is_limited: bool, ends: bool) -> None:
    """What waits of acks=0 data would pass beside that of the next connection. Records of a share session would be
    delivered twice, and their acknowledgements fail.
    """
    world = World([parse_spec("client-id=etl,producer_byte_rate=1MB")] if is_limited else [], listening=AGE)
    pair = Pair(world)
    pair.client_sends(sent)
    assert pair.to_broker == sent
    world.clock.pass_seconds(111)
    assert pair.session.timeouts.is_old(world.clock()) is ends


def test_a_share_session_ends_with_the_proxy() -> None:
    """When what is in flight is answered, as any other."""
    pair = Pair(World([], listening=AGE))
    pair.client_sends(share_fetch(1))
    pair.session.drain()
    states = [pair.session.state]
    pair.broker_sends(share_fetched(1))
    assert [*states, pair.session.state] == [State.DRAINING, State.LINGERING]


async def test_a_connection_that_logs_in_has_no_age_yet(open_stage: OpenStage) -> None:
    """To end it would look like a wrong password."""
    stage = open_stage(listening=AGE, security=SecurityOptions(handshake_timeout_seconds=0))
    client, broker = await stage.pair()
    await client.send(handshake(1))
    await broker.frame()
    await broker.send(chosen(1))
    await client.frame()
    stage.clock.pass_seconds(111)
    stage.sweep()
    assert closed(stage) == {}


def test_connections_that_begin_together_do_not_end_together() -> None:
    world = World(listening=AGE, security=SecurityOptions(handshake_timeout_seconds=0))
    pairs = [Pair(world) for _ in range(1_000)]
    ended = []
    for _ in range(113):
        world.clock.pass_seconds(1)
        ended.append(sum(pair.session.timeouts.is_old(world.clock()) for pair in pairs))
    assert (ended[88], ended[110]) == (0, 1_000)
    assert max(later - earlier for earlier, later in pairwise(ended)) < 120
