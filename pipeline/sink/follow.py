"""One line for each micro-batch: what was written, how fast, and how long the producer blocked the tasks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from pipeline.sink.sizing import Sizing
from pipeline.sink.stream import OBSERVED

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Waited:
    """What Kafka's producer measured.

    blocked_s: task seconds of this micro-batch; longest_throttle_s: of the last 30 s.
    """

    blocked_s: float
    longest_throttle_s: float


@dataclass(slots=True)
class Written:
    """All micro-batches of a run."""

    batches: int = 0
    records: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.records:,} records, {self.bytes / 1e6:,.1f} MB in {self.batches:,} micro-batches"


def follow(
    query: StreamingQuery,
    sizing: Sizing,
    *,
    show: Callable[[str], None],
    waited: Callable[[], Waited | None],
    interrupted: Callable[[], bool],
) -> Written:
    """Show each micro-batch when it is committed, until the query ends. waited: what happened since its last call.

    Raises PySpark's StreamingQueryException if the query fails, KeyboardInterrupt when `interrupted`.
    """
    written = Written()
    seen = -1
    ended = False
    while not ended:
        if interrupted():
            raise KeyboardInterrupt
        ended = bool(query.awaitTermination(_POLL_SECONDS))
        for progress in query.recentProgress:
            if progress["batchId"] > seen and OBSERVED in progress["observedMetrics"]:
                seen = progress["batchId"]
                records, size = progress["observedMetrics"][OBSERVED]
                written.batches += 1
                written.records += records
                written.bytes += size or 0
                show(describe(progress, records, size or 0, sizing, waited()))
    return written


def describe(progress: Mapping[str, Any], records: int, size_bytes: int, sizing: Sizing, waited: Waited | None) -> str:
    """One micro-batch. Its rate counts keys and values: without what requests add (about 5 % for records of 300 B)."""
    seconds = max(progress["durationMs"]["triggerExecution"], 1) / 1000
    rate = size_bytes / seconds
    text = (
        f"micro-batch {progress['batchId']}: {records:,} records, {size_bytes / 1e6:,.1f} MB in {seconds:.1f} s, "
        f"{rate / 1e6:.2f} MB/s ({rate / sizing.rate_bytes_per_s:.0%} of the rate)"
    )
    if waited is None:
        return text
    return (
        f"{text}; tasks blocked {waited.blocked_s:.1f} s by the full buffer, "
        f"longest throttle time {waited.longest_throttle_s:.2f} s"
    )
