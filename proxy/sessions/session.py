"""One client connection and its connection to a broker: carries out what streams decide."""

import socket
from collections.abc import Callable, Sequence
from typing import final

from proxy.config.addresses import Address, format_address
from proxy.enforcement.identity import Identity
from proxy.enforcement.report import ThrottleStatus, throttle_status
from proxy.sessions.broker_watch import BrokerWatch
from proxy.sessions.client_timeouts import ClientTimeouts
from proxy.sessions.ending import Ended, Ending
from proxy.sessions.lifecycle import Event, State, next_state
from proxy.sessions.login import BrokerLogin
from proxy.sessions.opening import Opening
from proxy.sessions.pump import Owner, Pump
from proxy.sessions.pump_set import CONNECTING, IN_FLIGHT, QUOTA
from proxy.sessions.shared import ClientAddress, Shared
from proxy.sessions.throttling import Throttling
from proxy.sessions.wire import Wire
from proxy.streams.connection import Connection
from proxy.streams.held_request import HeldRequest, HoldOwner
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream


@final
class Session(Owner, HoldOwner, Ended):
    """One client connection, from its first byte until both sides are closed: then it calls `on_closed`, once.

    opening     None: it has not begun, a broker is connected, or both sides are closed

    These exist while a broker is connected (`upstream`). They refer to the session, and it to them, until `_close`:

    requests    the pump from client to broker; `responses`: the one back; each with its stream
    watch, timeouts, throttling, ending
                the broker's health, the client's timeouts and delays, what is done when one of them has gone
    login       of the proxy itself; None: SASL passes through
    """

    __deletable__ = ("ending", "requests", "responses", "throttling", "timeouts", "watch")

    request_stream: RequestStream
    requests: Pump
    response_stream: ResponseStream
    responses: Pump
    watch: BrokerWatch
    timeouts: ClientTimeouts
    throttling: Throttling
    ending: Ending

    def __init__(
        self, shared: Shared, client: socket.socket, origin: ClientAddress, on_closed: Callable[["Session"], None]
    ) -> None:
        self._shared = shared
        self.client = shared.wires.to_client(client)
        self.origin = origin
        self._on_closed = on_closed
        context = shared.context
        peer = format_address((origin.ip, origin.port))
        self.connection = Connection(
            context, Identity(context.config, context.registry, context.metrics.entities, peer)
        )
        self.state = State.CONNECTING
        self.opening: Opening | None = None
        self.upstream: Wire | None = None
        self.login: BrokerLogin | None = None

    @property
    def identity(self) -> Identity:
        return self.connection.identity

    @property
    def is_held(self) -> bool:
        """Whether a request waits for a limit. Its response may, too."""
        return self.upstream is not None and self.request_stream.held is not None

    @property
    def in_flight(self) -> int:
        """Requests without a response."""
        return 0 if self.upstream is None else len(self.response_stream.in_flight)

    @property
    def throttle_status(self) -> ThrottleStatus | None:
        """For `/throttles`."""
        now_ns = self._shared.clock()
        if self.upstream is None:
            return throttle_status(self.identity, None, None, "", now_ns)
        held = self.response_stream.held or self.request_stream.held
        hold = held.hold if isinstance(held, HeldRequest) else None
        return throttle_status(self.identity, self.response_stream.delay, hold, self.throttling.bound, now_ns)

    # ---- opening

    def connect(self, route: Callable[[Wire], Sequence[Address]]) -> None:
        """Open the client's wire, then connect to the first broker of its route that answers."""
        self.opening = Opening(self._shared, self.client, self.identity, self._on_connected, self.close)
        self.opening.begin(route, self.origin.header_ns)

    def _on_connected(self, upstream: Wire, address: str, spent_ns: int) -> None:
        self.opening = None
        self.upstream = upstream
        shared = self._shared
        now_ns = shared.clock()
        to_client = self.response_stream = ResponseStream(self.connection)
        to_broker = self.request_stream = RequestStream(self.connection, to_client, shared.kinds)
        requests = self.requests = Pump(shared.pumps, self, to_broker, self.client, upstream)
        responses = self.responses = Pump(shared.pumps, self, to_client, upstream, self.client)
        self.watch = BrokerWatch(shared.health, address, requests, responses, to_client, now_ns)
        self.timeouts = ClientTimeouts(requests, responses, to_broker, to_client, now_ns, spent_ns)
        self.throttling = Throttling(shared.wakeups, requests, responses, to_client)
        self.ending = Ending(shared, self, self.client, requests, responses, to_broker, self.throttling, self.watch)
        self.on(Event.BROKER_CONNECTED)
        if shared.context.config.upstream.login is not None:
            self.login = BrokerLogin(shared, requests, to_client, self)
            self.login.begin()
        responses.resume(CONNECTING)
        requests.resume(CONNECTING)

    # ---- states

    def on(self, happened: Event) -> None:
        before = self.state
        after = next_state(before, happened, is_busy=self.upstream is not None and self.ending.is_busy)
        if after is before:
            return
        self.state = after
        if after is State.FLUSHING:
            self.ending.begin_flushing()
        elif after is State.DRAINING:
            self.ending.begin_draining()
        elif after is State.CLOSED:
            self._close()

    def drain(self) -> None:
        """Begin no new request; close when requests in flight are done. A held frame that the client would send again
        is dropped; one with acks=0 is delivered. One that is partly forwarded is cut: its connections close at once.
        """
        self.connection.close()
        if self.is_held:
            self.ending.drain_held()
        self.on(Event.DRAIN)

    def close(self) -> None:
        """Close both connections at once and give back everything; does nothing the second time."""
        self.on(Event.OVER)

    def _close(self) -> None:
        shared = self._shared
        if self.opening is not None:
            self.opening.cancel()
        if self.login is not None:
            self.login.close()
        now_ns = shared.clock()
        if self.upstream is not None:
            self.throttling.end_delay()
            self.watch.check(now_ns)
            self.ending.stop(now_ns)
            self.requests.stop()
            self.responses.stop()
            self.upstream.close()
            # So that reference counting frees all of a closed connection at once: full collections hardly ever come
            # (`proxy.ticks`). What calls a method of the session from further up the stack finds it `CLOSED`.
            del self.requests, self.responses, self.watch, self.timeouts, self.throttling, self.ending
        self.opening = self.login = self.upstream = None
        self.client.close()
        self.identity.leave()
        shared.pumps.memory_returned()
        self._on_closed(self)

    # ---- holds

    def on_hold(self, pump: Pump) -> None:
        held = self.request_stream.held if pump is self.requests else self.response_stream.held
        if isinstance(held, HeldRequest):
            self._shared.wakeups.add(held, self)

    def release(self, request: HeldRequest, reads: int) -> None:
        """See `HoldOwner`. A request whose client has disconnected and will send it again is dropped: forwarding would
        duplicate it.
        """
        is_request = self.request_stream.current is request
        if is_request and request.is_answered and self.client.peer_has_gone:
            self.ending.drop_held_request(request)
            return
        pump = self.requests if is_request else self.responses
        stream = self.request_stream if is_request else self.response_stream
        pump.parse_kept()  # which may close the session: then nothing below has an effect
        if stream.held is None:
            pump.resume(QUOTA)
        for _ in range(reads):
            pump.read_on()

    # ---- what pumps tell

    def on_delay(self) -> None:
        self.throttling.begin_delay()

    def after_step(self) -> None:
        """See `Connection.needs_session`."""
        connection = self.connection
        if self.state is State.CLOSED:
            return
        self._send_answers()
        if self.login is not None:
            self.login.after_step()
        if self.requests.paused & IN_FLIGHT and self.response_stream.has_room_again:
            self.requests.resume(IN_FLIGHT)
        # Ask for a call after the next step, too, while something waits for it. Answers of the proxy wait for responses
        # of the broker before them: the step that ends the last of these may be followed by no other event.
        waits = self.requests.paused & IN_FLIGHT or not connection.max_in_flight
        connection.needs_session = bool(connection.is_closing or self.response_stream.answers.owed_bytes or waits)
        if connection.is_closing:
            self.on(Event.PROGRESS)
        if self.state is State.FLUSHING:
            self.ending.end_requests()

    def _send_answers(self) -> None:
        """Send the proxy's own responses that are due, while no other response is partly sent."""
        responses = self.responses
        if responses.writer.pending is None and not responses.backlog.kept and not responses.stream.remaining:
            frames = self.response_stream.answers.take(self._shared.clock())
            if frames:
                responses.writer.write(frames)
                self._shared.pumps.memory_returned()

    def on_source_ended(self, pump: Pump, error: OSError | None = None) -> None:
        self.ending.on_source_ended(pump, error)

    def on_sink_failed(self, pump: Pump, error: OSError) -> None:
        self.ending.on_sink_failed(pump, error)

    def close_for(self, error: Exception, pump: Pump | None = None) -> None:
        if self.state is State.CLOSED:  # by the same turn, before this error
            self._shared.faults.defect(self.identity, error)
            return
        self.ending.report(error, pump)
        self.close()

    # ---- once a second

    def sweep(self, now_ns: int) -> None:
        """Detect what no callback reports: clients that have gone while they are not read, and requests that stall."""
        if self.state is State.CONNECTING:
            if self.client.peer_has_gone:
                self.on(Event.CLIENT_ENDED)
        elif self.state is not State.CLOSED and self.ending.check():  # closed: since the sweep began
            self.throttling.check(now_ns)
            self.timeouts.check(now_ns)
            self.watch.check(now_ns)

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether the client has had `timeout_ns` for its handshakes and its first request, which is not complete."""
        if self.upstream is None:
            return self.opening is not None and self.opening.lacks_request(timeout_ns, now_ns)
        return self.timeouts.lacks_request(timeout_ns, now_ns)
