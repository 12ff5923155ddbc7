"""One client connection and its connection to a broker: carries out what streams decide."""

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import final

from proxy.brokers.nodes import Place
from proxy.config.addresses import Address, format_address
from proxy.enforcement.identity import Identity
from proxy.enforcement.report import ThrottleStatus, throttle_status
from proxy.observability.wait_clock import CLIENT
from proxy.sessions.broker_watch import BrokerWatch
from proxy.sessions.client_timeouts import ClientTimeouts
from proxy.sessions.ending import Ending
from proxy.sessions.lifecycle import Event, State, next_state
from proxy.sessions.login import BrokerLogin
from proxy.sessions.opening import Opening
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump import Pump
from proxy.sessions.pump_set import CONNECTING, IN_FLIGHT, QUOTA, WRITE_BACKPRESSURE
from proxy.sessions.shared import ClientAddress, Shared
from proxy.sessions.throttling import Throttling
from proxy.sessions.wait_states import bound_of, turn
from proxy.sessions.wire import Wire
from proxy.streams.connection import Connection
from proxy.streams.held_request import HeldRequest, HoldOwner
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream
from quotas.admission.limit import Limit


@final
class Session(ConnectionPair, HoldOwner):
    """One client connection, from its first byte until both sides are closed: then it calls `on_closed`, once.

    opening     None: it has not begun, a broker is connected, or both sides are closed
    stray       where it arrived, if no node was known there then: it has a bootstrap server in place of that

    These exist while a broker is connected (`upstream`). They refer to the session, and it to them, until `_close`:

    requests, responses
                the pumps
    watch, timeouts, throttling, ending
                the broker's health, the client's timeouts and delays, what is done when one of them has gone
    login       of the proxy itself; None: SASL passes through
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
        self.stray: Place | None = None
        self.upstream: Wire | None = None
        self.login: BrokerLogin | None = None

    @property
    def identity(self) -> Identity:
        return self.connection.identity

    @property
    def buffered_bytes(self) -> int:
        """In memory, of both directions."""
        return self.request_stream.holding.total + self.response_stream.holding.total

    @property
    def in_flight(self) -> int:
        """Requests without a response."""
        return 0 if self.upstream is None else len(self.response_stream.in_flight)

    @property
    def limits(self) -> Iterator[Limit]:
        """Those of its client, and of the topics that it produced to last."""
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
        hold = held.hold if isinstance(held, HeldRequest) else None
        return throttle_status(self.identity, self.response_stream.delay, hold, bound_of(self), now_ns)

    # ---- opening

    def connect(self, route: Callable[[Wire], Sequence[Address]]) -> None:
        """Open the client's wire, then connect to the first broker of its route that answers."""
        now_ns = self.shared.clock()
        self.connection.waits.turn(CLIENT, now_ns, now_ns)  # a limit on connections kept it waiting, perhaps
        self.opening = Opening(self, self._on_connected)
        self.opening.begin(route, self.origin.header_ns)

    def _on_connected(self, spent_ns: int, began_ns: int, upstream: Wire, address: str) -> None:
        self.opening = None
        self.upstream = upstream
        shared = self.shared
        now_ns = shared.clock()
        self.connection.waits.turn(CLIENT, now_ns, 0)
        self.connection.broker = address
        self.connection.timer.times = shared.brokers.times_of(address)
        self.response_stream = ResponseStream(self.connection)
        self.request_stream = RequestStream(self.connection, self.response_stream, shared.kinds)
        self.requests = Pump(shared.pumps, self, self.request_stream, self.client, upstream)
        self.responses = Pump(shared.pumps, self, self.response_stream, upstream, self.client)
        self.watch = BrokerWatch(self, address, now_ns)
        self.timeouts = ClientTimeouts(self, now_ns, spent_ns)
        self.throttling = Throttling(self)
        self.ending = Ending(self, self.throttling, self.watch)
        self.on(Event.BROKER_CONNECTED)
        if shared.context.config.upstream.login is not None:
            self.login = BrokerLogin(self, now_ns - began_ns)
            self.login.begin()
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
        """Begin no new request; close when requests in flight are done. A held frame that the client would send again
        is dropped; one with acks=0 is delivered. One that is partly forwarded is cut: its connections close at once.
        """
        if self.upstream is not None and self.request_stream.held is not None:
            self.ending.drain_held()
        self._finish()

    def retire(self) -> None:
        """The connection is old: as `drain`, but what is held is served. The first call waits for a moment with nothing
        under way, since a client reports the end of a connection that owes it a response.
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
        self._count_waits(shared.clock())
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
            self.shared.wakeups.add(held, self)

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
        else:  # at another limit, perhaps
            self.on_wait(pump, QUOTA)
        for _ in range(reads):
            pump.read_on()

    # ---- what pumps tell

    def on_delay(self) -> None:
        self.throttling.begin_delay()

    def on_wait(self, pump: Pump, reason: int) -> None:
        if self.upstream is not None and self.state is not State.CLOSED:
            # What waits now is not the broker's time, unless later requests wait: these delay no response.
            if pump is self.responses or reason == WRITE_BACKPRESSURE:
                self.connection.timer.left = 0
            self._turn(self.shared.clock())

    def _turn(self, now_ns: int) -> None:
        turn(self, now_ns, is_late=self.watch.waits_ns(now_ns) > 0)

    def _count_waits(self, now_ns: int) -> None:
        """Add the time since the last call to that of the client. Before the first request there is none."""
        if self.upstream is not None:
            self._turn(now_ns)
        if self.identity.wire_client_id is not None:
            spent_ns, limits_ns = self.connection.waits.take()
            self.identity.entity.times.add(spent_ns, limits_ns)
            self.shared.context.measures.report.blocked(self.identity.client, limits_ns, now_ns)

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
        is_ending = connection.is_closing or self.timeouts.retires
        connection.needs_session = bool(is_ending or self.response_stream.answers.owed_bytes or waits)
        if is_ending:
            self._progress()
        if self.state is State.FLUSHING:
            self.ending.end_requests()

    def _progress(self) -> None:
        """Something has finished, for which the end of the connection may have waited."""
        if self.state is State.OPEN and not self.ending.is_busy:
            self._finish()
        self.on(Event.PROGRESS)

    def _send_answers(self) -> None:
        """Send the proxy's own responses that are due, while no other response is partly sent."""
        responses = self.responses
        if responses.writer.pending is None and not responses.backlog.kept and not responses.stream.remaining:
            frames = self.response_stream.answers.take(self.shared.clock())
            if frames:
                responses.writer.write(frames)
                self.shared.pumps.memory_returned()

    def on_source_ended(self, pump: Pump, error: OSError | None = None) -> None:
        self.ending.on_source_ended(pump, error)

    def on_sink_failed(self, pump: Pump, error: OSError) -> None:
        self.ending.on_sink_failed(pump, error)

    def close_for(self, error: Exception, pump: Pump | None = None) -> None:
        if self.state is State.CLOSED:  # by the same turn, before this error
            self.shared.faults.defect(self.identity, error)
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
            self._count_waits(now_ns)
            self.connection.timer.arm()
            self.identity.lag.is_due = True

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether the client has had `timeout_ns` for its handshakes and its first request, which is not complete."""
        if self.upstream is None:
            return self.opening is not None and self.opening.lacks_request(timeout_ns, now_ns)
        return self.timeouts.lacks_request(timeout_ns, now_ns)
