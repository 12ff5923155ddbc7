"""Whether the broker of one connection works: it answers, is silent, or ends the connection. `proxy.brokers.health`
counts and logs that.
"""

import ssl
from typing import Any, Final, cast, final

from proxy.brokers.health import REPEAT_NS
from proxy.sessions.pair import ConnectionPair
from proxy.tls import failure_of

SILENT_NS: Final = 5_000_000_000


@final
class BrokerWatch:
    """Watches the broker of one connection. `broker`: its address."""

    def __init__(self, pair: ConnectionPair, broker: str, now_ns: int) -> None:
        self._pair = pair
        self._health = pair.shared.health
        self.broker = broker
        #: What the broker does now proves that it works, if nothing has failed since.
        self._begun_ns = now_ns
        self._is_silent = False
        #: The oldest request in flight, and since when it is; a minute later after each report.
        self._head: object = None
        self._begun_head_ns = now_ns
        self._head_ns = now_ns
        self._since_ns = now_ns

    def check(self, now_ns: int) -> None:
        """Report a broker that does not respond for `SILENT_NS`, and one that does.

        Only the oldest request counts, and only if it is on its way to the broker, its response is no long poll, and no
        limit or client delays what the broker sends, nor a quota of the broker what it reads.
        """
        in_flight = self._pair.response_stream.in_flight
        head: object = cast("Any", in_flight)[0] if in_flight else None  # typed, a compiled read makes a new tuple
        if head is not self._head:
            self._begun_head_ns = now_ns
        if head is not self._head or self._pair.responses.paused or not self._is_due(now_ns):
            if head is not self._head and self._is_silent:
                # It has answered after all. Its answers count again though this connection is older than the report.
                self._is_silent, self._begun_ns = False, now_ns
            self._head, self._head_ns, self._since_ns = head, now_ns, now_ns
        elif now_ns - self._head_ns >= SILENT_NS:
            self.failed("silent", f"no response for {SILENT_NS // 1_000_000_000} s to a request in flight")
            self._is_silent, self._head_ns = True, now_ns + REPEAT_NS - SILENT_NS
        if self._pair.response_stream.has_begun:
            self._health.worked(self.broker, self._begun_ns)

    def waits_ns(self, now_ns: int) -> int:
        """How long the oldest request in flight has waited for the broker alone, to the second; 0: none does. A fetch
        waits for new records first.
        """
        in_flight = self._pair.response_stream.in_flight
        head: object = cast("Any", in_flight)[0] if in_flight else None
        if head is None or head is not self._head:
            return 0
        if self._is_due(now_ns):
            return now_ns - self._since_ns
        since_ns = max(self._begun_head_ns, self._pair.connection.timer.muted_ns)
        begun_ns, longest_ns = now_ns - since_ns, in_flight[0][1].may_last_ns
        return begun_ns if 0 < longest_ns <= begun_ns and not self._pair.responses.paused else 0

    def _is_due(self, now_ns: int) -> bool:
        """Whether a broker answers the oldest of the requests in flight as soon as it can: not while it does not
        read this connection, for a quota of its own.
        """
        requests, in_flight = self._pair.requests, self._pair.response_stream.in_flight
        if now_ns < self._pair.connection.timer.muted_ns:
            return False
        if not in_flight or (len(in_flight) == 1 and requests.stream.remaining and requests.writer.pending is None):
            return False  # the rest of it has not arrived
        return not in_flight[0][1].may_last_ns

    @property
    def is_unheard(self) -> bool:
        """Whether requests wait for their responses, and the broker has sent none but that to ApiVersions."""
        return bool(self._pair.response_stream.in_flight) and not self._pair.response_stream.has_begun

    def failed(self, reason: str, detail: str) -> None:
        """Report a failure: the label of the metric, and a sentence."""
        self._health.failed(self.broker, reason, detail)

    def lost(self, error: OSError | None) -> None:
        """The broker's connection broke; without an error: it closed it before a response."""
        self.failed(*self._failure_of(error))

    def _failure_of(self, error: OSError | None) -> tuple[str, str]:
        """The reason and a sentence: why the broker's connection ended."""
        if isinstance(error, ssl.SSLError):
            return failure_of(error)
        detail = "" if error is None else f": {error.strerror or error}"
        if not self.is_unheard:
            return "connection_reset", f"the connection broke{detail}"
        # A broker closes the connection at a request that it does not allow, without a word: only the place tells why.
        if self._pair.connection.is_negotiated:
            return "sasl_required", f"it closed the connection at a request after ApiVersions{detail}"
        return "closed_early", f"it closed the connection before its first response{detail}"
