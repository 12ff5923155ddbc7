"""How long each broker takes to respond: to Produce requests, and to others that it answers as soon as it can."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, final

from proxy.brokers.health import MAX_BROKERS
from proxy.observability.tallies import Histogram

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Times = tuple[Histogram, Histogram]
"""Of Produce requests, and of others."""


@final
class BrokerTimes:
    """By the address of the broker; the `MAX_BROKERS` that were connected last."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, Times] = OrderedDict()

    def times_of(self, address: str) -> Times:
        """Sessions call this once and keep the result."""
        times = self._times.pop(address, None) or (Histogram(BUCKETS), Histogram(BUCKETS))
        self._times[address] = times
        if len(self._times) > MAX_BROKERS:
            self._times.popitem(last=False)
        return times

    def __iter__(self) -> Iterator[tuple[str, Times]]:
        return iter(list(self._times.items()))
