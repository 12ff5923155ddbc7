"""What requests of one kind have in common, and requests that carry data, from the header to the end of the response.

kind      API, version and client id, which are parsed once and compared afterwards. It stands in flight for each
          request that needs no object of its own
request   a fetch, or a Produce request that is decided alone or arrives in parts. It can be held, charged and delayed
handler   handles the requests and responses of one treatment
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
from proxy.enforcement.throttle_actions import Reply
from proxy.observability.client_times import BROKER, DATA
from proxy.observability.metrics import Metrics
from proxy.observability.tallies import Cell
from proxy.streams.connection import Connection, Context, Stream
from proxy.streams.limited_request import LimitedRequest
from proxy.streams.memory import READ_SIZE
from proxy.streams.pending import LONGEST_FETCH_NS, UNLIMITED_NS, Pending, Responses, Timed
from proxy.streams.steps import REPLACE

#: The most kinds that are kept. With the longest header of one, this bounds the memory. A client that uses another
#: client id or other header tags in each request slows down only itself.
MAX_KINDS: Final = 4_096
MAX_TAIL_BYTES: Final = 512
#: The key of a kind with which no request is compared.
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

    responses      the other direction, which has what is in flight
    kind           the kind of the latest request
    current        the current request, if it has an object because it is held or incomplete
    room           how many more bytes of data requests fitted after the latest one before a limit would be in debt; 0:
                   it left debt or was held, so the next one is decided alone
    has_request    a complete request has passed
    is_discarding  the current frame is not forwarded: see `discard`
    """

    __slots__ = ("current", "has_request", "is_discarding", "kind", "responses", "room")

    def __init__(self, connection: Connection, responses: Responses) -> None:
        super().__init__(connection)
        self.responses: Final = responses
        self.kind: Kind | None = None
        self.current: Request | None = None
        self.room = READ_SIZE
        self.has_request = False
        self.is_discarding = False

    def put_in_flight(self, kind: "Kind", pending: Pending, pos: int) -> None:
        """Put the request at `pos` in flight; `pending` will handle its response."""
        if kind.answered:
            self.responses.in_flight.append((unpack_prefix(self.buf, pos)[2], pending))
        self.on_passed(kind, 1)

    def on_passed(self, kind: "Kind", count: int) -> None:
        """Count and report requests that pass, and are in flight if they will be answered."""
        kind.counter.value += count
        if kind.answered:
            responses, observer = self.responses, self.connection.observer
            before = len(responses.in_flight) - count
            if before <= observer.attention and observer.forwarded(
                kind.wait_state, before, self.taken_ns, responses.taken_ns
            ):
                self._time(kind, before)
        else:
            self.connection.sent_unanswered = True
            self.connection.identity.entity.facts.unanswered += count

    def _time(self, kind: "Kind", before: int) -> None:
        """Time the response to a request that passes while `before` others are in flight."""
        in_flight = self.responses.in_flight
        correlation_id, pending = in_flight[before]
        in_flight[before] = correlation_id, Timed(pending, self.taken_ns, is_produce=kind.api_key == PRODUCE)

    def sent(self, now_ns: int) -> None:
        """More of a request that arrives in parts has passed. Its response cannot begin before its last byte."""
        in_flight = self.responses.in_flight
        if len(in_flight) == 1:
            self.connection.observer.sent(now_ns)
        if in_flight and isinstance(newest := in_flight[-1][1], Timed):
            newest.since_ns = self.connection.observer.sent_ns = now_ns

    def forward(self, kind: "Kind", pending: Pending, pos: int, end: int) -> int:
        """Forward the request at `pos`, including the bytes that have not arrived, unparsed. Returns the step."""
        self.put_in_flight(kind, pending, pos)
        frame_end: int = pos + 4 + unpack_prefix(self.buf, pos)[0]
        passed_to = min(end, frame_end)
        self.remaining = frame_end - passed_to
        return passed_to

    def discard(self, pos: int, end: int, length: int) -> int:
        """Do not forward the request at `pos`, which was answered or will be sent again. Returns the step."""
        frame_end = pos + 4 + length
        self.resume_at = min(end, frame_end)
        self.output = b""
        self.remaining = frame_end - self.resume_at
        self.is_discarding = self.remaining > 0
        if self.kind is not None:
            self.kind.counter.value += 1
        return REPLACE


