"""What one connection has moved since the last check of the sweep, about once a second."""

import ssl
from typing import Any, Final, cast, final

from protocol.apis import FETCH, SHARE_FETCH
from proxy.brokers.health import REPEAT_NS, Health
from proxy.sessions.pump import DELAY, QUOTA, Pump
from proxy.streams.connection import Answer, InFlight
from proxy.streams.handler import Delayed, RequestKind
from proxy.streams.handlers.fetch import OpenFetch
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream
from proxy.tls import failure_of

SILENT_NS: Final = 5_000_000_000
_JOIN_GROUP: Final = 11
_SYNC_GROUP: Final = 14
#: Their responses may be late on purpose.
_LONG_POLLS: Final = frozenset({FETCH, SHARE_FETCH, _JOIN_GROUP, _SYNC_GROUP})


@final
class Progress:
    """The progress of one connection.

    broker     its address
    held       bytes in memory, unchanged since `since_ns`
    """

    __slots__ = (
        "_active_ns",
        "_begun_ns",
        "_head",
        "_head_ns",
        "_is_silent",
        "_read_ns",
        "_requests",
        "_responses",
        "_spent_ns",
        "_to_broker",
        "_to_client",
        "_traffic_bytes",
        "broker",
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
        broker: str,
    ) -> None:
        self.broker = broker
        #: What the broker does now proves that it works, if nothing has failed since.
        self._begun_ns = now_ns
        self._is_silent = False
        #: The oldest request in flight, and since when it is; a minute later after each report.
        self._head: object = None
        self._head_ns = now_ns
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

    def check_broker(self, health: Health, now_ns: int) -> None:
        """Report a broker that does not respond for `SILENT_NS`, and one that does.

        Only the oldest request counts, and only if it is on its way to the broker, its response is no long poll, and no
        limit or client delays what the broker sends.
        """
        in_flight = self._to_broker.connection.in_flight
        head: object = cast("Any", in_flight)[0] if in_flight else None  # typed, a compiled read makes a new tuple
        if head is not self._head or self._responses.paused or not self._is_due(in_flight):
            if head is not self._head and self._is_silent:
                self._is_silent, self._begun_ns = False, now_ns
            self._head, self._head_ns = head, now_ns
        elif now_ns - self._head_ns >= SILENT_NS:
            detail = f"no response for {SILENT_NS // 1_000_000_000} s to a request in flight"
            health.failed(self.broker, "silent", detail)
            self._is_silent, self._head_ns = True, now_ns + REPEAT_NS - SILENT_NS
        if self._to_client.has_begun:
            health.worked(self.broker, self._begun_ns)

    def _is_due(self, in_flight: InFlight) -> bool:
        """Whether a broker answers the oldest of these requests as soon as it can."""
        if not in_flight or (len(in_flight) == 1 and self._to_broker.remaining and self._requests.pending is None):
            return False
        awaited = in_flight[0][1]
        if isinstance(awaited, RequestKind):
            return awaited.api_key not in _LONG_POLLS
        return not isinstance(awaited, Answer | Delayed | OpenFetch)

    @property
    def is_unheard(self) -> bool:
        """Whether requests wait for their responses, and the broker has sent none but that to ApiVersions."""
        return bool(self._to_broker.connection.in_flight) and not self._to_client.has_begun

    def failure_of(self, error: OSError | None) -> tuple[str, str]:
        """The reason and a sentence: why the broker's connection ended."""
        if isinstance(error, ssl.SSLError):
            return failure_of(error)
        detail = "" if error is None else f": {error.strerror or error}"
        if not self.is_unheard:
            return "connection_reset", f"the connection broke{detail}"
        if self._to_broker.connection.is_negotiated:
            return "sasl_required", f"it closed the connection at a request after ApiVersions{detail}"
        return "closed_early", f"it closed the connection before its first response{detail}"

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
