"""What the parts of a session know of it: both connections, and the two pumps between them."""

from abc import abstractmethod

from proxy.sessions.lifecycle import Event, State
from proxy.sessions.pump import Owner, Pump
from proxy.sessions.shared import Shared
from proxy.sessions.wire import Wire
from proxy.streams.connection import Connection
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream


class ConnectionPair(Owner):
    """One client connection and its broker connection.

    requests    the pump from client to broker; `responses`: the one back; each with its stream. They exist while a
                broker is connected.
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

    @abstractmethod
    def on(self, happened: Event) -> None:
        """Go to the state that the table gives."""

    @abstractmethod
    def close(self) -> None:
        """Close both connections at once and give back everything; does nothing the second time."""
