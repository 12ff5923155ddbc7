"""One client connection and its connection to a broker: carries out what streams decide."""

import socket
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

from protocol.errors import NotKafka, ProtocolError
from proxy.brokers.upstream import Attempt, BrokerFailed
from proxy.config.config import Address, format_address
from proxy.enforcement.data_frame import DataFrame, FrameOwner, Life
from proxy.enforcement.identity import Identity
from proxy.enforcement.report import ThrottleStatus, throttle_status
from proxy.sessions.faults import ClosedMidFrame, HandshakeFailed
from proxy.sessions.lifecycle import Event, State, next_state
from proxy.sessions.login import BrokerLogin
from proxy.sessions.progress import Progress
from proxy.sessions.pump import (
    CONNECTING,
    DELAY,
    DRAIN,
    END_OF_STREAM,
    IN_FLIGHT,
    LOGIN,
    MEMORY,
    QUOTA,
    REASON_NAMES,
    RESPONSE_MEMORY,
    TURN,
    WRITE_BACKPRESSURE,
    Owner,
    Pump,
)
from proxy.sessions.shared import Origin, Shared
from proxy.sessions.wire import Wire
from proxy.streams.connection import Connection
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream

#: How long a broker may take to read what a client sent before it went.
FLUSH_TIMEOUT_SECONDS: Final = 30.0
#: The throttle time of responses while a bound of the proxy keeps their client from being read.
_BLOCKED_NS: Final = 100_000_000
#: Reasons that may keep a client from being read for long.
_STANDING: Final = WRITE_BACKPRESSURE | MEMORY | RESPONSE_MEMORY | IN_FLIGHT | LOGIN


