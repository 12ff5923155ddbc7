"""One client connection and its broker connection, as both directions see it, and what all connections share."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from protocol.api_versions import ClientSoftware
from protocol.errors import LoginRequired
from protocol.sasl import Exchange
from proxy.brokers.nodes import Nodes
from proxy.brokers.topics import Topics
from proxy.config.config import Config
from proxy.enforcement.identity import Identity
from proxy.enforcement.throttle_actions import ThrottleActions
from proxy.observability.groups import Groups
from proxy.observability.metrics import Metrics
from proxy.streams.memory import READ_SIZE, Holding, MemoryPool
from proxy.streams.observer import Observer
from proxy.streams.topic_charges import TopicChargesCache
from quotas.entity import AnyEntity
from quotas.registry.registry import Registry
from quotas.stored.record import Record
from quotas.stored.table import Table


@dataclass(slots=True, eq=False)
class Context:
    """What all connections of a proxy share."""

    config: Config
    metrics: Metrics
    registry: Registry
    memory: MemoryPool
    nodes: Nodes
    topics: Topics
    actions: ThrottleActions
    groups: Groups = field(default_factory=Groups)
    quota_api: "QuotaApi | None" = None
    """What Kafka's quota API shows and changes; None: there is no topic of quotas."""


class QuotaApi(Protocol):
    """The topic of quotas, as requests see it.

    is_read   it was read to its end at least once
    table     what was read last
    """

    @property
    def is_read(self) -> bool: ...

    @property
    def table(self) -> Table: ...

    def submit(
        self, decide: Callable[[Mapping[AnyEntity, Record]], Sequence[Record]], done: Callable[[str], None]
    ) -> None:
        """Write what `decide` makes of the records. Then calls `done`, never at once, with "" if that is in force here,
        or else with the reason.
        """

    def compute(self, work: Callable[[], bytes], done: Callable[[bytes], None]) -> None:
        """Call `work` in a thread, then `done` with its result: describing 10,000 entities takes 0.3 s."""


@final
class Connection:
    """What both streams of a connection share.

    max_in_flight     `--max-pending-requests`: how many requests may wait for their response. 0 while the proxy or the
                      client logs in, so that no frame begins
    held_until_ns     when the disk guard gives up holding its Produce request; 0: it does not
    exchange          the client's SASL exchange; None: it has not begun, or is not read
    topics            what the topics of its Produce requests are charged to; None: none has been parsed
    refused           the batches that were refused, which only `handlers.reject` uses
    is_closing        the connection drains, or the client has gone, so no frame begins that has a response
    takes_requests    whether a request may begin to pass: not while closing, nor while the proxy's own responses take
                      too much memory
    sent_unanswered   a request without a response (acks=0) has been forwarded, and the broker may not have read it yet
    has_share_session
                      a ShareFetch has been forwarded. When the connection ends, the broker gives the records of its
                      member to others, and refuses their acknowledgements
    broker            the broker's address; "" before it is connected
    last_batch        the size of the latest Fetch response, if its first batch exceeded its `max_bytes`; otherwise 0
    needs_session     the session has something to do other than moving bytes: see `Session.after_step`
    is_negotiated     the broker has answered ApiVersions
    software          the software that the client named in ApiVersions
    observer          receives each event of its requests
    ends_telemetry    the proxy answers clients that push metrics; otherwise these requests are forwarded
    """

    __slots__ = (
        "broker",
        "context",
        "ends_telemetry",
        "exchange",
        "has_share_session",
        "held_until_ns",
        "identity",
        "is_closing",
        "is_negotiated",
        "last_batch",
        "max_in_flight",
        "needs_session",
        "observer",
        "refused",
        "sent_unanswered",
        "software",
        "takes_requests",
        "topics",
    )

    def __init__(self, context: Context, identity: Identity) -> None:
        self.context = context
        self.identity = identity
        self.max_in_flight = context.config.security.max_pending_requests
        self.is_closing = False
        self.takes_requests = True
        self.sent_unanswered = False
        self.has_share_session = False
        self.last_batch = self.held_until_ns = 0
        self.broker = ""
        self.needs_session = False
        self.is_negotiated = False
        self.software = ClientSoftware()
        self.ends_telemetry = False
        self.topics: TopicChargesCache | None = None
        self.refused: object | None = None
        self.exchange: Exchange | None = None
        self.observer = Observer(identity, context.actions, context.metrics.clock_ns())

    def check_login(self) -> None:
        """Raises LoginRequired for clients that could use up limits without a login. `--principal` reads no login."""
        config, exchange = self.context.config, self.exchange
        is_read = config.upstream.clients_log_in and config.quotas.principal is None
        if is_read and (exchange is None or not exchange.has_ended):
            raise LoginRequired

    def close(self) -> None:
        """From now on, begin no frame that has a response."""
        self.is_closing = True
        self.takes_requests = False


class Stream:
    """One direction of a connection, which turns bytes into steps (see `proxy.streams.steps`).

    buf         the shared read buffer
    want        how many bytes the next read may take
    remaining   how many bytes of the current frame have not been forwarded
    taken_ns    when its latest bytes were examined
    holding     what this direction keeps in memory, which the pump updates
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
    def next_step(self, pos: int, end: int, now_ns: int) -> int:
        """The next step for the bytes ``buf[pos:end]``. Raises ProtocolError if the connection must be closed."""

    def whole(self, pos: int, end: int, length: int) -> bytes:
        """The frame of `length` bytes at `pos`, without its length field. Empty if it is incomplete: return `NEED`."""
        missing = pos + 4 + length - end
        if missing > 0:
            self.want = missing
            return b""
        return bytes(self.buf[pos + 4 : pos + 4 + length])
