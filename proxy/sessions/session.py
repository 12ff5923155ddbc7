"""One client connection and its connection to a broker. The session carries out what the streams decide."""

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import final

from proxy.brokers.nodes import Place
from proxy.config.addresses import Address, format_address
from proxy.enforcement.identity import Identity
from proxy.enforcement.report import ThrottleStatus, throttle_status
from proxy.sessions.broker_login import BrokerLogin
from proxy.sessions.broker_watch import BrokerWatch
from proxy.sessions.client_timeouts import ClientTimeouts
from proxy.sessions.ending import Ending
from proxy.sessions.lifecycle import Event, State, next_state
from proxy.sessions.opening import Opening
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump import Pump
from proxy.sessions.pump_set import CONNECTING, IN_FLIGHT, QUOTA, WRITE_BACKPRESSURE
from proxy.sessions.shared import ClientAddress, Shared
from proxy.sessions.throttling import Throttling
from proxy.sessions.wait_states import observe
from proxy.sessions.wire import Wire
from proxy.streams.connection import Connection
from proxy.streams.limited_request import HoldOwner, LimitedRequest
from proxy.streams.pending import nothing
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream
from quotas.adaptive.producer_guard import HOLD_NS
from quotas.admission.limit import Limit


@final
class Session(ConnectionPair, HoldOwner):
    """One client connection, from its first byte until both sides are closed. Then it calls `on_closed`, once.

    opening     None before it begins, while a broker is connected, and when both sides are closed
    unexpected_at
                the place where the client arrived, if no node was known there: it was connected to a bootstrap server

    The following exist while a broker is connected (`upstream`). They refer to the session, and it to them, until
    `_close`:

    requests, responses
                the pumps
    watch, timeouts, throttling, ending
                the broker's health, the client's timeouts, its delays, and what happens after one side has gone
    login       the proxy's own login; None: clients' logins pass through
    """

    __deletable__ = ("ending", "throttling", "timeouts", "watch")

    watch: BrokerWatch
    timeouts: ClientTimeouts
    throttling: Throttling
    ending: Ending

    def __init__(
        self, shared: Shared, client: socket.socket, origin: ClientAddress, on_closed: Callable[["Session"], None]
    ) -> None:
        context, peer = shared.context, format_address((origin.ip, origin.port))
        identity = Identity(context.config, context.registry, context.metrics.entities, peer)
        super().__init__(shared, shared.wires.to_client(client), Connection(context, identity))
        self.origin = origin
        self._on_closed = on_closed
        self.opening: Opening | None = None
        self.unexpected_at: Place | None = None
        self.upstream: Wire | None = None
        self.login: BrokerLogin | None = None

    @property
    def identity(self) -> Identity:
        return self.connection.identity

    @property
    def buffered_bytes(self) -> int:
        """The bytes that both directions keep in memory."""
        return self.request_stream.holding.total + self.response_stream.holding.total

    @property
    def in_flight(self) -> int:
        """Requests without a response."""
        return 0 if self.upstream is None else len(self.response_stream.in_flight)

    @property
    def limits(self) -> Iterator[Limit]:
        """The limits of the client, and of the topics to which it produced last."""
        yield from self.identity.limits.all()
        topics = self.connection.topics
        if topics is not None:
            yield from topics.limits()

    def broker_waits_ns(self, now_ns: int) -> int:
        """See `BrokerWatch.waits_ns`."""
        return 0 if self.upstream is None else self.watch.waits_ns(now_ns)

    @property
    def throttle_status(self) -> ThrottleStatus | None:
        """For `/throttles`."""
        now_ns = self.shared.clock()
        if self.upstream is None:
            return throttle_status(self.identity, None, None, "", now_ns)
        held = self.response_stream.held or self.request_stream.held
        hold = None if held is None else held.hold
        return throttle_status(self.identity, self.response_stream.delay, hold, self.bound, now_ns)

    # ---- opening

    def connect(self, route: Callable[[Wire], Sequence[Address]]) -> None:
        """Open the client's wire, then connect to the first broker of its route that answers."""
        self.opening = Opening(self, self._on_connected)
        self.opening.start(route, self.origin.header_ns)

    def _on_connected(self, spent_ns: int, began_ns: int, upstream: Wire, address: str) -> None:
        self.opening = None
        self.upstream = upstream
        shared = self.shared
        now_ns = shared.clock()
        self.connection.observer.connected(began_ns, now_ns, shared.brokers.times_of(address))
        self.connection.broker = address
        self.response_stream = ResponseStream(self.connection)
        self.request_stream = RequestStream(self.connection, self.response_stream, shared.kinds)
        self.requests = Pump(shared.pumps, self, self.request_stream, self.client, upstream)
        self.responses = Pump(shared.pumps, self, self.response_stream, upstream, self.client)
        self.watch = BrokerWatch(self, address, now_ns)
        self.timeouts = ClientTimeouts(self, now_ns, spent_ns)
        self.throttling = Throttling(self)
        self.ending = Ending(self, self.throttling, self.watch)
        self.response_stream.answers.wake = self._go_on
        self.on(Event.BROKER_CONNECTED)
        if shared.context.config.upstream.login is not None:
            self.login = BrokerLogin(self, now_ns - began_ns)
            self.login.start()
        self.responses.resume(CONNECTING)
        self.requests.resume(CONNECTING)

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
        elif after is State.LINGERING:
            self.ending.begin_lingering()
        elif after is State.CLOSED:
            self._close()

    def drain(self) -> None:
        """Begin no new request, and close when the requests in flight have been answered. A held frame that the client
        would send again is dropped; one with acks=0 is delivered. A frame that is partly forwarded is cut, and both
        connections close at once.
        """
        if self.upstream is not None and self.request_stream.held is not None:
            self.ending.drain_held()
        self._finish()

    def retire(self) -> None:
        """The connection has reached its largest age: like `drain`, but held frames are served. It takes effect once
        nothing is under way, because clients report a connection that ends before all their responses have arrived.
        """
        if self.timeouts.retires or not self.ending.is_busy:
            self._finish()
        self.timeouts.retires = self.connection.needs_session = True

    def _finish(self) -> None:
        self.connection.close()
        self.on(Event.DRAIN)

    def close(self) -> None:
        self.on(Event.OVER)

    def _close(self) -> None:
        shared = self.shared
        if self.opening is not None:
            self.opening.cancel()
        if self.login is not None:
            self.login.close()
        now_ns = shared.clock()
        if self.upstream is not None:
            self._count(now_ns)
            self.throttling.end_delay()
            self.watch.check(now_ns)
            self.ending.stop(now_ns)
            self.requests.stop()
            self.responses.stop()
            self.upstream.close()
            # Break all reference cycles, so that reference counting frees a closed connection at once: full garbage
            # collections hardly ever run (`proxy.process.ticks`). Callers further up the stack find the state `CLOSED`.
            del self.requests, self.responses, self.watch, self.timeouts, self.throttling, self.ending
            self.response_stream.answers.wake = nothing
        self.opening = self.login = self.upstream = None
        self.client.close()
        self.identity.leave()
        shared.pumps.memory_returned()
        self._on_closed(self)

    # ---- holds

    def on_hold(self, pump: Pump) -> None:
        held = self.request_stream.held if pump is self.requests else self.response_stream.held
        if held is not None:
            guard, until_ns = self.shared.context.registry.guard, 0
            if guard is not None and held.limit is guard.limit:
                has_begun = self.request_stream.remaining > 0
                until_ns = held.since_ns + HOLD_NS if has_begun else self.connection.held_until_ns
            self.shared.wakeups.add(held, self, until_ns)

    def release(self, request: LimitedRequest, reads: int) -> None:
        """See `HoldOwner`. If the client has disconnected and will send the request again, it is dropped, because
        forwarding it would create a duplicate.
        """
        is_request = self.request_stream.current is request
        if is_request and request.is_answered and self.client.peer_has_gone:
            self.ending.drop_held_request(request)
            return
        pump = self.requests if is_request else self.responses
        stream = self.request_stream if is_request else self.response_stream
        pump.parse_kept()  # this may close the session; then nothing below has an effect
        if stream.held is None:
            pump.resume(QUOTA)
        else:  # perhaps at another limit
            self.on_wait(pump, QUOTA)
        for _ in range(reads):
            pump.read_on()

    # ---- what pumps report

    def on_delay(self) -> None:
        self.throttling.begin_delay()

    def on_wait(self, pump: Pump, reason: int) -> None:
        if self.upstream is not None and self.state is not State.CLOSED:
            # This wait delays the response that is timed, so drop the sample. If only later requests wait, nothing is
            # delayed.
            if pump is self.responses or reason == WRITE_BACKPRESSURE:
                self.connection.observer.delayed()
            self._observe(self.shared.clock())

    def _observe(self, now_ns: int) -> None:
        observe(self, now_ns, is_late=self.watch.waits_ns(now_ns) > 0)

    def _count(self, now_ns: int) -> None:
        """Count the time up to now, and everything else that was observed."""
        self._observe(now_ns)
        self.connection.observer.count(now_ns)

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
        # While something waits for the end of a step, ask to be called after the next one, too. The proxy's own answers
        # wait for earlier responses of the broker, and no other event may follow the step that ends the last of these.
        waits = self.requests.paused & IN_FLIGHT or not connection.max_in_flight
        is_ending = connection.is_closing or self.timeouts.retires
        connection.needs_session = bool(is_ending or self.response_stream.answers.owed_bytes or waits)
        if is_ending:
            self._progress()
        if self.state is State.FLUSHING:
            self.ending.end_requests()

    def _go_on(self) -> None:
        """See `Answers.wake`."""
        if self.upstream is not None:
            self.after_step()

    def _progress(self) -> None:
        """Something has finished. If the end of the connection was waiting for it, continue."""
        if self.state is State.OPEN and not self.ending.is_busy:
            self._finish()
        self.on(Event.PROGRESS)

    def _send_answers(self) -> None:
        """Send the proxy's own responses that are due, while no other response is partly sent."""
        responses = self.responses
        if responses.writer.pending is None and not responses.backlog.kept and not responses.stream.remaining:
            frames = self.response_stream.answers.pop_due(self.shared.clock())
            if frames:
                responses.writer.write(frames)
                self.shared.pumps.memory_returned()

    def on_source_ended(self, pump: Pump, error: OSError | None = None) -> None:
        self.ending.on_source_ended(pump, error)

    def on_sink_failed(self, pump: Pump, error: OSError) -> None:
        self.ending.on_sink_failed(pump, error)

    def close_for(self, error: Exception, pump: Pump | None = None) -> None:
        if self.state is State.CLOSED:  # earlier in the same slice
            self.shared.faults.defect(self.identity, error)
            return
        self.ending.report(error, pump)
        self.close()

    # ---- once a second

    def sweep(self, now_ns: int) -> None:
        """Detect what no callback reports: clients that left while they were not read, and requests that stall."""
        if self.state is State.CONNECTING:
            if self.client.peer_has_gone:
                self.on(Event.CLIENT_ENDED)
        elif self.state is not State.CLOSED and self.ending.check():  # it may have closed since the sweep began
            self.throttling.check(now_ns)
            self.timeouts.check(now_ns)
            self.watch.check(now_ns)
            self._count(now_ns)
            self.identity.lag.is_due = True

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether the client has used up `timeout_ns` for its handshakes and its first request, which is incomplete."""
        if self.upstream is None:
            return self.opening is not None and self.opening.lacks_request(timeout_ns, now_ns)
        return self.timeouts.lacks_request(timeout_ns, now_ns)
