"""`connections` and `connection_creation_rate` at work: who is let in, who waits, who is closed and why."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from proxy.config.config import EnforcementOptions, QuotaOptions, SecurityOptions
from proxy.sessions.gate import Gate
from proxy.sessions.lifecycle import State
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import LOOPBACK, Peer, Stage, lines_of, readable_bytes, until
from tests.proxy.dialogue import alter
from tests.proxy.frames import correlation_of, heartbeat, heartbeat_answer, produce, produced

OpenStage = Callable[..., Stage]

OF_AN_ADDRESS = [
    pytest.param("ip=127.0.0.1,connections=2", "ip:127.0.0.1", id="ip"),
    pytest.param("ip=<default>,connections=2", "ip:127.0.0.1", id="any ip"),
]
OF_ALL = [
    pytest.param("listener=bootstrap,connections=2", "listener:bootstrap", id="listener"),
    pytest.param("listener=<default>,connections=2", "listener:bootstrap", id="any listener"),
    pytest.param("total=true,connections=2", "total", id="total"),
]
#: Seed 000's: 30 a second, over two windows of a second.
THIRTY = QuotaOptions(entries=(parse_spec("ip=<default>,connection_creation_rate=30"),), window_num=2)
#: One in a second: the second of a second is to wait for a second.
ONE = parse_spec("total=true,connection_creation_rate=1")
#: The same without the bucket, which pays its debt at the new rate when the rate changes.
PLAIN = parse_spec("total=true,connection_creation_rate=1,algorithm=sampled-window")


async def talk(stage: Stage) -> None:
    """A connection that works."""
    client, broker = await stage.pair()
    await client.send(heartbeat(1))
    assert await broker.frame() == heartbeat(1)
    await broker.send(heartbeat_answer(1))
    assert await client.frame() == heartbeat_answer(1)


async def waiting(stage: Stage, count: int = 1) -> None:
    """Wait until so many connections have been accepted and are not served."""
    await until(lambda: sum(stage.server.gate.wait_of(each) is not None for each in stage.sessions) == count)


@pytest.mark.parametrize(("spec", "entity"), OF_AN_ADDRESS)
async def test_a_connection_above_the_limit_of_an_address_is_closed_at_once(
    open_stage: OpenStage, spec: str, entity: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[parse_spec(spec)])
    first, _ = await stage.pair()
    second, broker_of_second = await stage.pair()
    refused = await stage.client()
    await refused.closed()
    assert stage.metrics.connections.rejected["connections"] == 1
    assert len(stage.sessions) == 2
    assert stage.metrics.connections.open == 2
    [(name, fields)] = lines_of(caplog.records)
    assert name == "connection_rejected"
    assert (fields["reason"], fields["entity"], fields["limit_value"]) == ("connections", entity, 2)
    await second.send(produce(1))
    assert await broker_of_second.frame() == produce(1)
    # Room for one, and for no more than one.
    first.close()
    await until(lambda: len(stage.sessions) == 1)
    await talk(stage)
    again = await stage.client()
    await again.closed()
    assert stage.metrics.connections.rejected["connections"] == 2


async def test_zero_connections_block_an_address(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("ip=<default>,connections=5"), parse_spec("ip=127.0.0.1,connections=0")])
    for number in range(1, 4):
        await (await stage.client()).closed()
        assert stage.metrics.connections.rejected["connections"] == number
    alter(stage, "ip=127.0.0.1,connections=1")
    await talk(stage)


@pytest.mark.parametrize(("spec", "entity"), OF_ALL)
async def test_above_the_number_connections_wait_for_a_slot_in_their_order(
    open_stage: OpenStage, spec: str, entity: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[parse_spec(spec)])
    first, _ = await stage.pair()
    second, _ = await stage.pair()
    waiters = await crowd(stage, 3)
    stage.clock.pass_seconds(2)
    [shown, *_] = stage.waiting()
    assert (shown.limit, shown.entity, shown.limit_value, shown.mode) == ("connections", entity, 2, "pause")
    assert (shown.waited_seconds, shown.remaining_seconds) == (2, 6), "then it is closed"
    gone = stage.session_of(waiters[1])
    waiters[1].close()
    await until(lambda: gone.client.peer_has_gone)
    gone.sweep(stage.clock())
    first.close()
    assert await served(stage) == 0
    second.close()
    assert await served(stage) == 2
    assert stage.metrics.connections.open == 2
    assert sum(stage.metrics.connections.rejected.values()) == 0
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["limit"], fields["entity"]) == ("throttled", "connections", entity)
    assert fields["debt_seconds"] == 2.0
    throttles = [each.throttles for each in stage.metrics.entities]
    assert [(histogram.count, histogram.sum_seconds) for each in throttles for histogram in each.values()] == [(2, 4.0)]


async def test_without_a_free_slot_a_connection_is_closed_after_the_longest_wait(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(
        quotas=[parse_spec("total=true,connections=1")],
        enforcement=EnforcementOptions(max_connection_hold_seconds=0.05),
    )
    await stage.pair()
    client = await stage.client()
    await waiting(stage)
    await client.closed()
    assert stage.metrics.connections.rejected["connections"] == 1
    name, fields = lines_of(caplog.records)[-1]
    assert (name, fields["reason"], fields["entity"]) == ("connection_rejected", "connections", "total")
    assert fields["held_seconds"] == 0.05


async def test_those_that_wait_for_a_slot_are_bounded(open_stage: OpenStage) -> None:
    """A tenth of --max-connections, so that they cannot use up those of other listeners."""
    stage = open_stage(
        quotas=[parse_spec("listener=bootstrap,connections=1")], security=SecurityOptions(max_connections=20)
    )
    await stage.pair()
    await crowd(stage, 2)
    await (await stage.client()).closed()
    assert stage.metrics.connections.rejected["connections"] == 1
    await waiting(stage, 2)


async def test_a_slot_that_becomes_free_is_subject_to_the_rate(open_stage: OpenStage) -> None:
    stage = open_stage(
        quotas=[parse_spec("total=true,connections=1,connection_creation_rate=1,algorithm=token-bucket")],
        enforcement=EnforcementOptions(max_connection_hold_seconds=3),
    )
    first, _ = await stage.pair()
    await crowd(stage, 1)
    stage.clock.pass_seconds(0.5)
    first.close()
    await until(lambda: [each.limit for each in stage.waiting()] == ["connection_creation_rate"])
    assert remaining(stage) == [0.5]
    assert await served(stage) == 0


@pytest.mark.parametrize("away", [False, True])
async def test_a_changed_number_gives_slots_at_once(open_stage: OpenStage, away: bool) -> None:
    stage = open_stage(quotas=[parse_spec("total=true,connections=1")])
    await stage.pair()
    await crowd(stage, 3)
    alter(stage, "total=true,connections=4", away=away)
    assert [await served(stage) for _ in range(3)] == [0, 1, 2]
    await waiting(stage, 0)


async def test_sessions_that_fail_at_once_pass_their_slot_on(open_stage: OpenStage) -> None:
    """Not one within the other: a thousand of them would exceed the depth of the stack."""
    with socket.create_server((LOOPBACK, 0)) as gone:
        address = gone.getsockname()[:2]
    stage = open_stage(quotas=[parse_spec("total=true,connections=1")])
    first, _ = await stage.pair()
    await crowd(stage, 40)
    object.__setattr__(stage.config, "bootstrap_servers", (address,))
    first.close()
    await stage.no_sessions()
    assert stage.metrics.errors.upstream["connect_refused"] == 40


async def test_a_connection_without_a_broker_frees_its_slot(open_stage: OpenStage) -> None:
    with socket.create_server((LOOPBACK, 0)) as gone:
        address = gone.getsockname()[:2]
    stage = open_stage(quotas=[parse_spec("ip=<default>,connections=1")], bootstrap_servers=(address,))
    for _ in range(3):
        client = await stage.client()
        await client.closed()
        await stage.no_sessions()
    assert stage.metrics.connections.rejected["connections"] == 0
    assert sum(stage.metrics.errors.upstream.values()) == 3


async def test_each_listener_has_its_own_count(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("listener=bootstrap,connections=1")])
    port = stage.context.nodes.advertise(1, *stage.broker.address)[1]
    alter(stage, f"listener={port},connections=2")
    await stage.pair()
    await stage.pair(port)
    await stage.pair(port)
    for nth, each in enumerate((stage.port, port)):
        await stage.client(each)
        await waiting(stage, nth + 1)
    assert {each.entity for each in stage.waiting()} == {"listener:bootstrap", f"listener:{port}"}


async def test_a_changed_limit_counts_open_connections(open_stage: OpenStage) -> None:
    stage = open_stage()
    await stage.pair()
    await stage.pair()
    alter(stage, "ip=<default>,connections=2")
    client = await stage.client()
    await client.closed()
    assert len(stage.sessions) == 2, "nobody is thrown out"
    alter(stage, "ip=<default>,connections=3")
    await talk(stage)


# Rates


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_seed_000_accepts_thirty_and_delays_the_next(open_stage: OpenStage, hangs_up: bool) -> None:
    stage = open_stage(quotas=THIRTY)
    first, broker_of_first = await stage.pair()
    for _ in range(29):
        stage.clock.pass_seconds(0.025)
        await stage.pair()
    assert stage.waiting() == []
    stage.clock.pass_seconds(0.025)
    late = await stage.client()
    data = produce(1, 100)
    await late.send(data)
    await waiting(stage)
    session = stage.session_of(late)
    assert session.state is State.CONNECTING
    stage.clock.pass_seconds(0.010)
    [shown] = stage.waiting()
    assert (shown.limit, shown.entity, shown.limit_value) == ("connection_creation_rate", "ip:127.0.0.1", 30)
    assert (shown.mode, shown.waited_seconds, shown.client_id) == ("pause", 0.010, "")
    # 31 are 30 a second when a second and a thirtieth have passed since the first.
    assert shown.remaining_seconds == 0.273  # from 0.760 to 1.033
    assert readable_bytes(session.client) == len(data), "nothing is read of it"
    # The others go on meanwhile.
    await first.send(heartbeat(2))
    assert await broker_of_first.frame() == heartbeat(2)
    if hangs_up:
        late.close()
    broker = await stage.broker.accept()
    assert await broker.frame() == data, "what it sent before it went is not lost"
    if hangs_up:
        await broker.send(produced(1))
        assert await broker.rest() == b""
        broker.close()
        await until(lambda: len(stage.sessions) == 30)
    assert stage.waiting() == []
    assert stage.metrics.connections.rejected["connection_creation_rate"] == 0


async def test_a_wait_that_is_too_long_ends_with_a_close(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=0.05))
    await stage.pair()
    for number in range(1, 4):
        client = await stage.client()
        await waiting(stage)
        assert len(stage.sessions) == 2, "it is held before it is closed, else it would come back at once"
        await client.closed()
        assert stage.metrics.connections.rejected["connection_creation_rate"] == number
    assert [name for name, _ in lines_of(caplog.records)] == ["throttled", "connection_rejected"]
    fields = lines_of(caplog.records)[1][1]
    assert (fields["reason"], fields["entity"], fields["held_seconds"]) == ("connection_creation_rate", "total", 0.05)
    stage.clock.pass_seconds(30)
    await talk(stage)


async def test_refused_connections_are_not_counted(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=0.001))
    await stage.pair()
    for _ in range(30):
        client = await stage.client()
        await client.closed()
    stage.clock.pass_seconds(2)  # two in two seconds, not 32
    await talk(stage)


async def test_refused_connections_take_a_tenth_of_all(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    """An address above its own rate leaves room for the others."""
    stage = open_stage(
        quotas=[parse_spec("ip=<default>,connection_creation_rate=2")], security=SecurityOptions(max_connections=100)
    )
    for _ in range(200):
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind(("127.0.0.66", 0))
        sock.connect_ex((LOOPBACK, stage.port))
        stage.clients.append(Peer(sock))
    rejected = stage.metrics.connections.rejected
    await until(lambda: len(stage.sessions) + sum(rejected.values()) == 200)
    waits = [stage.server.gate.wait_of(session) for session in stage.sessions]
    assert sum(wait is not None and not wait.verdict.admitted for wait in waits) == 10
    assert rejected["connection_creation_rate"] == 200 - len(stage.sessions)
    assert rejected["max_connections"] == 0
    assert [name for name, _ in lines_of(caplog.records)] == ["connection_rejected"]
    innocent = await stage.client()
    await until(lambda: stage.session_of(innocent).state is State.OPEN)


async def test_a_wait_counts_when_it_ends_and_not_as_a_request(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ONE])
    await stage.pair()
    gone, *_ = await crowd(stage, 2)
    stage.clock.pass_seconds(0.2)
    session = stage.session_of(gone)
    gone.close()
    await until(lambda: session.client.peer_has_gone)
    session.sweep(stage.clock())
    assert list(stage.metrics.entities) == []
    stage.clock.pass_seconds(0.3)
    alter(stage, "total=true,connection_creation_rate=1", away=True)
    assert await served(stage) == 1
    entity = stage.metrics.entities.of("ANONYMOUS", "")
    [histogram] = entity.throttles.values()
    assert (histogram.count, histogram.sum_seconds) == (1, 0.5)
    assert entity.window.max_and_mean(entity.requests) == (0, 0)


async def test_a_waiting_client_that_hangs_up_is_closed_unless_it_sent_data(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ONE])
    await stage.pair()
    curious, writer = await stage.client(), await stage.client()
    await curious.send(heartbeat(1) + heartbeat(2))
    await writer.send(heartbeat(1) + produce(2, 100))
    await waiting(stage, 2)
    sessions = [stage.session_of(curious), stage.session_of(writer)]
    await until(lambda: all(readable_bytes(session.client) for session in sessions))
    for client, session in zip((curious, writer), sessions, strict=True):
        client.close()
        await until(lambda session=session: session.client.peer_has_gone)  # type: ignore[misc]
        session.sweep(stage.clock())
    assert [session.state for session in sessions] == [State.CLOSED, State.CONNECTING]


@pytest.mark.parametrize("then", ["served", "turned away"])
async def test_draining_while_a_connection_waits(open_stage: OpenStage, then: str) -> None:
    stage = open_stage(
        quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=100 if then == "served" else 0.5)
    )
    await stage.pair()
    client = await stage.client()
    await waiting(stage)
    stage.session_of(client).drain()
    await client.closed()
    assert len(stage.sessions) == 1
    assert stage.metrics.connections.rejected["connection_creation_rate"] == 0


async def test_closing_the_proxy_while_a_connection_waits(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=100))
    await stage.pair()
    client = await stage.client()
    await waiting(stage)
    stage.server.close()
    await client.closed()


@pytest.mark.parametrize("hold", [0.03, 100.0])
async def test_a_waiting_connection_counts(open_stage: OpenStage, hold: float) -> None:
    """Else a storm of connections that wait would be without bound."""
    stage = open_stage(
        quotas=[ONE, parse_spec("ip=<default>,connections=2")],
        enforcement=EnforcementOptions(max_connection_hold_seconds=hold),
    )
    await stage.pair()
    client = await stage.client()
    await waiting(stage)
    refused = await stage.client()
    await refused.closed()
    assert stage.metrics.connections.rejected["connections"] == 1
    if hold < 1:
        await client.closed()
        assert stage.metrics.connections.rejected["connection_creation_rate"] == 1


@pytest.mark.parametrize("before_s", [None, 60])
async def test_a_storm_of_500_connections_waits_for_an_even_rate(
    open_stage: OpenStage, before_s: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors start; their driver has connected at some time before, or not."""
    waits: list[float] = []
    hold = Gate._hold

    def recording(gate: Gate, connection: Any, wait_ns: int) -> None:
        waits.append(wait_ns / 1_000_000_000)
        hold(gate, connection, wait_ns)

    monkeypatch.setattr(Gate, "_hold", recording)
    stage = open_stage(quotas=[parse_spec("total=true,connection_creation_rate=100")])
    if before_s is not None:
        await stage.pair()
        stage.clock.pass_seconds(before_s)
    clients = []
    for _ in range(500):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((LOOPBACK, stage.port))
        clients.append(Peer(sock))
    stage.clients += clients
    await until(lambda: len(waits) == 400)
    assert {round(later - earlier, 9) for earlier, later in pairwise(waits)} == {0.01}
    assert waits[0] == (1.01 if before_s is None else 0.01), "until the first window ends, the rate does not fall"
    alter(stage, "total=true,connection_creation_rate=100", away=True)
    for _ in range(500):
        await stage.broker.accept()
    await waiting(stage, 0)
    assert sum(stage.metrics.connections.rejected.values()) == 0


