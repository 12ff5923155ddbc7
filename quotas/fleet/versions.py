"""Which version of the topic of quotas the members of fleets apply: each advertises it, and a command waits for all."""

from typing import Final, NamedTuple

from quotas.fleet.parameters import Parameters
from quotas.fleet.record import MAX_FACT_LENGTH, Facts, parse
from quotas.fleet.roster import LEAVING, OwnFacts
from quotas.time_units import NS_PER_MS

_TOPIC: Final = "quotas_topic"
_OFFSET: Final = "quotas_offset"
_ALIVE_MS: Final = Parameters().overdue_ns // NS_PER_MS
_MAX_SEEN: Final = 10_000


def advertise(facts: OwnFacts, topic: str, offset: int) -> None:
    """The quotas of this topic are in force here up to this offset."""
    facts[_TOPIC] = topic[:MAX_FACT_LENGTH]
    facts[_OFFSET] = offset


class Versions(NamedTuple):
    """How many members have applied a version, and the names of those that have not.

    silent   those that were seen lately, but not since all their leases have expired: stopped, killed or cut off
    """

    applied: int
    missing: list[str]
    silent: list[str]


class Followers:
    """The members of all fleets with at least one member that follows this topic, from the records of fleets."""

    def __init__(self, topic: str) -> None:
        self._topic = topic[:MAX_FACT_LENGTH]
        self._seen: dict[tuple[str, str], int] = {}
        self._facts: dict[tuple[str, str], Facts] = {}

    def apply(self, data: bytes, time_ms: int) -> None:
        """The next record, any bytes, which was appended at this time by the broker's clock."""
        record = parse(data)
        if record is None:
            return
        at = record.fleet, record.member
        if at in self._seen or len(self._seen) < _MAX_SEEN:
            self._seen[at] = time_ms
            if record.facts is not None:
                self._facts[at] = record.facts

    def versions(self, offset: int) -> Versions:
        """Who has applied the quotas up to this offset. Those that have left do not count."""
        facts = {at: self._facts.get(at, {}) for at in self._seen}
        fleets = {at[0] for at, each in facts.items() if each.get(_TOPIC) == self._topic}
        members = {at: each for at, each in facts.items() if at[0] in fleets and LEAVING not in each}
        newest_ms = max(self._seen.values(), default=0)
        alive = {at for at in members if newest_ms - self._seen[at] < _ALIVE_MS}  # they write every 5 s
        hosts = {(fleet, _host_of(name)) for fleet, name in alive}
        missing = [name for fleet, name in alive if not self._has_applied(members[fleet, name], offset)]
        silent = [name for fleet, name in members.keys() - alive if (fleet, _host_of(name)) not in hosts]
        return Versions(len(alive) - len(missing), sorted(missing), sorted(silent))

    def _has_applied(self, facts: Facts, offset: int) -> bool:
        found = facts.get(_OFFSET) if facts.get(_TOPIC) == self._topic else None
        return isinstance(found, int) and found >= offset


def _host_of(name: str) -> str:
    """The part of a name that is the same after a restart; all of it, if it has no such part."""
    return name.rpartition("/")[0] or name
