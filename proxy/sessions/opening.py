"""The first part of a session: opens the client's wire, then connects to a broker."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

from proxy.brokers.upstream import Attempt
from proxy.config.addresses import Address, format_address
from proxy.sessions.faults import HandshakeFailed
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.wire import Wire

SILENT_NS: Final = 60_000_000_000
"""How long a bootstrap server that did not answer is the last one to be tried."""


@final
class Opening:
    """Opens the client's wire and connects to a broker, then calls ``connected(spent_ns, began_ns, wire, address)``. If
    either fails, it closes the pair.

    spent_ns             how long the client's handshakes took
    began_ns             when connecting began
    connecting_since_ns  `began_ns` until a broker is connected; None before connecting begins
    """

    def __init__(self, pair: ConnectionPair, connected: Callable[[int, int, Wire, str], None]) -> None:
        self._pair = pair
        self._connected = connected
        #: When the client's current handshake began: that of TLS, which follows the PROXY header.
        self._since_ns: int | None = None
        self.connecting_since_ns: int | None = None
        self._attempt: Attempt[Wire] | None = None

    def start(self, route: Callable[[Wire], Sequence[Address]], header_ns: int) -> None:
        """Connect to the first broker of the route that answers. `header_ns`: how long the PROXY header took."""
        self._since_ns = since_ns = self._pair.shared.clock() - header_ns
        self._pair.client.open(partial(self._on_open, route, since_ns), self._on_not_open)

    def _on_open(self, route: Callable[[Wire], Sequence[Address]], since_ns: int) -> None:
        shared = self._pair.shared
        self._since_ns = None
        now_ns = shared.clock()
        certificate = self._pair.client.peer_certificate
        user = None if certificate is None else shared.tls.principal_of(certificate)
        if user is not None:
            self._pair.connection.identity.authenticate(user, now_ns)
        self.connecting_since_ns = now_ns
        self._attempt = shared.upstream.connect(
            self._silent_last(route(self._pair.client), now_ns),
            shared.wires.to_broker,
            partial(self._connected, now_ns - since_ns, now_ns),
            shared.health.failed,
            self._pair.close,
        )

    def _silent_last(self, brokers: Sequence[Address], now_ns: int) -> Sequence[Address]:
        """Silent brokers last, because clients would wait `NEXT_ADDRESS_SECONDS` for each that drops packets."""
        health = self._pair.shared.health
        recent = health.outages(now_ns - SILENT_NS) if len(brokers) > 1 else ()
        silent = {each for each in recent if health.failing(each) == "connect_timeout"}
        return sorted(brokers, key=lambda each: format_address(each) in silent) if silent else brokers

    def _on_not_open(self, reason: str, detail: str) -> None:
        if reason:
            shared, error = self._pair.shared, HandshakeFailed(detail, -1)
            shared.faults.protocol(self._pair.connection.identity, error, certificate=shared.tls.shown)
        self._pair.close()

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether the client has exceeded `timeout_ns` with its handshakes. Connecting to a broker does not count."""
        return self._since_ns is not None and now_ns - self._since_ns >= timeout_ns

    def cancel(self) -> None:
        """The session is closed."""
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None  # the traceback of its cancellation refers to this object
