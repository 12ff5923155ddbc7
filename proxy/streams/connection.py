"""The state of one connection pair, and the interfaces of streams and handlers."""

from abc import abstractmethod
from collections import deque
from typing import Final, final

from protocol.errors import LoginRequired
from protocol.request_header import PREFIX_SIZE, RequestHeader, unpack_prefix
from protocol.rewriting_walk import RewritingWalk
from protocol.sasl import Exchange
from protocol.throttle_time import INT32, clients_wait
from protocol.walk import FrameWalk
from proxy.enforcement.data_frame import DataFrame, Life
from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.enforcement.measures import Reply
from proxy.observability.tallies import Cell
from proxy.streams.context import Context
from proxy.streams.fetch_ledger import Fetching
from proxy.streams.memory import READ_SIZE, Holding
from proxy.streams.produce_usage import ProduceUsage

#: Size of one read until the first request is complete: not `READ_SIZE`, for which most steps leave `want` as it is.
FIRST_READ_SIZE: Final = READ_SIZE - 1
#: Bytes of the proxy's own responses that wait for earlier ones: with more, no request of the connection passes.
MAX_OWED_BYTES: Final = 65_536


class Awaited:
    """What a request in flight keeps for its response. `handler`: reads the response."""

    __slots__ = ("handler",)

    def __init__(self, handler: "Handler") -> None:
        self.handler = handler

    def cancel(self, now_ns: int) -> None:
        """The connection is closed: no response arrives."""


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


@final
class Answer:
    """A response of the proxy's own. It is sent after all earlier responses.

    frame         with the length in front
    throttle_at   offset in it of the throttle time of data responses, which is set when it is sent; 0: it has none
    """

    __slots__ = ("frame", "throttle_at")

    def __init__(self, frame: bytes, throttle_at: int = 0) -> None:
        self.frame = frame
        self.throttle_at = throttle_at


InFlight = deque[tuple[int, Awaited | Answer]]
"""Correlation id, and what handles the response. Brokers answer the requests of a connection in order."""


class Connection:
    """One client connection and its broker connection, as both streams see them.

    max_in_flight     `--max-pending-requests`: requests that are forwarded before the first of them has its response;
                      0 while the proxy or the client logs in: no frame begins
    exchange          SASL of the client; None: it has not begun, or is not read
    owed              `Answer`s in flight, and what is added to other responses in flight: bytes in memory
    is_closing        draining, or the client has gone: no frame begins
    is_stopped        no request passes now: it is closing, or its own responses take too much memory
    sent_unanswered   a request without a response (acks=0) has been forwarded: the broker may not have read it yet
    attention         the session has something to do besides the bytes: see `Session.attend`
    is_negotiated     the broker has answered ApiVersions
    """

    __slots__ = (
        "attention",
        "context",
        "exchange",
        "fetching",
        "frame",
        "identity",
        "in_flight",
        "is_closing",
        "is_negotiated",
        "is_stopped",
        "max_in_flight",
        "owed",
        "sent_unanswered",
        "usage",
    )

    def __init__(self, context: Context, identity: Identity) -> None:
        self.context = context
        self.identity = identity
        self.fetching = Fetching()
        self.in_flight: InFlight = deque()
        self.max_in_flight = context.config.security.max_pending_requests
        self.owed = Holding()
        self.is_closing = False
        self.is_stopped = False
        self.sent_unanswered = False
        self.attention = False
        self.is_negotiated = False
        #: The current data frame, if it is held or does not arrive whole.
        self.frame: DataFrame | None = None
        #: The content of Produce requests, for clients with limits on it.
        self.usage: ProduceUsage | None = None
        self.exchange: Exchange | None = None

    @property
    def held(self) -> DataFrame | None:
        """The frame that a limit holds, if one does."""
        frame = self.frame
        return frame if frame is not None and frame.state is Life.HELD else None

    @property
    def owed_bytes(self) -> int:
        """Bytes of the proxy's own responses that wait for earlier ones."""
        return self.owed.pending

    @property
    def has_room_again(self) -> bool:
        """Whether enough responses have arrived after a step `FULL`."""
        if self.fetching.is_open and self.identity.limits.fetch.limits and self.context.measures.enforces:
            return False
        return len(self.in_flight) <= self.max_in_flight // 2 and self.owed_bytes <= MAX_OWED_BYTES // 2

    def check_login(self) -> None:
        """Raises LoginRequired: else clients that never log in could use limits up. `--principal` reads no login."""
        config, exchange = self.context.config, self.exchange
        is_read = config.upstream.clients_log_in and config.quotas.principal is None
        if is_read and (exchange is None or not exchange.has_ended):
            raise LoginRequired

    def answer(self, correlation_id: int, frame: bytes, throttle_at: int = 0) -> None:
        """Queue a response of the proxy's own: see `Answer`."""
        self.in_flight.append((correlation_id, Answer(frame, throttle_at)))
        self.owe(len(frame))
        self.attention = True

    def owe(self, size: int) -> None:
        """Count `size` bytes more for a response in flight; a negative size: less."""
        self.context.memory.update(self.owed, 0, self.owed.pending + size, 0)
        self.is_stopped = self.is_closing or self.owed_bytes > MAX_OWED_BYTES

    def is_over(self, delay: Delay, now_ns: int) -> bool:
        """Whether a delay ends now, perhaps early: its limit may have been raised or removed."""
        if now_ns >= delay.until_ns or self.is_closing or not self.context.measures.enforces:
            return True
        limit = delay.limit
        is_paid = not limit.debt_ns(now_ns) and not limit.waiters.waiting
        return is_paid or not self.context.registry.is_in_use(limit)

    def close(self) -> None:
        """Begin no frame from now on."""
        self.is_closing = self.is_stopped = True

    def take_answers(self, now_ns: int) -> bytes:
        """All answers that are due, joined; empty while the oldest request waits for the broker."""
        in_flight = self.in_flight
        due = []
        while in_flight and isinstance(answer := in_flight[0][1], Answer):
            in_flight.popleft()
            frame, at = answer.frame, answer.throttle_at
            if at:
                throttle_ms = self.identity.notice.throttle_time_ms(now_ns)
                frame = frame[:at] + INT32.pack(throttle_ms) + frame[at + 4 :]
            due.append(frame)
        frames = b"".join(due)
        if due:
            self.owe(-len(frames))
        return frames

    def cancel_all(self, now_ns: int) -> None:
        """The connection is closed."""
        for _, awaited in self.in_flight:
            if not isinstance(awaited, Answer):
                awaited.cancel(now_ns)
        self.in_flight.clear()
        self.context.memory.forget(self.owed)
        self.fetching.leave()
        self.identity.leave()


