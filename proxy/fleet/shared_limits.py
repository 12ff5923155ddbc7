"""The limits of this process that a fleet shares: each earns what the member may use of it, and says what it needs.

Rates change in the buckets before a record that states less leaves: `apply` comes first (rule S2).
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
    """A limit, what it was configured with, and until when it has what it has. It is the `Whole` of the limit."""

    limit: Limit
    key: str
    member: Member
    use: Use
    wanted: Callable[[], None]
    clock: Callable[[], int]
    configured: int | Fraction = 1
    burst_ns: int = BURST_NS
    until_ns: int = 0
    _fair: tuple[int, int] = (-1, 0)

    @property
    def fleet(self) -> str:
        return self.member.caps.fleet

    @property
    def members(self) -> int:
        return max(1, len(self.member.heard))

    @property
    def rate(self) -> int | float:
        """The lowest that a member has stated, its own included."""
        key = self.member.caps.keys[self.key]
        return _rate_of(min(key.quota, key.least))

    @property
    def own_rate(self) -> int | float:
        return _rate_of(self.member.caps.keys[self.key].quota)

    @property
    def lowest(self) -> str:
        """The member that has stated it, if it is another one and it is below the own one."""
        key = self.member.caps.keys[self.key]
        if key.quota <= key.least:
            return ""
        return min(key.stated, key=lambda name: key.stated[name].quota)

    @property
    def claimants(self) -> int:
        """The members that want some of it; this one counts in any case."""
        caps = self.member.caps
        stated = caps.keys[self.key].stated
        return 1 + sum(entry.want > 0 for name, entry in stated.items() if name != caps.name)

    @property
    def fair(self) -> int | Fraction:
        """What it gets if it wants all, beside what the others want now. Found again when these have changed."""
        caps = self.member.caps
        key = caps.keys[self.key]
        version, level = self._fair
        if version != key.version:
            level = fair_level([*(entry.want for name, entry in key.stated.items() if name != caps.name), WHOLE])
            self._fair = key.version, level
        shared, floor = key.split(caps.parameters.max_members)
        return min(self.configured, Fraction(level * shared // WHOLE + floor, PER_UNIT))

    @property
    def share(self) -> int | Fraction:
        """The rate of the limit now; or what is fair, which this member claims when it is wanted, and can have as soon
        as it has read its claim back.
        """
        rate = self.limit.algorithm.rate
        return max(rate, self.fair) if self.member.caps.is_joined(self.clock()) else rate


def _rate_of(quota: int) -> int | float:
    rate = Fraction(quota, PER_UNIT)
    return rate.numerator if rate.denominator == 1 else float(rate)


class SharedLimits:
    """A `Lender` of the registry. Called in the event loop."""

    def __init__(self, member: Member, registry: Registry, clock: Callable[[], int]) -> None:
        self._member = member
        self._registry = registry
        self._clock = clock
        self._shared: dict[Limit, SharedLimit] = {}
        self._by_key: dict[str, SharedLimit] = {}
        self._busy: dict[SharedLimit, None] = {}
        self._idle: deque[SharedLimit] = deque()
        #: The keys with more than a floor.
        self._lent: set[str] = set()
        #: Called when a request begins to wait for one of them.
        self.on_wait: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._shared)

    def __iter__(self) -> Iterator[SharedLimit]:
        return iter(list(self._shared.values()))

    @property
    def are_at_rest(self) -> bool:
        """Whether none is in use or has more than its floor, and each tick looks at all of them."""
        return not self._busy and not self._lent and len(self._idle) <= SAMPLED_AT_ONCE

    # ---- as a lender

    def lend(self, limit: Limit, rate: int | Fraction, burst_ns: int | None) -> None:
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
            self._lent.discard(shared.key)
            self._member.set_quota(shared.key, 0)

    # ---- between the member and the buckets

    def apply(self, now_ns: int) -> list[SharedLimit]:
        """Lend what the member may use where that has changed: at once where it has used more than its floor; of the
        others, which go to another floor when the member comes or goes, some. Returns these limits.
        """
        changed = self._member.caps.changed
        keys = [key for key in self._lent if key in changed]
        keys += islice(changed, CHANGED_AT_ONCE)
        changed.difference_update(keys)
        found = [self._by_key[key] for key in keys if key in self._by_key]
        for shared in found:
            self._set_rate(shared, now_ns)
        return found

    def demand(self, now_ns: int) -> dict[str, Demand]:
        """What the limits that are in use need. Rates that are over are set anew on the way."""
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
                found[shared.key] = shared.use.demand(now_ns, is_at_floor=is_at_floor)
        return found

    def small_shares(self, demand: Mapping[str, Demand]) -> Iterator[SharedLimit]:
        """The limits that clients wait for, and of which this member's share is too small for a producer, though all of
        it would not be: `quota_below_floor` at the start does not name them.
        """
        for name, each in demand.items():
            shared = self._by_key[name]
            is_small = each.is_limited and shared.limit.name in LIMITS_WITH_FLOOR and shared.fair < SMALLEST_SHARE
            if is_small and shared.rate >= SMALLEST_SHARE and self._member.caps.keys[name].use:
                yield shared

    def _renew(self, shared: SharedLimit, now_ns: int) -> None:
        """The bucket ends a lease by itself, with the floor; the fallback may be more."""
        if now_ns >= shared.until_ns:
            self._set_rate(shared, now_ns)

    def _set_rate(self, shared: SharedLimit, now_ns: int) -> None:
        member, key = self._member, shared.key
        rate, shared.until_ns = member.allowed(key, now_ns)
        state = member.caps.keys[key]
        _, floor = state.split(member.caps.parameters.max_members)
        (self._lent.add if state.use else self._lent.discard)(key)
        shared.use.lend(rate, now_ns)
        # Whatever others state, it never earns more than it was configured with.
        most = shared.configured
        lent, least = (min(most, Fraction(each, PER_UNIT)) for each in (rate, floor))
        self._registry.set_rate(shared.limit, lent, shared.burst_ns, shared.until_ns, least, now_ns)
        # By these lines of all members, what all might use together is known at each moment (`deploy.local.lent`).
        fields = {"member": member.caps.name, "limit": shared.limit.name, "entity": str(shared.limit.entity)}
        times = {"until_ns": shared.until_ns, "asked_ns": now_ns, "set_ns": self._clock()}
        _log.debug("fleet_lent", **fields, rate=float(lent), floor=float(least), **times)


def key_of(limit: Limit) -> str:
    """The name of a shared limit in records: the same in all members. Names that are too long for one are hashed."""
    key = f"{limit.entity} {limit.name}"
    if is_key(key):
        return key
    return f"{limit.name} sha256:{sha256(str(limit.entity).encode('utf-8', 'surrogatepass')).hexdigest()}"


def shared_and_own(entries: Iterable[QuotaEntry], algorithm: str) -> tuple[list[str], list[str]]:
    """The limits of these entries that a fleet shares, and those that it does not. `algorithm`: of entries without."""
    found: tuple[list[str], list[str]] = [], []
    for entry in entries:
        for name, rate in entry.limits.items():
            is_rate = LIMIT_KINDS[name].measure in {Measure.BYTES, Measure.RATE}
            is_own = entry.is_per_process or not is_rate or (entry.algorithm or algorithm) != "token-bucket"
            found[is_own].append(f"{entry.entity} {name}={rate}")
    return found
