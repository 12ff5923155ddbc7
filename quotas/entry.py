"""One configured quota, from a flag or the quotas file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from quotas.entity import AnyEntity
from quotas.exemption import Exemption
from quotas.limit_kinds import CONNECTIONS
from quotas.resource_groups import ResourceGroup


@dataclass(frozen=True, slots=True)
class QuotaEntry:
    """The limits and options of one entity.

    entity          the scope; names may be `DEFAULT`
    limits          name (see `quotas.limit_kinds`) to rate in units per second (`connections`, `producer_ids_rate`: a
                    number), exact, before any share
    mode            throttle mode of this entity, None: the proxy's
    algorithm       None: the proxy's
    burst_seconds   the bucket's size as seconds of the rate, None: the registry's
    group           the members, if the entity is a resource group
    unlimited       the names of limits that it lifts: weaker entries that match do not apply. A limit, or one of these
    exempt          the clients that its limits neither charge nor hold, or None
    rejects         whether records over its limits on topics are refused (`action`), where clients can handle it. None:
                    not said; thresholds refuse then, rates do not
    is_per_process  its limits apply to this process by itself, in a fleet, too
    host            the host name, as written, that the address of an `ip` was found by; "" for every other entry
    line            where it begins in its file; 0: it is not of a file
    """

    entity: AnyEntity
    limits: Mapping[str, int | Fraction] = field(hash=False)
    mode: str | None = None
    algorithm: str | None = None
    burst_seconds: int | Fraction | None = None
    group: ResourceGroup | None = None
    unlimited: tuple[str, ...] = ()
    exempt: Exemption | None = None
    rejects: bool | None = None
    is_per_process: bool = False
    host: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def has_buckets(self) -> bool:
        """Whether those that it matches have a limit in use: connections at a time are counted without one."""
        return not self.limits.keys() <= {CONNECTIONS}
