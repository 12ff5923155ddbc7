"""Ten times a second: measures the loop's lag, releases reservations, sweeps sessions, removes idle entities, warns of
entries that match nothing.
"""

import gc
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Final

from proxy.active_config import ActiveConfig
from proxy.observability.metrics import Metrics
from proxy.sessions.pump import PumpSet
from proxy.sessions.sweep import Sweep
from proxy.sessions.wakeups import Wakeups
from quotas.registry.registry import Registry

TICK_SECONDS: Final = 0.1
#: Ticks between two searches for idle entities.
HOUSEKEEPING_TICKS: Final = 100
#: A collection stops the loop for up to 0.1 s per million objects that it visits. The first two numbers bound that:
#: net allocations until a young collection, and young ones until one of the next generation. Smaller numbers cost
#: nothing, since each object is in one of each. Full ones have no bound; cycles here are small, so they are rare.
GC_THRESHOLDS: Final = (1_000, 5, 40_000)


class Ticks:
    """Runs from its making until `close`. ``clock``: monotonic nanoseconds of the quotas."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        metrics: Metrics,
        pumps: PumpSet,
        registry: Registry,
        sweep: Sweep,
        wakeups: Wakeups,
        active: ActiveConfig,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._pumps = pumps
        self._registry = registry
        self.sweep = sweep
        self._wakeups = wakeups
        self._active = active
        self._count = 0
        self._due = loop.time() + TICK_SECONDS
        self._timer: TimerHandle = loop.call_at(self._due, self._tick)

    def close(self) -> None:
        """Stop ticking."""
        self._timer.cancel()

    def _tick(self) -> None:
        now = self._loop.time()
        metrics = self._metrics
        connections = metrics.connections
        metrics.loop_lag.observe(max(0.0, now - self._due))
        self._due = now + TICK_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)  # first, so that ticks continue after an error below
        connections.buffered_bytes = self._pumps.memory.buffered_bytes
        connections.memory_used_ratio = self._pumps.memory.used / self._pumps.memory.limit
        connections.memory_paused = self._pumps.is_short
        now_ns = self._clock()
        metrics.entities.tick(now_ns)
        self._wakeups.lapse(now_ns)
        self._sweep()
        self._count += 1
        if self._count % HOUSEKEEPING_TICKS == 0:
            metrics.entities.expire(now_ns)
            self._registry.expire(now_ns)
            self._active.warn_of_unmatched(now_ns)

    def _sweep(self) -> None:
        if self.sweep.tick(self._clock(), is_short=self._metrics.connections.memory_paused):
            self._loop.call_soon(self._sweep)


def settle_garbage_collection() -> None:
    """Exempt the objects that exist now, which live as long as the process, from collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
