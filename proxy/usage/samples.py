"""Samples of series that are not written yet: the latest of each series and hour, bounded in number."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from proxy.usage.series import Counts, Series

MS_PER_HOUR = 3_600_000


class Sample(NamedTuple):
    """The counts of a series at a time."""

    series: Series
    time_ms: int
    counts: Counts
    limit_value: float | None


class Samples:
    """A sample replaces an earlier one of its series and hour (UTC). So while records cannot be written, memory grows
    by one sample for each series and hour, about 500 bytes each, up to `max_samples`; then the oldest is lost.
    """

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples
        self._waiting: OrderedDict[tuple[Series, int], Sample] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, series: Series, time_ms: int) -> int:
        """Add the present counts. Returns how many samples were lost."""
        sample = Sample(series, time_ms, series.counts, series.limit_value)
        self._waiting[series, time_ms // MS_PER_HOUR] = sample
        if len(self._waiting) <= self._max_samples:
            return 0
        self._waiting.popitem(last=False)
        return 1

    def take(self, most: int) -> list[Sample]:
        """Remove the oldest ones, `most` at most."""
        return [self._waiting.popitem(last=False)[1] for _ in range(min(most, len(self._waiting)))]

    def drop_all(self) -> int:
        """Remove all. Returns how many there were."""
        count = len(self._waiting)
        self._waiting.clear()
        return count
