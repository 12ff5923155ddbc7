"""Throttles of one connection besides its holds: the delay of a response, and stops of all reading."""

from typing import Final, final

from proxy.enforcement import report as reports
from proxy.enforcement.holds import Delay
from proxy.sessions.pump import DELAY, HARD_DEBT, IN_FLIGHT, MEMORY, RESPONSE_MEMORY, Pump
from proxy.sessions.wakeups import Wakeups
from proxy.streams.response_stream import ResponseStream

#: The throttle time of responses while a bound of the proxy keeps their client from being read.
_BLOCKED_NS: Final = 100_000_000


@final
class Throttles:
    """See the module. Delay and stop end by a timer, or early."""

    __slots__ = ("_connection", "_requests", "_responses", "_stream", "_wakeups")

    def __init__(self, requests: Pump, responses: Pump, stream: ResponseStream, wakeups: Wakeups) -> None:
        self._connection = stream.connection
        self._requests = requests
        self._responses = responses
        self._stream = stream
        self._wakeups = wakeups

    @property
    def delay(self) -> Delay | None:
        """Of the next response."""
        return self._stream.delay

    @property
    def blocked(self) -> str:
        """The bound of the proxy for which the client is not read; "": none."""
        paused = self._requests.paused
        if paused & (MEMORY | RESPONSE_MEMORY):
            return reports.MEMORY
        return reports.IN_FLIGHT if paused & IN_FLIGHT else ""

    def begin_delay(self) -> None:
        """See `Owner.on_delay`."""
        delay = self.delay
        if delay is not None:
            self._wakeups.delay(delay, self._end_delay)

    def begin_stop(self) -> None:
        """See `Owner.on_stop`."""
        stop = self._connection.stop
        if stop is not None:
            self._wakeups.delay(stop, self._end_stop)

    def end(self) -> None:
        """End both."""
        self._end_delay()
        self._end_stop()

    def check(self, now_ns: int) -> None:
        """Once a second: end what memory, or a change of the limits or the policy, makes shorter than its timer.
        Responses to a client that a bound of the proxy blocks contain a throttle time, and the reason is logged.
        """
        connection, delay, stop = self._connection, self.delay, self._connection.stop
        context, identity, reason = connection.context, connection.identity, self.blocked
        if delay is not None and (context.memory.is_tight or connection.is_over(delay, now_ns)):
            self._end_delay()
        if stop is not None and connection.is_over(stop, now_ns):
            self._end_stop()
        if not context.policy.enforces:
            identity.drop_notices()
        elif reason and not connection.is_closing:
            identity.notice.extend(None, now_ns + _BLOCKED_NS, reason)
            context.policy.blocks(identity, reason, now_ns)

    def _end_delay(self) -> None:
        delay = self.delay
        if delay is not None:
            self._stream.delay = None
            self._wakeups.forget_delay(delay)
            self._responses.resume(DELAY)

    def _end_stop(self) -> None:
        stop = self._connection.stop
        if stop is not None:
            self._connection.set_stop(None)
            self._wakeups.forget_delay(stop)
            self._requests.resume(HARD_DEBT)
