"""How clients are classified that keep several requests on their way, so that nearly all of these are held.

A simulation on a virtual clock: a client with a window of requests, the network, the proxy, a broker.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.enforcement.backoff import MOST_ON_THEIR_WAY, Conduct
from tests.proxy.conversation import without_burst
from tests.proxy.frames import produce, produce_throttle_ms, produced
from tests.proxy.streams.pair import Pair, World, correlation_ids

MS = 1_000_000


class Simulation:
    """Clients that share a limit of `rate` bytes per second. Times are milliseconds."""

    def __init__(self, rate: int, round_trip_ms: int = 1, broker_ms: int = 1, late_ms: int = 0) -> None:
        self.world = World([without_burst(f"client-id=etl,producer_byte_rate={rate}")])
        self.one_way_ns = round_trip_ms * MS // 2
        self.broker_ns = broker_ms * MS
        self.late_ns = late_ms * MS
        self.producers: list[Producer] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, wait_ns: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.world.clock() + wait_ns, next(self._numbers), event))

    def run(self, seconds: float) -> None:
        until_ns = self.world.clock() + int(seconds * 1e9)
        while self._events and self._events[0][0] <= until_ns:
            self.world.clock.now_ns, _, event = heapq.heappop(self._events)
            event()
            self._rearm()
            for producer in self.producers:
                producer.forward()
        self.world.clock.now_ns = until_ns

    def _rearm(self) -> None:
        """Set the timers of limits with held frames; they count in milliseconds, and fire late."""
        holds = self.world.holds
        while holds.changed:
            limit, _ = holds.changed.popitem()
            due_ns = holds.due_ns(limit, self.world.clock())
            if due_ns is not None:
                self.after(-(-due_ns // MS) * MS + self.late_ns, self._release)

    def _release(self) -> None:
        holds, now_ns = self.world.holds, self.world.clock()
        for limit in list(holds.limits):
            hold = holds.next(limit, now_ns)
            while hold is not None:
                assert isinstance(hold.waiter, Pair)
                hold.waiter.release(hold)
                hold = holds.next(limit, now_ns)
            holds.changed[limit] = None


class Producer:
    """One connection with at most `window` requests of `size` bytes without a response, as many as it may have.

    late_ns   for how long it waits after the end of a throttle time
    seen      what the proxy sees: when data arrives (-1), and when a response is sent, with its throttle time
    """

    def __init__(self, simulation: Simulation, window: int, size: int, *, waits: bool, late_ns: int = 0) -> None:
        self.simulation = simulation
        self.pair = Pair(simulation.world)
        self.pair.connection.identity.back_off.round_trip_ns = 2 * simulation.one_way_ns
        self.window = window
        self.size = size
        self.waits = waits
        self.late_ns = late_ns
        self.wait_until_ns = 0
        self.seen: list[tuple[int, int]] = []
        self.on_their_way = 0
        self._numbers = count()
        simulation.producers.append(self)
        self.send()

    @property
    def conduct(self) -> Conduct:
        return self.pair.connection.identity.back_off.conduct

    def send(self) -> None:
        simulation = self.simulation
        if self.waits and simulation.world.clock() < self.wait_until_ns:
            return
        while self.on_their_way < self.window:
            self.on_their_way += 1
            frame = produce(next(self._numbers), self.size)
            simulation.after(simulation.one_way_ns, lambda frame=frame: self.arrive(frame))  # type: ignore[misc]

    def arrive(self, frame: bytes) -> None:
        self.seen.append((self.simulation.world.clock(), -1))
        self.pair.client_sends(frame)

    def forward(self) -> None:
        """The broker responds to what the proxy has forwarded."""
        for number in correlation_ids(self.pair.sent(), requests=True):
            self.simulation.after(self.simulation.broker_ns, lambda number=number: self.respond(number))  # type: ignore[misc]
        del self.pair.to_broker[:]

    def respond(self, number: int) -> None:
        self.pair.broker_sends(produced(number))
        (response,) = self.pair.received()
        del self.pair.to_client[:]
        throttle_ms = produce_throttle_ms(response, 9)
        self.seen.append((self.simulation.world.clock(), throttle_ms))
        self.simulation.after(self.simulation.one_way_ns, lambda: self.receive(throttle_ms))

    def receive(self, throttle_ms: int) -> None:
        self.on_their_way -= 1
        now_ns = self.simulation.world.clock()
        self.wait_until_ns = max(self.wait_until_ns, now_ns + throttle_ms * MS + self.late_ns)
        self.send()
        if self.waits and now_ns < self.wait_until_ns:
            self.simulation.after(self.wait_until_ns - now_ns, self.send)


@pytest.mark.parametrize("late_ms", [0, 3])
@pytest.mark.parametrize("window", [1, 2, 5, 50])
def test_a_client_that_never_waits(window: int, late_ms: int) -> None:
    """With one request at a time, sent within the grace, it could be one that was on its way."""
    simulation = Simulation(1_000_000, late_ms=late_ms)
    client = Producer(simulation, window, 20_000, waits=False)
    simulation.run(3)
    assert client.conduct is (Conduct.IGNORES if window > 1 else Conduct.UNKNOWN)
    assert client.pair.connection.identity.entity.notices_waited == 0


@pytest.mark.parametrize("size", [5_000, 20_000])
def test_one_that_sends_within_the_grace_looks_like_one_that_waits(size: int) -> None:
    """So a client that never waits, with one request at a time, stays unknown: with notices shorter or longer than the
    grace, and any number of them. The other client waits and has two requests. The second one is always on its way when
    a notice is sent, and timers are late by the time at the broker.
    """
    ignoring, waiting = Simulation(100_000, 20), Simulation(100_000, 20)
    one = Producer(ignoring, 1, size, waits=False)
    two = Producer(waiting, 1, size, waits=True, late_ns=MS - 1)

    def send_second() -> None:
        two.window = 2
        two.send()

    waiting.after(21 * MS - 1, send_second)  # just before the first response arrives
    ignoring.run(3)
    waiting.run(3)
    assert [(round(at_ns / 1_000), ms) for at_ns, ms in one.seen] == [(round(at / 1_000), ms) for at, ms in two.seen]
    assert {one.conduct, two.conduct} == {Conduct.UNKNOWN}


@pytest.mark.parametrize("round_trip_ms", [1, 20, 100])
@pytest.mark.parametrize("window", [1, 2, MOST_ON_THEIR_WAY])
def test_a_client_that_waits(window: int, round_trip_ms: int) -> None:
    simulation = Simulation(1_000_000, round_trip_ms)
    client = Producer(simulation, window, 20_000, waits=True)
    simulation.run(5)
    assert client.conduct is Conduct.WAITS
    assert client.pair.connection.identity.entity.notices_ignored == 0


@given(
    window=st.integers(1, MOST_ON_THEIR_WAY),
    sizes=st.lists(st.integers(500, 30_000), min_size=1, max_size=4),
    round_trip_ms=st.integers(1, 100),
    broker_ms=st.integers(1, 10),
    late_ms=st.integers(0, 5),
)
@example(2, [500, 500, 5_929, 6_015], 1, 2, 5)  # each notice is sent when the one before it ends
def test_no_client_that_waits_is_found_to_ignore(
    window: int, sizes: list[int], round_trip_ms: int, broker_ms: int, late_ms: int
) -> None:
    """Also for the debt of other connections of the same limit, whose requests have other sizes."""
    simulation = Simulation(1_000_000, round_trip_ms, broker_ms, late_ms)
    clients = [Producer(simulation, window, size, waits=True) for size in sizes]
    simulation.run(1)
    assert {client.conduct for client in clients} <= {Conduct.WAITS, Conduct.UNKNOWN}