class Stream:
    """One direction of a connection: turns bytes into steps (see `proxy.streams.steps`).

    buf         the shared read buffer
    want        bytes that the next read may take
    remaining   bytes of the current frame that have not been forwarded
    walk        parses the current frame while it is forwarded; None: its bytes are not parsed
    holding     what this direction keeps in memory; the pump updates it
    output, resume_at
                operands of steps
    """

    __slots__ = ("buf", "connection", "holding", "output", "remaining", "resume_at", "walk", "want")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.buf = connection.context.memory.data
        self.holding = Holding()
        self.want = READ_SIZE
        self.remaining = 0
        self.walk: FrameWalk | None = None
        self.output = b""
        self.resume_at = 0

    @abstractmethod
    def take(self, pos: int, end: int, now_ns: int) -> int:
        """The next step for the bytes ``buf[pos:end]``. Raises ProtocolError: close the connection."""


class Requests(Stream):
    """From client to broker: the interface for handlers.

    kind         of the latest request
    awaited      set by a handler: what handles the response to the current request, where that is not its kind
    walked_to    set by a handler with `walk`: where the rest begins that it has not read
    near_limit   the last data request was close to its limit, or over it
    is_counted   the current frame was counted as throttled, for its hold or its notice
    delay        of its response, until it is in flight
    full_read    `want` far from any limit: less until the first request is complete
    """

    __slots__ = ("awaited", "delay", "full_read", "is_counted", "kind", "near_limit", "walked_to")

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.kind: RequestKind | None = None
        self.awaited: Awaited | None = None
        self.walked_to = 0
        self.near_limit = False
        self.is_counted = False
        self.delay: Delay | None = None
        self.want = self.full_read = FIRST_READ_SIZE

    @property
    def has_request(self) -> bool:
        """Whether a complete request has passed."""
        return self.full_read == READ_SIZE

    def end_first(self) -> None:
        """The first request is complete."""
        self.full_read = READ_SIZE

    def delay_latest(self, delay: Delay) -> None:
        """Delay the response to the latest request, which is in flight."""
        self.delay = None
        in_flight = self.connection.in_flight
        if in_flight:
            correlation_id, awaited = in_flight[-1]
            if isinstance(awaited, Delayed):
                awaited.delay = delay
            elif isinstance(awaited, Awaited):
                in_flight[-1] = (correlation_id, Delayed(awaited, delay))

    @abstractmethod
    def full(self) -> int:
        """The step where no request may pass now."""

    @abstractmethod
    def drop(self, pos: int, end: int, length: int) -> None:
        """The request at `pos` is not forwarded: prepare a `REPLACE` by nothing."""

    @abstractmethod
    def drop_walked(self, walk: FrameWalk, pos: int, walked_to: int, length: int) -> None:
        """As `drop`; `walk` has read up to `walked_to` and reads the rest. `Handler.on_dropped` follows at its end."""


