"""Shares the time of the event loop between connections, round by round. Each is served for one slice at a time.

A round is one poll of the loop and the callbacks that follow it. In each round

- connections with cheap slices are read when the loop reports them, until all of them together have used `ROUND_NS`;
  the others are postponed, and come first in the next round
- expensive connections (a slice took longer than `HEAVY_NS`, the frame is long, or more was read than one slice can
  parse) share `HEAVY_ROUND_NS`, in the order in which they queue. One slice ends after `SLICE_NS`
- TLS handshakes are expensive, too, but have a queue of their own: in each round, one step of them comes first and the
  others come last, so that neither a flood of handshakes nor established connections can starve the other

So other connections delay a small request only by a bounded time, whatever their input.
"""

from abc import abstractmethod
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

#: How long all connections together may use the loop in one round.
ROUND_NS: Final = 10_000_000
#: How long all expensive connections together may use the loop in one round.
HEAVY_ROUND_NS: Final = 2_000_000
#: After this time, a connection stops parsing so that others can be served.
SLICE_NS: Final = 1_000_000
#: A longer slice makes the connection expensive, so it has to queue for its next one.
HEAVY_NS: Final = 150_000
#: A round with less work than this is not counted, and nearly all rounds have less.
WORTH_COUNTING_NS: Final = 500_000
#: The assumed cost of a slice in which all bytes passed in one step, in addition to a quarter of a nanosecond for each
#: byte (more with TLS: `Wire.byte_cost`). Reading the clock twice would cost as much as the accounting itself.
FAST_SLICE_NS: Final = 10_000


class LoopUser(Protocol):
    """A user of slices: one direction of a connection, or a handshake. `is_heavy`: its last slice was expensive."""

    __slots__ = ()

    is_heavy: bool

    @abstractmethod
    def on_slice(self) -> None:
        """Called when it may use the loop."""


class Slices:
    """Shared by all connections of one event loop. `clock`: nanoseconds of CPU time of the loop's thread, so that time
    used by other processes does not make a slice expensive.

    is_busy         the current round is counted, so callers must ask `may_begin`
    used_ns         how long connections have used the loop in this round
    heavy_used_ns   the part of it that expensive connections used
    """

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self.clock = clock
        self.used_ns = 0
        self.heavy_used_ns = 0
        self.is_busy = False
        self._light: deque[LoopUser] = deque()
        self._heavy: deque[LoopUser] = deque()
        self._handshakes: deque[LoopUser] = deque()

    def may_begin(self, user: LoopUser) -> bool:
        """Whether `user` may use the loop now. Otherwise, call `wait`."""
        if user.is_heavy and self.heavy_used_ns >= HEAVY_ROUND_NS:
            return False
        return self.used_ns < ROUND_NS

    def wait(self, user: LoopUser) -> None:
        """Call `on_slice` of `user` in a later round."""
        (self._heavy if user.is_heavy else self._light).append(user)
        self.begin_round()

    def wait_for_handshake(self, user: LoopUser) -> None:
        """Call `on_slice` in a later round, for a step of a handshake, which is expensive."""
        self._handshakes.append(user)
        self.begin_round()

    def used(self, user: LoopUser, time_ns: int) -> None:
        """Record how long the slice of `user` took."""
        self.used_ns += time_ns
        if user.is_heavy:
            self.heavy_used_ns += time_ns
        if self.used_ns > WORTH_COUNTING_NS:
            self.begin_round()

    def begin_round(self) -> None:
        """Count this round, until the loop has served everything that is ready."""
        if not self.is_busy:
            self.is_busy = True
            self._loop.call_soon(self._next_round)

    def _next_round(self) -> None:
        self.is_busy = False
        self.used_ns = self.heavy_used_ns = 0
        light, heavy, handshakes = self._light, self._heavy, self._handshakes
        # Only those that wait now: a connection that is served may queue again, for the round after this one.
        for _ in range(len(light)):
            if self.used_ns >= ROUND_NS:
                break
            light.popleft().on_slice()
        # One handshake comes first and the rest come last, so that neither queue can starve the other.
        first = min(1, len(handshakes))
        for waiting, count in ((handshakes, first), (heavy, len(heavy)), (handshakes, len(handshakes) - first)):
            for _ in range(count):
                if self.heavy_used_ns >= HEAVY_ROUND_NS:
                    break
                waiting.popleft().on_slice()
        if light or heavy or handshakes:
            self.begin_round()
