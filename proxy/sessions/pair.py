"""The session as its parts see it.

A session is built from parts (`opening`, `ending`, `throttling`, `broker_watch`, `client_timeouts`, `broker_login`,
`wait_states`), and each part needs both connections and the two pumps between them. The session creates its parts, so
they cannot import it. Instead, they import this base class, which declares what they may use.
"""

from abc import abstractmethod

from proxy.enforcement import report
from proxy.sessions.lifecycle import Event, State
from proxy.sessions.pump import Owner, Pump
from proxy.sessions.pump_set import IN_FLIGHT, MEMORY, RESPONSE_MEMORY
from proxy.sessions.shared import Shared
from proxy.sessions.wire import Wire
from proxy.streams.connection import Connection
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream


class ConnectionPair(Owner):
    """One client connection and its broker connection.

    requests    the pump from client to broker; `responses`: the one from broker to client; each with its stream. They
                exist while a broker is connected.
    """

    __deletable__ = ("requests", "responses")

    request_stream: RequestStream
    requests: Pump
    response_stream: ResponseStream
    responses: Pump

    def __init__(self, shared: Shared, client: Wire, connection: Connection) -> None:
        self.shared = shared
        self.client = client
        self.connection = connection
        self.state = State.CONNECTING

    @property
    def bound(self) -> str:
        """The bound of the proxy that stops reading from the client: a reason of `proxy.enforcement.report`, or ""."""
        if (self.requests.paused | self.responses.paused) & (MEMORY | RESPONSE_MEMORY):
            return report.MEMORY
        # While the proxy or the client logs in, no request may begin, so the number of requests is not the reason.
        return report.IN_FLIGHT if self.requests.paused & IN_FLIGHT and self.connection.max_in_flight else ""

    @abstractmethod
    def on(self, happened: Event) -> None:
        """Change to the state that the table of `lifecycle` gives for this event."""

    @abstractmethod
    def close(self) -> None:
        """Close both connections at once and return everything that the session uses. Further calls have no effect."""
