"""Virtual time. Events happen in the order of their times; the order of those at one time is drawn from the seed."""

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Final

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
START_NS: Final = 1_000 * SECOND
#: 2026-01-01, UTC, is the wall clock's time at `START_NS`.
EPOCH_NS: Final = 1_767_225_600 * SECOND


def nothing(*_: object) -> None:
    """For callbacks that nobody has set."""


class Event:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class Kernel:
    """Time in nanoseconds, and the only source of randomness.

    trace   hash of the times of all events, and of what was noted; it is the same for the same seed and options
    """

    def __init__(self, seed: int | str) -> None:
        self.random = Random(seed)  # noqa: S311 - a seed must give the same run
        self.now_ns = START_NS
        self._events: list[tuple[int, float, Event]] = []
        self._times = 0
        self._notes = blake2b(digest_size=8)

    @property
    def trace(self) -> str:
        notes = self._notes.copy()
        notes.update(b"%d" % self._times)
        return notes.hexdigest()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return (self.now_ns - START_NS) / SECOND

    def wall_ns(self) -> int:
        return EPOCH_NS + self.now_ns - START_NS

    def note(self, *what: object) -> None:
        """Make this part of the trace."""
        self._notes.update(repr((self.now_ns, *what)).encode())

    def at(self, at_ns: int, call: Callable[[], object]) -> Event:
        event = Event(call)
        heappush(self._events, (at_ns if at_ns > self.now_ns else self.now_ns, self.random.random(), event))
        return event

    def after(self, seconds: float, call: Callable[[], object]) -> Event:
        return self.at(self.now_ns + int(seconds * SECOND), call)

    def every(self, seconds: float, call: Callable[[], object]) -> Event:
        """Again and again, starting after `seconds`. Cancelling what it returns ends it."""
        ticks = Event(call)

        def again() -> None:
            if ticks.call is not None:
                self.after(seconds, again)
                ticks.call()

        self.after(seconds, again)
        return ticks

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let this much time pass, or less: `until` is asked after each event. Returns what it answered last."""
        end_ns = self.now_ns + int(seconds * SECOND)
        events = self._events
        while events and events[0][0] <= end_ns:
            at_ns, _, event = heappop(events)
            call = event.call
            if call is not None:
                self.now_ns = at_ns
                self._times += at_ns
                call()
                if until is not None and until():
                    return True
        self.now_ns = end_ns
        return until is not None and until()


class MachineClock:
    """Monotonic, like that of a machine: from an unknown start, and slightly wrong."""

    def __init__(self, kernel: Kernel, error_ppm: int = 0) -> None:
        self._kernel = kernel
        self._error_ppm = error_ppm
        self.offset_ns = kernel.random.randrange(1 << 40)

    def __call__(self) -> int:
        now_ns = self._kernel.now_ns
        return self.offset_ns + now_ns + now_ns * self._error_ppm // 1_000_000
