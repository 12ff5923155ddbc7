"""The counts of connections against a model, through any sequence of arrivals, ends, waits and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proxy.enforcement.identity import Identity
from proxy.sessions.gate import SERVED_AT_ONCE, Gate
from proxy.sessions.session import Origin
from quotas.connections import ConnectionQuotas
from quotas.entity import TOTAL, Kind, Named
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Clock
from tests.proxy.streams.pair import World

SECOND = 1_000_000_000
HOLD_NS = 2 * SECOND
MAX_REFUSED = 1
ADDRESSES = ("10.0.0.1", "10.0.0.2")
LISTENERS = (("bootstrap", "19092"), ("9093",))


class Timer:
    """A timer of `Timers`."""

    def __init__(self, due_ns: int, call: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.call = call
        self.is_pending = True

    def cancel(self) -> None:
        self.is_pending = False


class Timers:
    """The part of an event loop that the gate uses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: list[Timer] = []

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: object) -> Timer:
        timer = Timer(self._clock.now_ns + round(seconds * SECOND), lambda: call(*arguments))
        self._timers.append(timer)
        return timer

    @property
    def pending(self) -> list[Timer]:
        self._timers = [each for each in self._timers if each.is_pending]
        return self._timers

    def pass_until(self, end_ns: int) -> None:
        while due := [each for each in self.pending if each.due_ns <= end_ns]:
            timer = min(due, key=lambda each: each.due_ns)
            timer.cancel()
            self._clock.now_ns = max(self._clock.now_ns, timer.due_ns)
            timer.call()
        self._clock.now_ns = end_ns


class Connection:
    """What the gate uses of a session."""

    def __init__(self, machine: Connections, origin: Origin, since_ns: int) -> None:
        world = machine.world
        self.origin = origin
        self.identity = Identity(world.config, world.registry, world.metrics.entities, origin.ip)
        self.since_ns = since_ns
        self.is_served = False
        self._machine = machine

    def serve(self) -> None:
        assert not self.is_served
        self.is_served = True
        if self._machine.is_unreachable:
            self.close()

    def close(self) -> None:
        self._machine.open.remove(self)
        self._machine.gate.remove(cast("Any", self))


class Connections(RuleBasedStateMachine):
    """Four of an address, two at listener 9093, so many in total; so many a second at 9093."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clock = self.world.clock
        self.timers = Timers(self.clock)
        self.quotas = ConnectionQuotas(self.world.registry, HOLD_NS, max_waiting=3)
        world = self.world
        self.gate = Gate(
            cast("Any", self.timers),
            self.clock,
            self.quotas,
            world.report,
            world.metrics.connections,
            world.context,
            MAX_REFUSED,
        )
        world.registry.observers.append(self.gate.limits_changed)
        self.open: list[Connection] = []
        self.is_unreachable = False
        self.change(3, 2)

    @rule(total=st.sampled_from([0, 1, 3, 10]), rate=st.sampled_from([1, 2, 50]))
    def change(self, total: int, rate: int) -> None:
        specs = (
            "ip=<default>,connections=4",
            f"listener=9093,connections=2,connection_creation_rate={rate}",
            f"total,connections={total}",
        )
        self.world.registry.replace([parse_spec(spec) for spec in specs], self.clock())

    @rule(enforces=st.booleans())
    def switch(self, enforces: bool) -> None:
        self.world.context.measures.change("auto", enforces=enforces)
        self.gate.limits_changed()

    @rule(is_unreachable=st.booleans())
    def lose_brokers(self, is_unreachable: bool) -> None:
        self.is_unreachable = is_unreachable

    @rule(ip=st.sampled_from(ADDRESSES), listener=st.sampled_from(LISTENERS), count=st.integers(1, 4))
    def arrive(self, ip: str, listener: tuple[str, ...], count: int) -> None:
        for _ in range(count):
            origin = Origin(ip, 1, listener)
            over = self.gate.over(origin)
            if over is None or over.wait_ns:
                connection = Connection(self, origin, self.clock())
                self.open.append(connection)
                self.gate.admit(cast("Any", connection), over, connection.serve)

    @rule(nth=st.integers(0, 9))
    def end(self, nth: int) -> None:
        if self.open:
            self.open[nth % len(self.open)].close()

    @rule()
    def drain(self) -> None:
        for connection in list(self.open):
            connection.close()

    @rule(tenths=st.integers(0, 9))
    def pass_time(self, tenths: int) -> None:
        self.timers.pass_until(self.clock() + tenths * SECOND // 10)

    def waits(self) -> dict[Connection, Any]:
        found = {each: self.gate.wait_of(cast("Any", each)) for each in self.open}
        return {each: wait for each, wait in found.items() if wait is not None}

    @invariant()
    def each_connection_is_served_or_waits_with_a_timer(self) -> None:
        waits = self.waits()
        assert {each for each in self.open if not each.is_served} == waits.keys()
        assert len(self.gate._waiting) == len(waits) == len(self.timers.pending)
        longest_ns = HOLD_NS + (1 + len(waits) // SERVED_AT_ONCE) * 1_000_000
        assert all(self.clock() - each.since_ns <= longest_ns for each in waits)

    @invariant()
    def refused_connections_are_bounded(self) -> None:
        waits = self.waits().values()
        refused = {wait for wait in waits if not wait.verdict.admitted and not self.quotas._is_queued(wait)}
        assert self.gate._refused == refused
        assert sum(wait.verdict.wait_ns > 0 for wait in refused) <= MAX_REFUSED, "others are closed at once"

    @invariant()
    def counts_are_those_of_the_connections(self) -> None:
        waits = self.waits()
        admitted = [each for each in self.open if each.is_served or waits[each].verdict.admitted]
        expected = Counter(Named(Kind.IP, each.origin.ip) for each in self.open)
        expected.update(Named(Kind.LISTENER, each.origin.listener[0]) for each in admitted)
        expected[TOTAL] = len(admitted)
        assert self.quotas._open == {owner: count for owner, count in expected.items() if count}

    @invariant()
    def no_slot_is_idle_while_a_connection_waits_for_it(self) -> None:
        for queue in self.quotas._queues.values():
            assert queue
            assert not self.quotas._has_slot(next(iter(queue)).listener)
            assert self.world.context.measures.enforces

    def teardown(self) -> None:
        self.drain()
        assert (self.quotas._open, self.quotas._queues, self.timers.pending) == ({}, {}, [])


TestConnections = Connections.TestCase
