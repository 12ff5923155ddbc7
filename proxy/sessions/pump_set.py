"""What all pumps of one event loop share: memory, turns, the clock of the quotas, and why each is not read."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from proxy.observability.metrics import PAUSE_REASONS
from proxy.sessions.turns import Turns
from proxy.streams.memory import Holding, MemoryPool

# Why a wire is not being read: reading resumes without any of these bits. Each is a metric label.
CONNECTING: Final = 1
QUOTA: Final = 2
WRITE_BACKPRESSURE: Final = 4
MEMORY: Final = 8
IN_FLIGHT: Final = 16
END_OF_STREAM: Final = 32
TURN: Final = 64
RESPONSE_MEMORY: Final = 128
DELAY: Final = 256
LOGIN: Final = 512
REASON_NAMES: Final = {1 << bit: name for bit, name in enumerate(PAUSE_REASONS)}

#: Those for which the time of the connection is counted: see `proxy.sessions.wait_states`.
WAITS: Final = QUOTA | WRITE_BACKPRESSURE | MEMORY | RESPONSE_MEMORY | DELAY | LOGIN | IN_FLIGHT
#: Not a reason: the pump is done, nothing resumes it.
STOPPED: Final = 1 << 30


class Direction(Protocol):
    """What its writer, and the set of all pumps, call of a pump."""

    __slots__ = ()

    @abstractmethod
    def pause(self, reason: int) -> None:
        """Do not read for `reason`."""

    @abstractmethod
    def resume(self, reason: int) -> None:
        """Remove `reason`; reading resumes when it was the last."""

    @abstractmethod
    def on_sent(self) -> None:
        """The sink has taken all that it did not take at first."""

    @abstractmethod
    def on_sink_failed(self, error: OSError) -> None:
        """The sink's connection broke."""


class PumpSet:
    """Shared by all pumps. `paused`: how many are not read, for each reason.

    short    pumps that are not read because memory is used up, in order
    queued   pumps with a frame that waits for memory to be collected: see `MemoryPool.allocate`
    """

    def __init__(self, memory: MemoryPool, turns: Turns, clock: Callable[[], int], paused: dict[str, int]) -> None:
        self.memory = memory
        self.turns = turns
        self.clock = clock
        self.paused = paused
        self.short: dict[Direction, None] = {}
        self.queued: dict[Holding, Direction] = {}

    @property
    def is_short(self) -> bool:
        """Whether memory is used up: some wait for it."""
        return bool(self.short or self.queued)

    def account(self, holding: Holding, kept: int, pending: int) -> None:
        """A direction keeps so many bytes from now on: read and not forwarded, and written and not taken."""
        before = holding.counted
        self.memory.update(holding, kept, pending, holding.allocated)
        if holding.counted < before and (self.short or self.queued):
            self.memory_returned()

    def memory_returned(self) -> None:
        """Memory may be free: resume pumps that wait for it."""
        memory = self.memory
        for holding in memory.grant():
            self.queued.pop(holding).resume(RESPONSE_MEMORY)
        if self.short and memory.used <= memory.limit * 3 // 4:
            short, self.short = self.short, {}
            for pump in short:
                pump.resume(MEMORY)

    def forget(self, pump: Direction, holding: Holding) -> None:
        """This pump has stopped."""
        self.short.pop(pump, None)
        self.queued.pop(holding, None)
        self.memory.forget(holding)
        if self.short or self.queued:
            self.memory_returned()
