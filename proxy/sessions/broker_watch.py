"""Watches whether the broker of one connection answers, is silent, or ends the connection, and reports that to
`proxy.brokers.health`, which counts and logs it.
"""

import ssl
from typing import Any, Final, cast, final

from proxy.brokers.health import REPEAT_NS
from proxy.files.tls import failure_of
from proxy.sessions.pair import ConnectionPair

SILENT_NS: Final = 5_000_000_000


@final
class BrokerWatch:
    """Watches the broker of one connection. `broker`: its address."""

    def __init__(self, pair: ConnectionPair, broker: str, now_ns: int) -> None:
        self._pair = pair
        self._health = pair.shared.health
        self.broker = broker
        #: A response on this connection proves that the broker works, unless something has failed since this time.
        self._begun_ns = now_ns
        self._is_silent = False
        #: The oldest request in flight, and since when it has been that. Each report moves the time by a minute.
        self._head: object = None
        self._begun_head_ns = now_ns
        self._head_ns = now_ns
        self._since_ns = now_ns

    def check(self, now_ns: int) -> None:
        """Report a broker that has not responded for `SILENT_NS`, or one that has responded.

        Only the oldest request counts, and only if all of these are true: it has been sent to the broker, it is no
        long poll, neither a limit nor the client delays what the broker sends, and the broker does not throttle the
        connection by a quota of its own.
        """
        in_flight = self._pair.response_stream.in_flight
        head: object = cast("Any", in_flight)[0] if in_flight else None  # typed, compiled code would build a new tuple
        if head is not self._head:
            self._begun_head_ns = now_ns
        if head is not self._head or self._pair.responses.paused or not self._is_due(now_ns):
            if head is not self._head and self._is_silent:
                # It has answered after all. Its responses count again, although this connection predates the report.
                self._is_silent, self._begun_ns = False, now_ns
            self._head, self._head_ns, self._since_ns = head, now_ns, now_ns
        elif now_ns - self._head_ns >= SILENT_NS:
            self.failed("silent", f"no response for {SILENT_NS // 1_000_000_000} s to a request in flight")
            self._is_silent, self._head_ns = True, now_ns + REPEAT_NS - SILENT_NS
        if self._pair.response_stream.has_begun:
            self._health.worked(self.broker, self._begun_ns)

    def waits_ns(self, now_ns: int) -> int:
        """How long the oldest request in flight has been waiting for nothing but the broker, to the second; 0 if it is
        not. A fetch counts only after the time for which it may wait for new records.
        """
        in_flight = self._pair.response_stream.in_flight
        head: object = cast("Any", in_flight)[0] if in_flight else None
        if head is None or head is not self._head:
            return 0
        if self._is_due(now_ns):
            return now_ns - self._since_ns
        since_ns = max(self._begun_head_ns, self._pair.connection.observer.muted_ns)
        begun_ns, longest_ns = now_ns - since_ns, in_flight[0][1].may_last_ns
        return begun_ns if 0 < longest_ns <= begun_ns and not self._pair.responses.paused else 0

    def _is_due(self, now_ns: int) -> bool:
        """Whether the broker should be answering the oldest request in flight now. It should not while it mutes this
        connection because of a quota of its own.
        """
        requests, in_flight = self._pair.requests, self._pair.response_stream.in_flight
        if now_ns < self._pair.connection.observer.muted_ns:
            return False
        if not in_flight or (len(in_flight) == 1 and requests.stream.remaining and requests.writer.pending is None):
            return False  # the rest of it has not arrived
        return not in_flight[0][1].may_last_ns

    @property
    def is_unheard(self) -> bool:
        """Whether requests are in flight, and the broker has sent no response except to ApiVersions."""
        return bool(self._pair.response_stream.in_flight) and not self._pair.response_stream.has_begun

    def failed(self, reason: str, detail: str) -> None:
        """Report a failure. `reason`: the label of the metric; `detail`: a sentence."""
        self._health.failed(self.broker, reason, detail)

    def lost(self, error: OSError | None) -> None:
        """The connection to the broker broke; without an error: the broker closed it before a response."""
        self.failed(*self._failure_of(error))

    def _failure_of(self, error: OSError | None) -> tuple[str, str]:
        """Why the connection to the broker ended: the reason, and a sentence."""
        if isinstance(error, ssl.SSLError):
            return failure_of(error)
        detail = "" if error is None else f": {error.strerror or error}"
        if not self.is_unheard:
            return "connection_reset", f"the connection broke{detail}"
        # A broker closes the connection without an error if it does not allow a request, so the reason can only be
        # concluded from how far the connection had come.
        if self._pair.connection.is_negotiated:
            return "sasl_required", f"it closed the connection at a request after ApiVersions{detail}"
        return "closed_early", f"it closed the connection before its first response{detail}"
