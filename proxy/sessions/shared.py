"""What all sessions of one proxy share."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.request_header import RequestHeader
from proxy.brokers.nodes import Nodes
from proxy.brokers.upstream import Upstream
from proxy.config.config import Config
from proxy.observability.logs import RateLimited
from proxy.observability.metrics import Metrics
from proxy.sessions.buffers import Buffers
from proxy.sessions.request_kind import RequestKind
from proxy.sessions.throttling import Throttling
from proxy.sessions.topics import Topics
from quotas.registry.registry import Registry

if TYPE_CHECKING:
    from proxy.sessions.connection_gate import ConnectionGate
    from proxy.sessions.session import Session

ANONYMOUS = "ANONYMOUS"
"""Kafka's name for a client that did not authenticate."""

#: Different request heads that are remembered; a client that invents a client id for each request costs only itself.
MAX_REQUEST_KINDS = 4_096


@dataclass(slots=True, eq=False)
class Shared:
    """The proxy's parts as a session sees them. ``clock`` returns monotonic nanoseconds."""

    loop: AbstractEventLoop
    clock: Callable[[], int]
    config: Config
    metrics: Metrics
    buffers: Buffers
    registry: Registry
    throttling: Throttling
    nodes: Nodes
    topics: Topics
    upstream: Upstream
    lines: RateLimited
    gate: "ConnectionGate" = field(init=False)
    kinds: dict[tuple[int, int, bytes], RequestKind] = field(default_factory=dict)
    sessions: "set[Session]" = field(default_factory=set)
    #: Called after each session that closes, while the proxy drains.
    on_session_closed: Callable[[], None] | None = None

    def kind_of(self, header: RequestHeader, tail: bytes) -> RequestKind:
        """The one RequestKind for this head."""
        key = (header.api.key, header.version, tail)
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) >= MAX_REQUEST_KINDS:
                self.kinds.clear()
            cell = self.metrics.request_cell(header.api.name, header.version)
            kind = RequestKind(header, tail, cell, self.config.socket_request_max_bytes)
            self.kinds[key] = kind
        return kind
