"""How long each broker takes to respond: to Produce requests, and to others that it answers as soon as it can."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

from proxy.brokers.health import MAX_BROKERS
from proxy.observability.labels import OTHER
from proxy.observability.past import Past
from proxy.observability.tallies import Histogram

_ANY: Final = 1 << 30
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True, eq=False)
class ResponseTimes:
    """Of one broker. `past`: of `counts`; its line is the mean of both kinds."""

    began_ns: int
    produce: Histogram = field(default_factory=lambda: Histogram(BUCKETS))
    others: Histogram = field(default_factory=lambda: Histogram(BUCKETS))
    past: Past = field(init=False)

    def __post_init__(self) -> None:
        self.past = Past(self.began_ns, self.counts, per=1)

    @property
    def counts(self) -> tuple[float, ...]:
        """Seconds and number of both kinds, then those of each, as `Histogram.counts`."""
        produce, others = self.produce, self.others
        both = produce.sum_seconds + others.sum_seconds, produce.count + others.count
        return (*both, *produce.counts, *others.counts)


@final
class BrokerTimes:
    """By the address of the broker; the `MAX_BROKERS` that were connected last."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._times: OrderedDict[str, ResponseTimes] = OrderedDict()

    def times_of(self, address: str) -> ResponseTimes:
        """Sessions call this once and keep the result."""
        times = self._times.pop(address, None) or ResponseTimes(self._clock())
        self._times[address] = times
        if len(self._times) > MAX_BROKERS:
            self._times.popitem(last=False)
        return times

    def histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        """The address of each broker, what it was asked, and how long that took."""
        for address, times in self.items():
            yield address, "Produce", times.produce
            yield address, OTHER, times.others

    def values(self) -> Iterator[ResponseTimes]:
        return iter(list(self._times.values()))

    def items(self) -> Iterator[tuple[str, ResponseTimes]]:
        return iter(list(self._times.items()))


@final
class ResponseTimer:
    """Times one request of one connection in a second, whatever else is in flight: from its last byte to the first of
    its response. A connection that never runs dry is timed like one with a request at a time. Where the proxy,
    the client or a quota of the broker delays responses meanwhile, the request is dropped.

    attention   with so many requests in flight, or fewer, `Requests.begin` is called for the next one
    left        responses up to that of the request that is timed; 0: none is
    since_ns    when that was forwarded
    muted_ns    until then the broker reads nothing, for a quota of its own
    times       of the broker; None: none is connected yet
    """

    __slots__ = ("_observed", "attention", "left", "muted_ns", "since_ns", "times")

    def __init__(self) -> None:
        self.attention = 0
        self.left = 0
        self.since_ns = 0
        self.muted_ns = 0
        self.times: ResponseTimes | None = None
        self._observed: Histogram | None = None

    def arm(self) -> None:
        """Time a request, unless one is timed."""
        if not self.left:
            self.attention = _ANY

    def begin(self, before: int, now_ns: int, *, is_produce: bool) -> None:
        """A request is forwarded behind so many."""
        self.attention = 0
        times = self.times
        if times is not None:
            self.left, self.since_ns = before + 1, now_ns
            self._observed = times.produce if is_produce else times.others

    def passed(self, left: int, responses: int, now_ns: int, *, stopped: bool) -> None:
        """So many responses have passed while `left` were left. `stopped`: the next one is there, and waits."""
        if responses + stopped >= left and self._observed is not None:
            if self.muted_ns <= self.since_ns:
                self._observed.observe(max(0, now_ns - self.since_ns) / 1e9)
        elif not stopped:
            self.left = left - responses
