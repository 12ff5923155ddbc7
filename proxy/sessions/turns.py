"""Shares the time of the event loop between connections, round by round.

A round is one poll of the loop and the callbacks that follow it. In each round

- connections with cheap turns are read when the loop reports them, until all together have used `ROUND_NS`; the rest is
  postponed, and comes first in the next round
- expensive connections (a turn took longer than `HEAVY_NS`, long frames, more was read than one turn parses) share
  `HEAVY_ROUND_NS`; the rest waits in a queue, first in, first out. One turn ends after `TURN_NS`
- handshakes of TLS are expensive, too, but wait in a queue of their own: one step in each round comes first, the others
  last, so no flood of them stands before an established connection, nor the other way round

So other connections delay a small request by a bounded time, for any input.
"""

from abc import abstractmethod
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

#: Time of one round for all connections together.
ROUND_NS: Final = 10_000_000
#: Time of one round for all expensive connections together.
HEAVY_ROUND_NS: Final = 2_000_000
#: After this time one connection stops parsing, and others have their turns.
TURN_NS: Final = 1_000_000
#: A longer turn makes the connection expensive: it queues for its next turn.
HEAVY_NS: Final = 150_000
#: With less work than this no round is counted: nearly all rounds cost less.
WORTH_COUNTING_NS: Final = 500_000
#: Assumed time of a turn in which all bytes passed in one step, besides a quarter of a nanosecond for each byte, more
#: with TLS (`Wire.byte_cost`): reading the clock twice would cost as much as counting.
FAST_TURN_NS: Final = 10_000


class Turn(Protocol):
    """A connection's direction. `is_heavy`: its last turn was expensive."""

    is_heavy: bool

    @abstractmethod
    def on_turn(self) -> None:
        """Its turn has come."""


class Turns:
    """Shared by all connections of one event loop. `clock`: nanoseconds of CPU time of the loop's thread: what other
    processes use meanwhile makes no turn an expensive one.

    is_busy   a round is counted, so `may_begin` must be asked
    used_ns   of the round so far; `heavy_used_ns`: by expensive connections
    """

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self.clock = clock
        self.used_ns = 0
        self.heavy_used_ns = 0
        self.is_busy = False
        self._light: deque[Turn] = deque()
        self._heavy: deque[Turn] = deque()
        self._handshakes: deque[Turn] = deque()

    def may_begin(self, turn: Turn) -> bool:
        """Whether it may use the loop now; else call `wait`."""
        if turn.is_heavy and self.heavy_used_ns >= HEAVY_ROUND_NS:
            return False
        return self.used_ns < ROUND_NS

    def wait(self, turn: Turn) -> None:
        """Call its `on_turn` in a later round."""
        (self._heavy if turn.is_heavy else self._light).append(turn)
        self.begin_round()

    def wait_for_handshake(self, turn: Turn) -> None:
        """The same for a step of a handshake, which is expensive."""
        self._handshakes.append(turn)
        self.begin_round()

    def used(self, turn: Turn, time_ns: int) -> None:
        """Record the time of its turn."""
        self.used_ns += time_ns
        if turn.is_heavy:
            self.heavy_used_ns += time_ns
        if self.used_ns > WORTH_COUNTING_NS:
            self.begin_round()

    def begin_round(self) -> None:
        """Count until the loop has served all that is ready."""
        if not self.is_busy:
            self.is_busy = True
            self._loop.call_soon(self._next_round)

    def _next_round(self) -> None:
        self.is_busy = False
        self.used_ns = self.heavy_used_ns = 0
        light, heavy, handshakes = self._light, self._heavy, self._handshakes
        # As many as wait now: one whose turn comes may queue again, for the round after this.
        for _ in range(len(light)):
            if self.used_ns >= ROUND_NS:
                break
            light.popleft().on_turn()
        # One handshake before the others and the rest after them: neither queue can keep the other from its turn.
        first = min(1, len(handshakes))
        for waiting, count in ((handshakes, first), (heavy, len(heavy)), (handshakes, len(handshakes) - first)):
            for _ in range(count):
                if self.heavy_used_ns >= HEAVY_ROUND_NS:
                    break
                waiting.popleft().on_turn()
        if light or heavy or handshakes:
            self.begin_round()
