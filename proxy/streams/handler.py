"""Handlers, and what they call on the streams of a connection: the base of handlers, and of both streams."""

from abc import abstractmethod
from functools import lru_cache
from struct import Struct
from typing import Final, final

from protocol.apis import PRODUCE
from protocol.errors import MalformedFrame
from protocol.request_header import RequestHeader
from protocol.rewriting_walk import RewritingWalk
from protocol.throttle_time import clients_wait
from protocol.walk import FrameWalk
from proxy.enforcement.holds import Delay
from proxy.enforcement.measures import Reply
from proxy.observability.tallies import Cell
from proxy.streams.connection import FIRST_READ_SIZE, Connection, InFlight, Pending, Stream
from proxy.streams.context import Context
from proxy.streams.memory import READ_SIZE, ResponseTooLarge
from proxy.streams.steps import DELAY_RESPONSE, DRAINED, FULL, NEED, PASS, PIECES_PER_STEP, REPLACE, YIELD

#: Size of one read of a response that is rebuilt: bounds what one turn leaves unparsed.
REWRITING_READ_SIZE: Final = 65_536
#: Size of one read after a response was delayed: bounds what the next delay keeps in memory.
DELAYED_READ_SIZE: Final = 16_384

_length = Struct(">i").pack
_layout = lru_cache(maxsize=1024)(lambda tail_size: Struct(f">iii{tail_size}s").unpack_from)


class Awaited(Pending):
    """What a request in flight keeps for the response of the broker. `handler`: reads it."""

    __slots__ = ("handler",)

    def __init__(self, handler: "Handler") -> None:
        self.handler = handler


@final
class Delayed(Awaited):
    """A request in flight whose response is delayed. `awaited`: handles the response."""

    __slots__ = ("awaited", "delay")

    def __init__(self, awaited: Awaited, delay: Delay) -> None:
        super().__init__(awaited.handler)
        self.awaited = awaited
        self.delay = delay

    def cancel(self, now_ns: int) -> None:
        self.awaited.cancel(now_ns)


def _delay_at(at: int, in_flight: InFlight, delay: Delay) -> None:
    """Delay the response to this request in flight; answers are not delayed."""
    correlation_id, awaited = in_flight[at]
    if isinstance(awaited, Delayed):
        awaited.delay = delay
    elif isinstance(awaited, Awaited):
        in_flight[at] = (correlation_id, Delayed(awaited, delay))


class Requests(Stream):
    """From client to broker: what a handler sees of its stream.

    kind         of the latest request
    awaited      set by a handler: what handles the response to the current request, where that is not its kind
    walked_to    set by a handler with `walk`: where the rest begins that it has not read
    near_limit   the last data request was close to its limit, or over it
    is_dropping  the bytes of the current frame are discarded
    is_counted   the current frame was counted as throttled, for its hold or its notice
    delay        of its response, until it is in flight
    full_read    `want` far from any limit: less until the first request is complete
    """

    __slots__ = ("awaited", "delay", "full_read", "is_counted", "is_dropping", "kind", "near_limit", "walked_to")

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.kind: RequestKind | None = None
        self.awaited: Awaited | None = None
        self.walked_to = 0
        self.near_limit = False
        self.is_dropping = False
        self.is_counted = False
        self.delay: Delay | None = None
        self.want = self.full_read = FIRST_READ_SIZE

    @property
    def has_request(self) -> bool:
        """Whether a complete request has passed."""
        return self.full_read == READ_SIZE

    def delay_latest(self, delay: Delay) -> None:
        """Delay the response to the latest request, which is in flight."""
        self.delay = None
        if self.connection.in_flight:
            _delay_at(-1, self.connection.in_flight, delay)

    def full(self) -> int:
        """The step where no request may pass now."""
        return DRAINED if self.connection.is_closing else FULL

    def drop(self, pos: int, end: int, length: int, walk: FrameWalk | None = None) -> None:
        """The request at `pos` is not forwarded: prepare a `REPLACE` by nothing.

        `walk` has read up to `end` and reads the rest: see `Handler.on_walked`.
        """
        frame_end = pos + 4 + length
        self.resume_at = min(end, frame_end)
        self.output, self.walk = b"", walk
        self.remaining = frame_end - self.resume_at
        self.is_dropping = self.remaining > 0
        if self.kind is not None:
            self.kind.counter.value += 1


