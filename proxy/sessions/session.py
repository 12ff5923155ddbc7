"""One client connection and its connection to a broker.

A session ties two flows together and knows how they end:

    state        client ended or failed      broker ended or failed    drain                    nothing left under way
    CONNECTING   - (seen when OPEN)          close (nobody answers)    close                    -
    OPEN         FLUSHING, or close if       close                     DRAINING, or close if    -
                 nothing is under way                                  nothing is under way
    DRAINING     FLUSHING, or close          close                     -                        close
    FLUSHING     -                           close                     -                        -

FLUSHING: the client has gone; what it sent (acks=0 above all) still goes to the broker, whose end of stream then says
that it has read everything.

"Ended or failed" is what a read says. A write that fails changes no state: the bytes are dropped, and the peer is
still read to its end, for what it sent before it went. While the client does not take bytes the broker is not read, so
when the broker's end is seen, its last response has been passed on. No write closes a session: flows that look at what
was read can write and go on.
"""

import logging
import socket
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

from protocol.errors import ProtocolError
from proxy.brokers.upstream import Attempt
from proxy.config.config import Address, format_address
from proxy.observability.logs import event
from proxy.observability.tallies import EntityMetrics
from proxy.sessions.mutations import Notice
from proxy.sessions.pump import CONNECTING, DRAIN, END_OF_STREAM
from proxy.sessions.request_flow import RequestFlow
from proxy.sessions.request_kind import InFlight
from proxy.sessions.response_flow import ResponseFlow
from proxy.sessions.shared import ANONYMOUS, Shared
from proxy.sessions.throttling import Held
from quotas.admission.client_limits import ClientLimits
from quotas.admission.limit import Limit, LimitSet
from quotas.connections import Held as ConnectionHeld

#: How long a broker may take to read what a client that has gone sent last.
FLUSH_TIMEOUT_SECONDS = 30.0
#: tcpi_state of Linux's TCP_INFO: the peer has neither closed nor reset the connection; it is over.
_TCP_ESTABLISHED = 1
_TCP_CLOSE = 7

#: What holds before the first request has said who this is.
_NOBODYS_LIMITS = ClientLimits("", "")

_log = logging.getLogger("proxy.sessions.session")


class ClosedMidFrame(ProtocolError):
    """The client's stream ended inside of a request: it died, or it never spoke Kafka."""

    reason = "closed_mid_frame"

    def __init__(self, missing: int | None) -> None:
        super().__init__(f"the client closed its connection {missing or 'some'} bytes before the end of a request", -1)
        self.missing = missing


class State(Enum):
    CONNECTING = "connecting"
    OPEN = "open"
    DRAINING = "draining"
    FLUSHING = "flushing"
    CLOSED = "closed"


