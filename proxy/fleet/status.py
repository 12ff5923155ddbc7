"""What a member knows about its fleet, for the page /fleet. Ratios refer to a limit without its floors."""

from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Any, Final

from proxy.config.addresses import format_address
from proxy.fleet.admin_address import address_of
from proxy.fleet.fleet import Fleet
from proxy.fleet.shared_limits import SharedLimit
from quotas.fleet.caps import Key
from quotas.fleet.member import Member
from quotas.fleet.parameters import WHOLE
from quotas.fleet.policy import fair_level
from quotas.time_units import NS_PER_SECOND

MAX_LIMITS: Final = 100
MAX_MEMBERS: Final = 100
"""How many members of one limit are listed."""
MAX_LACKING: Final = 10
"""How many limits that a member lacks are listed."""
REFUSED: Final = ("void", "foreign", "clashes", "overflows", "missed")
"""Why records are refused: unreadable or superseded; from another fleet; under this member's name; too many at once;
repeating what this member has not read."""


def advertised(fleet: Fleet) -> Iterator[tuple[SharedLimit, Key]]:
    """The shared limits that a member has advertised lately."""
    keys = fleet.member.caps.keys
    return ((shared, keys[shared.key]) for shared in fleet.limits if shared.key in keys and keys[shared.key].stated)


def page_of(fleet: Fleet, now_ns: int) -> dict[str, Any]:
    """As JSON. `delivery_seconds`: the mean time from sending a record to reading it back."""
    caps, delivery = fleet.member.caps, fleet.metrics.delivery
    return {
        "fleet": caps.fleet,
        "member": caps.name,
        "joined": caps.is_joined(now_ns),
        "why_away": fleet.why_away,
        "members": len(fleet.member.seen),
        "leaving": len(fleet.member.leaving),
        "max_members": fleet.member.max_members,
        "lacking": [
            {"member": name, "limits": each.names[:MAX_LACKING], "at_least": each.lacks}
            for name, each in islice(fleet.differences.lacking.items(), MAX_MEMBERS)
        ],
        "delivery_seconds": round(delivery.sum_seconds / (delivery.count or 1), 4),
        "refused_records": {reason: caps.counts[reason] for reason in REFUSED},
        "lapses": caps.counts["lapses"],
        "shared_limits": len(fleet.limits),
        "admin_addresses": addresses_of(fleet, now_ns),
        "limits": [_limit(*each, fleet.member, now_ns) for each in nlargest(MAX_LIMITS, advertised(fleet), _differs)],
    }


def addresses_of(fleet: Fleet, now_ns: int) -> list[dict[str, Any]]:
    """Where the admin port of each live member is; None: it advertises no address that can be asked."""
    me, members = fleet.member.caps.name, sorted(fleet.member.live_facts(now_ns).items())
    found = ((member, address_of(facts)) for member, facts in members)
    return [{"member": name, "admin": at and format_address(at), "here": name == me} for name, at in found]


def _differs(found: tuple[SharedLimit, Key]) -> bool:
    """Whether members advertise different quotas for it: those come first."""
    _, key = found
    return any(entry.quota > key.least for entry in key.stated.values())


def _limit(shared: SharedLimit, key: Key, member: Member, now_ns: int) -> dict[str, Any]:
    """`quota` is for all members together, the lowest that a member advertises. `configured` is the quota of this
    proxy, and `allowed` is what this proxy may use now. `caps_ratio` is what all have claimed; above 1, some claims
    have not been met yet. `fair_ratio` is what members that want more get. `lease_seconds`: when `allowed` drops to the
    floor, unless it is renewed. Members with the lowest quota come first if quotas differ, then those with the largest
    caps; `lowest` marks them.
    """
    level = fair_level([entry.want for entry in key.stated.values()])
    least = key.least if _differs((shared, key)) else 0
    first = nlargest(MAX_MEMBERS, key.stated.items(), key=lambda item: (item[1].quota == least, item[1].cap))
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
                "member": name,
                "here": name == member.caps.name,
                "leaving": name in member.leaving,
                "lowest": entry.quota == least,
                "quota": entry.quota / 1_000,
                "cap_ratio": entry.cap / WHOLE,
                "want_ratio": entry.want / WHOLE,
                "above_fair": entry.cap > level,
                "stated_seconds_ago": round((now_ns - entry.received_ns) / NS_PER_SECOND, 1),
            }
            for name, entry in first
        ],
    }
