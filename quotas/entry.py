"""One configured quota, from a flag or the quotas file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from quotas.entity import AnyEntity
from quotas.limit_kinds import CONNECTIONS
from quotas.limit_options import NO_OPTIONS, LimitOptions
from quotas.resource_groups import ResourceGroup


@dataclass(frozen=True, slots=True)
class QuotaEntry:
    """The limits and options of one entity.

    entity      the scope; names may be `DEFAULT`
    limits      name (see `quotas.limit_kinds`) to rate in units per second (`connections`, `producer_ids_rate`: a
                number), exact, before any share
    options     what it says about them besides
    group       the members, if the entity is a resource group
    unlimited   the names of limits that it lifts: weaker entries that match do not apply. A limit, or one of these
    host        the host name, as written, that the address of an `ip` was found by; "" for every other entry
    line        where it begins in its file; 0: it does not come from a file
    """

    entity: AnyEntity
    limits: Mapping[str, int | Fraction] = field(hash=False)
    options: LimitOptions = NO_OPTIONS
    group: ResourceGroup | None = None
    unlimited: tuple[str, ...] = ()
    host: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def has_buckets(self) -> bool:
        """Whether those that it matches have a limit in use: connections at a time are counted without one."""
        return not self.limits.keys() <= {CONNECTIONS}
