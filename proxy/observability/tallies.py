"""The plain counters of the metrics: integers that the hot path increments, and sums over a sliding window."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from proxy.observability.client_times import ClientTimes
from proxy.observability.past import Past

WINDOW_SLOTS: Final = 10
WINDOW_SLOT_NS: Final = 3_000_000_000
"""The window of throttle_time_max/avg is 30 s long and slides in steps of 3 s."""


@dataclass(slots=True, eq=False)
class Cell:
    """A counter of its own: the hot path does `cell.value += 1`."""

    value: int = 0


@dataclass(slots=True, eq=False)
class TopicTraffic:
    """The counters of one client and topic, which the hot path increments. Records count as soon as they pass; what the
    broker refuses is taken back.

    produce_bytes      of records as they are in the log: compressed, with the headers of their batches
    produce_messages   records, as the headers of their batches count them
    refused_bytes      of records that the broker refused
    fetch_bytes        the same bytes, of responses
    """

    produce_bytes: int = 0
    produce_messages: int = 0
    refused_bytes: int = 0
    fetch_bytes: int = 0

    def add_produced(self, size: int, messages: int) -> None:
        """So many more were produced."""
        self.produce_bytes += size
        self.produce_messages += messages

    def take_back(self, size: int, messages: int) -> None:
        """The broker refused these."""
        self.produce_bytes -= size
        self.produce_messages -= messages
        self.refused_bytes += size


@dataclass(slots=True, eq=False)
class RequestFacts:
    """What is known of the Produce requests of one client at no cost, which the hot path increments.

    unanswered     requests with acks=0
    inspected      requests whose record batch was read anyway, for a limit or for usage by topic, if it is the only one
    idempotent     inspected requests with a producer id
    uncompressed   inspected requests without compression; of several read together, all are like the last one
    """

    unanswered: int = 0
    inspected: int = 0
    idempotent: int = 0
    uncompressed: int = 0


class Histogram:
    """Counts of observations in seconds, by upper bound (inclusive), as in Prometheus."""

    __slots__ = ("_bounds", "_counts", "sum_seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = (*bounds, float("inf"))
        self._counts = [0] * len(self._bounds)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_seconds += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def counts(self) -> tuple[float, ...]:
        """All that grows: the sum, then the count of each bucket."""
        return (self.sum_seconds, *self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each upper bound, the last one infinite, with the number of observations up to it."""
        return zip(self._bounds, accumulate(self._counts), strict=True)


@dataclass(slots=True)
class _Slot:
    """3 s of a window: the requests before it, and its throttle times in seconds."""

    number: int
    requests_before: int
    throttled: int = 0
    largest: float = 0.0
    total: float = 0.0


class ThrottleWindow:
    """Largest and mean throttle time per request over the last 30 s (KIP-13's "max/avg request throttle time").

    The mean is over all requests of the window, throttled or not; both values are 0 when no request was throttled.
    `roll` must be called at least once per slot, or the requests of a slot without a call are dated to the one before.
    `slot` in the constructor is that of the entity's creation: no request is older.
    """

    __slots__ = ("_slots",)

    def __init__(self, slot: int) -> None:
        self._slots = deque([_Slot(slot, 0)])  # oldest first, never empty

    def record(self, seconds: float, slot: int, requests: int) -> None:
        """Add one throttled request. `requests`: all requests of the entity so far, this one included."""
        self.roll(slot, requests - 1)
        last = self._slots[-1]
        last.throttled += 1
        last.largest = max(last.largest, seconds)
        last.total += seconds

    def roll(self, slot: int, requests: int) -> None:
        """Drop what is older than the window. `requests`: all requests of the entity so far."""
        if self._slots[-1].number != slot:
            self._slots.append(_Slot(slot, max(0, requests)))
        while self._slots[0].number <= slot - WINDOW_SLOTS:
            self._slots.popleft()

    def max_and_mean(self, requests: int) -> tuple[float, float]:
        """Seconds, as of the last `roll`. `requests`: all requests of the entity so far."""
        throttled = sum(each.throttled for each in self._slots)
        if not throttled:
            return 0.0, 0.0
        total = sum(each.total for each in self._slots)
        largest = max(each.largest for each in self._slots)
        return largest, total / max(throttled, requests - self._slots[0].requests_before)


@dataclass(slots=True, eq=False)
class EntityMetrics:
    """The counters of one (user, client id).

    The session increments a count of requests for each data request, and a byte count by the bytes charged.
    `data_during_notice`: data requests that found debt before a throttle time was over. `sessions`: open connections of
    the client. `times`: where their time went. `topics`: the same traffic by topic; None without `--usage-by-topic`.
    `throttles`: by limit and mode, which both come from the code. `excess`: bytes of requests and responses that found
    a limit in debt, by its name. `past`: of `counts`. `facts`: of Produce requests.
    """

    user: str
    client_id: str
    window: ThrottleWindow
    _changed_at_ns: int
    topics: dict[str, TopicTraffic] | None = None
    produce_bytes: int = 0
    fetch_bytes: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    facts: RequestFacts = field(default_factory=RequestFacts)
    sessions: int = 0
    data_during_notice: int = 0
    times: ClientTimes = field(default_factory=ClientTimes)
    past: Past = field(init=False)
    throttles: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    excess: dict[str, int] = field(default_factory=dict)
    _seen: tuple[int, ...] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        self.past = Past(self._changed_at_ns, self.counts)

    @property
    def counts(self) -> tuple[float, ...]:
        """Bytes of both directions, requests of each, throttle times of brokers, unused time, then time by state."""
        data, times = (self.produce_bytes, self.fetch_bytes, self.produce_requests, self.fetch_requests), self.times
        used = times.broker_throttled_seconds, times.unused_ns, *times.spent_ns
        return (self.produce_bytes + self.fetch_bytes, *data, *used)

    @property
    def requests(self) -> int:
        """Produce and Fetch requests."""
        return self.produce_requests + self.fetch_requests

    def exceed(self, limit_name: str, size: int) -> None:
        """Data of `size` bytes found a limit of this name in debt."""
        self.excess[limit_name] = self.excess.get(limit_name, 0) + size

    def idle_ns(self, now_ns: int) -> int:
        """Time since a call of this method first saw the present counts."""
        seen = (self.produce_bytes, self.fetch_bytes, self.requests, sum(h.count for h in self.throttles.values()))
        if seen != self._seen:
            self._seen = seen
            self._changed_at_ns = now_ns
        return now_ns - self._changed_at_ns
