"""One client connection and its broker connection, as both directions see them."""

from abc import abstractmethod
from typing import final

from protocol.api_versions import ClientSoftware
from protocol.errors import LoginRequired
from protocol.sasl import Exchange
from proxy.brokers.response_times import ResponseTimer
from proxy.enforcement.identity import NS_PER_MS, Identity, Notice
from proxy.enforcement.report import BOUNDS
from proxy.observability.wait_clock import LIMIT, PROXY, WaitClock, key_of
from proxy.streams.context import Context
from proxy.streams.memory import READ_SIZE, Holding
from proxy.streams.topic_charges import TopicChargesCache


@final
class Connection:
    """What both streams share.

    max_in_flight     `--max-pending-requests`: requests that are forwarded before the first of them has its response;
                      0 while the proxy or the client logs in: no frame begins
    exchange          SASL of the client; None: it has not begun, or is not read
    topics            what the topics of its Produce requests are charged to; None: none was parsed
    refused           a slot for `handlers.reject`, which alone reads it: batches that were refused
    is_closing        draining, or the client has gone: no frame begins that has a response
    takes_requests    a request may begin to pass: not while closing, or while the proxy's own responses take too much
                      memory
    sent_unanswered   a request without a response (acks=0) has been forwarded: the broker may not have read it yet
    has_share_session
                      a ShareFetch has been forwarded: the broker gives the records of its member to others, and refuses
                      their acknowledgements, once the connection ends
    broker            address of the broker; "" before it is connected
    last_batch        bytes of the latest Fetch response, if its first batch was above its `max_bytes`; else 0
    needs_session     the session has something to do besides the bytes: see `Session.after_step`
    is_negotiated     the broker has answered ApiVersions
    software          of the client, as it named it in ApiVersions
    waits             where its time goes
    timer             samples the broker's responses
    ends_telemetry    the proxy answers what clients push of their metrics; else they pass
    """

    __slots__ = (
        "broker",
        "context",
        "ends_telemetry",
        "exchange",
        "has_share_session",
        "identity",
        "is_closing",
        "is_negotiated",
        "last_batch",
        "max_in_flight",
        "needs_session",
        "refused",
        "sent_unanswered",
        "software",
        "takes_requests",
        "timer",
        "topics",
        "waits",
    )

    def __init__(self, context: Context, identity: Identity) -> None:
        self.context = context
        self.identity = identity
        self.max_in_flight = context.config.security.max_pending_requests
        self.is_closing = False
        self.takes_requests = True
        self.sent_unanswered = False
        self.has_share_session = False
        self.last_batch = 0
        self.broker = ""
        self.needs_session = False
        self.is_negotiated = False
        self.software = ClientSoftware()
        self.ends_telemetry = False
        self.topics: TopicChargesCache | None = None
        self.refused: object | None = None
        self.exchange: Exchange | None = None
        self.waits = WaitClock(context.metrics.clock_ns())
        self.timer = ResponseTimer()

    def check_login(self) -> None:
        """Raises LoginRequired: else clients that never log in could use limits up. `--principal` reads no login."""
        config, exchange = self.context.config, self.exchange
        is_read = config.upstream.clients_log_in and config.quotas.principal is None
        if is_read and (exchange is None or not exchange.has_ended):
            raise LoginRequired

    def tell(self, notice: Notice, now_ns: int) -> int:
        """The throttle time in ms of a response that is written now: the client keeps it. 0: none."""
        throttle_ms, identity = notice.throttle_time_ms(now_ns), self.identity
        wait_ns = throttle_ms * NS_PER_MS
        if identity.least_notice_ns and throttle_ms:
            if now_ns < identity.told_until_ns or self.context.measures.is_untold(identity, notice.limit, wait_ns):
                return 0
            identity.told_until_ns = now_ns + wait_ns
        if throttle_ms:
            state, key = LIMIT, key_of(notice.limit)
            if key is None:
                state, key = PROXY, BOUNDS.get(notice.reason)
            self.waits.told(state, key, now_ns + wait_ns)
        return throttle_ms

    def told_by_broker(self, throttle_ms: int, now_ns: int) -> None:
        """A response contains a throttle time of the broker, for a quota of its own."""
        self.timer.muted_ns = now_ns + throttle_ms * NS_PER_MS
        self.waits.muted(now_ns, self.timer.muted_ns)
        self.context.measures.report.broker_throttled(self.identity.client, throttle_ms, now_ns)

    def close(self) -> None:
        """Begin no frame from now on that has a response."""
        self.is_closing = True
        self.takes_requests = False


class Stream:
    """One direction of a connection: turns bytes into steps (see `proxy.streams.steps`).

    buf         the shared read buffer
    want        bytes that the next read may take
    remaining   bytes of the current frame that have not been forwarded
    taken_ns    when its latest bytes were looked at
    holding     what this direction keeps in memory; the pump updates it
    output, resume_at
                operands of steps
    """

    __slots__ = ("buf", "connection", "holding", "output", "remaining", "resume_at", "taken_ns", "want")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.buf = connection.context.memory.data
        self.holding = Holding()
        self.want = READ_SIZE
        self.remaining = 0
        self.output = b""
        self.resume_at = 0
        self.taken_ns = 0

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
