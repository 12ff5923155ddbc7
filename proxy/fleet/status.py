"""What a member knows of its fleet: the page /fleet. Ratios are of a limit without its floors."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from proxy.fleet.fleet import Fleet
from proxy.fleet.shared_limits import SharedLimit
from quotas.fleet.caps import Key
from quotas.fleet.parameters import NS_PER_SECOND, WHOLE
from quotas.fleet.policy import fair_level

MAX_LIMITS: Final = 100
MAX_MEMBERS: Final = 100
"""Of one limit that are listed: those with the largest caps."""
REFUSED: Final = ("void", "foreign", "clashes", "overflows")
"""Why records are refused: unreadable or superseded; of another fleet; in this member's name; too many at once."""


def stated(fleet: Fleet) -> Iterator[tuple[SharedLimit, Key]]:
    """The shared limits of which a member has stated something lately."""
    keys = fleet.member.caps.keys
    return ((shared, keys[shared.key]) for shared in fleet.limits if shared.key in keys and keys[shared.key].stated)


def page_of(fleet: Fleet, now_ns: int) -> dict[str, Any]:
    """As JSON. `delivery_seconds`: the mean time from sending a record to reading it back."""
    caps, delivery = fleet.member.caps, fleet.metrics.delivery
    return {
        "fleet": caps.fleet,
        "member": caps.name,
        "joined": caps.is_joined(now_ns),
        "members": len(fleet.member.heard),
        "max_members": caps.parameters.max_members,
        "delivery_seconds": round(delivery.sum_seconds / (delivery.count or 1), 4),
        "refused_records": {reason: caps.counts[reason] for reason in REFUSED},
        "lapses": caps.counts["lapses"],
        "shared_limits": len(fleet.limits),
        "limits": [_limit(*each, caps.name, now_ns) for each in islice(stated(fleet), MAX_LIMITS)],
    }


def _limit(shared: SharedLimit, key: Key, me: str, now_ns: int) -> dict[str, Any]:
    """`quota`: of all together, the lowest that a member states. `configured`: this proxy's own. `allowed`: what this
    proxy may use now. `caps_ratio`: claimed by all; above 1, some claims are not filled yet. `fair_ratio`: what those
    get that want more. `lease_seconds`: until `allowed` is the floor, unless it is renewed.
    """
    level = fair_level([entry.want for entry in key.stated.values()])
    largest = sorted(key.stated.items(), key=lambda item: item[1].cap, reverse=True)[:MAX_MEMBERS]
    return {
        "limit": shared.limit.name,
        "entity": str(shared.limit.entity),
        "quota": float(shared.rate),
        "configured": float(shared.configured),
        "allowed": float(shared.limit.rate),
        "caps_ratio": key.total / WHOLE,
        "fair_ratio": level / WHOLE,
        "lease_seconds": round(max(0, key.lease_ns - now_ns) / NS_PER_SECOND, 1) if key.use else 0.0,
        "members": [
            {
                "member": member,
                "here": member == me,
                "quota": entry.quota / 1_000,
                "cap_ratio": entry.cap / WHOLE,
                "want_ratio": entry.want / WHOLE,
                "above_fair": entry.cap > level,
                "stated_seconds_ago": round((now_ns - entry.received_ns) / NS_PER_SECOND, 1),
            }
            for member, entry in largest
        ],
    }
