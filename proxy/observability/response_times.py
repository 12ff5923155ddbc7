"""How long each broker takes to respond: to Produce requests, and to others that it answers as soon as it can."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

from proxy.observability.labels import OTHER
from proxy.observability.past import Past
from proxy.observability.tallies import Histogram
from quotas.adaptive.yielding import Signal

MAX_BROKERS: Final = 1_000
"""Addresses that are remembered: clusters have fewer."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True, eq=False)
class ResponseTimes:
    """Of one broker. `past`: of `counts`; its line is the mean of both kinds. `signals`: those to protected clients, by
    the resource group that yields to them.
    """

    began_ns: int
    produce: Histogram = field(default_factory=lambda: Histogram(BUCKETS))
    others: Histogram = field(default_factory=lambda: Histogram(BUCKETS))
    past: Past = field(init=False)
    signals: dict[str, Signal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.past = Past(self.began_ns, self.counts, per=1)

    def signal(self, group: str, target_ns: int) -> Signal:
        """Of the clients that this resource group yields to."""
        signal = self.signals.get(group)
        if signal is None:
            signal = self.signals[group] = Signal(target_ns)
        return signal

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
