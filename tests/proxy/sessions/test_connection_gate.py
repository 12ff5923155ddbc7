"""`connections` and `connection_creation_rate` at the gate: which connections are served, wait, or are closed.

First without sockets (`Door`), then with a proxy.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proxy.config.config import EnforcementOptions, QuotaOptions
from proxy.enforcement.identity import Identity
from proxy.observability.client_times import LIMIT
from proxy.sessions.gate import Gate
from proxy.sessions.lifecycle import State
from proxy.sessions.shared import ClientAddress
from proxy.streams.observer import WaitClock
from quotas.connections import ConnectionQuotas
from quotas.entity import TOTAL, EntityKind, Named
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import OpenStage, Peer, Stage, arrives, lines_of, readable_bytes, until
from tests.proxy.dialogue import alter
from tests.proxy.frames import heartbeat, produce
from tests.proxy.streams.pair import World
from tests.proxy.timers import Timers

pytestmark = pytest.mark.claim("enforcement", "a storm of connections passes at an even rate, without a client error")

SECOND = 1_000_000_000
RATE = "connection_creation_rate"
#: Seed 000's: 30 a second, over two windows of a second.
THIRTY = QuotaOptions(entries=(parse_spec(f"ip=<default>,{RATE}=30"),), window_num=2)
#: In the first second of a new limit each further connection waits for one second more.
ONE = f"total,{RATE}=1"
BOOTSTRAP, PORT = ("bootstrap", "19092"), ("9093",)


class Connection:
    """The part of a session that the gate uses."""

    def __init__(self, door: Door, origin: ClientAddress) -> None:
        world = door.world
        self.origin = origin
        self.identity = Identity(world.config, world.registry, world.metrics.entities, f"{origin.ip}:{origin.port}")
        self.connection = SimpleNamespace(observer=WaitClock(door.clock()))
        self.since_ns = door.clock()
        self.is_served = False
        self._door = door

    def serve(self) -> None:
        assert not self.is_served
        self.is_served = True
        if self._door.is_unreachable:
            self.close()

    def close(self) -> None:
        self._door.open.remove(self)
        self._door.gate.remove(cast("Any", self))


def shared_of(timers: Timers, parts: Any) -> Any:
    """What a gate uses of `Shared`, on the timers of a test."""
    return SimpleNamespace(loop=timers, clock=parts.clock, context=parts.context, faults=parts.faults)


class Door:
    """A gate on a clock of its own, with the connections that it has accepted."""

    def __init__(self, *specs: str, hold_seconds: float = 2, max_refused: int = 10, dry_run: bool = False) -> None:
        options = EnforcementOptions(dry_run=dry_run)
        self.world = world = World([parse_spec(spec) for spec in specs], enforcement=options)
        self.clock = world.clock
        self.timers = Timers(world.clock)
        self.quotas = ConnectionQuotas(world.registry, round(hold_seconds * SECOND))
        self.gate = Gate(shared_of(self.timers, world.shared), self.quotas, max_refused)
        self.rejected = world.metrics.connections.rejected
        self.open: list[Connection] = []
        self.is_unreachable = False

    def change(self, *specs: str) -> None:
        self.world.registry.replace([parse_spec(spec) for spec in specs], self.clock())

    def enforce(self, enforces: bool) -> None:
        self.world.context.actions.change("auto", enforces=enforces)

    def admit(self) -> Connection:
        """A new connection, which is not closed at once."""
        connection = self.arrive()
        assert connection is not None
        return connection

    def arrive(self, ip: str = "10.0.0.1", listener: tuple[str, ...] = BOOTSTRAP) -> Connection | None:
        """A new connection; None if it is closed at once."""
        origin = ClientAddress(ip, 1, listener)
        verdict = self.gate.decide(origin)
        if verdict is None:
            return None
        connection = Connection(self, origin)
        self.open.append(connection)
        self.gate.admit(cast("Any", connection), verdict, connection.serve)
        return connection

    def waits(self) -> dict[Connection, Any]:
        found = {each: self.gate.pending.get(cast("Any", each)) for each in self.open}
        return {each: wait for each, wait in found.items() if wait is not None}

    def waits_seconds(self) -> list[float]:
        return [wait.verdict.wait_ns / SECOND for wait in self.waits().values()]


def test_one_with_too_long_a_wait_is_closed_after_the_longest(caplog: pytest.LogCaptureFixture) -> None:
    door = Door(ONE, hold_seconds=2.5)
    for _ in range(4):
        door.arrive()
    assert door.waits_seconds() == [2, 2.5, 2.5]
    door.timers.pass_seconds(2)
    assert [each.is_served for each in door.open] == [True, True, False, False]
    door.timers.pass_seconds(0.5)
    assert [each.is_served for each in door.open] == [True, True]
    assert door.rejected[RATE] == 2
    assert [name for name, _ in lines_of(caplog.records)] == ["throttled", "connection_rejected"]
    fields = lines_of(caplog.records)[1][1]
    assert (fields["reason"], fields["entity"], fields["held_seconds"]) == (RATE, "total", 2.5)


def test_a_wait_counts_when_it_ends_and_not_as_a_request() -> None:
    door = Door(ONE, hold_seconds=8)
    _, second, gone = (door.admit() for _ in range(3))
    gone.close()
    entities = door.world.metrics.entities
    assert list(entities) == []
    door.timers.pass_seconds(8)
    assert second.connection.observer.limits_ns == {(RATE, TOTAL): 2 * SECOND}
    assert second.connection.observer.spent_ns[LIMIT] == 2 * SECOND
    entity = entities.of("ANONYMOUS", "")
    [histogram] = entity.throttles.values()
    assert (histogram.count, histogram.sum_seconds) == (1, 2)
    assert entity.window.max_and_mean(entity.requests) == (0, 0)


def test_a_dry_run_serves_all_and_reports_each_of_both_limits(caplog: pytest.LogCaptureFixture) -> None:
    """A connection above the number is served, so it is charged to the rate."""
    door = Door("ip=<default>,connections=1", f"total,{RATE}=2,algorithm=token-bucket", dry_run=True)
    assert all(door.admit().is_served for _ in range(3))
    assert sum(door.rejected.values()) == 0
    said = [(name, fields["limit"], fields["throttle_ms"]) for name, fields in lines_of(caplog.records)]
    assert said == [("would_throttle", "connections", 0), ("would_throttle", RATE, 500)]


class Connections(RuleBasedStateMachine):
    """Four of an address or of a network, two at listener 9093, so many in total; so many a second at 9093."""

    def __init__(self) -> None:
        super().__init__()
        self.door = Door(max_refused=1)
        self.change(3, 2, [])

    @rule(
        total=st.sampled_from([0, 1, 3, 10]),
        rate=st.sampled_from([1, 2, 50]),
        networks=st.lists(st.sampled_from(["10.0.0.2/31", "10.0.0.0/30", "10.0.0.0/8", "::/0"]), unique=True),
    )
    def change(self, total: int, rate: int, networks: list[str]) -> None:
        self.networks = networks
        at_port = f"listener=9093,connections=2,{RATE}={rate}"
        of_networks = [f"ip={each},connections=4" for each in networks]
        self.door.change("ip=<default>,connections=4", *of_networks, at_port, f"total,connections={total}")

    @rule(enforces=st.booleans())
    def switch(self, enforces: bool) -> None:
        self.door.enforce(enforces)

    @rule(is_unreachable=st.booleans())
    def lose_brokers(self, is_unreachable: bool) -> None:
        self.door.is_unreachable = is_unreachable

    @rule(ip=st.sampled_from(["10.0.0.1", "10.0.0.2"]), listener=st.sampled_from([BOOTSTRAP, PORT]))
    def arrive(self, ip: str, listener: tuple[str, ...]) -> None:
        for _ in range(2):
            self.door.arrive(ip, listener)

    @rule(nth=st.integers(0, 9))
    def end(self, nth: int) -> None:
        if self.door.open:
            self.door.open[nth % len(self.door.open)].close()

    @rule(tenths=st.integers(0, 9))
    def pass_time(self, tenths: int) -> None:
        self.door.timers.pass_seconds(tenths / 10)

    @invariant()
    def each_connection_is_served_or_waits_with_a_timer(self) -> None:
        door, waits = self.door, self.door.waits()
        assert {each for each in door.open if not each.is_served} == waits.keys()
        assert len(door.gate.pending) == len(waits) == len(door.timers.pending)
        assert all(door.clock() - each.since_ns <= 2 * SECOND for each in waits)
        refused = sum(not wait.verdict.admitted for wait in waits.values())
        assert door.gate._refused == refused <= 1

    @invariant()
    def counts_are_those_of_the_connections(self) -> None:
        waits = self.door.waits()
        admitted = [each for each in self.door.open if each.is_served or waits[each].verdict.admitted]
        expected = Counter(Named(EntityKind.IP, each.origin.ip) for each in self.door.open)
        for network in map(ip_network, self.networks):
            expected[Named(EntityKind.IP, str(network))] = sum(
                ip_address(each.origin.ip) in network for each in self.door.open
            )
        expected.update(Named(EntityKind.LISTENER, name) for each in admitted for name in each.origin.listener)
        self.door.quotas.over("10.0.0.1", PORT)  # after a change, the next connection has networks counted
        expected[TOTAL] = len(admitted)
        assert self.door.quotas._open == {owner: count for owner, count in expected.items() if count}

    def teardown(self) -> None:
        for connection in list(self.door.open):
            connection.close()
        assert (self.door.quotas._open, self.door.timers.pending) == ({}, [])


TestConnections = Connections.TestCase


# ---- with a proxy
class Lobby:
    """A proxy with a gate on the test's clock."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.timers = Timers(stage.clock)
        self.gate = stage.server.gate
        self.gate._shared = shared_of(self.timers, stage.shared)

    async def wait(self, sent: bytes = b"") -> Peer:
        """A new connection, which the gate holds, and which has sent this."""
        count = len(self.gate.pending) + 1
        client = await self.stage.client()
        await client.send(sent)
        await until(lambda: len(self.gate.pending) == count)
        session = self.stage.session_of(client)
        await until(lambda: readable_bytes(session.client) == len(sent))
        return client


