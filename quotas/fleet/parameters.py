"""Times and sizes that all members of a fleet have in common, and the two that each may choose."""

from dataclasses import dataclass
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000

WHOLE: Final = 1_000_000
"""A quota without its floors, in parts: caps, wants and uses are parts of it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """All members of a fleet must have the same `ttl_ns`, `clock_error_ppm` and `margin_ns`: the bound rests on them.

    max_members        each member has a floor: its part of what is set aside for this many
    shares_fallback    what a member without a lease may use: quota / max_members (True) or its floor (False)
    ttl_ns             how long a record allows its author a use; longer than a restart of a broker
    clock_error_ppm    the largest error of the rate of a member's clock
    margin_ns          for the time between a look at the clock and what it is used for
    floors_ppm         the part of a quota that is set aside for floors
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
        """How long a use lasts after its record was sent: at most `ttl_ns` of true time, by a clock that is slow."""
        return self.ttl_ns * (WHOLE - self.clock_error_ppm) // WHOLE

    @property
    def overdue_ns(self) -> int:
        """The silence after which all leases of a member are over: `ttl_ns` of true time, by a clock that is fast.
        15.6 s.
        """
        return self.ttl_ns * (WHOLE + self.clock_error_ppm) ** 2 // WHOLE**2 + self.margin_ns

    @property
    def restate_ns(self) -> int:
        """A member states everything that it holds this often: two records may be lost."""
        return self.ttl_ns // 3

    @property
    def history_ns(self) -> int:
        """How much of the log a joiner must have read, by the broker's clock, to use its quota at once."""
        return 3 * self.ttl_ns
