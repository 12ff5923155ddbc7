"""The plain counters of the metrics: integers that the hot path increments, and sums over a sliding window."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.observability.topic_traffic import TopicTraffic

WINDOW_SLOTS: Final = 10
WINDOW_SLOT_NS: Final = 3_000_000_000
"""The window of throttle_time_max/avg is 30 s long and slides in steps of 3 s."""


class Cell:
    """A counter of its own: the hot path does `cell.value += 1`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Histogram:
    """Counts of observations in seconds, by upper bound (inclusive), as in Prometheus."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum_seconds(self) -> float:
        return self._sum

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each upper bound, the last one infinite, with the number of observations up to it."""
        cumulated = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            cumulated += count
            yield bound, cumulated


class ThrottleWindow:
    """Largest and mean throttle time per request over the last 30 s (KIP-13's "max/avg request throttle time").

    The mean is over all requests of the window, throttled or not; both values are 0 when no request was throttled.
    `roll` must be called at least once per slot, or the requests of a slot without a call are dated to the next one.
    `slot` in the constructor is that of the entity's creation: no request is older.
    """

    __slots__ = ("_requests_before", "_throttles")

    def __init__(self, slot: int) -> None:
        self._throttles: deque[tuple[int, list[float]]] = deque()  # (slot, [max, sum, count]), oldest first
        self._requests_before: deque[tuple[int, int]] = deque([(slot, 0)])  # (slot, requests before it), oldest first

    def record(self, seconds: float, slot: int, requests: int) -> None:
        """Add one throttled request. `requests`: all requests of the entity so far, this one included."""
        self.roll(slot, requests - 1)
        if not self._throttles or self._throttles[-1][0] != slot:
            self._throttles.append((slot, [0.0, 0.0, 0.0]))
        totals = self._throttles[-1][1]
        totals[0] = max(totals[0], seconds)
        totals[1] += seconds
        totals[2] += 1

    def roll(self, slot: int, requests: int) -> None:
        """Drop what is older than the window. `requests`: all requests of the entity so far."""
        oldest = slot - WINDOW_SLOTS + 1
        while self._throttles and self._throttles[0][0] < oldest:
            self._throttles.popleft()
        before = self._requests_before
        if before[-1][0] != slot:
            before.append((slot, max(0, requests)))
        while len(before) > 1 and before[1][0] <= oldest:
            before.popleft()

    def max_and_mean(self, requests: int) -> tuple[float, float]:
        """Seconds, as of the last `roll`. `requests`: all requests of the entity so far."""
        if not self._throttles:
            return 0.0, 0.0
        largest = max(totals[0] for _, totals in self._throttles)
        total = sum(totals[1] for _, totals in self._throttles)
        throttled = sum(totals[2] for _, totals in self._throttles)
        return largest, total / max(throttled, requests - self._requests_before[0][1])


class EntityMetrics:
    """The counters of one (user, client id).

    The session increments a count of requests for each data request, and a byte count by the bytes charged.
    `data_during_notice`: data requests that found debt before a throttle time was over. `sessions`: open connections of
    the client. `topics`: the same traffic by topic; None without `--usage-by-topic`.
    """

    __slots__ = (
        "_changed_at_ns",
        "_seen",
        "client_id",
        "data_during_notice",
        "excess",
        "fetch_bytes",
        "fetch_requests",
        "produce_bytes",
        "produce_requests",
        "sessions",
        "throttles",
        "topics",
        "user",
        "window",
    )

    def __init__(self, user: str, client_id: str, now_ns: int, topics: dict[str, TopicTraffic] | None = None) -> None:
        self.user = user
        self.client_id = client_id
        self.produce_bytes = 0
        self.fetch_bytes = 0
        self.produce_requests = 0
        self.fetch_requests = 0
        self.sessions = 0
        self.data_during_notice = 0
        self.topics = topics
        self.throttles: dict[tuple[str, str], Histogram] = {}  # by (limit, mode): both come from the code
        self.excess: dict[str, int] = {}  # bytes of requests and responses that found a limit in debt, by its name
        self.window = ThrottleWindow(now_ns // WINDOW_SLOT_NS)
        self._seen = (0, 0, 0, 0)
        self._changed_at_ns = now_ns

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
