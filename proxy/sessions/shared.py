"""What all sessions of one proxy share, and where a client comes from."""

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass

from proxy.brokers.health import Health
from proxy.brokers.upstream import Upstream
from proxy.config.client_settings import LoginSettings
from proxy.sessions.faults import Faults
from proxy.sessions.pump import PumpSet
from proxy.sessions.wakeups import Wakeups
from proxy.sessions.wire import Wire
from proxy.streams.context import Context
from proxy.streams.kinds import Kinds


@dataclass(frozen=True, slots=True)
class Origin:
    """Address of a client, and the names of the `listener` that it connected to. `header_ns`: how long its PROXY header
    took.
    """

    ip: str
    port: int
    listener: tuple[str, ...]
    header_ns: int = 0


@dataclass(slots=True, eq=False)
class Shared:
    """The proxy's parts as a session sees them.

    clock            monotonic nanoseconds
    login            the proxy's own, as its file is now
    principal_of     the user that a client's certificate names
    wire_to_client   makes the wire of an accepted connection, plaintext or TLS
    wire_to_broker   the same of a connection to a broker, with its host
    """

    loop: AbstractEventLoop
    clock: Callable[[], int]
    context: Context
    kinds: Kinds
    pumps: PumpSet
    wakeups: Wakeups
    upstream: Upstream
    faults: Faults
    health: Health
    login: Callable[[], LoginSettings | None]
    principal_of: Callable[[bytes], str | None]
    wire_to_client: Callable[[socket.socket], Wire]
    wire_to_broker: Callable[[socket.socket, str], Wire]
