"""What a fetch may bring: the `max_bytes` of its request is lowered to a share of what is left of the limit.

This only shapes: responses are then small enough for the rate, and a client's fetches, at several brokers, share it.
What bounds is the response, which is charged as it passes (`handlers.fetch`).

What is left is divided by all fetches of the client that are open or wait, idle ones included: any of them may bring
data at any time. However little is left, all together may bring what the limit earns in `SMALLEST_BUDGET_NS`. With
less, a consumer at its limit would fetch one batch at a time, thousands of times a second.
"""

from typing import Final

from quotas.admission.client_limits import ClientLimits

SMALLEST_BUDGET_NS: Final = 10_000_000


def fetch_budget(limits: ClientLimits, now_ns: int) -> int:
    """The `max_bytes` of the client's next fetch, which is counted in `limits.fetches` already."""
    return max(1, limits.fetch.headroom(now_ns) // max(1, limits.fetches), equal_share(limits))


def equal_share(limits: ClientLimits) -> int:
    """The least that each open fetch of the client may bring."""
    return max(1, limits.fetch.earned(SMALLEST_BUDGET_NS) // max(1, limits.fetches))
