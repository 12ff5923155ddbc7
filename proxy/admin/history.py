"""Takes the snapshots of `proxy.observability.past` that show the last minutes, a few in each tick."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from time import thread_time
from typing import Final

from proxy.observability.past import SNAPSHOT_NS, Past, Span
from proxy.sessions.shared import Shared
from quotas.admission.limit import Limit

#: The loop counts as late if its ticks are later than this on average; a busy loop is 1 to 10 ms late.
MOST_LATE_SECONDS: Final = 0.03
#: Snapshots to take in one tick: about 0.5 ms.
_AT_ONCE: Final = 200


@dataclass(slots=True, eq=False)
class LimitPast:
    """The history of one limit: what passed, in its unit, and in how many ticks frames waited for it."""

    past: Past
    waited: int = 0


class History:
    """`limits` has those in use, at most `--max-metric-entities` of them."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._metrics = shared.context.metrics
        self._pass: Iterator[None] = iter(())
        self._due_ns = 0
        self._ticks = 0
        self._lag = Past(shared.clock(), self._late)
        self.limits: dict[Limit, LimitPast] = {}
        self._metrics.sources.used_ratios = self._used_ratios

    def last(self, limit: Limit, seconds: float, now_ns: int) -> Span | None:
        """What was charged in that time, the ticks with waiters and all ticks; None if the limit has no history."""
        found = self.limits.get(limit)
        return None if found is None else found.past.last(seconds, now_ns, self._counts(limit, found))

    def late_seconds(self, now_ns: int) -> float:
        """How late the ticks of the last minute were on average, if that is too much; otherwise 0."""
        late, ticks, _ = self._lag.last(60, now_ns, self._late).counts
        mean_seconds = late / max(ticks, 1)
        return mean_seconds if mean_seconds > MOST_LATE_SECONDS else 0

    def busy_ratio(self, now_ns: int) -> float:
        """The share of the last minute that the event loop had the CPU; 0 while that is unknown."""
        span = self._lag.last(60, now_ns, self._late)
        return span.counts[2] / span.seconds if span.seconds >= SNAPSHOT_NS / 1e9 else 0

    @property
    def _late(self) -> tuple[float, int, float]:
        return self._metrics.loop_lag.sum_seconds, self._ticks, thread_time()

    def tick(self, now_ns: int) -> None:
        """Called ten times a second."""
        self._ticks += 1
        for limit in self._shared.wakeups.limits_with_waiters():
            if limit in self.limits:
                self.limits[limit].waited += 1
        if next(islice(self._pass, _AT_ONCE - 1, None), _OVER) is _OVER and now_ns >= self._due_ns:
            self._due_ns = now_ns + SNAPSHOT_NS
            self._pass = self._snapshots(now_ns)

    def _snapshots(self, now_ns: int) -> Iterator[None]:
        self._lag.add(now_ns, self._late)
        for entity in self._metrics.entities:
            entity.past.add(now_ns, entity.counts)
            entity.times.on_snapshot()
            yield
        for times in self._shared.brokers.values():
            times.past.add(now_ns, times.counts)
            yield
        found: dict[Limit, LimitPast] = {}
        for limit in islice(self._metrics.limits_in_use(), self._metrics.entities.max_entities):
            before = self.limits.get(limit)
            if before is None:
                before = LimitPast(Past(now_ns, (limit.passed, 0, self._ticks)))
            else:
                before.past.add(now_ns, self._counts(limit, before))
            found[limit] = before
            yield
        self.limits = found

    def _used_ratios(self) -> Iterator[tuple[Limit, float]]:
        now_ns = self._shared.clock()
        for limit, found in list(self.limits.items()):
            span = found.past.last(SNAPSHOT_NS / 1e9, now_ns, self._counts(limit, found))
            if limit.rate:
                yield limit, span.counts[0] / span.seconds / limit.rate

    def _counts(self, limit: Limit, found: LimitPast) -> tuple[int, int, int]:
        return limit.passed, found.waited, self._ticks


_OVER: Final = object()
