"""The last part of a session: what is still delivered after one side has gone, and when both sides are closed.

`lifecycle` has the states. A client that has ended its stream still receives the responses to what it has sent, and its
acks=0 data, which needs no response, is still delivered. A held request is dropped if its client will send it again.
"""

from asyncio import TimerHandle
from typing import Final, final

from protocol.errors import NotKafka, ProtocolError
from proxy.brokers.upstream import BrokerFailed
from proxy.sessions import pump_set
from proxy.sessions.broker_watch import BrokerWatch
from proxy.sessions.faults import ClosedMidFrame
from proxy.sessions.lifecycle import Event, State
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump import Pump
from proxy.sessions.throttling import Throttling
from proxy.streams.handlers.produce import ProduceRequest
from proxy.streams.limited_request import LimitedRequest

#: A lingering connection is closed when its client has sent nothing for this long.
LINGER_NS: Final = 1_000_000_000
#: How long a broker may take to read what a client sent before it went away.
FLUSH_TIMEOUT_SECONDS: Final = 30.0
#: A client that has been held for this long, with nothing in flight, is probed. By default, Java's requests time out
#: after 30 s and librdkafka's after 60 s, and then these clients close the connection.
PROBE_NS: Final = 65_000_000_000
#: Reasons that may keep the proxy from reading a client for long.
_STANDING: Final = (
    pump_set.WRITE_BACKPRESSURE | pump_set.MEMORY | pump_set.RESPONSE_MEMORY | pump_set.IN_FLIGHT | pump_set.LOGIN
)


