"""A response that is sent later than the broker sent it."""

from proxy.enforcement.identity import NS_PER_MS
from quotas.admission.limit import Limit


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
