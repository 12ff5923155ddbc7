"""What one connection has moved since the last check of the sweep, about once a second."""

from typing import final

from proxy.sessions.pump import DELAY, QUOTA, Pump
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream


@final
class Progress:
    """The progress of one connection.

    held       bytes in memory, unchanged since `since_ns`
    """

    __slots__ = (
        "_active_ns",
        "_read_ns",
        "_requests",
        "_responses",
        "_spent_ns",
        "_to_broker",
        "_to_client",
        "_traffic_bytes",
        "held",
        "since_ns",
    )

    def __init__(
        self,
        requests: Pump,
        responses: Pump,
        to_broker: RequestStream,
        to_client: ResponseStream,
        now_ns: int,
        spent_ns: int,
    ) -> None:
        self._requests = requests
        self._responses = responses
        self._to_broker = to_broker
        self._to_client = to_client
        #: Without a complete request: the client was not read before. `spent_ns` of its time went into handshakes.
        self._spent_ns = spent_ns
        self._read_ns = now_ns - spent_ns
        #: Of the client's connection; it has been idle since `_active_ns`.
        self._traffic_bytes: int | None = None
        self._active_ns = now_ns
        self.held = 0
        self.since_ns = 0

    def check(self, now_ns: int) -> None:
        """Note what is in memory."""
        held = self.held_bytes
        if held != self.held or not held:
            self.held = held
            self.since_ns = now_ns

    @property
    def held_bytes(self) -> int:
        """Bytes in memory because a peer does not take them or does not continue; not those that a limit holds, nor
        those that wait for memory themselves. The larger direction counts: what arrives on one side is no sign that the
        other side is taken.
        """
        stream, requests, responses = self._to_broker, self._to_broker.holding, self._to_client.holding
        kept = requests.kept
        if self._requests.paused & QUOTA:
            kept = 0
        kept += stream.connection.owed_bytes  # their memory is free when the broker responds
        waits = responses.waits or self._responses.paused & DELAY
        return max(kept + requests.pending, responses.total - (responses.kept if waits else 0))

    @property
    def has_response(self) -> bool:
        """Whether the broker has sent something."""
        return self._to_client.has_begun

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether no complete request has arrived, though the client has been read for `timeout_ns`."""
        if self._to_broker.has_request:  # a response may be to the proxy's own login
            return False
        if self._requests.paused:
            self._read_ns = now_ns - self._spent_ns
        return now_ns - self._read_ns >= timeout_ns

    def is_idle(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether there was no traffic for `timeout_ns`, and nothing was under way or throttled."""
        requests, connection = self._requests, self._to_broker.connection
        traffic_bytes = requests.source.traffic_bytes
        if (
            traffic_bytes is None
            or traffic_bytes != self._traffic_bytes
            or connection.in_flight
            or self._responses.pending is not None
            or requests.pending is not None
            or requests.paused
            or connection.identity.notice.until_ns > now_ns
        ):
            self._traffic_bytes = traffic_bytes
            self._active_ns = now_ns
        return now_ns - self._active_ns >= timeout_ns
