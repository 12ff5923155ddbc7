"""When counters are read and records are written. Its failures do not affect sessions, and its slices of the loop are
short.

Reading and writing are two tasks: while the broker is away, reading continues, and later samples replace earlier ones.
"""

import asyncio
from asyncio import AbstractEventLoop, Task
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from proxy.background.host import Host
from proxy.background.retries import Retries
from proxy.config.config import Config
from proxy.internal_clients.failures import LogFailed, LogRefused
from proxy.observability.labels import label_value
from proxy.observability.logs import EventLog
from proxy.observability.metrics import Metrics, UsageMetrics
from proxy.usage.collector import Collector
from proxy.usage.records import Origin
from proxy.usage.sink import FileSink, Sink
from quotas.admission.limit import Limit
from quotas.time_units import NS_PER_MS

JITTER: Final = 0.2
"""The share of the interval by which a reading may be early, so that sidecars do not all write at once."""
PAUSE_SECONDS: Final = 0.003
"""The pause between two steps of about 1 ms, during which sessions have the loop."""
RECORDS_AT_ONCE: Final = 100
"""Records of one write: less than 1 ms to encode."""
WRITE_SECONDS: Final = 30.0
EXIT_SECONDS: Final = 5.0
"""How long the end of the process waits for the last records."""

_log = EventLog("proxy.usage")


@dataclass(eq=False)
class Emitter:
    """Runs from `start` to `close`. `wall_ms` returns the time since 1970, UTC."""

    collector: Collector
    sink: Sink
    metrics: UsageMetrics
    interval_seconds: float
    wall_ms: Callable[[], int]
    random: Random

    def __post_init__(self) -> None:
        self._unsent: list[bytes] = []
        self._has_new = asyncio.Event()
        self._writing = asyncio.Lock()
        self._tasks: list[Task[None]] = []
        #: Of writing, and of defects in reading.
        self._retries, self._defects = Retries(self.random), Retries(self.random)

    def start(self, loop: AbstractEventLoop) -> None:
        forever = (
            self._repeat(self._read_and_wake, self._jittered),
            self._write_forever(),
            self._repeat(self._end_second, lambda: 1.0),
        )
        self._tasks = [loop.create_task(each) for each in forever]

    async def close(self) -> None:
        """Write a last record of each series, for at most `EXIT_SECONDS`."""
        reading, writing, counting = self._tasks
        reading.cancel()
        counting.cancel()
        await asyncio.gather(reading, counting, return_exceptions=True)
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self._read(pause_seconds=0, is_last=True)
                await self._write(pause_seconds=0)
        except TimeoutError:
            _log.warning("usage_write_timed_out", seconds=EXIT_SECONDS)
        except Exception:  # noqa: BLE001 - a defect here must not change how the process ends
            _log.exception("usage_failed")
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        self.collector.drop_all(len(self._unsent))
        self._show()
        log = _log.warning if self.metrics.lost else _log.info
        log("usage_stopped", records_sent=self.metrics.sent, records_lost=self.metrics.lost)
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self.sink.close()
        except TimeoutError:
            _log.warning("usage_close_timed_out", seconds=EXIT_SECONDS)

    # ---- reading

    async def _repeat(self, act: Callable[[], Awaitable[None]], pause: Callable[[], float]) -> None:
        """Act again and again, `pause()` seconds after the time that was due before."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(loop.time(), due + pause())
            await asyncio.sleep(due - loop.time())
            try:
                await act()
            except Exception:  # noqa: BLE001 - a defect that one reading shows must not end the others
                self._report_defect()

    def _jittered(self) -> float:
        return self.interval_seconds * self.random.uniform(1 - JITTER, 1)

    async def _read_and_wake(self) -> None:
        try:
            await self._read(PAUSE_SECONDS)
        finally:
            self._has_new.set()

    async def _end_second(self) -> None:
        for _ in self.collector.end_second():
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read(self, pause_seconds: float, *, is_last: bool = False) -> None:
        for _ in self.collector.collect(self.wall_ms(), is_last=is_last):
            await asyncio.sleep(pause_seconds)
        self._show()

    # ---- writing

    async def _write_forever(self) -> None:
        while True:
            await self._has_new.wait()
            self._has_new.clear()
            try:
                await self._write(PAUSE_SECONDS)
            except Exception:  # noqa: BLE001 - as above
                self._retries.failed("defect")
                self._report_defect()
            if self._retries.is_failing:
                await asyncio.sleep(self._retries.pause_seconds())

    async def _write(self, pause_seconds: float) -> None:
        """Write all samples, the oldest first; after a failure the rest stays for the next time."""
        async with self._writing:
            try:
                while self._unsent or len(self.collector.samples):
                    self._unsent = self._unsent or self.collector.take(RECORDS_AT_ONCE)
                    await self._write_unsent()
                    await asyncio.sleep(pause_seconds)
            except LogFailed as error:
                self._report(error)
                if isinstance(error, LogRefused):
                    self.collector.drop_all(len(self._unsent))
                    self._unsent = []
            finally:
                self._show()

    async def _write_unsent(self) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self.sink.write(self._unsent)
        except TimeoutError as error:
            raise LogFailed("timeout", f"no acknowledgement within {WRITE_SECONDS:g} s") from error
        self._retries.worked()
        self.metrics.sent += len(self._unsent)
        self.metrics.last_success_seconds = self.wall_ms() / 1000
        self._unsent = []

    # ---- what is shown

    def _show(self) -> None:
        self.metrics.lost = self.collector.lost
        self.metrics.series = len(self.collector.series)
        self.metrics.pending = len(self.collector.samples) + len(self._unsent)

    def _report(self, error: LogFailed) -> None:
        self.metrics.errors[error.reason] += 1
        if not self._retries.failed(error.reason):
            return
        log, name = _log.warning, "usage_records_not_written"
        if isinstance(error, LogRefused):
            log, name = _log.error, "usage_records_refused"
        counts = {"pending": self.metrics.pending, "lost": self.collector.lost}
        about = {"reason": error.reason, "message": error.message, **counts}
        log(name, **about, effect="the proxy tries again, at growing intervals; this is not logged again")

    def _report_defect(self) -> None:
        self.metrics.errors["defect"] += 1
        if self._defects.failed("defect"):
            _log.exception("usage_failed")


def emitter_of(
    config: Config, metrics: Metrics, listener: str, is_in_use: Callable[[Limit], bool], host: Host
) -> Emitter | None:
    """The emitter of this process; None: usage records are off. `listener`: where clients connect, HOST:PORT."""
    options = config.usage
    if not options.is_on:
        return None

    def wall_ms() -> int:
        return host.wall_clock() // NS_PER_MS

    sidecar = label_value(options.sidecar_name or host.name)
    origin = Origin(sidecar, host.random.randbytes(8).hex(), listener)
    collector = Collector(origin, options, metrics.entities, is_in_use, wall_ms())
    sink: Sink
    if options.file is not None:
        sink = FileSink(options.file)
    else:
        from proxy.usage.topic_sink import TopicSink  # aiokafka, if a topic is configured

        sink = TopicSink(config, origin.key)
    return Emitter(collector, sink, metrics.usage, options.interval_seconds, wall_ms, host.random)
