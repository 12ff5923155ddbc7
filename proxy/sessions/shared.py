"""What all sessions of one proxy share, and where a client comes from."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass

from proxy.brokers.health import Health
from proxy.brokers.response_times import BrokerTimes
from proxy.brokers.upstream import Upstream
from proxy.sessions.faults import Faults
from proxy.sessions.pump_set import PumpSet
from proxy.sessions.tls_wire import Wires
from proxy.sessions.wakeups import Wakeups
from proxy.streams.context import Context
from proxy.streams.request import Kinds
from proxy.tls import TlsContexts


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """Address of a client, and the names of the `listener` that it connected to. `header_ns`: how long its PROXY header
    took.
    """

    ip: str
    port: int
    listener: tuple[str, ...]
    header_ns: int = 0


@dataclass(slots=True, eq=False)
class Shared:
    """The proxy's parts as a session sees them. `clock` returns monotonic nanoseconds."""

    loop: AbstractEventLoop
    clock: Callable[[], int]
    context: Context
    kinds: Kinds
    pumps: PumpSet
    wakeups: Wakeups
    upstream: Upstream
    faults: Faults
    health: Health
    brokers: BrokerTimes
    tls: TlsContexts
    wires: Wires
