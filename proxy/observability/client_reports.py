"""What clients report of themselves (KIP-714, `--client-telemetry`): shown, and never trusted for a decision.

    reported = metrics.client_reports.reported(client)   # {"buffer-available-bytes": 1048576.0, ...}
    outlook = metrics.client_reports.outlook(client)     # None: no record expires soon

`client` is the client's `EntityMetrics`. Several processes may have one client id, as executors of Spark do: a value is
then the worst of them, or the sum of counts. A report is gone after three to four intervals without another one, and
with the last connection of its client.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from proxy.observability.tallies import EntityMetrics

INTERVAL_MS: Final = 10_000
EXPIRY_NS: Final = 3 * INTERVAL_MS * 1_000_000

DELIVERY_TIMEOUT_SECONDS: Final = 120
"""Java's default of `delivery.timeout.ms`, which clients do not report."""
LONG_WAIT_SECONDS: Final = 100
"""Records are about to expire if the next one waits so long: 32 MiB at 336 kB/s."""
LONG_QUEUE_TIME_SECONDS: Final = 60
"""Or if one that was sent has waited so long."""
_LARGEST: Final = 1e18
_SENT: Final = "outgoing-byte-total"


class Reported(NamedTuple):
    """A metric that clients are asked for.

    group, name   Kafka's
    combine       several values of one client
    family        its gauge, without `client_`
    factor        to that gauge's unit
    """

    group: str
    name: str
    combine: Callable[[Iterable[float]], float]
    family: str
    factor: float = 1.0


REPORTED: Final = (
    Reported("producer", "buffer-total-bytes", max, "buffer_bytes"),
    Reported("producer", "buffer-available-bytes", min, "buffer_available_bytes"),
    Reported("producer", "bufferpool-wait-ratio", max, "bufferpool_wait_ratio"),
    Reported("producer", "record-queue-time-avg", max, "record_queue_time_avg_seconds", 1e-3),
    Reported("producer", "record-queue-time-max", max, "record_queue_time_max_seconds", 1e-3),
    Reported("producer", "record-error-total", sum, "record_errors"),
    Reported("producer", "record-retry-total", sum, "record_retries"),
    Reported("producer", "request-latency-avg", max, "request_latency_avg_seconds", 1e-3),
    Reported("producer", "produce-throttle-time-avg", max, "produce_throttle_time_avg_seconds", 1e-3),
    Reported("producer", _SENT, sum, "outgoing_bytes"),
    Reported("consumer.fetch.manager", "records-lag-max", max, "records_lag_max"),
    Reported("consumer.fetch.manager", "fetch-throttle-time-avg", max, "fetch_throttle_time_avg_seconds", 1e-3),
    Reported("consumer", "poll-idle-ratio-avg", min, "poll_idle_ratio_avg"),
)
ASKED: Final = tuple(f"org.apache.kafka.{each.group}.{each.name.replace('-', '.')}" for each in REPORTED)
NAMES: Final[Mapping[bytes, str]] = {asked.encode(): each.name for asked, each in zip(ASKED, REPORTED, strict=True)}
_COMBINE: Final = {each.name: each.combine for each in REPORTED}


class BufferOutlook(NamedTuple):
    """A producer whose records are about to expire, if its delivery timeout is Java's default.

    buffered_bytes, buffer_bytes   of its buffer; 0: not reported
    wait_seconds                   of a record that is added now, at the rate of the last interval: an hour at most
    expires_in_seconds             about when the first record expires: that long after the age of those just sent
    """

    buffered_bytes: int
    buffer_bytes: int
    wait_seconds: int
    expires_in_seconds: int


class _Report(NamedTuple):
    """The latest of one process. `bytes_per_s`: what it has sent since the one before; infinite: not known."""

    values: Mapping[str, float]
    at_ns: int
    bytes_per_s: float

    def outlook(self) -> BufferOutlook | None:
        """None: no record expires soon. A buffer that is half empty is not counted: open batches take whole ones."""
        size = self.values.get("buffer-total-bytes", 0.0)
        buffered = size - self.values.get("buffer-available-bytes", size)
        queued_seconds = self.values.get("record-queue-time-max", 0.0) / 1000
        wait_seconds = buffered / max(1.0, self.bytes_per_s) if buffered > size / 2 else 0.0
        if wait_seconds < LONG_WAIT_SECONDS and queued_seconds < LONG_QUEUE_TIME_SECONDS:
            return None
        left_seconds = int(max(0.0, DELIVERY_TIMEOUT_SECONDS - queued_seconds))
        return BufferOutlook(int(buffered), int(size), int(min(3_600, wait_seconds)), left_seconds)


class ClientReports:
    """Of at most `most` processes, 0 without `--client-telemetry`; further ones are not kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of: dict[EntityMetrics, dict[bytes, _Report]] = {}

    def __len__(self) -> int:
        """Of clients."""
        return len(self._of)

    def record(
        self, client: EntityMetrics, instance: bytes, points: Iterable[tuple[str, float]], now_ns: int
    ) -> BufferOutlook | None:
        """Keep what a process of a client reports: names and values. Returns its own outlook."""
        values: dict[str, float] = {}
        for name, value in points:
            if 0 <= value < _LARGEST:  # Kafka's average of nothing is NaN
                values[name] = _COMBINE[name]((values[name], value)) if name in values else value
        reports, sent, bytes_per_s = self._of.get(client, {}), values.get(_SENT, math.inf), math.inf
        before = reports.get(instance)
        if before is not None and now_ns > before.at_ns:
            bytes_per_s = (sent - before.values.get(_SENT, 0)) * 1e9 / (now_ns - before.at_ns)
        elif before is None and sum(map(len, self._of.values())) >= self.most:
            return None
        self._of[client] = reports
        reports[instance] = report = _Report(values, now_ns, bytes_per_s)
        return report.outlook()

    def expire(self, now_ns: int) -> None:
        """Forget what is too old; called once in an interval."""
        for client, reports in list(self._of.items()):
            self._of[client] = {key: each for key, each in reports.items() if now_ns - each.at_ns < EXPIRY_NS}
            if not self._of[client]:
                del self._of[client]

    def reported(self, client: EntityMetrics) -> dict[str, float]:
        """By Kafka's names, as in `REPORTED`; times in milliseconds. Empty: nothing is known."""
        return {each.name: value for each in REPORTED for value in self._values(each, client)}

    def outlook(self, client: EntityMetrics) -> BufferOutlook | None:
        """The worst of its processes; None: no record expires soon, as far as is known."""
        found = filter(None, (each.outlook() for each in self._present(client)))
        return min(found, key=attrgetter("expires_in_seconds"), default=None)

    def rows(self, metric: Reported) -> Iterator[tuple[tuple[str, str], float]]:
        """Of its gauge: user and client id, and the value."""
        for client in list(self._of):
            for value in self._values(metric, client):
                yield (client.user, client.client_id), value * metric.factor

    def _values(self, metric: Reported, client: EntityMetrics) -> list[float]:
        """The value of a client, if it has reported one."""
        values = [each.values[metric.name] for each in self._present(client) if metric.name in each.values]
        return [metric.combine(values)] if values else values

    def _present(self, client: EntityMetrics) -> Iterable[_Report]:
        return self._of.get(client, {}).values() if client.sessions else ()
