"""The series of usage records: cumulative counters by key, bounded in number, forgotten when idle for an hour."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.config.config import UsageOptions
from proxy.observability.labels import OTHER
from proxy.usage.client_ids import Labels
from quotas.admission.limit import Limit

SERIES_IDLE_MS: Final = 3_600_000
"""A series that counted nothing for an hour is forgotten. If it is used again, it starts from zero."""

PRODUCE: Final = "produce"
FETCH: Final = "fetch"


class UsageKey(NamedTuple):
    """Of a series of kind `usage`. `topic`: None for all bytes of the client; those with a topic split them."""

    user: str
    client_id: str
    labels: Labels
    topic: str | None
    direction: str


class ThrottleKey(NamedTuple):
    """Of a series of kind `throttle`."""

    user: str
    client_id: str
    labels: Labels
    limit: str
    entity: str


SeriesKey = UsageKey | ThrottleKey
"""Its fields are named as in records."""

Counts = tuple[int, ...]
"""Of a usage series: bytes, requests, messages, bytes of records, then those of `RequestFacts`. Of a throttle series:
nanoseconds throttled, bytes delayed, refused, and that a dry run would have delayed.
"""


@dataclass(slots=True, eq=False)
class Series:
    """One series since `start_ms`, when its counts were 0.

    changed_ms   when a count changed last
    limit        the latest of this name and entity; None: on connections, or several
    limit_value  its units per second; None: of several, or no longer in use
    fleet        the fleet that shares it, whose limit that is; None: it is this process's
    fleet_cap    what this process may use of it
    peak         bytes of its largest second since the latest sample that was taken to be written, `is_taken`; None:
                 seconds are not counted
    """

    key: SeriesKey
    counts: Counts
    start_ms: int
    changed_ms: int
    limit: Limit | None = None
    limit_value: float | None = None
    fleet: str | None = None
    fleet_cap: float | None = None
    peak: int | None = None
    is_taken: bool = True

    @property
    def largest_second(self) -> int | None:
        """As `peak`: 0 if nothing was counted since."""
        return 0 if self.peak is not None and self.is_taken else self.peak

    def read_limit(self, *, is_in_use: bool) -> None:
        """Set what is known of the limit."""
        self.limit_value = self.fleet = self.fleet_cap = None
        if self.limit is not None and is_in_use:
            whole, rate = self.limit.whole, self.limit.rate
            self.limit_value = rate
            if whole is not None:
                self.limit_value, self.fleet, self.fleet_cap = whole.rate, whole.fleet, rate


class SeriesTable:
    """All series. `changed`: those whose counts changed since they were removed from it. `labels`: of the process.

    After `--max-usage-series`, new keys are counted together: one series for each direction and each limit name.
    """

    def __init__(self, options: UsageOptions) -> None:
        self.labels = options.labels
        self._max_series = options.max_series
        self._series: dict[SeriesKey, Series] = {}
        self.changed: dict[Series, None] = {}

    def __len__(self) -> int:
        return len(self._series)

    def has_room_for(self, key: SeriesKey) -> bool:
        """Whether the key has a series of its own, or could have one."""
        return key in self._series or len(self._series) < self._max_series

    def add(self, key: SeriesKey, counts: Counts, start_ms: int, now_ms: int) -> Series:
        """Add to the counts of a key. A new series began at `start_ms`."""
        if not self.has_room_for(key):
            key = self._merged(key)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(key, counts, start_ms, now_ms)
        else:
            series.counts = tuple(map(int.__add__, series.counts, counts))
            series.changed_ms = now_ms
        self.changed[series] = None
        return series

    def note_peak(self, series: Series, size: int) -> None:
        """The largest second of a reading had `size` bytes."""
        series.peak = size if series.peak is None or series.is_taken else max(series.peak, size)
        series.is_taken = False

    def _merged(self, key: SeriesKey) -> SeriesKey:
        """That of the series that counts it after the bound on series."""
        if isinstance(key, UsageKey):
            return UsageKey(OTHER, OTHER, self.labels, None, key.direction)
        return ThrottleKey(OTHER, OTHER, self.labels, key.limit, OTHER)

    def expire(self, series: Series, now_ms: int) -> None:
        """Forget a series that was sampled, if it is idle."""
        if now_ms - series.changed_ms >= SERIES_IDLE_MS:
            del self._series[series.key]

    def clear(self) -> None:
        """Forget all series: they begin anew."""
        self._series.clear()
        self.changed.clear()

    def __iter__(self) -> Iterator[Series]:
        return iter(list(self._series.values()))
