"""The limits of this process that a fleet shares: each earns what the member may use of it, and reports what it needs.

Rates change in the buckets before a record that advertises less is sent: `apply` comes first (rule S2).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from itertools import islice
from typing import Final

from proxy.config.floor import LIMITS_WITH_FLOOR, SMALLEST_SHARE
from proxy.fleet.use import PER_UNIT, Use
from proxy.observability.logs import EventLog
from quotas.admission.limit import Limit
from quotas.entry import QuotaEntry
from quotas.fleet.caps import NEVER
from quotas.fleet.member import Member
from quotas.fleet.parameters import WHOLE
from quotas.fleet.policy import Demand, fair_level
from quotas.fleet.record import is_key
from quotas.limit_kinds import LIMIT_KINDS, Measure
from quotas.registry.registry import Registry

BURST_NS: Final = 100_000_000
"""The depth of a shared bucket, unless its entry has one: all buckets of the fleet together hold this much."""
SAMPLED_AT_ONCE: Final = 500
"""Idle limits that are sampled at once: 0.2 ms."""
CHANGED_AT_ONCE: Final = 500
"""Limits that are set to another floor at once: 3 ms."""

_log = EventLog("proxy.fleet")


@dataclass(slots=True, eq=False)
class SharedLimit:
    """A limit, what it was configured with, and until when it has what it has. It is the `Whole` of the limit.

    factor   what a rule that moves the limit leaves of it, at most 1: all members apply the same one, which becomes
             `least_factor` at `factor_ends_ns`
    """

    limit: Limit
    key: str
    member: Member
    use: Use
    wanted: Callable[[], None]
    clock: Callable[[], int]
    configured: int | Fraction = 1
    burst_ns: int = BURST_NS
    until_ns: int = 0
    factor: int | Fraction = 1
    least_factor: int | Fraction = 1
    factor_ends_ns: int = -NEVER
    _fair: tuple[object, int | Fraction] = (None, 0)

    @property
    def fleet(self) -> str:
        return self.member.caps.fleet

    @property
    def members(self) -> int:
        return max(1, len(self.member.seen))

    @property
    def rate(self) -> int | float:
        """The lowest quota that a member has advertised, including its own; of it, what a rule leaves."""
        key = self.member.caps.keys[self.key]
        return rate_of(int(min(key.quota, key.least) * self.factor))

    @property
    def own_rate(self) -> int | float:
        return rate_of(self.member.caps.keys[self.key].quota)

    @property
    def is_lowered(self) -> bool:
        """Whether another member has advertised a lower quota."""
        if self.limit.whole is not self:  # it is shared no more
            return False
        key = self.member.caps.keys[self.key]
        return key.least < key.quota

    @property
    def lowest(self) -> str:
        """The member that has advertised it, if it is another member with a lower quota than this one."""
        key = self.member.caps.keys[self.key]
        if key.quota <= key.least:
            return ""
        return min(key.stated, key=lambda name: key.stated[name].quota)

    @property
    def claimants(self) -> int:
        """How many members want a share of it; this one always counts."""
        caps = self.member.caps
        stated = caps.keys[self.key].stated
        return 1 + sum(entry.want > 0 for name, entry in stated.items() if name != caps.name)

    @property
    def fair(self) -> int | Fraction:
        """What it gets if it wants all, beside what the others want now. Found again when these have changed."""
        caps = self.member.caps
        key = caps.keys[self.key]
        shared, floor = key.split(caps.parameters.max_members)
        state = self.member.wants_version(self.key), shared, floor, self.factor, self.configured
        if state != self._fair[0]:
            others = [entry.want for name, entry in key.stated.items() if name != caps.name]
            part = fair_level([*others, WHOLE]) * shared // WHOLE + floor
            self._fair = state, self.factor * min(self.configured, Fraction(part, PER_UNIT))
        return self._fair[1]

    @property
    def share(self) -> int | Fraction:
        """The rate of the limit now; or what is fair, which this member claims when it is wanted, and can have as soon
        as it has read its claim back.
        """
        rate = self.limit.algorithm.rate
        return max(rate, self.fair) if self.member.caps.is_joined(self.clock()) else rate


def rate_of(quota: int) -> int | float:
    """Units per second."""
    return quota / PER_UNIT if quota % PER_UNIT else quota // PER_UNIT


class SharedLimits:
    """A `Granter` of the registry. Called in the event loop."""

    def __init__(self, member: Member, registry: Registry, clock: Callable[[], int]) -> None:
        self._member = member
        self._registry = registry
        self._clock = clock
        self._shared: dict[Limit, SharedLimit] = {}
        self._by_key: dict[str, SharedLimit] = {}
        self._busy: dict[SharedLimit, None] = {}
        self._idle: deque[SharedLimit] = deque()
        #: The keys that are granted more than a floor.
        self._granted: set[str] = set()
        #: Called when a request begins to wait for one of them.
        self.on_wait: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._shared)

    def __iter__(self) -> Iterator[SharedLimit]:
        return iter(list(self._shared.values()))

    @property
    def are_at_rest(self) -> bool:
        """Whether no limit is in use or has more than its floor, and each tick checks all of them."""
        return not self._busy and not self._granted and len(self._idle) <= SAMPLED_AT_ONCE

    # ---- as a granter

    def grant(self, limit: Limit, rate: int | Fraction, burst_ns: int | None) -> None:
        shared = self._shared.get(limit)
        if shared is None:
            shared = SharedLimit(limit, key_of(limit), self._member, Use(limit), lambda: self.on_wait(), self._clock)
            self._shared[limit] = self._by_key[shared.key] = shared
            self._idle.append(shared)
        shared.configured = rate
        shared.burst_ns = BURST_NS if burst_ns is None else burst_ns
        is_default = limit.origin != limit.entity
        self._member.set_quota(shared.key, max(1, int(rate * PER_UNIT)), is_default=is_default)
        limit.whole = shared
        self._set_rate(shared, self._clock())

    def end(self, limit: Limit) -> None:
        shared = self._shared.pop(limit, None)
        if shared is not None:
            limit.whole = None
            del self._by_key[shared.key]
            self._busy.pop(shared, None)
            self._granted.discard(shared.key)
            self._member.set_quota(shared.key, 0)

    # ---- between the member and the buckets

    def scale(self, limit: Limit, factor: Fraction, least: Fraction, until_ns: int, now_ns: int) -> SharedLimit:
        """Let a shared limit have this part of what the member may use of it, until `until_ns`; then `least`. Shares
        stay parts of the configured rate, so no factor can break the bound on their sum.
        """
        shared = self._shared[limit]
        shared.factor, shared.least_factor, shared.factor_ends_ns = factor, least, until_ns
        self._set_rate(shared, now_ns)
        return shared

    def apply(self, now_ns: int) -> list[SharedLimit]:
        """Grant what the member may use where that has changed: at once for limits with more than a floor, and for some
        of the others, whose floor changes when members come and go. Returns these limits.
        """
        changed = self._member.caps.changed
        if not changed:
            return []
        keys = {*(self._granted & changed), *islice(changed, CHANGED_AT_ONCE)}
        changed -= keys
        found = [self._by_key[key] for key in sorted(keys) if key in self._by_key]  # the same order in each run
        for shared in found:
            self._set_rate(shared, now_ns)
        return found

    def demand(self, now_ns: int) -> dict[str, Demand]:
        """What the limits in use need. Also sets rates that have expired again."""
        for _ in range(min(SAMPLED_AT_ONCE, len(self._idle))):
            shared = self._idle.popleft()
            if shared.limit not in self._shared:
                continue
            self._renew(shared, now_ns)
            if shared.use.is_idle(now_ns):
                self._idle.append(shared)
            else:
                shared.use.begin(now_ns)
                self._busy[shared] = None
        found: dict[str, Demand] = {}
        for shared in list(self._busy):
            self._renew(shared, now_ns)
            if shared.use.is_idle(now_ns):
                del self._busy[shared]
                self._idle.append(shared)
            else:
                is_at_floor = not self._member.caps.keys[shared.key].use
                peak, is_limited = shared.use.demand(now_ns, is_at_floor=is_at_floor)
                found[shared.key] = Demand(peak * shared.factor.denominator // shared.factor.numerator, is_limited)
        return found

    def small_shares(self, demand: Mapping[str, Demand]) -> Iterator[SharedLimit]:
        """The limits that clients wait for and whose share here is too small for a producer, although the whole limit
        would not be: `quota_below_floor` at startup does not name them.
        """
        for name, each in demand.items():
            shared = self._by_key[name]
            is_small = each.is_limited and shared.limit.name in LIMITS_WITH_FLOOR and shared.fair < SMALLEST_SHARE
            if is_small and shared.rate >= SMALLEST_SHARE and self._member.caps.keys[name].use:
                yield shared

    def _renew(self, shared: SharedLimit, now_ns: int) -> None:
        """The bucket drops to the floor on its own when a lease ends; the fallback may be more."""
        if now_ns >= shared.until_ns:
            self._set_rate(shared, now_ns)

    def _set_rate(self, shared: SharedLimit, now_ns: int) -> None:
        member, key = self._member, shared.key
        rate, until_ns = member.allowed(key, now_ns)
        if now_ns >= shared.factor_ends_ns:
            shared.factor, shared.factor_ends_ns = shared.least_factor, -NEVER
        shared.until_ns = min(until_ns, shared.factor_ends_ns)
        state = member.caps.keys[key]
        _, floor = state.split(member.caps.parameters.max_members)
        (self._granted.add if state.use else self._granted.discard)(key)
        shared.use.grant(int(rate * shared.factor), now_ns)
        # Whatever other members advertise, a limit never earns more than its configured rate.
        most = shared.configured
        granted, least = (shared.factor * min(most, Fraction(each, PER_UNIT)) for each in (rate, floor))
        self._registry.set_rate(shared.limit, granted, shared.burst_ns, shared.until_ns, least, now_ns)
        # From these lines of all members, `deploy.local.granted` computes what all may use together at each moment.
        fields = {"member": member.caps.name, "limit": shared.limit.name, "entity": str(shared.limit.entity)}
        times = {"until_ns": shared.until_ns, "asked_ns": now_ns, "set_ns": self._clock()}
        _log.debug("fleet_lent", **fields, rate=float(granted), floor=float(least), **times)


def key_of(limit: Limit) -> str:
    """The name of a shared limit in records, equal in all members. Names that are too long for a record are hashed."""
    key = f"{limit.entity} {limit.name}"
    if is_key(key):
        return key
    return f"{limit.name} sha256:{sha256(str(limit.entity).encode('utf-8', 'surrogatepass')).hexdigest()}"


def shared_names(entries: Iterable[QuotaEntry], algorithm: str) -> Iterator[str]:
    """The names of the limits of these entries that a fleet shares."""
    for entry in entries:
        yield from (f"{entry.entity} {name}" for name in entry.limits if _is_shared(entry, name, algorithm))


def _is_shared(entry: QuotaEntry, name: str, algorithm: str) -> bool:
    is_rate = LIMIT_KINDS[name].measure in {Measure.BYTES, Measure.RATE}
    return is_rate and not entry.options.is_per_process and (entry.options.algorithm or algorithm) == "token-bucket"


def shared_and_own(entries: Iterable[QuotaEntry], algorithm: str) -> tuple[list[str], list[str]]:
    """The limits of these entries that a fleet shares, and those that it does not. `algorithm`: of entries without."""
    found: tuple[list[str], list[str]] = [], []
    for entry in entries:
        for name, rate in entry.limits.items():
            found[not _is_shared(entry, name, algorithm)].append(f"{entry.entity} {name}={rate}")
    return found