@final
class Session(Owner, FrameOwner):
    """One client connection, from its first byte until both sides are closed: then it calls `on_closed`, once.

    These exist once a broker is connected (`upstream`):

    requests    the pump from client to broker; `responses`: the one back; each with its stream
    progress    for `sweep`
    login       of the proxy itself; None: SASL passes through
    """

    __slots__ = (
        "_attempt",
        "_on_closed",
        "_shared",
        "_timer",
        "client",
        "connection",
        "login",
        "opening_ns",
        "origin",
        "progress",
        "request_stream",
        "requests",
        "response_stream",
        "responses",
        "state",
        "upstream",
    )

    request_stream: RequestStream
    requests: Pump
    response_stream: ResponseStream
    responses: Pump
    progress: Progress

    def __init__(
        self, shared: Shared, client: socket.socket, origin: Origin, on_closed: Callable[["Session"], None]
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
        self.upstream: Wire | None = None
        self.login: BrokerLogin | None = None
        #: Since when its TLS handshake is under way.
        self.opening_ns: int | None = None
        self._attempt: Attempt[Wire] | None = None
        self._timer: TimerHandle | None = None

    @property
    def identity(self) -> Identity:
        return self.connection.identity

    @property
    def is_held(self) -> bool:
        return self.connection.held is not None

    @property
    def bound(self) -> str:
        """The bound of the proxy for which the client is not read: a reason of `proxy.enforcement.report`; "": none."""
        paused = 0 if self.upstream is None else self.requests.paused
        if paused & (MEMORY | RESPONSE_MEMORY):
            return REASON_NAMES[MEMORY]
        return REASON_NAMES[IN_FLIGHT] if paused & (IN_FLIGHT | LOGIN) == IN_FLIGHT else ""

    @property
    def throttle_status(self) -> ThrottleStatus | None:
        """For `/throttles`."""
        delay = None if self.upstream is None else self.response_stream.delay
        return throttle_status(self.identity, delay or self.connection.held, self.bound, self._shared.clock())

    # ---- opening

    def connect(self, candidates: Sequence[Address]) -> None:
        """Open the client's wire, then connect to the first of ``candidates`` that answers."""
        self.opening_ns = self._shared.clock() - self.origin.header_ns
        self.client.open(partial(self._on_open, candidates), self._on_not_open)

    def _on_open(self, candidates: Sequence[Address]) -> None:
        shared = self._shared
        assert self.opening_ns is not None  # noqa: S101 - for the type checker
        now_ns = shared.clock()
        spent_ns = now_ns - self.opening_ns
        self.opening_ns = None
        certificate = self.client.peer_certificate
        user = None if certificate is None else shared.tls.principal_of(certificate)
        if user is not None:
            self.identity.authenticate(user, now_ns)
        attempt = shared.upstream.connect(
            candidates,
            shared.wires.to_broker,
            partial(self._on_connected, spent_ns),
            shared.health.failed,
            self.close,
        )
        if self.state is State.CONNECTING:
            self._attempt = attempt

    def _on_not_open(self, reason: str, detail: str) -> None:
        if reason:
            self._shared.faults.protocol(self.identity, HandshakeFailed(detail, -1))
        self.close()

    def _on_connected(self, spent_ns: int, upstream: Wire, address: str) -> None:
        self._attempt = None
        self.upstream = upstream
        shared = self._shared
        to_broker = self.request_stream = RequestStream(self.connection, shared.kinds)
        to_client = self.response_stream = ResponseStream(self.connection)
        self.requests = Pump(shared.pumps, self, to_broker, self.client, upstream)
        self.responses = Pump(shared.pumps, self, to_client, upstream, self.client)
        self.progress = Progress(self.requests, self.responses, to_broker, to_client, shared.clock(), spent_ns, address)
        self._on(Event.BROKER_CONNECTED)
        if shared.context.config.upstream.login is not None:
            self.login = BrokerLogin(shared, self.requests, self)
            self.login.begin()
        self.responses.resume(CONNECTING)
        self.requests.resume(CONNECTING)

    # ---- states

    def _on(self, happened: Event) -> None:
        """Go to the state that the table gives."""
        before = self.state
        after = next_state(before, happened, is_busy=self._is_busy())
        if after is before:
            return
        self.state = after
        if after is State.FLUSHING:
            self._flush()
        elif after is State.DRAINING:
            self._begin_draining()
        elif after is State.CLOSED:
            self._close()

    def _is_busy(self) -> bool:
        """Whether closing now could lose something: requests half sent or unread, responses half sent or owed."""
        if self.upstream is None:
            return False
        requests, responses = self.requests, self.responses
        return bool(
            self.connection.in_flight
            or self.is_held
            or requests.stream.remaining
            or requests.pending is not None
            or responses.stream.remaining
            or responses.pending is not None
            or (self.connection.sent_unanswered and self.state is not State.DRAINING)
        )

    def drain(self) -> None:
        """Begin no new request; close when requests in flight are done. A held frame that the client would send again
        is dropped; one with acks=0 is delivered. One that is partly forwarded is cut: its connections close at once.
        """
        self.connection.close()
        frame = self.connection.held
        if frame is not None:
            if self.requests.stream.remaining:
                self.close()
            elif frame.answered:
                self._drop_held()
        self._on(Event.DRAIN)

    def _begin_draining(self) -> None:
        self._end_delay()
        self.connection.needs_session = True
        if not self.is_held and not self.requests.stream.remaining:
            self.requests.pause(DRAIN)
        else:
            self.requests.stream.want = self.requests.stream.remaining or self.requests.stream.want
        if self.upstream is not None and not self._is_busy():  # data without a response does not count now
            self.requests.end()  # the broker ends its stream when it has read all of it

    def _flush(self) -> None:
        self.connection.close()
        self._end_delay()
        self.requests.pause(END_OF_STREAM)
        self.request_stream.end(self._shared.clock())
        self._shared.wakeups.rearm()
        self._limit_flush()
        self.connection.needs_session = True
        self._end_requests()

    def _limit_flush(self) -> None:
        """The client sends no more: what it sent is delivered within `FLUSH_TIMEOUT_SECONDS` from the first call."""
        if self._timer is None:
            self._timer = self._shared.loop.call_later(FLUSH_TIMEOUT_SECONDS, self._on_timed_out)

    def _on_timed_out(self) -> None:
        frame = self.connection.held
        if frame is not None:
            self._shared.faults.dropped(self.identity, frame)
        self.close()

    def _end_requests(self) -> None:
        """Tell the broker that no request follows, once the client has all responses or cannot read them.

        A broker that finds the end of the stream drops the responses that it has not sent.
        """
        requests, responses = self.request_stream, self.responses
        partly_sent = requests.remaining > 0 and requests.is_answered  # the rest never comes, nor does a response
        is_owed = len(self.connection.in_flight) > partly_sent or responses.stream.remaining > 0
        if is_owed and not responses.discarding:
            return
        if self.requests.pending is None:
            self.requests.end()

    def close(self) -> None:
        """Close both connections at once and give back everything; does nothing the second time."""
        self._on(Event.OVER)

    def _close(self) -> None:
        shared = self._shared
        if self._timer is not None:
            self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
        if self.login is not None:
            self.login.close()
        if self.is_held:
            self._drop_held()
        now_ns = shared.clock()
        if self.upstream is not None:
            self._end_delay()
            self.progress.check_broker(shared.health, now_ns)
            self.request_stream.end(now_ns)
            self.requests.stop()
            self.responses.stop()
            self.upstream.close()
        self.client.close()
        self.connection.cancel_all(now_ns)
        shared.pumps.memory_returned()
        shared.wakeups.rearm()
        self._on_closed(self)

    # ---- holds

    def on_hold(self) -> None:
        frame = self.connection.held
        if frame is not None:
            frame.owner = self
            self._shared.wakeups.add(frame)

    def release(self, frame: DataFrame) -> None:
        """Drop a frame if its client has disconnected and will send it again; forwarding would duplicate it."""
        if frame.answered and self.client.peer_has_gone:
            self._drop_held_frame(frame)
            return
        frame.ticket.at_limit = frame.limit
        self.requests.parse_kept()
        if self.connection.frame is frame and frame.state is Life.RELEASED:
            self.request_stream.put_back(self._shared.clock())
        if not self.is_held:
            self.requests.resume(QUOTA)

    def read_on(self) -> None:
        self.requests.read_on()

    def _drop_held_frame(self, frame: DataFrame) -> None:
        """The client of a held frame has gone: the frame, and what it sent after it, is dropped."""
        self._shared.faults.dropped(self.identity, frame)
        self._drop_held()
        self._on(Event.CLIENT_ENDED)

    def _drop_held(self) -> None:
        frame = self.connection.frame
        if frame is not None:
            self.request_stream.end(self._shared.clock())
            self._shared.wakeups.forget(frame)
        if self.state is not State.CLOSED:
            self.requests.drop_kept()

    # ---- delays, and notices while a bound of the proxy stops reading

    def on_delay(self) -> None:
        delay = self.response_stream.delay
        if delay is not None:
            self._shared.wakeups.delay(delay, self._end_delay)

    def _end_delay(self) -> None:
        """Send the response now, if it is delayed."""
        delay = self.response_stream.delay
        if delay is not None:
            self.response_stream.delay = None
            self._shared.wakeups.forget_delay(delay)
            self.responses.resume(DELAY)

    def _check_throttles(self, now_ns: int) -> None:
        """End a delay that memory, or a change of the limits or measures, makes shorter than its timer. Responses to a
        client that a bound of the proxy blocks contain a throttle time, and the reason is logged.
        """
        connection, delay, bound = self.connection, self.response_stream.delay, self.bound
        context, identity = connection.context, self.identity
        if delay is not None and (context.memory.is_tight or connection.is_over(delay, now_ns)):
            self._end_delay()
        if not context.measures.enforces:
            identity.drop_notices()
        elif bound and not connection.is_closing:
            identity.notice.extend(None, now_ns + _BLOCKED_NS, bound)
            context.measures.report.blocked(identity.client, bound, now_ns)

    # ---- what pumps tell

    def after_step(self) -> None:
        """See `Connection.needs_session`."""
        connection = self.connection
        if self.state is State.CLOSED:
            return
        if self._shared.context.holds.changed:
            self._shared.wakeups.rearm()
        self._send_answers()
        if self.login is not None:
            self.login.after_step()
        if self.requests.paused & IN_FLIGHT and connection.has_room_again:
            self.requests.resume(IN_FLIGHT)
        # While answers are owed: the response that ends before one of them may be the last that the broker sends.
        waits = self.requests.paused & IN_FLIGHT or not connection.max_in_flight
        connection.needs_session = bool(connection.is_closing or connection.owed_bytes or waits)
        if connection.is_closing:
            self._on(Event.PROGRESS)
        if self.state is State.FLUSHING:
            self._end_requests()

    def _send_answers(self) -> None:
        """Send the proxy's own responses that are due, while no other response is partly sent."""
        responses = self.responses
        if responses.pending is None and not responses.kept and not responses.stream.remaining:
            frames = self.connection.take_answers(self._shared.clock())
            if frames:
                responses.write(frames)
                self._shared.pumps.memory_returned()

    def on_source_ended(self, pump: Pump, error: OSError | None = None) -> None:
        requests, responses = self.requests, self.responses
        if pump is requests:
            if error is not None:
                responses.discard()
            missing = requests.stream.remaining
            if missing or requests.kept:
                self._shared.faults.protocol(self.identity, ClosedMidFrame(missing or None))
            self._on(Event.CLIENT_ENDED)
            return
        if error is not None:
            if not requests.discarding:  # else the broker is not the side that ended first
                self._note_upstream_lost(error)
        elif responses.stream.remaining or responses.kept:
            self._shared.faults.ended_mid_frame()
        elif self.progress.is_unheard and self.state is not State.FLUSHING:
            self._note_upstream_lost(None)
        self.close()

    def on_sink_failed(self, pump: Pump, error: OSError) -> None:
        """The peer has gone. What it sent before, and its end, are still to be read."""
        pump.discard()
        if pump is self.requests:
            self._note_upstream_lost(error)
            if self.is_held:
                self._drop_held()
            self.requests.pause(END_OF_STREAM)
        self._shared.loop.call_soon(self._read_to_end, self.responses if pump is self.requests else self.requests)

    def _read_to_end(self, pump: Pump) -> None:
        """The source has gone: read what it left, one ``recv`` for each round of the loop, up to the end of the stream.

        libuv reports a reset once, and uvloop then forgets the descriptor, even with bytes left to read.
        """
        pump.read_on()
        if not pump.paused & ~TURN:
            self._shared.loop.call_soon(self._read_to_end, pump)

    # ---- once a second

    def sweep(self, now_ns: int) -> None:
        """Detect what no callback reports: clients that have gone while they are not read, and requests that stall."""
        if self.state is State.CLOSED:  # since the sweep began
            return
        if self.state is State.FLUSHING:
            self._close_if_broken()
        elif self.client.peer_has_gone:
            self._on_client_gone()
        if self.upstream is None:
            return
        for pump in (self.requests, self.responses):
            if not pump.paused and pump.source.is_broken:  # the loop has forgotten it
                self._read_to_end(pump)
        self._check_throttles(now_ns)
        self.progress.check(now_ns)
        self.progress.check_broker(self._shared.health, now_ns)
        self._shared.wakeups.rearm()

    def _on_client_gone(self) -> None:
        """The client has closed or reset its connection. While it is read, the read reports that.

        TCP does not tell a client that has gone from one that ended its stream and reads on. A request that is held or
        not read is dropped in both cases: a client that has gone sends it again. Responses in flight are delivered.
        """
        frame = self.connection.held
        if self.upstream is None:
            self._on(Event.CLIENT_ENDED)
        elif frame is not None:
            if frame.answered:
                self._drop_held_frame(frame)
            else:
                self._limit_flush()
        elif self.requests.paused & (_STANDING | DRAIN):
            is_unread = self.requests.paused & LOGIN  # acks=0 data perhaps
            if (self.request_stream.is_answered and not is_unread) or self.requests.paused & DRAIN:
                self.requests.drop_kept()
                self._on(Event.CLIENT_ENDED)
            else:
                self._limit_flush()

    def _close_if_broken(self) -> None:
        """The client cannot read responses any more: close, unless acks=0 data is still to be delivered."""
        if self.client.is_broken or self.responses.discarding:
            self.responses.discard()
            if self.connection.sent_unanswered or self.requests.pending is not None:
                self._end_requests()
            else:
                self.close()

    def lacks_request(self, timeout_ns: int, now_ns: int) -> bool:
        """Whether the client has had `timeout_ns` for its handshakes and its first request, which is not complete."""
        if self.upstream is None:
            return self.opening_ns is not None and now_ns - self.opening_ns >= timeout_ns
        return self.progress.lacks_request(timeout_ns, now_ns)

    # ---- errors

    def close_for(self, error: Exception, pump: Pump | None = None) -> None:
        broker = "" if pump is self.requests else self.progress.broker
        if isinstance(error, BrokerFailed):
            self._shared.health.failed(self.progress.broker, error.reason, str(error))
        elif isinstance(error, NotKafka) and error.protocol == "tls" and broker:
            self._shared.health.failed(self.progress.broker, "plaintext_to_tls", "it answers with a TLS alert")
        elif isinstance(error, ProtocolError):
            self._shared.faults.protocol(self.identity, error, broker)
        else:
            self._shared.faults.defect(self.identity, error)
        self.close()

    def _note_upstream_lost(self, error: OSError | None) -> None:
        """The broker's connection broke; without an error: it closed it before a response."""
        self._shared.health.failed(self.progress.broker, *self.progress.failure_of(error))