class Responses(Stream):
    """From broker to client: the interface for handlers.

    current    what the current response answers
    delay      the response at hand is delayed
    has_begun  the broker has sent something; not right after ApiVersions or the proxy's login: it may take no more
    """

    __slots__ = ("current", "delay", "has_begun")

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.current: Awaited | None = None
        self.delay: Delay | None = None
        self.has_begun = False

    @abstractmethod
    def postpone(self, delay: Delay, now_ns: int) -> int:
        """Delay the response; its request stays in flight. Returns `DELAY_RESPONSE`, or `PASS`: it passes now."""

    @abstractmethod
    def throttle_ms(self, now_ns: int) -> int:
        """The throttle time for the data response at hand; 0: none."""

    @abstractmethod
    def begin(self, pos: int, end: int, length: int) -> int:
        """Forward the response at `pos` without parsing it. Returns the step."""

    @abstractmethod
    def begin_walk(self, walk: FrameWalk, pos: int, end: int, length: int, now_ns: int) -> int:
        """Forward the response at `pos`; `walk` parses it from its correlation id on. Returns the step."""

    @abstractmethod
    def begin_rewrite(self, walk: RewritingWalk, kind: "RequestKind", pos: int, end: int, length: int) -> int:
        """`walk` rebuilds the response at `pos`; memory for it is reserved. Returns the step."""


class RequestKind(Awaited):
    """Requests with the same API, version and head. Shared by all connections that send such requests.

    header      the parsed header of the first one
    key         API key and version, as one int32 of the wire
    tail        the header's bytes from the client id's length on
    size        where the tail ends, from the frame's start; `needed`: bytes that must be in the buffer
    shortest    length of the shortest such request, without the length field
    answered    whether the broker responds: not to Produce with acks=0
    reply       what the response to a data request can do against debt
    batchable   whether such requests pass without a decision each while the limits have room for all
    counter     of requests, for metrics
    """

    __slots__ = (
        "answered",
        "api_key",
        "batchable",
        "counter",
        "header",
        "key",
        "needed",
        "reply",
        "shortest",
        "size",
        "tail",
        "version",
    )

    def __init__(self, header: RequestHeader, tail: bytes, handler: "Handler", counter: Cell) -> None:
        super().__init__(handler)
        self.header = header
        self.api_key = header.api.key
        self.version = header.version
        self.key = header.api.key << 16 | header.version
        self.tail = tail
        self.size = header.size
        self.needed = header.needed
        self.shortest = header.needed - 4
        self.answered = header.acks != 0
        waited_for = clients_wait(header.api.key, header.version)
        self.reply = Reply.NONE if not self.answered else Reply.NOTICE if waited_for else Reply.LATE
        self.counter = counter
        self.batchable = handler.batches(self)

    def length_at(self, buf: bytearray, pos: int, end: int) -> int:
        """The length field of the request at `pos`, if its head has arrived and is of this kind. Else -1."""
        if end - pos < self.needed:
            return -1
        length: int
        length, key, _ = unpack_prefix(buf, pos)
        return length if key == self.key and buf.startswith(self.tail, pos + PREFIX_SIZE) else -1


class Handler:
    """Handles the requests and responses of one treatment. One object for all connections."""

    __slots__ = ("context",)

    #: Whether responses are forwarded without parsing while no throttle time is due.
    unseen = False
    #: Whether requests belong to a client id: not those before and beside a login, or each client would begin with an
    #: entity of user ANONYMOUS.
    identifies = True

    def __init__(self, context: Context) -> None:
        self.context = context

    def batches(self, kind: RequestKind) -> bool:
        """Whether consecutive requests of this kind may pass without a decision each."""
        return False

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

    def on_dropped(self, requests: Requests, kind: RequestKind, now_ns: int) -> None:
        """A request has ended that was dropped and walked."""

    def on_response_end(self, awaited: Awaited, now_ns: int) -> None:
        """A response has ended that a walk has parsed."""

    def after_rewrite(self, responses: Responses, kind: RequestKind, length: int) -> None:
        """The new beginning of a response is complete; `responses.remaining` bytes of the broker's follow."""
