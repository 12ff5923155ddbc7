"""The first part of a session: the client's wire is opened, then a broker is connected."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from proxy.brokers.upstream import Attempt
from proxy.config.addresses import Address
from proxy.enforcement.identity import Identity
from proxy.sessions.faults import HandshakeFailed
from proxy.sessions.shared import Shared
from proxy.sessions.wire import Wire


@final
class Opening:
    """Opens the client's wire and connects to a broker, then calls ``connected(wire, address, spent_ns)``; or calls
    `close`, when either fails. `spent_ns`: how long the client's handshakes took.
    """

    def __init__(
        self,
        shared: Shared,
        client: Wire,
        identity: Identity,
        connected: Callable[[Wire, str, int], None],
        close: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._client = client
        self._identity = identity
        self._connected = connected
        self._close = close
        #: Since when a handshake of the client is under way: that of TLS, after the PROXY header.
        self._since_ns: int | None = None
        self._attempt: Attempt[Wire] | None = None

    def begin(self, route: Callable[[Wire], Sequence[Address]], header_ns: int) -> None:
        """Connect to the first broker of the route that answers. `header_ns`: how long the PROXY header took."""
        self._since_ns = since_ns = self._shared.clock() - header_ns
        self._client.open(partial(self._on_open, route, since_ns), self._on_not_open)

    def _on_open(self, route: Callable[[Wire], Sequence[Address]], since_ns: int) -> None:
        shared = self._shared
        self._since_ns = None
        now_ns = shared.clock()
        certificate = self._client.peer_certificate
        user = None if certificate is None else shared.tls.principal_of(certificate)
        if user is not None:
            self._identity.authenticate(user, now_ns)
        self._attempt = shared.upstream.connect(
            route(self._client),
            shared.wires.to_broker,
            partial(self._on_connected, now_ns - since_ns),
            shared.health.failed,
            self._close,
        )

    def _on_not_open(self, reason: str, detail: str) -> None:
        if reason:
            self._shared.faults.protocol(self._identity, HandshakeFailed(detail, -1))
        self._close()

    def _on_connected(self, spent_ns: int, upstream: Wire, address: str) -> None:
        self._connected(upstream, address, spent_ns)

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether the client has had `timeout_ns` for its handshakes. Not while a broker is connected."""
        return self._since_ns is not None and now_ns - self._since_ns >= timeout_ns

    def cancel(self) -> None:
        """The session is closed."""
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None  # the traceback of its cancellation refers to this object
