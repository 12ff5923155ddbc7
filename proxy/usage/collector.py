"""One reading: the counters become series, and series that changed become samples. Pure: times are passed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from proxy.config.config import UsageOptions
from proxy.observability.entities import Entities
from proxy.usage.reader import Reader
from proxy.usage.records import Origin, idle, numbered, sampled
from proxy.usage.samples import Samples
from proxy.usage.series import Series, SeriesTable, UsageKey
from quotas.admission.limit import Limit

SNAPSHOT_MS: Final = 600_000
"""Each live series is written at least this often."""
TOPIC_INTERVAL_MS: Final = 60_000
SAMPLES_PER_SERIES: Final = 3
"""Samples to keep for each of `max_series` while records cannot be written: more than an hour's worth."""
IDLE_MS: Final = 300_000
"""After this long without a record, the process writes that it is idle."""
CLOCK_STEP_MS: Final = 60_000
"""If the clock goes back by more, all series start again; after a smaller step, time stands still."""
SERIES_AT_ONCE: Final = 100
"""Series of one step: less than 1 ms to encode."""


class Collector:
    """Callers take all steps of `collect` before they start another one. `lost`: records that were never written.

    `is_in_use`: whether a limit was not replaced, forgotten or removed.
    """

    def __init__(
        self, origin: Origin, options: UsageOptions, entities: Entities, is_in_use: Callable[[Limit], bool], now_ms: int
    ) -> None:
        self.series = SeriesTable(options)
        self.samples = Samples(SAMPLES_PER_SERIES * options.max_series)
        self.lost = 0
        self._origin = origin
        self._reader = Reader(entities, self.series)
        self._is_in_use = is_in_use
        self._seq = 0
        self._read_ms = self._snapshot_ms = self._topics_ms = now_ms
        #: Where idle records stand among the samples, and when anything was sampled. A process begins with one of them.
        self._idle = Series(UsageKey("", "", (), None, ""), (), now_ms, now_ms)
        self._sampled_ms = now_ms
        self._has_begun = False

    def end_second(self) -> Iterator[None]:
        """Take all steps once a second: see `Reader`."""
        return self._reader.end_second()

    def collect(self, now_ms: int, *, is_last: bool = False) -> Iterator[None]:
        """Read all counters and add the samples that are due, in steps of about 1 ms. `is_last`: all series."""
        if now_ms < self._read_ms - CLOCK_STEP_MS:
            yield from self._sample(list(self.series.changed), self._read_ms)
            self.series.clear()
            self._read_ms = self._snapshot_ms = self._topics_ms = self._sampled_ms = self._idle.start_ms = now_ms
        since_ms = self._read_ms
        now_ms = self._read_ms = max(now_ms, since_ms)
        is_full = is_last or now_ms - self._snapshot_ms >= SNAPSHOT_MS
        if is_full:
            self._snapshot_ms = now_ms
        has_topics = is_full or now_ms - self._topics_ms >= TOPIC_INTERVAL_MS
        if has_topics:
            self._topics_ms = now_ms
        yield from self._reader.read(since_ms, now_ms)
        due = list(self.series if is_full else self.series.changed)
        is_idle = not due and (is_last or now_ms - self._sampled_ms >= IDLE_MS)
        if is_idle or not self._has_begun:
            self._has_begun = True
            self._put(self._idle, now_ms, idle(self._origin, self._idle.start_ms, now_ms, is_last=is_last and not due))
        yield from self._sample(due, now_ms, with_topics=has_topics, expires=is_full, is_last=is_last)

    def _sample(
        self, due: list[Series], now_ms: int, *, with_topics: bool = True, expires: bool = False, is_last: bool = False
    ) -> Iterator[None]:
        for start in range(0, len(due), SERIES_AT_ONCE):
            for series in due[start : start + SERIES_AT_ONCE]:
                if with_topics or getattr(series.key, "topic", None) is None:
                    self.series.changed.pop(series, None)
                    if series.limit is not None:
                        series.read_limit(is_in_use=self._is_in_use(series.limit))
                    self._put(series, now_ms, sampled(self._origin, series, now_ms, is_last=is_last))
                    if expires:
                        self.series.expire(series, now_ms)
            yield

    def _put(self, series: Series, now_ms: int, sample: bytes) -> None:
        self._sampled_ms = now_ms
        lost = self.samples.put(series, now_ms, sample)
        self.lost += lost
        self._seq += lost  # readers find a gap

    def take(self, most: int) -> list[bytes]:
        """The records of the oldest samples, `most` at most. They are no longer kept here."""
        first = self._seq
        records = [numbered(sample, seq) for seq, sample in enumerate(self.samples.take(most), first)]
        self._seq += len(records)
        return records

    def drop_all(self, records: int) -> None:
        """Nothing can be written: `records` that were taken and all samples are lost. The next reading samples all
        series: those that do not change any more have no other sample.
        """
        dropped = self.samples.drop_all()
        self._seq += dropped
        self.lost += records + dropped
        self._snapshot_ms = -SNAPSHOT_MS
