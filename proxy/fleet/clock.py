"""A clock that goes on while the machine sleeps: a lease that is over by the time of others is over here, too."""

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux only has the first; CLOCK_MONOTONIC goes on during sleep nowhere else that this runs in earnest."""


def boottime_ns() -> int:
    """Nanoseconds since some time before this process."""
    return time.clock_gettime_ns(_CLOCK)
