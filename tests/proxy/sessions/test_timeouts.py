"""`--handshake-timeout`, `--connections-max-idle`, `--max-connection-age`: which connections end, how many at once."""

from itertools import pairwise

import pytest

from proxy.config.config import ListeningOptions, SecurityOptions
from proxy.sessions.lifecycle import State
from proxy.sessions.sweep import PARTS
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import OpenStage, Stage, arrives, exchange, lines_of, nobody_accepts, until, without_burst
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
)
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.test_authenticate import chosen, handshake, sasl

pytestmark = pytest.mark.claim(
    "enforcement",
    "an old connection ends with nothing under way, or behind the responses in flight; what is held is served first",
)
SECOND = 1_000_000_000
HANDSHAKE = SecurityOptions(handshake_timeout_seconds=30)
AGE = ListeningOptions(max_connection_age_seconds=100, broker_ports=None, address=("127.0.0.1", 0))
IDLE = SecurityOptions(handshake_timeout_seconds=0, connections_max_idle_seconds=600)


BEAT = heartbeat(1), heartbeat_answer(1)


def closed(stage: Stage) -> dict[str, int]:
    return {reason: count for reason, count in stage.metrics.connections.closed.items() if count}


def swept(stage: Stage, seconds: float) -> dict[str, int]:
    """What has been closed when a sweep has found all as it is now, and another so much later."""
    stage.sweep()
    stage.clock.pass_seconds(seconds)
    stage.sweep()
    return closed(stage)


def lacks_request(pair: Pair, after_seconds: float) -> bool:
    """Whether a sweep then, after one just now, would close it for its first request."""
    pair.session.lacks_request(30 * SECOND, pair.world.clock())
    pair.world.clock.pass_seconds(after_seconds)
    return pair.session.lacks_request(30 * SECOND, pair.world.clock())


def is_idle(pair: Pair, after_seconds: float) -> bool:
    """Whether a sweep then, after one just now, would close it as idle. The kernel counts no bytes meanwhile."""
    pair.client.traffic_bytes = 1  # type: ignore[assignment]
    pair.session.timeouts.is_idle(600 * SECOND, pair.world.clock())
    pair.world.clock.pass_seconds(after_seconds)
    return pair.session.timeouts.is_idle(600 * SECOND, pair.world.clock())


# ---- the first request
@pytest.mark.parametrize("sent", [b"", heartbeat(1)[:3], heartbeat(1)[:-1], produce(1, 1_000)[:500]])
async def test_no_complete_request(open_stage: OpenStage, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    client, _ = await (stage := open_stage(security=HANDSHAKE)).pair()
    session = stage.session_of(client)
    await client.send(sent)
    await until(lambda: not stage.unread(session))
    assert swept(stage, 29.9) == {}
    assert swept(stage, 0.1) == {"handshake_timeout": 1}
    await client.closed()
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["reason"], fields["timeout_seconds"]) == ("connection_closed", "handshake_timeout", 30)
    assert fields["peer"] == session.identity.client.peer


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (heartbeat(1) + heartbeat(2)[:9], b""),
        (heartbeat(1), heartbeat_answer(1)),
        (api_versions(1, 99), b""),
        (produce(1, 100, acks=0), b""),
    ],
    ids=["in flight", "answered", "answered by the proxy", "without a response"],
)
def test_after_one_request_it_is_not(sent: bytes, answer: bytes) -> None:
    pair = Pair(World())
    pair.exchange(sent, answer)
    assert not lacks_request(pair, 100)


@pytest.mark.parametrize("first", [1, 20, 60_000])
@pytest.mark.parametrize("quota", ["client-id=other,producer_byte_rate=1", "topic=<default>,bytes_in_rate=1GB"])
def test_a_complete_request_counts_though_each_check_finds_the_next_one_begun(first: int, quota: str) -> None:
    """No response, and no moment between two requests at which a sweep runs."""
    pair = Pair(World([parse_spec(quota)]))
    frame = produce_records(1, {"rows": [batch(10, 100_000)]}, acks=0)
    for sent in (frame[:first], frame[first:60_000], *[frame[60_000:] + frame[:60_000]] * 3):
        pair.client_sends(sent)
        assert not lacks_request(pair, 10)
    pair.client_sends(frame[60_000:])
    assert pair.to_broker == frame * 4


async def test_the_time_does_not_begin_while_a_broker_is_connected_to(open_stage: OpenStage) -> None:
    with nobody_accepts() as address:
        stage = open_stage(security=HANDSHAKE, bootstrap_servers=(address,))
        await stage.client()
        await until(lambda: stage.sessions)
        assert swept(stage, 100) == {}


def test_the_time_does_not_begin_while_a_limit_holds_the_first_request() -> None:
    world = World([without_burst("total,producer_byte_rate=1")])
    Pair(world).client_sends(produce(1, 100))
    pair = Pair(world)
    pair.client_sends(produce(1, 100))
    assert pair.is_held
    assert not any(lacks_request(pair, 29) for _ in range(3))


