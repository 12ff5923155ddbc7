"""How one client is slowed down besides holds: delays of its responses, and notices while a bound of the proxy keeps it
from being read.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, final

from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import DELAY
from proxy.sessions.wait_states import bound_of
from proxy.streams.held_request import HeldRequest

#: The throttle time of responses while a bound of the proxy keeps their client from being read.
_BLOCKED_NS: Final = 100_000_000
_LONG_NS: Final = 5_000_000_000


@final
class Throttling:
    """Of one session that has reached a broker."""

    def __init__(self, pair: ConnectionPair) -> None:
        self._pair = pair

    def begin_delay(self) -> None:
        """A response is delayed: see `Owner.on_delay`."""
        delay = self._pair.response_stream.delay
        if delay is not None:
            self._pair.shared.wakeups.delay(delay, self.end_delay)

    def end_delay(self) -> None:
        """Send the response now, if one is delayed."""
        delay = self._pair.response_stream.delay
        if delay is not None:
            self._pair.response_stream.delay = None
            self._pair.shared.wakeups.forget_delay(delay)
            self._pair.responses.resume(DELAY)

    def _repeat(self, now_ns: int) -> None:
        """Report a hold again, and when it ends, that is longer than lines of one limit are apart."""
        request = self._pair.response_stream.held or self._pair.request_stream.held
        hold = request.hold if isinstance(request, HeldRequest) else None
        if hold is None or not isinstance(request, HeldRequest):
            return
        limit, since_ns, queued = hold
        held_ns = request.held_ns + now_ns - since_ns
        if held_ns > _LONG_NS:
            wait_ns = limit.wait_ns(now_ns, -queued)  # as the last of the queue
            until = f"{datetime.now(UTC) + timedelta(microseconds=wait_ns // 1_000):%H:%M:%S}"
            report = self._pair.connection.context.measures.report
            report.still_held(request.client, limit, held_ns, wait_ns, until, now_ns)

    def check(self, now_ns: int) -> None:
        """End a delay that memory, or a change of the limits or measures, makes shorter than its timer. Responses to a
        client that a bound of the proxy blocks contain a throttle time.
        """
        delay, bound = self._pair.response_stream.delay, bound_of(self._pair)
        connection = self._pair.response_stream.connection
        context, identity = connection.context, connection.identity
        if delay is not None and (context.memory.is_tight or self._pair.response_stream.is_over(delay, now_ns)):
            self.end_delay()
        self._repeat(now_ns)
        if not context.measures.enforces:
            identity.drop_notices()
        elif bound and not connection.is_closing:
            identity.notice.extend(None, now_ns + _BLOCKED_NS, bound)
