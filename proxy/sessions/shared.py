"""What all sessions of one proxy share, and the address from which a client comes."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass

from proxy.background.host import Host
from proxy.brokers.health import Health
from proxy.brokers.upstream import Upstream
from proxy.files.tls import TlsContexts
from proxy.observability.response_times import BrokerTimes
from proxy.sessions.faults import Faults
from proxy.sessions.pump_set import PumpSet
from proxy.sessions.tls_wire import Wires
from proxy.sessions.wakeups import Wakeups
from proxy.streams.connection import Context
from proxy.streams.request import Kinds


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """The address of a client, and the names of the `listener` that it connected to. `header_ns`: how long its PROXY
    header took to arrive.
    """

    ip: str
    port: int
    listener: tuple[str, ...]
    header_ns: int = 0


@dataclass(slots=True, eq=False)
class Shared:
    """The parts of the proxy that sessions use. `clock`: the host's clock."""

    loop: AbstractEventLoop
    host: Host
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
