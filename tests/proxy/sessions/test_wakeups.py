"""What one turn of the loop does when all held requests are to be decided again: bounded in number and in time. And the
timers of limits with waiters: one for each.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from typing import Any, cast

import pytest

from proxy.enforcement.throttle_actions import Reply
from proxy.sessions.wakeups import LONGEST_PASS_NS, MOST_AT_ONCE, Wakeups
from proxy.streams.limited_request import HoldOwner, Life, LifeEvent, LimitedRequest
from proxy.streams.pending import Responses
from quotas.admission.limit import Limit
from quotas.parsing.parse import parse_spec
from quotas.registry.registry import Registry
from tests.proxy.conversation import Clock, without_burst
from tests.proxy.frames import produce
from tests.proxy.streams.pair import Pair, World
from tests.proxy.wires import Loop

pytestmark = pytest.mark.claim(
    "enforcement", "5,000 held requests do not stop the event loop when limits, mode or enforcement change"
)

WAITERS = 5_000


class Client(HoldOwner):
    """Its request passes when it is decided again; `cost_ns` passes meanwhile."""

    def __init__(self, clock: list[int], cost_ns: int, released: list[Client]) -> None:
        self._clock = clock
        self._cost_ns = cost_ns
        self._released = released

    def release(self, request: LimitedRequest, reads: int) -> None:
        assert request.state is Life.PASSING
        assert reads == 0, "its next request waits for the loop"
        self._clock[0] += self._cost_ns
        self._released.append(self)


class Waiter(LimitedRequest):
    """A request that only waits."""

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        raise NotImplementedError


def held_at(limit: Limit) -> LimitedRequest:
    """A request that waits for this limit."""
    request = Waiter(cast("Any", None), Reply.NOTICE, 100)
    request.limit = limit
    request.on(LifeEvent.WAIT)
    limit.enqueue(request, 100)
    return request


@pytest.mark.pure
@pytest.mark.parametrize("spec", ["total,producer_byte_rate=1", "client-id=<default>,producer_byte_rate=1"])
@pytest.mark.parametrize("cost_ns", [0, 50_000])
def test_five_thousand_waiters_are_released_in_bounded_turns(spec: str, cost_ns: int) -> None:
    clock = [0]
    released: list[Client] = []
    loop = Loop(Clock())
    wakeups = Wakeups(cast(AbstractEventLoop, loop), lambda: clock[0])
    registry = Registry([parse_spec(spec)])
    clients = []
    for number in range(WAITERS):
        limits = registry.resolve("u", f"c{number}").produce
        limits.charge(100, 0)
        client = Client(clock, cost_ns, released)
        wakeups.add(held_at(limits.limits[0]), client)
        clients.append(client)
    wakeups.limits_changed()
    turns = [len(released)]
    longest_ns = clock[0]
    while loop.soon:
        before, before_ns = len(released), clock[0]
        loop.round()
        turns.append(len(released) - before)
        longest_ns = max(longest_ns, clock[0] - before_ns)
    assert released == clients, "in their order"
    assert max(turns) <= MOST_AT_ONCE
    assert longest_ns <= LONGEST_PASS_NS + cost_ns
    assert (wakeups._timers, wakeups._owners) == ({}, {})


# ---- one pass over a queue
def crowd(number: int, size: int = 6) -> tuple[World, list[Pair]]:
    """So many wait, each with a frame of this size; a fifth of the time of a pass goes by with each of them."""
    world = World([parse_spec("client-id=etl,producer_byte_rate=1MB")])

    def ticking() -> int:
        world.clock.now_ns += LONGEST_PASS_NS // 5
        return world.clock.now_ns

    world.shared.wakeups = Wakeups(cast("Any", world.loop), ticking)
    Pair(world).client_sends(produce(0, 1_400_000))
    pairs = [Pair(world) for _ in range(number)]
    for pair in pairs:
        pair.client_sends(produce(1, size))
    world.clock.pass_seconds(60)
    return world, pairs


@pytest.mark.pure
def test_one_pass_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose turn it is are many, and still the loop sees to others in between."""
    monkeypatch.setattr(Limit, "has_room_for_all", lambda *_: False)
    world, pairs = crowd(7)
    passed = 0
    while world.loop.next():
        before, passed = passed, sum(bool(pair.to_broker) for pair in pairs)
        assert passed - before <= 5
        assert all(pair.to_broker for pair in pairs[:passed]), "in their order"
    assert passed == 7


def test_a_queue_too_long_for_one_pass_ends_where_there_is_room_for_all() -> None:
    """Else clients that never stop sending would join its end before the next pass, and queue for each other."""
    world, pairs = crowd(7)
    world.loop.next()
    [limit] = world.registry.limits_in_use()
    assert not limit.waiters.waiting
    while world.loop.next():
        pass
    assert all(pair.to_broker for pair in pairs)


# ---- timers
def test_a_limit_without_waiters_has_no_timer() -> None:
    """Else clients that come, wait and go would leave one for each client id, for as long as their debt is paid."""
    world = World([without_burst("client-id=<default>,producer_byte_rate=1")])
    for number in range(100):
        pairs = [Pair(world), Pair(world)]
        for pair in pairs:
            pair.client_sends(produce(1, client_id=f"c{number}"), produce(2, client_id=f"c{number}"))
            assert pair.is_held
        pairs[0].hang_up()
        assert len(world.loop.pending) == 1, "the other one waits"
        pairs[1].hang_up()
        assert (world.loop.pending, world.shared.wakeups._owners) == ([], {})


@pytest.mark.pure
@pytest.mark.parametrize("size", [200_000, 300_000, 400_000])
def test_a_limit_has_one_timer(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its queue was ended, and some of those in it wait again."""
    monkeypatch.setattr(Limit, "has_room_for_all", lambda *_: True)
    world, pairs = crowd(20, size)
    while world.loop.next():
        [limit] = world.registry.limits_in_use()
        assert len(world.loop.pending) == bool(limit.waiters.waiting)
    assert all(pair.sent() == [produce(1, size)] for pair in pairs)