async def test_each_listener_has_its_own_limits(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[parse_spec("listener=bootstrap,connections=1")])
    port = stage.context.nodes.advertise(1, *stage.broker.address)[1]
    alter(stage, f"listener={port},connections=2")
    first, _ = await stage.pair()
    await stage.pair(port)
    client, broker = await stage.pair(port)
    for each in (stage.port, port):
        await (await stage.client(each)).closed()
    assert stage.metrics.connections.rejected["connections"] == 2
    assert stage.metrics.connections.open == len(stage.sessions) == 3
    await arrives(client, broker, heartbeat(1))
    first.close()
    await until(lambda: len(stage.sessions) == 2)
    await stage.pair()


async def test_seed_000_accepts_thirty_and_delays_the_next(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=THIRTY)
    lobby = Lobby(stage)
    first, broker_of_first = await stage.pair()
    for _ in range(29):
        stage.clock.pass_seconds(0.025)
        await stage.pair()
    assert stage.waiting() == []
    stage.clock.pass_seconds(0.025)
    assert stage.session_of(await lobby.wait(produce(1, 100))).state is State.CONNECTING
    lobby.timers.pass_seconds(0.010)
    [shown] = stage.waiting()
    assert (shown.limit, shown.entity, shown.limit_value) == (RATE, "ip:127.0.0.1", 30)
    assert (shown.mode, shown.waited_seconds, shown.client_id) == ("pause", 0.010, "")
    # 31 are 30 a second when a second and a thirtieth have passed since the first.
    assert shown.remaining_seconds == 0.273  # from 0.760 to 1.033
    await first.send(heartbeat(2))
    assert await broker_of_first.frame() == heartbeat(2), "the others are served meanwhile"
    lobby.timers.pass_seconds(0.273)
    assert await (await stage.broker.accept()).frame() == produce(1, 100)
    assert (stage.waiting(), stage.metrics.connections.rejected[RATE]) == ([], 0)


