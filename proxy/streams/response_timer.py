"""Times the broker's responses on one connection: one request in a second, whatever else is in flight.

    armed    the next request that the broker answers as soon as it can is timed
    timed    `left` counts the responses up to its own

A connection that never runs dry is timed like one with a request at a time. The time is from the last byte of the
request to the first bytes of the response; what the proxy, the client or a quota of the broker delays meanwhile is not
counted, since the request is dropped then.
"""

from typing import Final, final

from proxy.brokers.response_times import ResponseTimes
from proxy.observability.tallies import Histogram
from proxy.streams.steps import DELAY_RESPONSE, HOLD

_ANY: Final = 1 << 30


@final
class ResponseTimer:
    """Of one connection.

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

    def passed(self, left: int, responses: int, step: int, now_ns: int) -> None:
        """So many responses have passed while `left` were left; the step is for the one after them."""
        stopped = step in {DELAY_RESPONSE, HOLD}
        if responses + stopped >= left and self._observed is not None:
            if self.muted_ns <= self.since_ns:
                self._observed.observe(max(0, now_ns - self.since_ns) / 1e9)
        elif not stopped:
            self.left = left - responses
