"""One run of the Spark job, measured by the tap in front of the broker while a person can watch."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from demo.produce_flights import produce
from demo.progress import RunProgress
from deploy.local.evenness import BIN_NS, bins_per_second
from deploy.local.frames import DataFrame as TapFrame
from deploy.local.tap import Tap
from pipeline.client_metrics import longest_throttle_seconds
from pipeline.failures import JobFailedError
from pipeline.spark_session import kill_spark

_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: how it is called in a table and in a sentence, where it goes.

    limit: bytes per second that shall hold, None without a quota.
    """

    title: str
    headline: str
    topic: str
    bootstrap_servers: str
    client_id: str
    limit: float | None


@dataclass(frozen=True)
class Run:
    """What the tap saw of one run.

    frames: every Produce request that reached the broker, in order. throttled_seconds: the sum of the proxy's
    throttles, None where there was no proxy to count. longest_notice_seconds: the longest `throttle_time_ms` that
    Spark's Kafka client was told, by its own metric. load_average: the machine's, over the minute before the run's end.
    """

    plan: Plan
    frames: tuple[TapFrame, ...]
    throttled_seconds: float | None
    longest_notice_seconds: float
    load_average: float

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(monotonic ns, bytes) of each data request."""
        return [(frame.time_ns, frame.size) for frame in self.frames]

    @cached_property
    def bins(self) -> tuple[int, ...]:
        """Bytes in each second, starting with the first data request."""
        return bins_per_second(self.sizes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all data requests."""
        return sum(frame.size for frame in self.frames)

    @property
    def seconds(self) -> float:
        """From the first data request to the last."""
        return (self.frames[-1].time_ns - self.frames[0].time_ns) / BIN_NS if self.frames else 0.0

    @property
    def connections(self) -> int:
        """How many connections carried data."""
        return len({frame.connection for frame in self.frames})


def run_job(
    spark: SparkSession,
    records: DataFrame,
    plan: Plan,
    *,
    tap: Tap,
    progress: RunProgress,
    check: Callable[[], None],
    throttled_seconds: Callable[[], float] | None,
) -> Run:
    """Run the job to its end and return what crossed the tap meanwhile.

    check: raises when a proxy or broker that the job needs has gone; Spark is then killed, which would go on trying.
    Raises JobFailedError, and whatever `check` raises.
    """
    before = len(tap.frames("produce", plan.client_id))
    failures: list[JobFailedError] = []

    def work() -> None:
        try:
            produce(records, bootstrap_servers=plan.bootstrap_servers, topic=plan.topic, client_id=plan.client_id)
        except JobFailedError as error:
            failures.append(error)

    job = threading.Thread(target=work, name=plan.topic, daemon=True)
    job.start()
    try:
        while job.is_alive():
            job.join(_LOOK_SECONDS)
            check()
            progress.show(tap.frames("produce", plan.client_id)[before:], time.monotonic_ns())
    except BaseException:  # Ctrl-C too
        kill_spark()
        raise
    if failures:
        raise JobFailedError(f"the Spark job of «{plan.title}» failed: {failures[0]}") from failures[0]
    return Run(
        plan,
        tuple(tap.frames("produce", plan.client_id)[before:]),
        throttled_seconds() if throttled_seconds else None,
        longest_throttle_seconds(spark, plan.client_id),
        os.getloadavg()[0],
    )
