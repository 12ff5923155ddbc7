"""Slows one client down by other means than holds: delayed responses, and throttle notices while a bound of the proxy
stops reading from it.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, final

from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import DELAY

#: The throttle time in responses while a bound of the proxy stops reading from their client.
_BLOCKED_NS: Final = 100_000_000
_LONG_NS: Final = 5_000_000_000
_LONGEST_SHOWN_NS: Final = 86_400_000_000_000


@final
class Throttling:
    """The throttling of one session that has reached a broker."""

    def __init__(self, pair: ConnectionPair) -> None:
        self._pair = pair

    def begin_delay(self) -> None:
        """Start the timer of a delayed response: see `Owner.on_delay`."""
        delay = self._pair.response_stream.delay
        if delay is not None:
            self._pair.shared.wakeups.delay(delay, self.end_delay)

    def end_delay(self) -> None:
        """Send the delayed response now, if there is one."""
        delay = self._pair.response_stream.delay
        if delay is not None:
            self._pair.response_stream.delay = None
            self._pair.shared.wakeups.forget_delay(delay)
            self._pair.responses.resume(DELAY)

    def _repeat(self, now_ns: int) -> None:
        """Report a hold again, with its expected end, if it lasts longer than the interval between lines of a limit."""
        request = self._pair.response_stream.held or self._pair.request_stream.held
        hold = None if request is None else request.hold
        if request is None or hold is None:
            return
        limit, since_ns, queued = hold
        held_ns = request.held_ns + now_ns - since_ns
        if held_ns > _LONG_NS:
            # While the disk guard stops producers, a queue would take years.
            wait_ns = min(limit.wait_ns(now_ns, queued), _LONGEST_SHOWN_NS)
            until = f"{datetime.now(UTC) + timedelta(microseconds=wait_ns // 1_000):%H:%M:%S}"
            report = self._pair.connection.context.actions.report
            report.still_held(request.client, limit, held_ns, wait_ns, until, now_ns)

    def check(self, now_ns: int) -> None:
        """End a delay early if memory is short, or if the limits or the mode have changed. While a bound of the proxy
        blocks the client, have its responses contain a throttle time.
        """
        delay, bound = self._pair.response_stream.delay, self._pair.bound
        connection = self._pair.response_stream.connection
        context, identity = connection.context, connection.identity
        if delay is not None and (context.memory.is_tight or self._pair.response_stream.is_over(delay, now_ns)):
            self.end_delay()
        self._repeat(now_ns)
        if not context.actions.enforces:
            identity.drop_notices()
        elif bound and not connection.is_closing:
            identity.notice.extend(None, now_ns + _BLOCKED_NS, bound)
