"""How much to ask for: the cap that a member should advertise next, from the caps and wants of all members.

A member claims at once what it wants, up to its fair level. If then more is claimed than there is, those above the
level lower their caps to it; the claim stands, and is filled as they do. So credit moves in two deliveries, in one if
it is free. A share that is not used is released.

Nothing here can break the bound: any caps are safe. So members of a fleet may use different policies. The constants
were found by simulation (`python -m bench.fleet_policy`). All amounts are fractions of WHOLE.
"""

from typing import Final, NamedTuple

from quotas.fleet.caps import NEVER, Key
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

GROWTH: Final = 8
"""A limited member wants this multiple of its use, because it cannot know how much it would use."""
HEADROOM_PERCENT: Final = 105
"""A member that is not limited wants this percentage of its peak."""
UNUSED_NS: Final = 400 * NS_PER_MS
"""How long an unused share is kept while more than `SCARCE` is free."""
SCARCE: Final = WHOLE // 20
ANSWER_NS: Final = 3 * NS_PER_SECOND
"""How long to wait for an own statement before the next one about that key."""


class Demand(NamedTuple):
    """What a key was used for lately.

    peak         the highest rate at which units passed in the last few tenths of a second
    is_limited   requests wait for it, which rates alone do not show
    """

    peak: int
    is_limited: bool


UNUSED: Final = Demand(0, False)


class Outlook(NamedTuple):
    """What is the same for all keys of a member: its name, its equal share of WHOLE, the time."""

    me: str
    fair: int
    now_ns: int
    parameters: Parameters


class Claim:
    """What a member has last advertised for one key, and what it should advertise next.

    wanted           what it wants, as of the last check
    wants_until_ns   when it stops wanting anything, unless it is limited
    """

    def __init__(self, cap: int = 0) -> None:
        self.quota = self.want = 0
        self.cap = cap
        self.stated_ns = self.wants_until_ns = NEVER
        self.wanted = 0
        self._state: object = None
        self._checked_ns = NEVER
        self._seen: tuple[object, int] = (None, -1)
        self._level = WHOLE

    def is_new(self, state: object, pace_ns: int, now_ns: int) -> bool:
        """Whether to check it: something that it depends on has changed, or the last check was `pace_ns` ago."""
        if state == self._state and now_ns - self._checked_ns < pace_ns:
            return False
        self._state, self._checked_ns = state, now_ns
        return True

    def next_want(self, key: Key, demand: Demand, outlook: Outlook) -> int:
        """How much it wants above the floor."""
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

    def next_cap(self, key: Key, want: int, wants: object, outlook: Outlook) -> int | None:
        """The cap to advertise now, with this want; None if there is nothing to advertise. `wants`: another value if
        what the others want has changed.

        the member                                               advertises
        waits to read back its previous cap (`ANSWER_NS`)        nothing yet
        has no cap, or its lease has ended                       `target`, unless it needs nothing
        has less than `target`, by more than `step`              `target`, at once
        has more than `target` while too much is claimed         `target`, even in small steps
        wants less than its cap, for a while or while scarce     `want`, which releases the rest
        is owed: a silent member keeps what this one should use  the same cap again, so that it can be counted anew
        wants a different amount, which others should know       the same cap, with the new want
        """
        own, age_ns = key.stated.get(outlook.me), outlook.now_ns - self.stated_ns
        if age_ns < ANSWER_NS and key.unread:
            return None
        target = min(want, self._level_with(want, key, wants, outlook))
        if own is None or outlook.now_ns >= key.lease_ns:
            return None if self.is_over(key, want) else target
        free = WHOLE - key.total
        step = max(own.cap, outlook.fair // 4) // 20
        is_due = age_ns > UNUSED_NS or free < SCARCE
        cap = _moved(own.cap, want, target, free, step, is_due)
        # Once the cap is read back, members that have gone no longer count.
        is_owed = target - key.use > step and key.oldest_ns + outlook.parameters.overdue_ns <= outlook.now_ns
        if cap == own.cap and not is_owed and not (is_due and self._differs(want, outlook.fair)):
            return None
        return cap

    def _differs(self, want: int, fair: int) -> bool:
        """Whether it differs enough from what was advertised that others should know."""
        return abs(want - self.want) > (max(self.want, fair) // 5 if want else 0)

    def is_over(self, key: Key, want: int) -> bool:
        """Nothing is claimed or wanted, and all members have read that."""
        return not (want or self.cap or self.want or key.unread)

    def _level_with(self, want: int, key: Key, wants: object, outlook: Outlook) -> int:
        """The fair level, found again if it may have changed. O(members log members)."""
        before, last = self._seen
        if wants != before or abs(want - last) * 20 > last:
            self._seen = wants, want
            others = [entry.want for member, entry in key.stated.items() if member != outlook.me]
            self._level = fair_level([*others, want])
        return self._level


def _moved(cap: int, want: int, target: int, free: int, step: int, is_due: bool) -> int:
    """The next cap, or the same one if the change is too small; `step`: the smallest change that is worth a record."""
    if target - cap > step:
        return target
    if cap > target and free < 0:
        return target  # even in small steps: many may be a little above the level
    return want if is_due and cap - want > (step if want else 0) else cap


def fair_level(wants: list[int]) -> int:
    """The largest share if WHOLE is divided fairly: members that want less get what they want, all others get this.

    WHOLE if there is enough for all.
    """
    left, count = WHOLE, len(wants)
    for want in sorted(wants):
        if want * count > left:
            return left // count
        left -= want
        count -= 1
    return WHOLE