# Limits that change while somebody waits


async def crowd(stage: Stage, count: int) -> list[Peer]:
    """So many that wait, in their order; each has sent a heartbeat by which the broker knows it."""
    clients = []
    for nth in range(count):
        client = await stage.client()
        await client.send(heartbeat(100 + nth))
        clients.append(client)
        await waiting(stage, nth + 1)
    return clients


async def served(stage: Stage) -> int:
    """Which one of the crowd is served next."""
    broker = await stage.broker.accept()
    return correlation_of(await broker.frame()) - 100


def remaining(stage: Stage) -> list[float]:
    """Seconds for which those that wait still do, the shortest first."""
    return sorted(each.remaining_seconds for each in stage.waiting())


async def test_a_removed_rate_accepts_all_waiting_connections_in_order(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=5.5))
    await stage.pair()
    await crowd(stage, 7)
    assert remaining(stage) == [2, 3, 4, 5, 5.5, 5.5, 5.5], "the last three are to be turned away"
    alter(stage, "total=true,connection_creation_rate=1", away=True)
    assert remaining(stage) == [], "nobody is shown to wait for a limit that is gone"
    assert [await served(stage) for _ in range(7)] == list(range(7))
    assert sum(stage.metrics.connections.rejected.values()) == 0
    await waiting(stage, 0)


