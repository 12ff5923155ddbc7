"""The state of one connection pair, and the base of its two streams."""

from abc import abstractmethod
from collections import deque
from typing import Final, final

from protocol.errors import LoginRequired
from protocol.sasl import Exchange
from protocol.throttle_time import INT32
from protocol.walk import FrameWalk
from proxy.enforcement.data_frame import DataFrame, Life
from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.streams.context import Context
from proxy.streams.fetch_ledger import Fetching
from proxy.streams.memory import READ_SIZE, Holding
from proxy.streams.produce_usage import ProduceUsage

#: Size of one read until the first request is complete: not `READ_SIZE`, for which most steps leave `want` as it is.
FIRST_READ_SIZE: Final = READ_SIZE - 1
#: Bytes of the proxy's own responses that wait for earlier ones: with more, no request of the connection passes.
MAX_OWED_BYTES: Final = 65_536


class Pending:
    """A request in flight: an `Answer`, or an `Awaited` response of the broker's.

    unseen            its response is forwarded without parsing while no throttle time is due
    produce_version   of a Produce request whose response is only changed for throttle times and endpoints; else -1
    """

    __slots__ = ()

    unseen = False
    produce_version = -1

    def cancel(self, now_ns: int) -> None:
        """The connection is closed: no response arrives."""


@final
class Answer(Pending):
    """A response of the proxy's own. It is sent after all earlier responses.

    frame         with the length in front
    throttle_at   offset in it of the throttle time of data responses, which is set when it is sent; 0: it has none
    """

    __slots__ = ("frame", "throttle_at")

    def __init__(self, frame: bytes, throttle_at: int = 0) -> None:
        self.frame = frame
        self.throttle_at = throttle_at


InFlight = deque[tuple[int, Pending]]
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
    needs_session     the session has something to do besides the bytes: see `Session.after_step`
    is_negotiated     the broker has answered ApiVersions
    """

    __slots__ = (
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
        "needs_session",
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
        self.needs_session = False
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

    def answer(self, correlation_id: int, response: bytes, throttle_at: int = 0) -> None:
        """Queue a response of the proxy's own, which is given from its correlation id on: see `Answer`."""
        frame = INT32.pack(len(response)) + response
        self.in_flight.append((correlation_id, Answer(frame, throttle_at)))
        self.owe(len(frame))
        self.needs_session = True

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
        for _, pending in self.in_flight:
            pending.cancel(now_ns)
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

    def whole(self, pos: int, end: int, length: int) -> bytes:
        """The frame of `length` bytes at `pos`, without its length field. Empty: return `NEED`, the rest is wanted."""
        missing = pos + 4 + length - end
        if missing > 0:
            self.want = missing
            return b""
        return bytes(self.buf[pos + 4 : pos + 4 + length])
