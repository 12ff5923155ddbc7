"""A clock that continues while the machine sleeps: a lease that has ended for other members has ended here as well."""

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Only Linux has CLOCK_BOOTTIME; elsewhere CLOCK_MONOTONIC has to do."""


def boottime_ns() -> int:
    """Nanoseconds since some time before this process."""
    return time.clock_gettime_ns(_CLOCK)
