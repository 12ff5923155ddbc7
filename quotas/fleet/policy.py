"""Who should ask for what: the cap that a member should state next, from the caps and wants of all.

A member claims at once what it wants, up to its fair level. If then more is claimed than there is, those above the
level lower their caps to it; the claim stands, and is filled as they do. So credit moves in two deliveries, in one if
it is free. What is unused is given back.

Nothing here can break the bound: any caps are safe. So this may differ between the members of a fleet. The constants
were found by simulation (`python -m bench.fleet_policy`). All amounts are parts of WHOLE.
"""

from typing import Final, NamedTuple

from quotas.fleet.caps import NEVER, Key
from quotas.fleet.parameters import NS_PER_MS, NS_PER_SECOND, WHOLE, Parameters

GROWTH: Final = 8
"""A member that is limited wants so many times its use: it cannot know how much it would use."""
HEADROOM_PERCENT: Final = 105
"""One that is not limited wants so much of its peak."""
UNUSED_NS: Final = 400 * NS_PER_MS
"""How long what is unused is kept, while more than `SCARCE` is free."""
SCARCE: Final = WHOLE // 20
ANSWER_NS: Final = 3 * NS_PER_SECOND
"""How long to wait for an own statement before the next one about that key."""


class Demand(NamedTuple):
    """What a key was used for lately.

    peak         the highest rate at which units passed in the last few tenths of a second
    is_limited   requests wait for it; not to be guessed from rates
    """

    peak: int
    is_limited: bool


UNUSED: Final = Demand(0, False)


class Outlook(NamedTuple):
    """What is the same for all keys of a member: its name, WHOLE for each member that lives, the time."""

    me: str
    fair: int
    now_ns: int
    parameters: Parameters


class Claim:
    """What a member has last stated of one key, and what it should state next.

    wants_until_ns   from then on it wants nothing, unless it is limited
    """

    def __init__(self) -> None:
        self.quota = self.cap = self.want = 0
        self.stated_ns = self.wants_until_ns = NEVER
        self._seen = (-1, -1)
        self._level = WHOLE

    def next_want(self, key: Key, demand: Demand, outlook: Outlook) -> int:
        """What is wanted above the floor."""
        shared, floor = key.split(outlook.parameters.max_members)
        if demand.is_limited or demand.peak > floor:
            self.wants_until_ns = outlook.now_ns + 2 * outlook.parameters.ttl_ns
        elif outlook.now_ns >= self.wants_until_ns:
            return 0
        if demand.is_limited:
            rate = max(GROWTH * (key.use * shared // WHOLE + floor), outlook.fair * shared // WHOLE)
        else:
            rate = demand.peak * HEADROOM_PERCENT // 100
        return min(WHOLE, max(0, rate - floor) * WHOLE // shared)

    def next_cap(self, key: Key, want: int, outlook: Outlook) -> int | None:
        """The cap to state now, with this want; None: there is nothing to state."""
        own, age_ns = key.stated.get(outlook.me), outlook.now_ns - self.stated_ns
        if age_ns < ANSWER_NS and key.unread:
            return None
        target = min(want, self._level_with(want, key, outlook))
        if own is None or outlook.now_ns >= key.lease_ns:
            return None if self.is_over(key, want) else target
        free = WHOLE - key.total
        step = max(own.cap, outlook.fair // 4) // 20
        is_due = age_ns > UNUSED_NS or free < SCARCE
        cap = _moved(own.cap, want, target, free, step, is_due)
        # Once it is read back, a member that has gone counts no more.
        is_owed = target - key.use > step and key.oldest_ns + outlook.parameters.overdue_ns <= outlook.now_ns
        if cap == own.cap and not is_owed and not (is_due and self._differs(want, outlook.fair)):
            return None
        return cap

    def _differs(self, want: int, fair: int) -> bool:
        """From what was stated, by so much that others should know it."""
        return abs(want - self.want) > (max(self.want, fair) // 5 if want else 0)

    def is_over(self, key: Key, want: int) -> bool:
        """Nothing is held or wanted, and all know it."""
        return not (want or self.cap or self.want or key.unread)

    def _level_with(self, want: int, key: Key, outlook: Outlook) -> int:
        """The fair level, found again if it may have changed. O(members log members)."""
        version, last = self._seen
        if key.version != version or abs(want - last) * 20 > last:
            self._seen = key.version, want
            others = [entry.want for member, entry in key.stated.items() if member != outlook.me]
            self._level = fair_level([*others, want])
        return self._level


def _moved(cap: int, want: int, target: int, free: int, step: int, is_due: bool) -> int:
    """The cap that follows this one, or the same; `step`: what is worth a record."""
    if target - cap > step:
        return target
    if cap > target and free < 0:
        return target  # in small steps, too: many may be a little above the level
    return want if is_due and cap - want > (step if want else 0) else cap


def fair_level(wants: list[int]) -> int:
    """The most that one may have if WHOLE is shared fairly: those who want less get what they want, all others this.

    WHOLE if there is enough for all.
    """
    left, count = WHOLE, len(wants)
    for want in sorted(wants):
        if want * count > left:
            return left // count
        left -= want
        count -= 1
    return WHOLE
