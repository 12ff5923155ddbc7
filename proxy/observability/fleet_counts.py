"""What a member of a fleet counts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from proxy.observability.tallies import Histogram

DELIVERY_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)
#: Of failures. The last four are of the topic: it differs, was made anew, or lost its end.
ERROR_REASONS: Final = (
    "unreachable", "timeout", "broker_error", "authentication", "authorization", "topic_missing", "silent", "defect",
    "topic_differs", "out_of_range", "gap", "behind",
)  # fmt: skip


@dataclass(slots=True)
class FleetCounts:
    """`proxy.fleet` keeps these up to date.

    sent, read   records
    delivery     from sending an own record until it was read back
    """

    is_joined: bool = False
    sent: int = 0
    read: int = 0
    errors: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(ERROR_REASONS, 0)))
    delivery: Histogram = field(default_factory=lambda: Histogram(DELIVERY_BUCKETS))
