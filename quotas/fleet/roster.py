"""Who is in the fleet, and what each member advertises about itself."""

from collections.abc import Callable
from typing import Final

from quotas.fleet.caps import NEVER
from quotas.fleet.record import MAX_FACTS, Facts, Record, is_fact
from quotas.fleet.repeats import ASKS, REPEATS
from quotas.time_units import NS_PER_SECOND

COUNTED_NS: Final = 600 * NS_PER_SECOND
"""How long the fleet is taken to be as large as it was."""
LEAVING: Final = "leaving"
"""The fact that a member advertises with its last record."""
MAX_OWN_FACTS: Final = MAX_FACTS - 2
"""Besides the two of `repeats`."""
MAX_SEEN: Final = 5_000
"""Members that are remembered. Anyone who can write to the topic can invent some, with 3 kB of facts each."""


class OwnFacts:
    """The facts that a member advertises about itself: `facts["admin"] = "10.0.0.7:19404"`, at any time.

    on_change   called after each change
    all         replaced by each change
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self.all: Facts = {}

    def __setitem__(self, name: str, value: int | str) -> None:
        """ValueError for a name that is not 1 to 32 printable ASCII characters, a value that is neither an integer of
        64 bits nor a printable text of at most 128 characters, and for more than 14 facts.
        """
        if not is_fact(name, value) or (len(self.all) >= MAX_OWN_FACTS and name not in self.all):
            raise ValueError(f"not a fact that fits into a record, or one too many: {name[:40]!r}={str(value)[:140]!r}")
        if self.all.get(name) != value:
            self.all = {**self.all, name: value}
            self.on_change()

    def __delitem__(self, name: str) -> None:
        """Nothing happens if there is no such fact."""
        if name in self.all:
            self.all = {each: value for each, value in self.all.items() if each != name}
            self.on_change()


class Roster:
    """The members of a fleet.

    seen      those that were seen recently, and when
    leaving   those that have left, and when
    facts     as read last, by member
    most      the most that were seen at once in the last `COUNTED_NS`
    can_all_repeat, is_asked   whether all understand records that repeat, and whether one has missed some
    """

    def __init__(self, overdue_ns: int) -> None:
        self.seen: dict[str, int] = {}
        self.leaving: dict[str, int] = {}
        self.facts: dict[str, Facts] = {}
        self.most = 0
        self.can_all_repeat = self.is_asked = False
        self._overdue_ns = overdue_ns
        self._counted_ns = NEVER

    def notice(self, record: Record, now_ns: int) -> None:
        """A record was read."""
        member, seen = record.member, self.seen
        if record.facts is not None and LEAVING in record.facts and len(self.leaving) < MAX_SEEN:
            self.leaving[member] = now_ns
            seen.pop(member, None)
        elif member not in self.leaving and (member in seen or len(seen) < MAX_SEEN):
            self.can_all_repeat &= member in seen or REPEATS in (record.facts or {})
            seen[member] = now_ns
            if record.facts is not None:
                self.facts[member] = record.facts
            if len(seen) >= self.most:
                self.most, self._counted_ns = len(seen), now_ns

    def forget(self, now_ns: int, *, may_shrink: bool) -> None:
        """Those that have gone."""
        alive_ns = now_ns - self._overdue_ns
        self.seen = {member: seen_ns for member, seen_ns in self.seen.items() if seen_ns > alive_ns}
        self.leaving = {member: left_ns for member, left_ns in self.leaving.items() if left_ns > alive_ns}
        self.facts = {member: facts for member, facts in self.facts.items() if member in self.seen}
        self.can_all_repeat = all(REPEATS in self.facts.get(member, {}) for member in self.seen)
        self.is_asked = any(ASKS in facts for facts in self.facts.values())
        if may_shrink and now_ns - self._counted_ns >= COUNTED_NS:
            self.most, self._counted_ns = len(self.seen), now_ns

    def live_facts(self, now_ns: int) -> dict[str, Facts]:
        """The facts of each member that was seen recently, by member."""
        alive_ns = now_ns - self._overdue_ns
        return {member: self.facts.get(member, {}) for member, seen_ns in self.seen.items() if seen_ns > alive_ns}