@final
class Ending:
    """Ends one session that has reached a broker. `watch`: the watch of that broker."""

    def __init__(self, pair: ConnectionPair, throttling: Throttling, watch: BrokerWatch) -> None:
        self._pair = pair
        self._shared = pair.shared
        self._throttling = throttling
        self._watch = watch
        self._timer: TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether closing now could lose something: requests that are half sent or unread, or responses that are half
        sent or still due. While draining: whether the client should still receive something.
        """
        requests, responses, stream = self._pair.requests, self._pair.responses, self._pair.request_stream
        current = stream.current
        if (
            stream.responses.in_flight
            or (current is not None and current.is_answered)
            or responses.stream.remaining
            or responses.writer.pending is not None
        ):
            return True
        return self._pair.state is not State.DRAINING and bool(
            current is not None
            or requests.stream.remaining
            or requests.writer.pending is not None
            or stream.connection.sent_unanswered
        )

    # ---- states

    def drain_held(self) -> None:
        """Drop the held frame, because the proxy shuts down and the client will send it again; acks=0 data stays."""
        held = self._pair.request_stream.held
        if self._pair.request_stream.remaining:
            self._pair.close()
        elif held is not None and held.is_answered:
            self._forget(held)
            self._pair.request_stream.end(self._shared.clock())
            self._pair.requests.resume(pump_set.QUOTA)  # which drops it

    def begin_draining(self) -> None:
        """Let no further request begin; requests in flight are answered."""
        self._throttling.end_delay()
        self._pair.connection.needs_session = True
        self._pair.on(Event.PROGRESS)

    def begin_lingering(self) -> None:
        """The client has all responses. End its stream, so that it closes its side."""
        self._pair.responses.writer.end()
        self._pair.request_stream.taken_ns = self._shared.clock()
        self._limit_flush()

    def begin_flushing(self) -> None:
        """The client has ended its stream. Deliver what it sent, and the responses to it."""
        connection = self._pair.connection
        connection.close()
        self._throttling.end_delay()
        self._pair.requests.pause(pump_set.END_OF_STREAM)
        self._forget(self._pair.request_stream.held)
        self._pair.request_stream.end(self._shared.clock())
        self._limit_flush()
        connection.needs_session = True
        self.end_requests()

    def _limit_flush(self) -> None:
        """Limit the delivery of what the client sent to `FLUSH_TIMEOUT_SECONDS`, starting with the first call."""
        if self._timer is None:
            self._timer = self._shared.loop.call_later(FLUSH_TIMEOUT_SECONDS, self._on_timed_out)

    def _on_timed_out(self) -> None:
        held = self._pair.request_stream.held
        if held is not None:
            self._shared.faults.dropped(self._pair.connection.identity, held.size)
        self._pair.close()

    def end_requests(self) -> None:
        """End the stream to the broker, once the client has all responses or cannot read them.

        Not earlier, because a broker that reads the end of the stream drops the responses that it has not sent.
        """
        requests, responses, stream = self._pair.requests, self._pair.responses, self._pair.request_stream
        partly_sent = stream.remaining > 0 and stream.is_answered  # neither the rest nor a response will arrive
        is_owed = len(stream.responses.in_flight) > partly_sent or responses.stream.remaining > 0
        if is_owed and not responses.writer.discarding:
            return
        if requests.writer.pending is None:
            requests.writer.end()

    def stop(self, now_ns: int) -> None:
        """The session is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # it refers to this object
        stream = self._pair.request_stream
        self._forget(stream.held)
        self._forget(self._pair.response_stream.held)
        stream.end(now_ns)
        stream.responses.cancel_all(now_ns)

    def _forget(self, held: LimitedRequest | None) -> None:
        """Take this request out of its queue: it will not pass."""
        if held is not None:
            self._shared.wakeups.forget(held)

    # ---- one side has gone

    def on_source_ended(self, pump: Pump, error: OSError | None) -> None:
        """See `Owner`."""
        requests, responses = self._pair.requests, self._pair.responses
        if pump is requests:
            if error is not None:
                responses.writer.discard()
            self._report_cut()
            self._pair.on(Event.CLIENT_ENDED)
            return
        if error is not None:
            if not requests.writer.discarding:  # otherwise the client ended first
                self._watch.lost(error)
        elif responses.stream.remaining or responses.backlog.kept:
            self._shared.faults.ended_mid_frame()
        # A broker that ends a connection on which it never answered is not healthy; it may just be starting.
        elif self._watch.is_unheard and self._pair.state is not State.FLUSHING:
            self._watch.lost(None)
        self._pair.close()

    def _report_cut(self) -> None:
        """Report a client whose stream ended within a frame, unless the proxy ended the connection."""
        requests, connection = self._pair.requests, self._pair.connection
        missing = requests.stream.remaining
        if (missing or requests.backlog.kept) and not connection.is_closing:
            self._shared.faults.protocol(connection.identity, ClosedMidFrame(missing or None))

    def on_sink_failed(self, pump: Pump, error: OSError) -> None:
        """The peer has gone. Nothing is closed yet, because what it sent before, and its end, must still be read."""
        pump.writer.discard()
        other = self._pair.requests
        if pump is self._pair.requests:
            other = self._pair.responses
            self._watch.lost(error)
            if self._pair.request_stream.held is not None:
                self.drop_held()
            pump.pause(pump_set.END_OF_STREAM)
        # Not now, because this is called in the middle of a slice, while the shared buffer is in use.
        self._shared.loop.call_soon(self.read_to_end, other)

    def read_to_end(self, pump: Pump) -> None:
        """Read what a source that has gone has left, with one ``recv`` in each round of the loop, to the end of stream.

        The loop does not report these bytes: libuv reports a reset once, and uvloop then forgets the descriptor.
        """
        pump.read_on()
        if not pump.paused & ~pump_set.SLICE:
            self._shared.loop.call_soon(self.read_to_end, pump)

    # ---- what no callback reports: once a second

    def check(self) -> bool:
        """Detect a client that has gone while it was not read, or cannot read. False: the session is closed now."""
        pumps = self._pair.requests, self._pair.responses  # the session has none after its end
        if self._pair.state is State.FLUSHING:
            self._close_if_broken()
        elif self._pair.client.peer_has_gone:
            self._on_client_gone()
        elif self._pair.state is State.LINGERING and not self._pair.requests.paused and self._is_quiet:
            self._pair.on(Event.CLIENT_ENDED)
        elif isinstance(self._pair.request_stream.held, ProduceRequest):
            self._probe(self._pair.request_stream.held)
        for pump in pumps:
            if not pump.paused and pump.source.is_broken:  # the loop no longer reports it
                self.read_to_end(pump)
        return self._pair.state is not State.CLOSED

    def _probe(self, held: ProduceRequest) -> None:
        """Find out whether the client of a held Produce request is still there (see `Writer.probe`). The next bytes
        that it receives must be the rest of the response to this request, or the end of the stream.
        """
        stream, responses = self._pair.request_stream, self._pair.responses
        if (
            self._pair.state is State.OPEN
            and held.is_answered
            and len(stream.responses.in_flight) <= bool(stream.remaining)
            and not responses.stream.remaining
            and not stream.responses.answers.owed_bytes
            and held.held_ns + self._shared.clock() - held.since_ns >= PROBE_NS
        ):
            responses.writer.probe()

    @property
    def _is_quiet(self) -> bool:
        """Whether the client has sent nothing for `LINGER_NS`."""
        return self._shared.clock() - self._pair.request_stream.taken_ns >= LINGER_NS

    def _on_client_gone(self) -> None:
        """The client has closed or reset its connection, or ended its stream, while the proxy was not reading it.

        TCP cannot tell a client that has gone from one that has ended its stream and keeps reading. In both cases,
        requests that are held or unread are dropped, because a client that has gone will send them again. Responses in
        flight are delivered.
        """
        requests = self._pair.requests
        held = self._pair.request_stream.held
        if held is not None:
            if held.is_answered:
                self.drop_held_request(held)
            else:  # its client regards it as delivered
                self._limit_flush()
        elif requests.paused & _STANDING:
            is_unread = requests.paused & pump_set.LOGIN  # it may be acks=0 data
            if self._pair.request_stream.is_answered and not is_unread:
                requests.backlog.drop()
                self._pair.on(Event.CLIENT_ENDED)
            else:
                self._limit_flush()

    def _close_if_broken(self) -> None:
        """Close if the client can no longer read responses, unless acks=0 data must still be delivered."""
        responses = self._pair.responses
        if self._pair.client.is_broken or responses.writer.discarding:
            responses.writer.discard()
            if self._pair.connection.sent_unanswered or self._pair.requests.writer.pending is not None:
                self.end_requests()
            else:
                self._pair.close()

    # ---- what is not delivered

    def drop_held_request(self, request: LimitedRequest) -> None:
        """Drop a held request whose client has gone, and everything that the client sent after it."""
        self._shared.faults.dropped(self._pair.connection.identity, request.size)
        self.drop_held()
        self._pair.on(Event.CLIENT_ENDED)

    def drop_held(self) -> None:
        """Drop the held request, if there is one, and everything that was read after it."""
        self._forget(self._pair.request_stream.held)
        self._pair.request_stream.end(self._shared.clock())
        if self._pair.state is not State.CLOSED:
            self._pair.requests.backlog.drop()

    def report(self, error: Exception, pump: Pump | None) -> None:
        """Count and log the error that closes the session: see `Owner.close_for`."""
        watch, identity = self._watch, self._pair.connection.identity
        broker = "" if pump is self._pair.requests else watch.broker
        if isinstance(error, BrokerFailed):
            watch.failed(error.reason, str(error))
        elif isinstance(error, NotKafka) and error.protocol == "tls" and broker:
            watch.failed("plaintext_to_tls", "it answers with a TLS alert")
        elif isinstance(error, ProtocolError):
            self._shared.faults.protocol(identity, error, broker)
        else:
            self._shared.faults.defect(identity, error)