async def test_many_refused_connections_are_decided_again_a_few_at_a_time(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.sessions.gate.REVIEWED_AT_ONCE", 3)
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=2.5))
    await stage.pair()
    clients = await crowd(stage, 8)
    assert remaining(stage) == [2, *[2.5] * 7]
    alter(stage, "total=true,connection_creation_rate=1", away=True)
    assert remaining(stage) == [2.5] * 4
    stage.session_of(clients[5]).close()
    assert [await served(stage) for _ in range(7)] == [0, 1, 2, 3, 4, 6, 7]
    assert sum(stage.metrics.connections.rejected.values()) == 0
    await waiting(stage, 0)


async def test_waits_get_shorter_when_the_rate_is_raised(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[PLAIN], enforcement=EnforcementOptions(max_connection_hold_seconds=100))
    await stage.pair()
    await crowd(stage, 3)
    stage.clock.pass_seconds(0.5)
    assert remaining(stage) == [1.5, 2.5, 3.5]
    alter(stage, "total=true,connection_creation_rate=2")
    assert remaining(stage) == [1, 1.5], "2, 3 and 4 connections are 2 a second at 1, 1.5 and 2 s"
    assert await served(stage) == 0
    alter(stage, "total=true,connection_creation_rate=100")
    assert [await served(stage), await served(stage)] == [1, 2]


