"""What a member knows of its fleet: for /fleet and /metrics."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from proxy.fleet.fleet import Fleet
from proxy.fleet.shared_limits import SharedLimit
from quotas.fleet.caps import NEVER, Key
from quotas.fleet.parameters import NS_PER_SECOND, WHOLE
from quotas.fleet.policy import fair_level
from quotas.fleet.record import MAX_QUOTA

MAX_MEMBERS: Final = 100
"""Of one limit that are listed: those with the largest caps."""


class MemberStatus(NamedTuple):
    """What one member has stated of a limit last. Ratios: of the limit without its floors."""

    member: str
    quota: float
    cap_ratio: float
    want_ratio: float
    is_above_fair_level: bool
    stated_seconds_ago: float


class LimitStatus(NamedTuple):
    """One shared limit.

    quota            of all together: the lowest that a member has stated
    configured       this proxy's own
    allowed          what this proxy may use now
    caps_ratio       what all have claimed; above 1: some claims are not filled yet
    fair_ratio       what one may have, if all want as much
    lease_seconds    until `allowed` falls to the floor unless it is renewed; 0: it is the floor
    """

    limit: str
    entity: str
    quota: float
    configured: float
    allowed: float
    cap_ratio: float
    want_ratio: float
    caps_ratio: float
    fair_ratio: float
    lease_seconds: float
    members: list[MemberStatus]


class FleetStatus(NamedTuple):
    """A fleet, as one member sees it. `delivery_seconds`: the mean time from sending a record to reading it back."""

    fleet: str
    member: str
    joined: bool
    members: int
    max_members: int
    delivery_seconds: float
    refused_records: dict[str, int]
    lapses: int
    rejoins: int
    shared_limits: int


def status_of(fleet: Fleet, now_ns: int) -> FleetStatus:
    caps, metrics = fleet.member.caps, fleet.metrics
    delivery = metrics.delivery
    return FleetStatus(
        fleet=caps.fleet,
        member=caps.name,
        joined=caps.is_joined(now_ns),
        members=len(fleet.member.heard),
        max_members=caps.parameters.max_members,
        delivery_seconds=delivery.sum_seconds / (delivery.count or 1),
        refused_records={reason: caps.counts[reason] for reason in ("void", "foreign", "clashes", "overflows")},
        lapses=caps.counts["lapses"],
        rejoins=metrics.rejoins,
        shared_limits=len(fleet.limits),
    )


def limits_of(fleet: Fleet, now_ns: int) -> Iterator[LimitStatus]:
    """Those of which a member has stated something, first; then the others."""
    keys, rest = fleet.member.caps.keys, list[SharedLimit]()
    for shared in fleet.limits:
        if keys[shared.key].stated:
            yield _limit_of(shared, keys[shared.key], fleet.member.caps.name, now_ns)
        else:
            rest.append(shared)
    for shared in rest:
        if shared.key in keys:  # not forgotten meanwhile
            yield _limit_of(shared, keys[shared.key], fleet.member.caps.name, now_ns)


def _limit_of(shared: SharedLimit, key: Key, me: str, now_ns: int) -> LimitStatus:
    level = fair_level([entry.want for entry in key.stated.values()])
    own = key.stated.get(me)
    largest = sorted(key.stated.items(), key=lambda item: item[1].cap, reverse=True)[:MAX_MEMBERS]
    return LimitStatus(
        limit=shared.limit.name,
        entity=str(shared.limit.entity),
        quota=float(shared.rate),
        configured=float(shared.configured),
        allowed=float(shared.limit.rate),
        cap_ratio=own.cap / WHOLE if own else 0.0,
        want_ratio=own.want / WHOLE if own else 0.0,
        caps_ratio=key.total / WHOLE,
        fair_ratio=level / WHOLE,
        lease_seconds=max(0, key.lease_ns - now_ns) / NS_PER_SECOND if key.lease_ns > NEVER and key.use else 0.0,
        members=[
            MemberStatus(
                member,
                min(entry.quota, MAX_QUOTA) / 1_000,
                entry.cap / WHOLE,
                entry.want / WHOLE,
                entry.cap > level,
                (now_ns - entry.received_ns) / NS_PER_SECOND,
            )
            for member, entry in largest
        ],
    )
