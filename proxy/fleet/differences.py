"""What is wrong with a fleet as one member sees it: quotas that differ, limits that are missing, too many members."""

import asyncio
from asyncio import Task
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from proxy.config.cautions import BELOW_FLOOR
from proxy.config.floor import FLOORS, REMEDY
from proxy.fleet.shared_limits import SharedLimit, rate_of, shared_names
from proxy.observability.logs import SAME_RECORD_NS, EventLog, RateLimited
from quotas.entry import QuotaEntry
from quotas.fleet.caps import MAX_ENTRIES
from quotas.fleet.digest import Comparison, LimitNames
from quotas.fleet.member import Member
from quotas.time_units import NS_PER_SECOND

LIMITS_FACT: Final = "limits"
PATIENCE_NS: Final = 5 * NS_PER_SECOND
"""How long something must be wrong before it is reported, because members do not change their files all at once."""
CHECK_NS: Final = NS_PER_SECOND
LINES: Final = 20
LINE_NS: Final = 30 * NS_PER_SECOND
"""At most `LINES` at once, then one in this time: anyone who can write to the topic can change quotas all the time."""
OVERFLOW_NS: Final = 20 * NS_PER_SECOND
"""How long a member that has started over may wait."""
SAME_SHARE_NS: Final = 600 * NS_PER_SECOND
NAMED: Final = 5
SHOWN_BYTES: Final = 100
_REFUSED: Final = {
    "void": ("it is ignored", "check who may write to the topic; compressed and very long records are shown as empty"),
    "missed": (
        "it refers to records that this proxy has not read, so the proxy starts over at its floor",
        "unless proxies were just restarted, check who may write to the topic",
    ),
}
_SAME_FILE: Final = "give all members the same quotas"

_log = EventLog("proxy.fleet")


class Found(NamedTuple):
    """Something that is wrong. Those of one kind about one thing share a line.

    about     the key of a limit, or the digest of the members that lack limits
    subject   the member
    value     if it changes, that is another difference
    """

    kind: str
    about: str = ""
    subject: str = ""
    value: Hashable = None