async def test_a_lowered_rate_does_not_lengthen_waits(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("total=true,connection_creation_rate=20")])
    for _ in range(20):
        await stage.pair()
    await crowd(stage, 2)
    assert remaining(stage) == [1.05, 1.1]
    stage.clock.pass_seconds(1.04)
    alter(stage, "total=true,connection_creation_rate=1")
    assert remaining(stage) == [0.01, 0.06]
    assert [await served(stage), await served(stage)] == [0, 1]


async def test_a_higher_rate_accepts_a_connection_that_was_to_be_refused(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[PLAIN], enforcement=EnforcementOptions(max_connection_hold_seconds=3))
    await stage.pair()
    await crowd(stage, 4)
    alter(stage, "total=true,connection_creation_rate=2")
    assert remaining(stage) == [1.5, 2, 2.5]
    alter(stage, "total=true,connection_creation_rate=4")
    assert remaining(stage)[-1] == 1.25, "the fourth and the fifth have been recorded once, in their order"
    alter(stage, "total=true,connection_creation_rate=5")
    assert [await served(stage) for _ in range(4)] == list(range(4))
    assert sum(stage.metrics.connections.rejected.values()) == 0


async def test_a_connection_that_is_still_refused_is_closed_at_its_time(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=0.05))
    await stage.pair()
    client = await stage.client()
    await waiting(stage)
    stage.clock.pass_seconds(0.01)
    alter(stage, "ip=<default>,connection_creation_rate=1")
    assert remaining(stage) == [0.04]
    await client.closed()
    assert stage.metrics.connections.rejected["connection_creation_rate"] == 1
    assert lines_of(caplog.records)[-1][1]["held_seconds"] == 0.05, "from when it came"


