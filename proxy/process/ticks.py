"""Ten times a second: measures the loop's lag, sweeps sessions, removes idle entities, warns of
entries that match nothing, records what the last minute was like.
"""

import gc
from asyncio import TimerHandle
from typing import Final

from proxy.admin.history import MOST_LATE_SECONDS, History
from proxy.observability.logs import EventLog, RateLimited
from proxy.process.active_config import ActiveConfig
from proxy.sessions.shared import Shared
from proxy.sessions.sweep import Sweep

TICK_SECONDS: Final = 0.1
#: Ticks between two searches for idle entities.
HOUSEKEEPING_TICKS: Final = 100
#: A collection stops the loop for up to 0.1 s per million objects that it visits. The first two numbers bound that:
#: net allocations until a young collection, and young ones until one of the next generation. Smaller numbers cost
#: nothing, since each object is in one of each. Full ones have no bound, so they are rare. Nothing waits for them: a
#: closed connection is freed by reference counting (`Session._close`), whatever it was doing.
GC_THRESHOLDS: Final = (1_000, 5, 40_000)

_log = EventLog(__name__)


class Ticks:
    """Runs from its making until `close`."""

    def __init__(self, shared: Shared, sweep: Sweep, active: ActiveConfig) -> None:
        self._shared = shared
        self.sweep = sweep
        self._active = active
        self.history = History(shared)
        self._count = 0
        #: Sum over all ticks, at the last housekeeping.
        self._late_seconds = 0.0
        self._lines = RateLimited(60_000_000_000)
        self._due = shared.loop.time() + TICK_SECONDS
        self._timer: TimerHandle = shared.loop.call_at(self._due, self._tick)

    def close(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        shared = self._shared
        now, memory, metrics = shared.loop.time(), shared.context.memory, shared.context.metrics
        connections = metrics.connections
        metrics.loop_lag.observe(max(0.0, now - self._due))
        self._due = now + TICK_SECONDS
        self._timer = shared.loop.call_at(self._due, self._tick)  # first, so that ticks continue after an error below
        connections.buffered_bytes = memory.buffered_bytes
        connections.memory_used_ratio = memory.used / memory.limit
        connections.memory_paused = shared.pumps.is_short
        now_ns = shared.clock()
        metrics.entities.tick(now_ns)
        self.history.tick(now_ns)
        self._sweep()
        self._count += 1
        if self._count % HOUSEKEEPING_TICKS == 0:
            self._warn_of_late_loop(now_ns)
            metrics.entities.expire(now_ns)
            metrics.client_reports.expire(now_ns)
            shared.context.registry.expire(now_ns)
            self._active.warn_of_unmatched(now_ns)

    def _warn_of_late_loop(self, now_ns: int) -> None:
        before, self._late_seconds = self._late_seconds, self._shared.context.metrics.loop_lag.sum_seconds
        mean_seconds = (self._late_seconds - before) / HOUSEKEEPING_TICKS
        if mean_seconds > MOST_LATE_SECONDS:
            hint = "this process gets too little CPU time, so all clients wait: check its CPU limit and other processes"
            mean_ms = round(1000 * mean_seconds)
            self._lines.event(_log.warning, "loop_late", "loop_late", now_ns, mean_ms=mean_ms, hint=hint)

    def _sweep(self) -> None:
        shared = self._shared
        if self.sweep.tick(shared.clock(), is_short=shared.context.metrics.connections.memory_paused):
            shared.loop.call_soon(self._sweep)


def settle_garbage_collection() -> None:
    """Exempt the objects that exist now, which live as long as the process, from collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
