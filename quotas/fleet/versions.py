"""Which version of the topic of quotas the members of fleets apply: each advertises it, and a command waits for all."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from quotas.fleet.parameters import Parameters
from quotas.fleet.record import MAX_FACT_LENGTH, Facts, parse
from quotas.fleet.roster import OwnFacts
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
    """How many members have applied a version, and the names of those that have not."""

    applied: int
    missing: list[str]


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
        """Who has applied the quotas up to this offset."""
        alive = list(self._alive())
        follow = {at for at in alive if self._facts.get(at, {}).get(_TOPIC) == self._topic}
        fleets = {fleet for fleet, _ in follow}
        members = [at for at in alive if at[0] in fleets]
        missing = [member for fleet, member in members if not self._has_applied((fleet, member), follow, offset)]
        return Versions(len(members) - len(missing), sorted(missing))

    def _has_applied(self, at: tuple[str, str], follow: set[tuple[str, str]], offset: int) -> bool:
        found = self._facts.get(at, {}).get(_OFFSET) if at in follow else None
        return isinstance(found, int) and found >= offset

    def _alive(self) -> Iterator[tuple[str, str]]:
        """Those that were seen shortly before the newest record: members write every 5 s."""
        newest_ms = max(self._seen.values(), default=0)
        return (at for at, seen_ms in self._seen.items() if newest_ms - seen_ms < _ALIVE_MS)
