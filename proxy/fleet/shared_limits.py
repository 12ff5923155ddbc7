"""The limits of this process that a fleet shares: each earns what the member may use of it, and says what it needs.

Rates change in the buckets before a record that states less leaves: `apply` comes first (rule S2).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from hashlib import sha256
from itertools import islice
from typing import Final

from quotas.admission.limit import Limit
from quotas.algorithms.token_bucket import NS_PER_SECOND
from quotas.entry import QuotaEntry
from quotas.fleet.member import Member
from quotas.fleet.policy import Demand
from quotas.fleet.record import is_key
from quotas.limit_kinds import LIMIT_KINDS, Measure
from quotas.registry.registry import Registry

BURST_NS: Final = 100_000_000
"""The depth of a shared bucket, unless its entry has one: all buckets of the fleet together hold this much."""
PER_UNIT: Final = 1_000
"""Rates of `quotas.fleet` are in thousandths."""
SLOT_NS: Final = 200_000_000
"""Rates of use are measured over this time, and the higher one of two counts."""
IDLE_NS: Final = 2 * NS_PER_SECOND
"""A limit that was not used for so long is sampled in turn with all others."""
SAMPLED_AT_ONCE: Final = 500
"""Idle limits that are sampled at once: 0.2 ms."""
CHANGED_AT_ONCE: Final = 500
"""Limits that are set to another floor at once: 3 ms."""


class SharedLimit:
    """A limit, and what was seen of its use. It is the `Whole` of the limit."""

    __slots__ = (
        "_at_ns",
        "_last",
        "_passed",
        "_rate",
        "_used_ns",
        "burst_ns",
        "configured",
        "key",
        "limit",
        "member",
        "until_ns",
    )

    def __init__(self, limit: Limit, key: str, member: Member) -> None:
        self.limit = limit
        self.key = key
        self.member = member
        self.configured: int | Fraction = 1
        self.burst_ns = BURST_NS
        self.until_ns = self._at_ns = self._used_ns = 0
        self._passed = limit.algorithm.passed
        self._rate = self._last = 0

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
        least = Fraction(min(key.quota, key.least), PER_UNIT)
        return least.numerator if least.denominator == 1 else float(least)

    def is_used(self, now_ns: int) -> bool:
        """Whether units passed lately, or requests wait."""
        if self._passed != self.limit.algorithm.passed or self.limit.waiters.waiting:
            self._used_ns = now_ns
        return now_ns - self._used_ns < IDLE_NS

    def begin(self, now_ns: int) -> None:
        """From now on it is sampled often."""
        self._at_ns, self._passed = now_ns, self.limit.algorithm.passed
        self._rate = self._last = 0

    def demand(self, now_ns: int) -> Demand:
        """The use of the last two slots, and whether requests wait, or clients are asked to."""
        limit, span_ns = self.limit, now_ns - self._at_ns
        if span_ns >= SLOT_NS:
            passed = limit.algorithm.passed
            self._last, self._rate = self._rate, (passed - self._passed) * PER_UNIT * NS_PER_SECOND // span_ns
            self._at_ns, self._passed = now_ns, passed
        waits = limit.waiters.waiting > 0 or limit.debt_ns(now_ns) > 0
        # Clients that are told of a debt before there is one wait without a queue.
        waits = waits or (self._rate > 0 and limit.soft_wait_ns(now_ns) > 0)
        return Demand(max(self._rate, self._last), waits)


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

    def __len__(self) -> int:
        return len(self._shared)

    def __iter__(self) -> Iterator[SharedLimit]:
        return iter(list(self._shared.values()))

    # ---- as a lender

    def lend(self, limit: Limit, rate: int | Fraction, burst_ns: int | None) -> None:
        shared = self._shared.get(limit)
        if shared is None:
            shared = SharedLimit(limit, key_of(limit), self._member)
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
            if shared.is_used(now_ns):
                shared.begin(now_ns)
                self._busy[shared] = None
            else:
                self._idle.append(shared)
                self._renew(shared, now_ns)
        found: dict[str, Demand] = {}
        for shared in list(self._busy):
            self._renew(shared, now_ns)
            if shared.is_used(now_ns):
                found[shared.key] = shared.demand(now_ns)
            else:
                del self._busy[shared]
                self._idle.append(shared)
        return found

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
        # Whatever others state, it never earns more than it was configured with.
        most = shared.configured
        lent, least = (min(most, Fraction(each, PER_UNIT)) for each in (rate, floor))
        self._registry.set_rate(shared.limit, lent, shared.burst_ns, shared.until_ns, least, now_ns)


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