class Differences:
    """Each difference is reported once, after `PATIENCE_NS`.

    own        the limits of this member
    lacking    the members that lack some of these, and which
    forgeries  lines that anyone who can write to the topic can cause
    """

    def __init__(self, member: Member) -> None:
        self.own = LimitNames()
        self.lacking: dict[str, Comparison] = {}
        self._member = member
        self._entries: Iterable[QuotaEntry] = ()
        self._describing: Task[None] | None = None
        self._shares = RateLimited(SAME_SHARE_NS)
        self.forgeries = RateLimited(SAME_RECORD_NS)
        #: Limits for which a lower quota was advertised.
        self._lower: dict[str, SharedLimit] = {}
        self._compared: dict[str, Comparison] = {}
        self._since: dict[Found, int] = {}
        self._told: set[Found] = set()
        self._lines, self._earned_ns, self._checked_ns = LINES, 0, 0
        self._overflows, self._overflowed_ns = 0, -OVERFLOW_NS

    def describe(self, entries: Iterable[QuotaEntry], algorithm: str) -> None:
        """The limits of these entries are those of this member, from now on. `algorithm`: of entries without one.

        Call it in the event loop; there may be a million, so they are hashed in a thread.
        """
        if entries is not self._entries:
            self._entries = entries
            self._describing = asyncio.get_running_loop().create_task(self._describe(entries, algorithm))

    async def _describe(self, entries: Iterable[QuotaEntry], algorithm: str) -> None:
        own = await asyncio.to_thread(lambda: LimitNames(shared_names(entries, algorithm)))
        if self._entries is entries:  # otherwise they have changed again
            self.compare(own)

    def compare(self, own: LimitNames) -> None:
        """Advertise these as the limits of this member."""
        self.own = own
        self._compared.clear()
        self._member.facts[LIMITS_FACT] = own.digest

    def note(self, changed: Iterable[SharedLimit]) -> None:
        """What may be used of these limits has changed."""
        self._lower |= {shared.key: shared for shared in changed if shared.is_lowered}

    def overflows(self, now_ns: int) -> bool:
        """Whether this member started over lately, because more was advertised than it keeps."""
        count = self._member.caps.counts["overflows"]
        if count > self._overflows:
            self._overflows, self._overflowed_ns = count, now_ns
        return now_ns - self._overflowed_ns < OVERFLOW_NS

    def check(self, now_ns: int) -> None:
        """Call it at least once a second. O(members and limits that differ)."""
        if now_ns - self._checked_ns < CHECK_NS:
            return
        self._checked_ns = now_ns
        found = list(self._found(now_ns))
        self._since = {each: self._since.get(each, now_ns) for each in found}
        self._told.intersection_update(found)
        lines: dict[tuple[str, str], list[Found]] = defaultdict(list)
        for each in found:
            if each not in self._told and now_ns - self._since[each] >= PATIENCE_NS:
                lines[each[:2]].append(each)
        earned = (now_ns - self._earned_ns) // LINE_NS
        if earned:
            self._lines, self._earned_ns = min(LINES, self._lines + earned), now_ns
        for (kind, about), same in list(lines.items())[: self._lines]:
            self._lines -= 1
            self._told.update(same)
            self._report(kind, about, [each.subject for each in same])

    def report_refused(self, reason: str, record: bytes, now_ns: int) -> None:
        """A record that should not be in the topic. `reason`: see `Member.apply`."""
        effect, hint = _REFUSED[reason]
        about = {"reason": reason, "record": record[:SHOWN_BYTES].decode(errors="replace"), "effect": effect}
        fleet = self._member.caps.fleet
        self.forgeries.event(_log.warning, "fleet_record_refused", reason, now_ns, fleet=fleet, **about, hint=hint)

    def report_small_share(self, shared: SharedLimit, now_ns: int) -> None:
        """One line for all names of a `<default>`."""
        limit, members, share = shared.limit, shared.claimants, int(shared.fair)
        effect = (
            f"{members} members use it, and this one's share is {share}/s: too low for one producer, whose records may "
            f"expire; smallest shares: {FLOORS}"
        )
        about = {"entities": f"{limit.entity} {limit.name}={shared.rate:g}", "effect": effect, "hint": REMEDY}
        key = BELOW_FLOOR, str(limit.origin), limit.name
        self._shares.event(_log.warning, BELOW_FLOOR, key, now_ns, fleet=shared.fleet, **about)

    def _found(self, now_ns: int) -> Iterator[Found]:
        member = self._member
        if len(member.seen) > member.max_members:
            yield Found("members")
        if self.overflows(now_ns):
            yield Found("overflow")
        if member.left_out:
            yield Found("left out")
        yield from self._compare_all(now_ns)
        lower = [(shared, member.caps.keys[shared.key]) for shared in self._lower.values() if shared.is_lowered]
        self._lower = {shared.key: shared for shared, _ in lower}
        for shared, key in sorted(lower, key=lambda each: each[1].least / each[1].quota):  # the worst one first
            if not shared.limit.moves and shared.lowest not in member.leaving:
                yield Found("quota", shared.key, "", (key.least, key.quota))

    def _compare_all(self, now_ns: int) -> Iterator[Found]:
        """The limits of all members with those here."""
        digests = {name: str(facts.get(LIMITS_FACT)) for name, facts in self._member.live_facts(now_ns).items()}
        compared = {each: self._compared.get(each) or self.own.compared(each) for each in set(digests.values())}
        self._compared = compared
        self.lacking = {name: compared[each] for name, each in digests.items() if compared[each].lacks}
        for name, each in digests.items():
            if name in self.lacking:
                yield Found("lacks", each, name, self.own.digest)
            elif compared[each].extra:
                yield Found("has more", "", name, self.own.digest)

    def _report(self, kind: str, about: str, subjects: Sequence[str]) -> None:
        member, fleet = self._member, self._member.caps.fleet
        names = named(subjects)
        match kind:
            case "members":
                counts = {"members": len(member.seen), "max_members": member.max_members}
                effect = (
                    "each uses a smaller floor and a smaller share without the topic, so that all stay within limits"
                )
                hint = "raise --fleet-max-members in all members, or split the fleet"
                _log.warning("fleet_too_large", fleet=fleet, **counts, effect=effect, hint=hint)
            case "overflow":
                effect = f"more than {MAX_ENTRIES} shares (members x limits) are advertised: this proxy starts over"
                hint = "use fewer members or limits for each fleet, and the same version in all members"
                _log.warning("fleet_overflow", fleet=fleet, effect=effect, hint=hint)
            case "left out":
                effect = (
                    f"with this many members, at most {member.most_keys} busy limits can have more than their floor"
                )
                hint = "use fewer members or limits for each fleet"
                _log.warning("fleet_limits_left_out", fleet=fleet, limits=member.left_out, effect=effect, hint=hint)
            case "lacks":
                lacks = self._compared[about]
                limits = named(lacks.names) or f"{lacks.lacks} of the limits of this proxy"
                effect = "clients of these members are not limited by them"
                fields = {"members": names, "lacks": limits, "effect": effect, "hint": _SAME_FILE}
                _log.warning("fleet_limits_differ", fleet=fleet, **fields)
            case "has more":
                effect = "these members share limits that this proxy lacks, so its clients are not limited by them"
                _log.warning("fleet_limits_differ", fleet=fleet, members=names, effect=effect, hint=_SAME_FILE)
            case _:
                self._report_quota(self._lower[about])

    def _report_quota(self, shared: SharedLimit) -> None:
        key = self._member.caps.keys[shared.key]
        names = named([name for name, entry in key.stated.items() if entry.quota == key.least])
        limit = {"limit": shared.limit.name, "entity": str(shared.limit.entity)}
        rates = {"here": float(shared.configured), "applies": float(rate_of(key.least))}
        hint = f"the lowest quota applies to all members: {_SAME_FILE}"
        _log.warning("fleet_quotas_differ", **limit, **rates, advertised_by=names, hint=hint)


def named(names: Sequence[str]) -> str:
    """The first few."""
    more = len(names) - NAMED
    return ", ".join([*names[:NAMED], *([f"and {more} more"] if more > 0 else [])])
