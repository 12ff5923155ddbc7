"""Throttles of one connection besides its holds: the delay of a response, and notices while a bound stops reading."""

from typing import Final, final

from proxy.enforcement.holds import Delay
from proxy.sessions.pump import DELAY, IN_FLIGHT, MEMORY, REASON_NAMES, RESPONSE_MEMORY, Pump
from proxy.sessions.wakeups import Wakeups
from proxy.streams.response_stream import ResponseStream

#: The throttle time of responses while a bound of the proxy keeps their client from being read.
_BLOCKED_NS: Final = 100_000_000


@final
class Throttles:
    """The delay and the notices of one connection. A delay ends by a timer, or early."""

    __slots__ = ("_requests", "_responses", "_stream", "_wakeups")

    def __init__(self, requests: Pump, responses: Pump, stream: ResponseStream, wakeups: Wakeups) -> None:
        self._requests = requests
        self._responses = responses
        self._stream = stream
        self._wakeups = wakeups

    @property
    def delay(self) -> Delay | None:
        """Of the next response."""
        return self._stream.delay

    @property
    def bound(self) -> str:
        """The bound of the proxy for which the client is not read: a reason of `proxy.enforcement.report`; "": none."""
        paused = self._requests.paused
        if paused & (MEMORY | RESPONSE_MEMORY):
            return REASON_NAMES[MEMORY]
        return REASON_NAMES[paused & IN_FLIGHT] if paused & IN_FLIGHT else ""

    def begin_delay(self) -> None:
        """See `Owner.on_delay`."""
        delay = self.delay
        if delay is not None:
            self._wakeups.delay(delay, self.end_delay)

    def check(self, now_ns: int) -> None:
        """Once a second: end a delay that memory, or a change of the limits or measures, makes shorter than its timer.
        Responses to a client that a bound of the proxy blocks contain a throttle time, and the reason is logged.
        """
        connection, delay, bound = self._stream.connection, self.delay, self.bound
        context, identity = connection.context, connection.identity
        if delay is not None and (context.memory.is_tight or connection.is_over(delay, now_ns)):
            self.end_delay()
        if not context.measures.enforces:
            identity.drop_notices()
        elif bound and not connection.is_closing:
            identity.notice.extend(None, now_ns + _BLOCKED_NS, bound)
            context.measures.report.blocked(identity.client, bound, now_ns)

    def end_delay(self) -> None:
        """Send the response now, if it is delayed."""
        delay = self.delay
        if delay is not None:
            self._stream.delay = None
            self._wakeups.forget_delay(delay)
            self._responses.resume(DELAY)