async def test_a_waiting_client_that_hangs_up_is_closed(open_stage: OpenStage) -> None:
    """Also with data that a broker would not answer: none has been reached."""
    stage = open_stage(quotas=[parse_spec(ONE)])
    lobby = Lobby(stage)
    await stage.pair()
    client = await lobby.wait(heartbeat(1) + produce(2, 100, acks=0))
    session = stage.session_of(client)
    client.close()
    await until(lambda: session.client.peer_has_gone)
    session.sweep(stage.clock())
    assert session.state is State.CLOSED


@pytest.mark.parametrize("hold_seconds", [1, 100])
@pytest.mark.parametrize("end", ["drain", "close"])
async def test_the_proxy_ends_while_a_connection_waits(open_stage: OpenStage, end: str, hold_seconds: float) -> None:
    options = EnforcementOptions(max_connection_hold_seconds=hold_seconds)
    stage = open_stage(quotas=[parse_spec(ONE)], enforcement=options)
    lobby = Lobby(stage)
    await stage.pair()
    client = await lobby.wait()
    if end == "drain":
        stage.session_of(client).drain()
    else:
        stage.server.close()
    await client.closed()
    assert len(stage.sessions) == (1 if end == "drain" else 0)
    assert lobby.timers.pending == []
    assert stage.metrics.connections.rejected[RATE] == 0
