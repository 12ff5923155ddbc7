"""The part of an event loop that sets timers, on a clock of the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tests.proxy.conversation import NS_PER_SECOND, Clock


class Timer:
    """Something to call, while it is in `waiting`."""

    def __init__(self, due_ns: int, call: Callable[[], object], waiting: dict[Timer, None]) -> None:
        self.due_ns = due_ns
        self.call = call
        self._waiting = waiting
        waiting[self] = None

    def cancel(self) -> None:
        self._waiting.pop(self, None)


class Timers:
    """Each timer is late by the next of `late_ns`."""

    def __init__(self, clock: Clock, late_ns: Sequence[int] = (0,)) -> None:
        self._clock = clock
        self._late_ns = late_ns
        self._count = 0
        self._timers: dict[Timer, None] = {}

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: object) -> Timer:
        late_ns = self._late_ns[self._count % len(self._late_ns)]
        self._count += 1
        due_ns = self._clock.now_ns + round(seconds * NS_PER_SECOND) + late_ns
        return Timer(due_ns, partial(call, *arguments), self._timers)

    def call_soon(self, call: Callable[..., object], *arguments: object) -> Timer:
        return self.call_later(0, call, *arguments)

    @property
    def pending(self) -> list[Timer]:
        return list(self._timers)

    def next(self) -> bool:
        """Let time pass until the next timer is due. False: there is none."""
        pending = self.pending
        if pending:
            timer = min(pending, key=lambda each: each.due_ns)
            timer.cancel()
            self._clock.now_ns = max(self._clock.now_ns, timer.due_ns)
            timer.call()
        return bool(pending)

    def pass_seconds(self, seconds: float) -> None:
        end_ns = self._clock.now_ns + round(seconds * NS_PER_SECOND)
        while any(each.due_ns <= end_ns for each in self.pending):
            self.next()
        self._clock.now_ns = end_ns
