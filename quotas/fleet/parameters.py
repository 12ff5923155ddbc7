"""Times and sizes that all members of a fleet have in common, and the two that each may choose."""

from dataclasses import dataclass
from typing import Final

from quotas.time_units import NS_PER_MS, NS_PER_SECOND

WHOLE: Final = 1_000_000
"""A quota without its floors, in parts: caps, wants and uses are parts of it."""
REPEATS_ABOVE: Final = 200
"""Members. Fleets that may have more do not work with versions that cannot repeat."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """All members of a fleet must have the same `ttl_ns`, `clock_error_ppm` and `margin_ns`: the bound rests on them.

    max_members        each member has a floor: its share of the reserve for this many members
    shares_fallback    what a member without a lease may use: quota / max_members (True) or its floor (False)
    ttl_ns             how long a record allows its author a use; longer than a restart of a broker
    clock_error_ppm    the largest error of the rate of a member's clock
    margin_ns          for the time between reading the clock and using the result
    floors_ppm         the fraction of a quota that is reserved for floors
    default_floors_ppm the same for the names that a `<default>` entity stands for: larger, so that most of them never
                       enter the log
    """

    max_members: int = 100
    shares_fallback: bool = True
    ttl_ns: int = 15 * NS_PER_SECOND
    clock_error_ppm: int = 10_000
    margin_ns: int = 300 * NS_PER_MS
    floors_ppm: int = 20_000
    default_floors_ppm: int = 200_000

    @property
    def lease_ns(self) -> int:
        """How long a lease lasts after its record was sent: at most `ttl_ns` of true time, even by a slow clock."""
        return self.ttl_ns * (WHOLE - self.clock_error_ppm) // WHOLE

    @property
    def overdue_ns(self) -> int:
        """The silence after which all leases of a member have expired: `ttl_ns` of true time, even by a fast clock.
        15.6 s.
        """
        return self.ttl_ns * (WHOLE + self.clock_error_ppm) ** 2 // WHOLE**2 + self.margin_ns

    @property
    def repeats(self) -> bool:
        """Whether the fleet is so large that members repeat their statements: see `repeats`."""
        return self.max_members > REPEATS_ABOVE

    @property
    def restate_ns(self) -> int:
        """A member advertises all of its caps this often, so that two records may be lost. In a large fleet, it does so
        more rarely, and tries again at once if it has not read them back.
        """
        return self.ttl_ns * 3 // 5 if self.repeats else self.ttl_ns // 3

    @property
    def explicit_ns(self) -> int:
        """In a large fleet a member advertises each statement in full this often, instead of repeating it."""
        return 7 * self.ttl_ns

    @property
    def history_ns(self) -> int:
        """How much of the log a new member must have read, by the broker's clock, to use its quota at once. In a large
        fleet, all that is repeated was advertised in full within that time.
        """
        return (9 if self.repeats else 3) * self.ttl_ns