class Request(LimitedRequest):
    """A request that carries data. It is in flight itself, and keeps what its response needs."""

    __slots__ = ("kind",)

    def __init__(self, kind: "Kind", client: Client, size: int) -> None:
        super().__init__(client, kind.reply, size)
        self.kind: Final = kind

    def throttle_place(self) -> int:
        return self.kind.throttle_at

    @abstractmethod
    def decide(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        """Decide what happens to the request at `pos`, perhaps again after a hold. Returns a step."""

    def go_on(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        """The next step after more of the frame has arrived, up to `end`."""
        raise NotImplementedError


@final
class Kind(Pending):
    """Requests with the same API, version and header. Shared by all connections that send such requests.

    handler     the handler of their treatment
    header      the parsed header of the first one
    key         API key and version, read as one int32
    tail        the bytes of the header, starting with the length of the client id
    unpack      reads length, key, correlation id, and as many bytes as the tail has
    needed      how many bytes must be in the buffer
    shortest    the length of the shortest such request, without the length field
    answered    whether the broker responds, which it does not to Produce with acks=0
    reply       how the response to a data request can slow the client down
    batchable   see `Handler`
    counter     the metric that counts the requests
    throttle_at   the offset of the throttle time in a response without header tags, from its length field; 0: none
    unseen, produce_version, may_last_ns
                see `Pending`
    wait_state  what the connection's time counts for until the broker responds (`client_times`)
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
        self.wait_state = DATA if self.may_last_ns else BROKER
        self.throttle_at = throttle_needs(header.api, header.version)

    def length_at(self, buf: bytearray, pos: int, end: int) -> int:
        """The length of the request at `pos`, if its header has arrived and has this kind; otherwise -1."""
        if end - pos < self.needed:
            return -1
        length: int
        length, key, _, tail = self.unpack(buf, pos)
        return length if key == self.key and tail == self.tail else -1

    def throttle_place(self) -> int:
        return self.throttle_at

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        return self.handler.respond(responses, self, pos, end, length, now_ns)

    def on_walked(self, responses: Responses) -> None:
        self.handler.on_walked(responses)

    def on_rewritten(self, responses: Responses, length: int) -> None:
        self.handler.on_rewritten(responses, self, length)


class Handler:
    """Handles the requests and responses of one treatment. One object serves all connections."""

    #: Whether responses are forwarded without parsing while no throttle time is due.
    unseen = False
    #: Whether consecutive requests of one kind may pass without a decision for each, if the limits have room for all.
    batchable = False
    #: Whether requests identify the client by their client id. Those before and during a login do not; otherwise each
    #: client would begin with an entity of the user ANONYMOUS.
    identifies = True

    def __init__(self, context: Context) -> None:
        self.context = context

    def count(self, requests: Requests, now_ns: int, *, is_counted: bool = False) -> None:
        """Charge one request that is never held. `is_counted`: another limit has counted it as throttled."""
        identity = requests.connection.identity
        wait_ns, limit = identity.limits.requests.charge_control(1, now_ns)
        if limit is not None:
            self.context.actions.on_requests_debt(identity, limit, wait_ns, now_ns, is_counted=is_counted)

    @abstractmethod
    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        """Decide what happens to the request at `pos`, whose header is in the buffer. Returns a step: see
        `Requests.forward`, and `Requests.discard` for a request that was answered.
        """

    def respond(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        """See `Pending.respond`, for a request whose kind is in flight."""
        return responses.forward(pos, end, length)

    def on_walked(self, responses: Responses) -> None:
        """See `Pending`."""

    def on_rewritten(self, responses: Responses, kind: Kind, length: int) -> None:
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
            if len(tail) > MAX_TAIL_BYTES:  # kept while its request is in flight, so without a long header
                kind = Kind(replace(header, client_id=""), b"", handler, counter)
                kind.key = _NO_KEY
                return kind
            kind = Kind(header, tail, handler, counter)
            if len(self._known) >= MAX_KINDS:
                self._known.clear()
            self._known[key] = kind
        return kind
