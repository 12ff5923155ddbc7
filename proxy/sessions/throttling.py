"""How one client is slowed down besides holds: delays of its responses, and notices while a bound of the proxy keeps it
from being read.
"""

from typing import Final, final

from proxy.sessions.pump import Pump
from proxy.sessions.pump_set import DELAY, IN_FLIGHT, LOGIN, MEMORY, REASON_NAMES, RESPONSE_MEMORY
from proxy.sessions.wakeups import Wakeups
from proxy.streams.response_stream import ResponseStream

#: The throttle time of responses while a bound of the proxy keeps their client from being read.
_BLOCKED_NS: Final = 100_000_000


@final
class Throttling:
    """Of one session that has reached a broker."""

    def __init__(self, wakeups: Wakeups, requests: Pump, responses: Pump, response_stream: ResponseStream) -> None:
        self._wakeups = wakeups
        self._requests = requests
        self._responses = responses
        self._response_stream = response_stream

    @property
    def bound(self) -> str:
        """The bound of the proxy for which the client is not read: a reason of `proxy.enforcement.report`; "": none."""
        paused = self._requests.paused
        if paused & (MEMORY | RESPONSE_MEMORY):
            return REASON_NAMES[MEMORY]
        # While the proxy logs in, requests in flight are no bound: the client is not read in any case.
        return REASON_NAMES[IN_FLIGHT] if paused & (IN_FLIGHT | LOGIN) == IN_FLIGHT else ""

    def begin_delay(self) -> None:
        """A response is delayed: see `Owner.on_delay`."""
        delay = self._response_stream.delay
        if delay is not None:
            self._wakeups.delay(delay, self.end_delay)

    def end_delay(self) -> None:
        """Send the response now, if one is delayed."""
        delay = self._response_stream.delay
        if delay is not None:
            self._response_stream.delay = None
            self._wakeups.forget_delay(delay)
            self._responses.resume(DELAY)

    def check(self, now_ns: int) -> None:
        """End a delay that memory, or a change of the limits or measures, makes shorter than its timer. Responses to a
        client that a bound of the proxy blocks contain a throttle time, and the reason is logged.
        """
        delay, bound = self._response_stream.delay, self.bound
        connection = self._response_stream.connection
        context, identity = connection.context, connection.identity
        if delay is not None and (context.memory.is_tight or self._response_stream.is_over(delay, now_ns)):
            self.end_delay()
        if not context.measures.enforces:
            identity.drop_notices()
        elif bound and not connection.is_closing:
            identity.notice.extend(None, now_ns + _BLOCKED_NS, bound)
            context.measures.report.blocked(identity.client, bound, now_ns)
