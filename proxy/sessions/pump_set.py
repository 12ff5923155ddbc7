"""What all pumps of one event loop share: memory, slices, the clock of the quotas, and the reasons for pauses."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from proxy.observability.metrics import PAUSE_REASONS
from proxy.sessions.slices import Slices
from proxy.streams.memory import Holding, MemoryPool

# The reasons for which a wire is not read. Reading resumes when none of these bits is set. Each is a metric label.
CONNECTING: Final = 1
QUOTA: Final = 2
WRITE_BACKPRESSURE: Final = 4
MEMORY: Final = 8
IN_FLIGHT: Final = 16
END_OF_STREAM: Final = 32
SLICE: Final = 64
RESPONSE_MEMORY: Final = 128
DELAY: Final = 256
LOGIN: Final = 512
REASON_NAMES: Final = {1 << bit: name for bit, name in enumerate(PAUSE_REASONS)}

#: The reasons that change the state that a connection's time counts for: see `proxy.sessions.wait_states`.
WAITS: Final = QUOTA | WRITE_BACKPRESSURE | MEMORY | RESPONSE_MEMORY | DELAY | LOGIN | IN_FLIGHT
#: Not a reason: the pump has stopped, and nothing resumes it.
STOPPED: Final = 1 << 30


class Direction(Protocol):
    """The methods of a pump that its writer and the set of all pumps call."""

    __slots__ = ()

    @abstractmethod
    def pause(self, reason: int) -> None:
        """Stop reading for `reason`."""

    @abstractmethod
    def resume(self, reason: int) -> None:
        """Remove `reason`. Reading resumes if it was the last one."""

    @abstractmethod
    def on_sent(self) -> None:
        """The sink has taken everything that it did not take at first."""

    @abstractmethod
    def on_sink_failed(self, error: OSError) -> None:
        """The sink's connection broke."""


class PumpSet:
    """Shared by all pumps. `paused`: how many pumps are paused, for each reason.

    short    pumps that are paused because memory is used up, in the order in which they will resume
    queued   pumps that need memory to collect a frame: see `MemoryPool.allocate`
    """

    def __init__(self, memory: MemoryPool, slices: Slices, clock: Callable[[], int], paused: dict[str, int]) -> None:
        self.memory = memory
        self.slices = slices
        self.clock = clock
        self.paused = paused
        self.short: dict[Direction, None] = {}
        self.queued: dict[Holding, Direction] = {}

    @property
    def is_short(self) -> bool:
        """Whether memory is used up, so that pumps are waiting for it."""
        return bool(self.short or self.queued)

    def account(self, holding: Holding, kept: int, pending: int) -> None:
        """A direction now keeps `kept` bytes that it has not forwarded, and `pending` that the sink has not taken."""
        before = holding.counted
        self.memory.update(holding, kept, pending, holding.allocated)
        if holding.counted < before and (self.short or self.queued):
            self.memory_returned()

    def memory_returned(self) -> None:
        """Resume pumps that wait for memory, if there is some now."""
        memory = self.memory
        for holding in memory.grant():
            self.queued.pop(holding).resume(RESPONSE_MEMORY)
        if self.short and memory.used <= memory.limit * 3 // 4:
            short, self.short = self.short, {}
            for pump in short:
                pump.resume(MEMORY)

    def forget(self, pump: Direction, holding: Holding) -> None:
        """The pump has stopped: return its memory."""
        self.short.pop(pump, None)
        self.queued.pop(holding, None)
        self.memory.forget(holding)
        if self.short or self.queued:
            self.memory_returned()
