"""What the client of one connection has moved since the last check of the sweep, about once a second: for timeouts."""

import random
from typing import Final, final

from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import DELAY, QUOTA
from proxy.streams.held_request import HeldRequest

NS_PER_SECOND: Final = 1_000_000_000


@final
class ClientTimeouts:
    """The timeouts of one client: for its first request, without traffic, with memory that does not drain, and its age.

    retires         the connection is old, and ends: see `Session.retire`
    stalled_bytes   bytes in memory, unchanged since `stalled_since_ns`
    """

    def __init__(self, pair: ConnectionPair, now_ns: int, spent_ns: int) -> None:
        self._pair = pair
        #: Without a complete request: the client was not read before. `spent_ns` of its time went into handshakes.
        self._spent_ns = spent_ns
        self._read_ns = now_ns - spent_ns
        #: Of the client's connection; it has been idle since `_active_ns`.
        self._traffic_bytes: int | None = None
        self._active_ns = now_ns
        self.retires = False
        self.stalled_bytes = 0
        self.stalled_since_ns = 0
        #: 0: it has no largest age. Connections that began together do not end together.
        seconds = pair.shared.context.config.listening.max_connection_age_seconds * random.uniform(0.9, 1.1)  # noqa: S311
        self._old_ns = now_ns + int(seconds * NS_PER_SECOND) if seconds else 0

    def check(self, now_ns: int) -> None:
        """Note what is in memory."""
        held_bytes = self.held_bytes
        if held_bytes != self.stalled_bytes or not held_bytes:
            self.stalled_bytes = held_bytes
            self.stalled_since_ns = now_ns

    @property
    def held_bytes(self) -> int:
        """Bytes in memory because a peer does not take them or does not continue; not those that a limit holds, nor
        those that wait for memory themselves. The larger direction counts: what arrives on one side is no sign that the
        other side is taken.
        """
        requests, responses = self._pair.request_stream.holding, self._pair.response_stream.holding
        kept = requests.kept
        if self._pair.requests.paused & QUOTA:
            kept = 0
        kept += self._pair.response_stream.answers.owed_bytes  # their memory is free when the broker responds
        waits = responses.waits or self._pair.responses.paused & (DELAY | QUOTA)
        return max(kept + requests.pending, responses.total - (responses.kept if waits else 0))

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether no complete request has arrived, though the client has been read for `timeout_ns`."""
        if self._pair.request_stream.has_request:  # a response may be to the proxy's own login
            return False
        if self._pair.requests.paused:
            self._read_ns = now_ns - self._spent_ns
        return now_ns - self._read_ns >= timeout_ns

    def is_idle(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether there was no traffic for `timeout_ns`, and nothing was under way or throttled."""
        requests, connection = self._pair.requests, self._pair.request_stream.connection
        # The kernel counts it: a counter of the proxy's own would cost each read, and bytes that the client has only
        # acknowledged are traffic, too.
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
        """Whether it has its age, and may end now. Never while it logs in, since an end would look like a wrong
        password; with a share session, whose records would be delivered again; or with acks=0 data under a limit,
        since what waits here would pass beside what its client sends on its next connection.
        """
        if not 0 < self._old_ns <= now_ns:
            return False
        connection = self._pair.connection
        held, login = self._pair.request_stream.held, connection.exchange
        if not connection.max_in_flight or (login is not None and not login.has_ended):
            return False
        if connection.has_share_session or (connection.sent_unanswered and connection.identity.limits.produce.limits):
            return False
        return not isinstance(held, HeldRequest) or held.is_answered