class Session:
    """See the module. Flows read the plain attributes on the hot path.

    ``ip`` and ``port`` are the client's; ``listener`` are the names of the port that it came to.
    """

    __slots__ = (
        "_attempt",
        "_timer",
        "client",
        "client_id",
        "entity",
        "held",
        "in_flight",
        "ip",
        "is_closing",
        "last_fetch_size",
        "limits",
        "limits_generation",
        "listener",
        "mutation_notices",
        "not_before_ns",
        "notice_limit",
        "open_fetches",
        "peer",
        "request_flow",
        "reserved",
        "response_flow",
        "sent_unanswered",
        "shared",
        "state",
        "upstream",
        "user",
        "waits_to_be_served",
        "wire_client_id",
    )

    limits: ClientLimits
    entity: EntityMetrics
    request_flow: RequestFlow
    response_flow: ResponseFlow

    def __init__(self, shared: Shared, client: socket.socket, ip: str, port: int, listener: tuple[str, ...]) -> None:
        self.shared = shared
        self.client = client
        self.ip = ip
        self.listener = listener
        self.peer = format_address((ip, port))
        self.state = State.CONNECTING
        self.upstream: socket.socket | None = None
        self._attempt: Attempt | None = None
        self._timer: TimerHandle | None = None
        #: Over its connection rate: by which verdict, and since when.
        self.waits_to_be_served: ConnectionHeld | None = None
        self.in_flight: InFlight = deque()
        #: Draining, or the client has gone: no new frame is begun.
        self.is_closing = False
        #: A request without a response (acks=0) has been forwarded: the broker may not have read it yet.
        self.sent_unanswered = False
        # Who this is, and what holds for it.
        self.user = shared.config.principal or ANONYMOUS
        self.open_fetches = 0
        self.last_fetch_size = 0
        #: What each open fetch has been charged, and to which limits, oldest first.
        self.reserved: deque[tuple[LimitSet, int]] = deque()
        #: What the response to each request under way that creates or deletes partitions has to say, oldest first.
        self.mutation_notices: deque[Notice | None] = deque()
        self.held: Held | None = None
        self.not_before_ns = 0
        self.notice_limit: Limit | None = None
        self.wire_client_id: str | None = None
        self.client_id = ""
        self.limits = _NOBODYS_LIMITS
        self.limits_generation = shared.registry.generation

    # ---- opening

    def wait_to_be_served(
        self, held: ConnectionHeld, left_ns: int, then: "Callable[[Session, ConnectionHeld], None]"
    ) -> None:
        """Do nothing for so long; ``then`` is called at its end, if the session still is there.

        Called again while it waits, that takes the place of what it was told before.
        """
        if self._timer is not None:
            self._timer.cancel()
        self.waits_to_be_served = held
        self._timer = self.shared.loop.call_later(left_ns / 1_000_000_000, self._has_waited, held, then)

    def _has_waited(self, held: ConnectionHeld, then: "Callable[[Session, ConnectionHeld], None]") -> None:
        self.waits_to_be_served = None
        self._timer = None
        then(self, held)

    def connect(self, candidates: Sequence[Address]) -> None:
        """Begin to connect to the first of ``candidates`` that answers."""
        attempt = self.shared.upstream.connect(candidates, self._on_connected, self._on_unreachable, self.close)
        if self.state is State.CONNECTING:
            self._attempt = attempt

    def _on_connected(self, upstream: socket.socket) -> None:
        self._attempt = None
        self.upstream = upstream
        shared = self.shared
        self.request_flow = RequestFlow(shared.loop, shared.buffers, self, self.client, upstream)
        self.response_flow = ResponseFlow(shared.loop, shared.buffers, self, upstream, self.client)
        self.state = State.OPEN
        self.response_flow.resume(CONNECTING)
        self.request_flow.resume(CONNECTING)

    def _on_unreachable(self, reason: str, address: str, detail: str) -> None:
        """One of several perhaps: a bootstrap server that is down while others answer should not go unseen."""
        self.shared.metrics.upstream_error(reason)
        self._say(
            logging.WARNING, "upstream_unreachable", (reason, address), address=address, reason=reason, detail=detail
        )

    # ---- identity and limits

    def identify(self, wire_client_id: str) -> None:
        """The client calls itself so from here on."""
        self.wire_client_id = wire_client_id
        fixed = self.shared.config.client_id
        self.client_id = wire_client_id if fixed is None else fixed
        self.resolve_limits()

    def resolve_limits(self) -> None:
        """Look up what holds for this client now; fetches under way move along."""
        shared = self.shared
        self.limits_generation = shared.registry.generation
        if self.wire_client_id is None:
            return
        if self.open_fetches:
            self.limits.open_fetches -= self.open_fetches
        self.limits = shared.registry.resolve(self.user, self.client_id)
        self.limits.open_fetches += self.open_fetches
        if self.not_before_ns:
            self._renew_notice()
        self.entity = shared.metrics.entity(self.user, self.client_id)

    def _renew_notice(self) -> None:
        """What the client is told to wait for may not hold for it any more, or be paid back sooner."""
        limits, told = self.limits, self.notice_limit
        if told is not None and told in limits.produce.limits + limits.fetch.limits + limits.requests.limits:
            now_ns = self.shared.clock()
            self.not_before_ns = min(self.not_before_ns, now_ns + told.debt_ns(now_ns) + told.queued_ns())
        else:
            self.not_before_ns = 0

    # ---- quotas

    def fetch_opened(self, reserved: int) -> None:
        """A fetch is being forwarded; it has been charged ``reserved`` bytes."""
        self.reserved.append((self.limits.fetch, reserved))
        self.open_fetches += 1
        self.limits.open_fetches += 1

    def on_fetch_response(self, size: int) -> None:
        """Charge a fetch by its response: ``size`` in bytes, with the length."""
        limits = self.limits
        self.open_fetches -= 1
        limits.open_fetches -= 1
        self.last_fetch_size = size
        self.entity.fetch_bytes += size
        self.entity.requests += 1
        charged, reserved = self.reserved.popleft()
        fetch = limits.fetch
        if charged is not fetch and charged.limits != fetch.limits:  # others hold for the client now
            self._refund(charged, reserved)
            reserved = 0
        if fetch.limits:
            now_ns = self.shared.clock()
            decision = fetch.charge(size - reserved, now_ns)
            if decision.wait_ns > 0:
                self.shared.throttling.notify_later(self, decision, now_ns)
            if size < reserved:
                self.shared.throttling.eased(fetch.limits)

    def _refund(self, charged: LimitSet, reserved: int) -> None:
        if reserved:
            charged.refund(reserved, self.shared.clock())
            self.shared.throttling.eased(charged.limits)

    def notice_ms(self) -> int:
        """The throttle time that a response written now carries; 0 when there is nothing to tell."""
        throttle_ms = self.shared.throttling.notice_ms(self.not_before_ns)
        if not throttle_ms:
            self.not_before_ns = 0
        return throttle_ms

    def release(self, held: Held) -> None:
        """It is this session's turn. A frame whose client has hung up and will retry it is dropped, not duplicated."""
        if held.answered and self._client_hung_up():
            self.shared.metrics.dropped_frames += 1
            self._say(logging.INFO, "held_frame_dropped", "held_frame_dropped", peer=self.peer, frame_bytes=held.size)
            self.shared.throttling.give_up(held.ticket)
            self.request_flow.drop_kept()
            self.on_client_ended()
        else:
            held.ticket.turn = held.limit
            self.request_flow.look_again(held.ticket)

    def _client_hung_up(self) -> bool:
        """Whether the client has closed or reset its connection, even behind data that has not been read."""
        return _tcp_state(self.client) not in (_TCP_ESTABLISHED, None)

    def look_after(self) -> None:
        """Find connections that were reset and that the loop has forgotten (see Pump.read_to_end)."""
        if self.upstream is not None:
            for flow in (self.request_flow, self.response_flow):
                if not flow.paused and _tcp_state(flow.source) == _TCP_CLOSE:
                    flow.read_to_end()

    # ---- ends

    def on_client_ended(self) -> None:
        """The client sends no more."""
        requests = self.request_flow
        if requests.remaining or requests.kept:
            self._note(ClosedMidFrame(requests.remaining or None))
        if self._is_under_way():
            self._flush()
        else:
            self.close()

    def on_client_failed(self, error: OSError) -> None:
        """The client's connection broke."""
        self.response_flow.discard()
        self.on_client_ended()

    def on_client_unwritable(self) -> None:
        """The client has gone. What it sent before, and its end, are still to be read."""
        self.response_flow.discard()
        self.shared.loop.call_soon(self.request_flow.read_to_end)

    def on_upstream_ended(self) -> None:
        """The broker sends no more."""
        if self.response_flow.remaining:
            self.shared.metrics.upstream_error("closed_mid_frame")
        self.close()

    def on_upstream_failed(self, error: OSError) -> None:
        """The broker's connection broke."""
        if not self.request_flow.muted:
            self._note_upstream_lost(error)
        self.close()

    def on_upstream_unwritable(self, error: OSError) -> None:
        """The broker has gone. What it sent before, and its end, are still to be read; requests go nowhere."""
        self._note_upstream_lost(error)
        self.shared.throttling.forget(self)
        self.request_flow.discard()
        self.request_flow.pause(END_OF_STREAM)
        self.shared.loop.call_soon(self.response_flow.read_to_end)

    def _note_upstream_lost(self, error: OSError) -> None:
        reason = "connection_reset"
        self.shared.metrics.upstream_error(reason)
        detail = error.strerror or str(error)
        self._say(logging.WARNING, "upstream_lost", reason, peer=self.peer, reason=reason, detail=detail)

    def on_requests_flushed(self) -> None:
        """The broker has taken all bytes that waited for it."""
        if self.state is State.FLUSHING:
            self._shut_upstream()
        else:
            self.on_all_answered()

    def on_responses_flushed(self) -> None:
        """The client has taken all bytes that waited for it."""
        self.on_all_answered()

    def on_frame_boundary(self) -> None:
        """While closing: the request flow has looked at what it read. Nothing new is begun at a boundary."""
        if self.state is not State.DRAINING or self.held is not None:
            return
        flow = self.request_flow
        if flow.remaining:
            flow.want = flow.remaining
            return
        flow.pause(DRAIN)
        if not self._is_under_way():
            self.close()

    def on_all_answered(self) -> None:
        """Perhaps nothing is under way any more: while draining that is the end."""
        if self.state is State.DRAINING and not self._is_under_way():
            self.close()

    def drain(self) -> None:
        """Begin no new request; close when those under way are done. A held frame that will be retried is given up."""
        if self.state is State.CONNECTING:
            self.close()
        elif self.state is State.OPEN:
            self.state = State.DRAINING
            self.is_closing = True
            held = self.held
            if held is not None and held.answered:
                self.shared.throttling.forget(self)
                self.request_flow.drop_kept()
            self.on_frame_boundary()

    def _is_under_way(self) -> bool:
        """Whether closing now could lose something: requests half sent or unread, responses half sent or owed."""
        requests, responses = self.request_flow, self.response_flow
        return bool(
            self.in_flight
            or self.held is not None
            or requests.remaining
            or requests.pending is not None
            or responses.remaining
            or responses.pending is not None
            or (self.sent_unanswered and self.state is not State.DRAINING)
        )

    def _flush(self) -> None:
        self.state = State.FLUSHING
        self.is_closing = True
        self.request_flow.pause(END_OF_STREAM)
        self._timer = self.shared.loop.call_later(FLUSH_TIMEOUT_SECONDS, self.close)
        if self.request_flow.pending is None:
            self._shut_upstream()

    def _shut_upstream(self) -> None:
        if self.upstream is not None:
            with suppress(OSError):  # it has gone already: reading it says so
                self.upstream.shutdown(socket.SHUT_WR)

    def close_for(self, error: ProtocolError) -> None:
        """Close because of what one side sent."""
        self._note(error)
        self.close()

    def _note(self, error: ProtocolError) -> None:
        self.shared.metrics.protocol_error(error.reason)
        self._say(
            logging.WARNING,
            "protocol_error",
            error.reason,
            peer=self.peer,
            client_id=self.client_id,
            reason=error.reason,
            offset=error.offset,
            detail=str(error),
        )

    def close_for_defect(self, error: Exception) -> None:
        """Close because of a defect in this program: its connection pays, nobody else."""
        self.shared.metrics.protocol_error("defect")
        self._say(logging.ERROR, "defect", type(error).__name__, exc_info=True, peer=self.peer)
        self.close()

    def close(self) -> None:
        """Close both connections at once and give back everything; does nothing the second time."""
        if self.state is State.CLOSED:
            return
        was_connecting = self.state is State.CONNECTING
        self.state = State.CLOSED
        shared = self.shared
        if self._timer is not None:
            self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        shared.throttling.forget(self)
        if not was_connecting:
            self.request_flow.stop()
            self.response_flow.stop()
        self.client.close()
        if self.upstream is not None:
            self.upstream.close()
        self.limits.open_fetches -= self.open_fetches
        self.open_fetches = 0
        while self.reserved:
            self._refund(*self.reserved.popleft())
        self.in_flight.clear()
        self.mutation_notices.clear()
        shared.sessions.discard(self)
        shared.gate.gone(self)
        shared.metrics.connections -= 1
        if shared.on_session_closed is not None:
            shared.on_session_closed()

    def _say(self, level: int, name: str, key: object, *, exc_info: bool = False, **fields: object) -> None:
        """Log one line, at most one of its kind every few seconds."""
        suppressed = self.shared.lines.admit((name, key), self.shared.clock())
        if suppressed is not None:
            event(_log, level, name, exc_info=exc_info, **fields, suppressed=suppressed or None)


def _tcp_state(sock: socket.socket) -> int | None:
    """Linux's tcpi_state; None where the system does not tell."""
    info: int | None = getattr(socket, "TCP_INFO", None)
    if info is None:
        return None
    state: int = sock.getsockopt(socket.IPPROTO_TCP, info, 1)[0]
    return state
