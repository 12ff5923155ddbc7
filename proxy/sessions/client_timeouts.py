"""The timeouts of one client, by what it has sent and received since the sweep last checked it, about once a second."""

from typing import final

from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import DELAY, QUOTA
from quotas.time_units import NS_PER_SECOND


@final
class ClientTimeouts:
    """The timeouts of one client: for its first request, for idleness, for memory that does not drain, and for its age.

    retires         the connection has reached its largest age and is about to end: see `Session.retire`
    stalled_bytes   bytes in memory, unchanged since `stalled_since_ns`
    """

    def __init__(self, pair: ConnectionPair, now_ns: int, spent_ns: int) -> None:
        self._pair = pair
        #: The time to the first request counts from now, because the client was not read before. Its handshakes have
        #: used `spent_ns` of it already.
        self._spent_ns = spent_ns
        self._read_ns = now_ns - spent_ns
        #: All traffic of the client's connection, which has not changed since `_active_ns`.
        self._traffic_bytes: int | None = None
        self._active_ns = now_ns
        self.retires = False
        self.stalled_bytes = 0
        self.stalled_since_ns = 0
        #: 0: there is no largest age. It is random, so that connections that began together do not end together.
        seconds = pair.shared.context.config.listening.max_connection_age_seconds * pair.shared.host.random.uniform(
            0.9, 1.1
        )
        self._old_ns = now_ns + int(seconds * NS_PER_SECOND) if seconds else 0

    def check(self, now_ns: int) -> None:
        """Record how many bytes are in memory, and whether that has changed."""
        held_bytes = self.held_bytes
        if held_bytes != self.stalled_bytes or not held_bytes:
            self.stalled_bytes = held_bytes
            self.stalled_since_ns = now_ns

    @property
    def held_bytes(self) -> int:
        """Bytes that are in memory because a peer does not take them or does not complete a frame. Bytes that a limit
        holds, or that wait for memory, do not count. The larger direction counts, because progress in one direction
        does not mean that there is any in the other.
        """
        requests, responses = self._pair.request_stream.holding, self._pair.response_stream.holding
        kept = requests.kept
        if self._pair.requests.paused & QUOTA:
            kept = 0
        kept += self._pair.response_stream.answers.owed_bytes  # their memory is returned when the broker responds
        waits = responses.waits or self._pair.responses.paused & (DELAY | QUOTA)
        return max(kept + requests.pending, responses.total - (responses.kept if waits else 0))

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether no complete request has arrived although the client has been read for `timeout_ns`."""
        if self._pair.request_stream.has_request:  # not a response: that may be to the proxy's own login
            return False
        if self._pair.requests.paused:
            self._read_ns = now_ns - self._spent_ns
        return now_ns - self._read_ns >= timeout_ns

    def is_idle(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether there was no traffic for `timeout_ns`, and nothing was under way or throttled."""
        requests, connection = self._pair.requests, self._pair.request_stream.connection
        # The kernel's count: one of the proxy's own would make each read slower, and would miss bytes that the client
        # has only acknowledged, which are traffic, too.
        traffic_bytes = requests.source.traffic_bytes
        if (
            traffic_bytes is None
            or traffic_bytes != self._traffic_bytes
            or self._pair.response_stream.in_flight
            or self._pair.responses.paused
            or self._pair.responses.writer.pending is not None
            or requests.writer.pending is not None
            or requests.paused
            or connection.identity.notice.until_ns > now_ns
        ):
            self._traffic_bytes = traffic_bytes
            self._active_ns = now_ns
        return now_ns - self._active_ns >= timeout_ns

    def is_old(self, now_ns: int) -> bool:
        """Whether the connection has reached its largest age and may end. It may not

        - while the client logs in: to the client, that would look like a wrong password
        - with a share session: its records would be delivered again
        - with acks=0 data under a limit: data that waits here would pass beside what the client sends on its next
          connection, out of order
        """
        if not 0 < self._old_ns <= now_ns:
            return False
        connection = self._pair.connection
        held, login = self._pair.request_stream.held, connection.exchange
        if not connection.max_in_flight or (login is not None and not login.has_ended):
            return False
        if connection.has_share_session or (connection.sent_unanswered and connection.identity.limits.produce.limits):
            return False
        return held is None or held.is_answered
