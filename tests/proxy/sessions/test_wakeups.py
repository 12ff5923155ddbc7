"""What one turn of the loop does when all held frames are to be decided again: bounded in number and in time."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import cast

import pytest

from proxy.enforcement.data_frame import DataFrame, Life
from proxy.enforcement.holds import Holds
from proxy.sessions.wakeups import LONGEST_PASS_NS, MOST_AT_ONCE, Wakeups
from quotas.parsing.parse import parse_spec
from quotas.registry.registry import Registry

WAITERS = 5_000


class Rounds:
    """The part of an event loop that `Wakeups` uses; a test runs its rounds one by one."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> object:
        self.soon.append(callback)
        return self

    def call_later(self, _seconds: float, _callback: object, *_arguments: object) -> object:
        return self

    def cancel(self) -> None:
        """A timer that never fires."""

    def run_one(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


class Client:
    """Its frame passes when it is decided again; `cost_ns` passes meanwhile."""

    def __init__(self, clock: list[int], cost_ns: int, released: list[Client]) -> None:
        self._clock = clock
        self._cost_ns = cost_ns
        self._released = released

    def release(self, frame: DataFrame) -> None:
        assert frame.state is Life.RELEASED
        self._clock[0] += self._cost_ns
        self._released.append(self)

    def read_on(self) -> None:
        raise AssertionError("its next frame waits for the loop")


@pytest.mark.pure
@pytest.mark.parametrize("spec", ["total,producer_byte_rate=1", "client-id=<default>,producer_byte_rate=1"])
@pytest.mark.parametrize("cost_ns", [0, 50_000])
def test_five_thousand_waiters_are_released_in_bounded_turns(spec: str, cost_ns: int) -> None:
    clock = [0]
    released: list[Client] = []
    loop, holds = Rounds(), Holds()
    wakeups = Wakeups(cast(AbstractEventLoop, loop), holds, lambda: clock[0])
    registry = Registry([parse_spec(spec)])
    clients = []
    for number in range(WAITERS):
        limits = registry.resolve("u", f"c{number}").produce
        limits.charge(100, 0)
        client = Client(clock, cost_ns, released)
        frame = DataFrame(100, answered=True)
        frame.owner = client
        frame.hold(limits.limits[0], 100, 0)
        wakeups.add(frame)
        clients.append(client)
    wakeups.limits_changed()
    turns = [len(released)]
    longest_ns = clock[0]
    while loop.soon:
        before, before_ns = len(released), clock[0]
        loop.run_one()
        turns.append(len(released) - before)
        longest_ns = max(longest_ns, clock[0] - before_ns)
    assert released == clients, "in their order"
    assert max(turns) <= MOST_AT_ONCE
    assert longest_ns <= LONGEST_PASS_NS + cost_ns
    assert (holds.limits, wakeups._timers) == ({}, {})
