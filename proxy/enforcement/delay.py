"""A response that is sent later than the broker sent it."""

from quotas.admission.limit import Limit
from quotas.time_units import NS_PER_MS


class Delay:
    """A delayed response.

    limit                the limit in debt
    since_ns, until_ns   from the decision to its end; 0: at once
    is_shown             the response contains the delay as throttle time, for clients that do not wait for it again
    """

    __slots__ = ("is_shown", "limit", "since_ns", "throttle_time_ms", "until_ns")

    def __init__(self, limit: Limit, since_ns: int, throttle_time_ms: int, *, is_shown: bool) -> None:
        self.limit = limit
        self.since_ns = since_ns
        self.throttle_time_ms = throttle_time_ms
        self.until_ns = since_ns + throttle_time_ms * NS_PER_MS
        self.is_shown = is_shown

    def shown_ms(self, now_ns: int) -> int:
        """The throttle time of a response that is sent now, which may be before its delay has passed."""
        return min(self.throttle_time_ms, -(-(now_ns - self.since_ns) // NS_PER_MS))
