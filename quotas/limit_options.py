"""The options of a quota entry: one object from the entry to its limits, so that a new option is added in one place."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from quotas.exemption import Exemption
from quotas.limit_kinds import PRODUCER_BYTE_RATE
from quotas.time_units import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Yields:
    """That the `producer_byte_rate` of a resource group moves: its clients use what the protected ones leave.

    least        bytes per second that it never falls below; its rate is the upper bound
    target_ns    what the responses to Produce requests of protected clients should take at most
    group        the resource group of the protected clients; "": they are those of `clients`
    clients      patterns of the protected clients
    is_observed  the rate is the upper bound, and what would be set is only shown
    """

    least: int
    target_ns: int
    group: str = ""
    clients: Exemption = field(default_factory=Exemption)
    is_observed: bool = False

    @property
    def to(self) -> str:
        """The protected clients, as in a SPEC."""
        return f"resource-group:{self.group}" if self.group else str(self.clients)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What an entry says about its limits besides their rates.

    mode            throttle mode, None: the proxy's
    algorithm       None: the proxy's
    burst_seconds   the bucket's size as seconds of the rate, exact; None: the registry's
    exempt          the clients that its limits neither charge nor hold, or None
    rejects         whether records over its limits on topics are refused (`action`), where clients can handle it. None:
                    not said; thresholds refuse then, rates do not
    is_per_process  its limits apply to this process alone, even in a fleet (`scope=process`)
    request_cost    bytes that its `producer_byte_rate` charges for each request at least; 0: what the request has
    yields          its `producer_byte_rate` moves; None: no rate does
    """

    mode: str | None = None
    algorithm: str | None = None
    burst_seconds: int | Fraction | None = None
    exempt: Exemption | None = None
    rejects: bool | None = None
    is_per_process: bool = False
    request_cost: int = 0
    yields: Yields | None = None

    @property
    def burst_ns(self) -> int | None:
        """The size of the bucket in nanoseconds of the rate, rounded down."""
        return None if self.burst_seconds is None else int(self.burst_seconds * NS_PER_SECOND)

    def moving(self, name: str) -> Yields | None:
        """How the limit of this name moves; None: it does not, or that is only shown."""
        yields = self.yields
        return None if yields is None or yields.is_observed or name != PRODUCER_BYTE_RATE else yields

    def exempts(self, user: str, client_id: str) -> bool:
        """Whether the limits neither charge nor hold this client."""
        return self.exempt is not None and self.exempt.covers(user, client_id)


NO_OPTIONS: Final = LimitOptions()