class Responses(Stream):
    """From broker to client: what a handler sees of its stream, and how it forwards a response.

    current    what the current response answers
    delay      the response at hand is delayed
    has_begun  the broker has sent something; not right after ApiVersions or the proxy's login: it may take no more
    """

    __slots__ = ("_rewriting", "_shown_delay_ms", "_size", "current", "delay", "has_begun", "read_size")

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.current: Awaited | None = None
        self.delay: Delay | None = None
        self.has_begun = False
        #: Size of one read between responses.
        self.read_size = READ_SIZE
        #: The delay of the response at hand, if it contains that.
        self._shown_delay_ms = 0
        #: Rebuilds the current response.
        self._rewriting: RewritingWalk | None = None
        #: Length of the response that is rebuilt, as the broker sends it.
        self._size = 0

    def postpone(self, delay: Delay, now_ns: int) -> int:
        """Delay the response; its request stays in flight. Returns `DELAY_RESPONSE`, or `PASS`: it passes now."""
        connection = self.connection
        context = connection.context
        if not connection.is_over(delay, now_ns) and not context.memory.is_tight:
            self.delay = delay
            self.read_size = DELAYED_READ_SIZE
            _delay_at(0, connection.in_flight, delay)
            return DELAY_RESPONSE
        if delay.is_shown and context.measures.enforces:
            self._shown_delay_ms = delay.throttle_time_ms
        return PASS

    def throttle_ms(self, now_ns: int) -> int:
        """The throttle time for the data response at hand; 0: none."""
        identity = self.connection.identity
        notice_ms = 0
        if identity.notice.until_ns:
            if identity.generation != identity.registry.generation:
                identity.refresh(now_ns)
            notice_ms = identity.notice.throttle_time_ms(now_ns)
        return max(notice_ms, self._shown_delay_ms)

    def begin(self, pos: int, end: int, length: int) -> int:
        """Forward the response at `pos` without parsing it. Returns the step."""
        self.connection.in_flight.popleft()
        frame_end = pos + 4 + length
        passed_to = min(end, frame_end)
        self.remaining = frame_end - passed_to
        return passed_to

    def begin_walk(self, walk: FrameWalk, pos: int, end: int, length: int, now_ns: int) -> int:
        """Forward the response at `pos`; `walk` parses it from its correlation id on. Returns the step."""
        _, awaited = self.connection.in_flight.popleft()
        if isinstance(awaited, Delayed):
            awaited = awaited.awaited
        assert isinstance(awaited, Awaited)  # noqa: S101 - for the type checker: answers have no walk
        self.current = awaited
        self.walk = walk
        self.remaining = length
        passed_to = self._walk_on(walk, pos + 4, end, now_ns)
        return passed_to if passed_to >= 0 else pos + 4

    def begin_rewrite(self, walk: RewritingWalk, kind: "RequestKind", pos: int, end: int, length: int) -> int:
        """`walk` rebuilds the response at `pos`; memory for it is reserved. Returns the step."""
        self.connection.in_flight.popleft()
        self.current = kind
        self._rewriting = walk
        self._size = self.remaining = length
        step = self._rewrite_on(walk, pos + 4, end)
        if step != REPLACE:
            self.output = b""
            self.resume_at = pos + 4
        return REPLACE

    # ---- the rest of a response

    def _walk_on(self, walk: FrameWalk, pos: int, end: int, now_ns: int) -> int:
        """Walk as far as one step may; returns the position up to which the bytes are final."""
        awaited = self.current
        assert awaited is not None  # noqa: S101 - for the type checker: set with the walk
        frame_end = pos + self.remaining
        walk.work_left = PIECES_PER_STEP
        walked_to = walk.advance(self.buf, pos, min(end, frame_end))
        self.remaining = frame_end - walked_to
        awaited.handler.on_walked(self, now_ns)
        if not self.remaining:
            self.walk = self.current = None
            awaited.handler.on_response_end(awaited, now_ns)
            return walked_to
        if walk.work_left > 0:
            if frame_end <= end:
                raise MalformedFrame("a response's last field", self.remaining)
            return walked_to if walked_to > pos else NEED
        return walked_to if walked_to > pos else YIELD

    def _rewrite_on(self, walk: RewritingWalk, pos: int, end: int) -> int:
        """Continue to rebuild a response; when its new beginning is complete, output it."""
        kind = self.current
        assert isinstance(kind, RequestKind)  # noqa: S101 - for the type checker: set with the walk
        walk.work_left = PIECES_PER_STEP
        self.resume_at = walk.advance(self.buf, pos, min(end, pos + self.remaining))
        self.remaining = walk.frame_left
        self.output = b""
        context = self.connection.context
        if walk.is_done:
            self._rewriting = self.current = None
            self.output = _length(len(walk.out) + self.remaining) + walk.out
            context.memory.release(self.holding)
            self.want = READ_SIZE
            kind.handler.after_rewrite(self, kind, self._size)
            if self.walk is not None:
                self.current = kind
            return REPLACE
        if len(walk.out) > context.memory.largest_response:
            raise ResponseTooLarge(kind.header.api.name, self._size, context.memory.largest_response)
        context.memory.grow(self.holding, len(walk.out))
        self.want = REWRITING_READ_SIZE
        if self.resume_at > pos:
            return REPLACE
        return NEED if walk.work_left > 0 else YIELD


class RequestKind(Awaited):
    """Requests with the same API, version and head. Shared by all connections that send such requests.

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
    unseen, produce_version
                see `Pending`
    """

    __slots__ = (
        "answered",
        "api_key",
        "batchable",
        "counter",
        "header",
        "key",
        "needed",
        "produce_version",
        "reply",
        "shortest",
        "tail",
        "unpack",
        "unseen",
        "version",
    )

    def __init__(self, header: RequestHeader, tail: bytes, handler: "Handler", counter: Cell) -> None:
        super().__init__(handler)
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

    def length_at(self, buf: bytearray, pos: int, end: int) -> int:
        """The length field of the request at `pos`, if its head has arrived and is of this kind. Else -1."""
        if end - pos < self.needed:
            return -1
        length: int
        length, key, _, tail = self.unpack(buf, pos)
        return length if key == self.key and tail == self.tail else -1


class Handler:
    """Handles the requests and responses of one treatment. One object for all connections."""

    __slots__ = ("context",)

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
    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        """Decide about the request at `pos`, whose header is in the buffer.

        Returns `PASS`: it is forwarded; `requests.awaited` handles its response, or the kind if that is None. Or a
        step for the pump; after `REPLACE` the request is done.
        """

    @abstractmethod
    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        """The next step for the response of `length` bytes at `pos`; its correlation id is in the buffer.

        A handler that forwards it removes it from the queue: see `Responses.begin`.
        """

    def on_walked(self, stream: Stream, now_ns: int) -> None:
        """The walk over the current frame has advanced, perhaps to its end."""

    def on_response_end(self, awaited: Awaited, now_ns: int) -> None:
        """A response has ended that a walk has parsed."""

    def after_rewrite(self, responses: Responses, kind: RequestKind, length: int) -> None:
        """The new beginning of a response is complete; `responses.remaining` bytes of the broker's follow."""
