"""Requests: what those of one kind have in common, and one that carries data, from its head to the end of its response.

kind      API, version, client id: parsed once, compared afterwards. In flight it stands for each request that needs
          no object of its own
request   a Produce request that is decided alone or arrives in parts, or a fetch: held, charged, delayed
handler   what is done with the requests and responses of one treatment
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from struct import Struct
from typing import Final, final

from protocol.apis import FETCH, PRODUCE, SHARE_FETCH, Treatment
from protocol.request_header import PREFIX_SIZE, RequestHeader, unpack_prefix
from protocol.throttle_time import clients_wait, throttle_needs
from proxy.enforcement.identity import Client
from proxy.enforcement.measures import Reply
from proxy.observability.metrics import Metrics
from proxy.observability.tallies import Cell
from proxy.observability.wait_clock import BROKER, DATA
from proxy.streams.connection import Connection, Stream
from proxy.streams.context import Context
from proxy.streams.held_request import HeldRequest
from proxy.streams.memory import READ_SIZE
from proxy.streams.response_stream import LONGEST_FETCH_NS, UNLIMITED_NS, Pending, ResponseStream
from proxy.streams.steps import REPLACE

#: Number of kinds kept, and the longest header of one. Together they bound the memory: a client with another client id
#: or header tags in each request slows down only itself.
MAX_KINDS: Final = 4_096
MAX_TAIL_BYTES: Final = 512
#: The key of a kind that no request is compared with.
_NO_KEY: Final = 1 << 32
_JOIN_GROUP: Final = 11
_SYNC_GROUP: Final = 14
_LONG_POLLS: Final = {
    FETCH: LONGEST_FETCH_NS,
    SHARE_FETCH: LONGEST_FETCH_NS,
    _JOIN_GROUP: UNLIMITED_NS,
    _SYNC_GROUP: UNLIMITED_NS,
}

_layout = lru_cache(maxsize=1024)(lambda tail_size: Struct(f">iii{tail_size}s").unpack_from)


class Requests(Stream):
    """The stream from client to broker, as requests see it.

    responses      the other direction, with what is in flight
    kind           of the latest request
    current        the request under way, if it has an object: it is held, or has not arrived whole
    room           bytes more of its data requests that fitted after the latest one, before a limit is in debt; 0: it
                   left debt or was held, so the next one is decided alone
    has_request    a complete request has passed
    is_discarding  the current frame is not forwarded: see `discard`
    """

    __slots__ = ("current", "has_request", "is_discarding", "kind", "responses", "room")

    def __init__(self, connection: Connection, responses: ResponseStream) -> None:
        super().__init__(connection)
        self.responses: Final = responses
        self.kind: Kind | None = None
        self.current: Request | None = None
        self.room = READ_SIZE
        self.has_request = False
        self.is_discarding = False

    def put_in_flight(self, kind: "Kind", pending: Pending, pos: int) -> None:
        """The request at `pos` passes: `pending` answers for it."""
        kind.counter.value += 1
        if kind.answered:
            in_flight = self.responses.in_flight
            if len(in_flight) <= self.connection.timer.attention:
                self.begin(kind, len(in_flight))
            in_flight.append((unpack_prefix(self.buf, pos)[2], pending))
        else:
            self.connection.sent_unanswered = True

    def begin(self, kind: "Kind", before: int) -> None:
        """A request passes behind so many: none, or it is to be timed."""
        connection, now_ns = self.connection, self.taken_ns
        if not before:
            connection.waits.begin(DATA if kind.may_last_ns else BROKER, now_ns, self.responses.taken_ns)
        if connection.timer.attention and not kind.may_last_ns:
            connection.timer.begin(before, now_ns, is_produce=kind.api_key == PRODUCE)

    def sent(self, now_ns: int) -> None:
        """The last byte of a request has passed that did not arrive at once: the broker has it from now on."""
        connection, before = self.connection, len(self.responses.in_flight)
        if before == 1:
            connection.waits.sent(now_ns)
        if connection.timer.left == before:
            connection.timer.since_ns = now_ns

    def forward(self, kind: "Kind", pending: Pending, pos: int, end: int) -> int:
        """Forward the request at `pos`, without parsing what has not arrived. Returns the step."""
        self.put_in_flight(kind, pending, pos)
        frame_end: int = pos + 4 + unpack_prefix(self.buf, pos)[0]
        passed_to = min(end, frame_end)
        self.remaining = frame_end - passed_to
        return passed_to

    def discard(self, pos: int, end: int, length: int) -> int:
        """The request at `pos` is not forwarded: it was answered, or will be sent again. Returns the step."""
        frame_end = pos + 4 + length
        self.resume_at = min(end, frame_end)
        self.output = b""
        self.remaining = frame_end - self.resume_at
        self.is_discarding = self.remaining > 0
        if self.kind is not None:
            self.kind.counter.value += 1
        return REPLACE


class Request(HeldRequest):
    """A request that carries data. It is in flight itself, so its response finds what it needs in it."""

    __slots__ = ("kind",)

    def __init__(self, kind: "Kind", client: Client, size: int) -> None:
        super().__init__(client, kind.reply, size)
        self.kind: Final = kind

    def throttle_place(self) -> int:
        return self.kind.throttle_at

    @abstractmethod
    def admit(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        """Decide about the request whose frame begins at `pos`, perhaps again after a hold. Returns a step."""

    def go_on(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        """More of the frame has arrived, up to `end`: the next step."""
        raise NotImplementedError


@final
class Kind(Pending):
    """Requests with the same API, version and head. Shared by all connections that send such requests.

    handler     of their treatment
    header      the parsed header of the first one
    key         API key and version, as one int32 of the wire
    tail        the header's bytes from the client id's length on
    unpack      reads length, key, correlation id and as many bytes as the tail has
    needed      bytes that must be in the buffer
    shortest    length of the shortest such request, without the length field
    answered    whether the broker responds: not to Produce with acks=0
    reply       what the response to a data request can do against debt
    batchable   see `Handler`
    counter     of requests, for metrics
    throttle_at   where the throttle time stands in a response, from its length on, without header tags; 0: it has none
    unseen, produce_version, may_last_ns
                see `Pending`
    """

    def __init__(self, header: RequestHeader, tail: bytes, handler: "Handler", counter: Cell) -> None:
        self.handler: Final = handler
        self.header = header
        self.api_key = header.api.key
        self.version = header.version
        self.key = header.api.key << 16 | header.version
        self.tail = tail
        self.unpack = _layout(len(tail))
        self.needed = header.needed
        self.shortest = header.needed - 4
        self.answered = header.acks != 0
        waited_for = clients_wait(header.api.key, header.version)
        self.reply = Reply.NONE if not self.answered else Reply.NOTICE if waited_for else Reply.LATE
        self.counter = counter
        self.batchable = handler.batchable
        self.unseen = handler.unseen
        self.produce_version = header.version if self.api_key == PRODUCE else -1
        self.may_last_ns = _LONG_POLLS.get(self.api_key, 0)
        self.throttle_at = throttle_needs(header.api, header.version)

    def length_at(self, buf: bytearray, pos: int, end: int) -> int:
        """The length field of the request at `pos`, if its head has arrived and is of this kind. Else -1."""
        if end - pos < self.needed:
            return -1
        length: int
        length, key, _, tail = self.unpack(buf, pos)
        return length if key == self.key and tail == self.tail else -1

    def throttle_place(self) -> int:
        return self.throttle_at

    def respond(self, responses: ResponseStream, pos: int, end: int, length: int, now_ns: int) -> int:
        return self.handler.respond(responses, self, pos, end, length, now_ns)

    def on_walked(self, responses: ResponseStream) -> None:
        self.handler.on_walked(responses)

    def on_rewritten(self, responses: ResponseStream, length: int) -> None:
        self.handler.on_rewritten(responses, self, length)


class Handler:
    """Handles the requests and responses of one treatment. One object for all connections."""

    #: Whether responses are forwarded without parsing while no throttle time is due.
    unseen = False
    #: Whether consecutive requests of one kind may pass without a decision each, while the limits have room for all.
    batchable = False
    #: Whether requests belong to a client id: not those before and beside a login, or each client would begin with an
    #: entity of user ANONYMOUS.
    identifies = True

    def __init__(self, context: Context) -> None:
        self.context = context

    def count(self, requests: Requests, now_ns: int, *, is_counted: bool = False) -> None:
        """Charge one request that is never held; `is_counted`: another limit counts it as throttled."""
        identity = requests.connection.identity
        decision = identity.limits.requests.charge_control(1, now_ns)
        if decision.limit is not None:
            self.context.measures.on_requests_debt(identity, decision, now_ns, is_counted=is_counted)

    @abstractmethod
    def admit(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        """Decide about the request at `pos`, whose header is in the buffer. Returns a step: see `Requests.forward`, and
        `Requests.discard` for a request that was answered.
        """

    def respond(self, responses: ResponseStream, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        """See `Pending.respond`, for a request of which the kind is in flight."""
        return responses.begin(pos, end, length)

    def on_walked(self, responses: ResponseStream) -> None:
        """See `Pending`."""

    def on_rewritten(self, responses: ResponseStream, kind: Kind, length: int) -> None:
        """See `Pending`."""


class Kinds:
    """The Kind of each header. Shared by all connections."""

    def __init__(self, handlers: Mapping[Treatment, Handler], metrics: Metrics) -> None:
        self._handlers = handlers
        self._metrics = metrics
        self._known: dict[tuple[int, int, bytes], Kind] = {}

    def kind_of(self, header: RequestHeader, buf: bytearray, pos: int) -> Kind:
        """The kind of the request whose frame begins at `pos`."""
        tail = bytes(buf[pos + PREFIX_SIZE : pos + header.size])
        key = (header.api.key, header.version, tail)
        kind = self._known.get(key)
        if kind is None:
            counter = self._metrics.request_cell(header.api.name, header.version)
            handler = self._handlers[header.api.treatment]
            if len(tail) > MAX_TAIL_BYTES:  # it stays while its request is in flight, so it must not keep the head
                kind = Kind(replace(header, client_id=""), b"", handler, counter)
                kind.key = _NO_KEY
                return kind
            kind = Kind(header, tail, handler, counter)
            if len(self._known) >= MAX_KINDS:
                self._known.clear()
            self._known[key] = kind
        return kind