async def test_a_change_of_another_limit_changes_no_wait(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=100))
    await stage.pair()
    [client] = await crowd(stage, 1)
    session = stage.session_of(client)
    wait = stage.server.gate.wait_of(session)
    assert wait is not None
    before = wait.verdict
    for spec in ("topic=flights,bytes_in_rate=1", "client-id=etl,producer_byte_rate=1"):
        alter(stage, spec)
    assert wait.verdict == before
    stage.registry.replace([], stage.clock())
    assert await served(stage) == 0


async def test_closed_connections_are_not_checked_again(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=100))
    await stage.pair()
    clients = await crowd(stage, 3)
    stage.session_of(clients[1]).drain()
    await clients[1].closed()
    alter(stage, "total=true,connection_creation_rate=1", away=True)
    assert [await served(stage), await served(stage)] == [0, 2]
    alter(stage, "total=true,connection_creation_rate=1")
    await waiting(stage, 0)


async def test_many_waiting_connections_are_accepted_a_few_at_a_time(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.sessions.gate.SERVED_AT_ONCE", 3)
    stage = open_stage(quotas=[ONE], enforcement=EnforcementOptions(max_connection_hold_seconds=100))
    await stage.pair()
    await crowd(stage, 10)
    waits_ms = []
    hold = Gate._hold

    def recording(gate: Gate, connection: Any, wait_ns: int) -> None:
        waits_ms.append(wait_ns / 1_000_000)
        hold(gate, connection, wait_ns)

    monkeypatch.setattr(Gate, "_hold", recording)
    alter(stage, "total=true,connection_creation_rate=1", away=True)
    assert waits_ms == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert [await served(stage) for _ in range(10)] == list(range(10))


async def test_a_dry_run_admits_all_connections_and_reports_refusals(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(
        quotas=[ONE, parse_spec("ip=<default>,connections=2")],
        enforcement=EnforcementOptions(max_connection_hold_seconds=0.001, dry_run=True),
    )
    for _ in range(4):
        await talk(stage)
    assert sum(stage.metrics.connections.rejected.values()) == 0
    said = [(name, fields["limit"]) for name, fields in lines_of(caplog.records)]
    assert said == [("would_throttle", "connection_creation_rate"), ("would_throttle", "connections")]


async def test_in_a_dry_run_a_connection_above_the_limit_is_charged_to_the_rate(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    """It is served, so each of the two limits is told by what it would throttle if it were alone."""
    specs = "ip=<default>,connections=1", "total=true,connection_creation_rate=2"
    stage = open_stage(quotas=[parse_spec(spec) for spec in specs], enforcement=EnforcementOptions(dry_run=True))
    for _ in range(3):
        await talk(stage)
    said = [(name, fields["limit"], fields["throttle_ms"]) for name, fields in lines_of(caplog.records)]
    assert said == [("would_throttle", "connections", 0), ("would_throttle", "connection_creation_rate", 1500)]
    [limit] = stage.registry.limits_in_use()
    assert limit.debt_ns(stage.clock()) == 1_500_000_000, "three in a second and a half are two a second"