@pytest.mark.claim(
    "security",
    "clients that stall within a login hold half of --max-buffered-bytes for at most --stalled-client-timeout",
)
async def test_logins_that_stall_do_not_keep_half_of_the_memory(open_stage: OpenStage) -> None:
    """Each is a client that has not logged in, with a part of a message that the proxy collects."""
    stage = open_stage(security=SecurityOptions(max_buffered_bytes=4 << 20, stalled_client_timeout_seconds=30.0))
    clients = []
    for _ in range(14):
        client, broker = await stage.pair()
        await exchange(client, broker, handshake(1), chosen(1))
        await client.send(sasl(2, bytes(120_000))[:-1])
        clients.append(client)
    memory = stage.context.memory
    await until(lambda: memory.keeps_much)
    assert 0 < swept(stage, 30)["stalled"] < len(clients)
    assert not memory.keeps_much


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


# ---- idle connections
async def test_an_idle_connection_is_closed(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    client, broker = await (stage := open_stage(security=IDLE)).pair()
    caplog.set_level("INFO")
    for _ in range(3):
        await exchange(client, broker, *BEAT)
        assert swept(stage, 599) == {}
    assert swept(stage, 1) == {"max_idle": 1}
    await client.closed()
    name, fields = lines_of(caplog.records)[-1]
    assert (name, fields["reason"], fields["timeout_seconds"]) == ("connection_closed", "max_idle", 600)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_request_that_is_held_or_in_flight_is_not_idle(is_held: bool) -> None:
    pair = Pair(World([without_burst("total,producer_byte_rate=100")]))
    pair.client_sends(produce(1, 10_000, acks=0) + produce(2, 100, acks=0) if is_held else fetch(1))
    assert pair.is_held is is_held
    assert not any(is_idle(pair, 600) for _ in range(3))


def test_a_client_that_waits_for_its_throttle_time_is_not_idle() -> None:
    pair = Pair(World([without_burst("total,producer_byte_rate=10")]))
    pair.client_sends(produce(1, 10_000))
    size = len(pair.to_broker)
    pair.broker_sends(produced(1))
    assert not is_idle(pair, size / 10 - 1)
    assert is_idle(pair, 610)


# ---- the age
async def test_an_old_connection_ends_after_responses(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    client, broker = await (stage := open_stage(listening=AGE)).pair()
    caplog.set_level("INFO")
    await exchange(client, broker, *BEAT)
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
    client, broker = await (stage := open_stage(listening=AGE)).pair()
    await arrives(client, broker, heartbeat(1))
    stage.clock.pass_seconds(111)
    stage.sweep()
    await exchange(client, broker, heartbeat(2), heartbeat_answer(1))
    await broker.send(heartbeat_answer(2))
    assert await client.rest() == heartbeat_answer(2)
    client.close()
    await stage.no_sessions()
    assert closed(stage) == {"max_age": 1}


async def test_a_client_that_does_not_close_is_closed_when_it_is_quiet(open_stage: OpenStage) -> None:
    client, broker = await (stage := open_stage(listening=AGE)).pair()
    await exchange(client, broker, *BEAT)
    stage.clock.pass_seconds(111)
    stage.sweep()
    assert await client.rest() == b""
    session = stage.session_of(client)
    for number in range(3):
        stage.clock.pass_seconds(0.9)
        await arrives(client, broker, produce(number, acks=0))
        stage.sweep()
        assert session.state is State.LINGERING
    stage.clock.pass_seconds(1)
    stage.sweep()
    assert session.state is State.FLUSHING
    assert await broker.rest() == b"", "the end of the stream follows the last request"
    broker.close()
    await stage.no_sessions()


def test_what_is_held_is_served_first() -> None:
    pair = Pair(world := World([without_burst("total,producer_byte_rate=50")], listening=AGE))
    pair.client_sends(produce(1, 10_000), produce(2, 100))
    pair.broker_sends(produced(1))
    world.clock.pass_seconds(111)
    for state in (State.OPEN, State.DRAINING):
        assert pair.session.timeouts.is_old(world.clock())
        pair.session.retire()
        assert (pair.session.state, pair.is_held) == (state, True)
    pass_holds(world)
    assert len(pair.sent()) == 2
    pair.broker_sends(produced(2))
    assert (len(pair.received()), pair.session.state) == (2, State.LINGERING)


@pytest.mark.claim(
    "enforcement", "connections with a share session, or with acks=0 data under a limit, do not end by age"
)
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


async def test_a_connection_that_logs_in_has_no_age_yet(open_stage: OpenStage) -> None:
    """To end it would look like a wrong password."""
    stage = open_stage(listening=AGE, security=SecurityOptions(handshake_timeout_seconds=0))
    client, broker = await stage.pair()
    await exchange(client, broker, handshake(1), chosen(1))
    assert swept(stage, 111) == {}


def test_connections_that_begin_together_do_not_end_together() -> None:
    world = World(listening=AGE, security=SecurityOptions(handshake_timeout_seconds=0))
    pairs = [Pair(world) for _ in range(1_000)]
    ended = []
    for _ in range(113):
        world.clock.pass_seconds(1)
        ended.append(sum(pair.session.timeouts.is_old(world.clock()) for pair in pairs))
    assert (ended[88], ended[110]) == (0, 1_000)
    assert max(later - earlier for earlier, later in pairwise(ended)) < 120
