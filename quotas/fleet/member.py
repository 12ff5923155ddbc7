"""One proxy of a fleet: records as bytes in, rates and the next record as bytes out."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import nlargest
from itertools import islice
from typing import Final

from quotas.fleet.caps import MAX_ENTRIES, NEVER, Caps, Key
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.policy import UNUSED, Claim, Demand, Outlook
from quotas.fleet.record import MAX_FREE_BYTES, MAX_STATEMENTS, Facts, Record, Statement, encode, is_key, parse
from quotas.fleet.repeats import ASKS, REPEATS, Repeats
from quotas.fleet.roster import LEAVING, OwnFacts, Roster
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

GAP_NS: Final = 50 * NS_PER_MS
"""Between two records of a member."""
MAX_KEYS: Final = 1_000
"""Keys of a member that want more than their floor; the others stay at it. Fewer if there are many members."""
MAX_KEYS_OF_ALL: Final = MAX_ENTRIES * 3 // 4
"""Shares that all members claim. The rest is for those that were released, or whose member has gone, for up to 21 s."""
RESTATED_AT_ONCE: Final = 50
"""Keys. More than these are advertised in several records, one after the other, within the same time."""
CHECK_NS: Final = 4 * NS_PER_MS
MOST_CHECK_NS: Final = 200 * NS_PER_MS
"""A key of which nothing has changed is checked once in `CHECK_NS` for each key, at least once in this time."""
RETRY_NS: Final = 1_500 * NS_PER_MS
"""In a large fleet: until a record that others must have is sent again, if it was not read back."""
FACTS_GAP_NS: Final = NS_PER_SECOND
"""Between two records with facts that have changed."""


class Member:
    """One member of a fleet. Rates, quotas and times as in `quotas.fleet.caps`.

    After `apply`, `plan`, `set_quota`, `begin` and `leave` the rates of the keys in `caps.changed` may have changed:
    apply them, and empty that set, before a record that `plan` or `leave` returned is sent.
    """

    def __init__(self, fleet: str, parameters: Parameters, nonce: Callable[[], int], host: str = "") -> None:
        self.caps = Caps(fleet, parameters, nonce, host)
        self.roster = Roster(parameters.overdue_ns)
        self.facts = OwnFacts()
        self.left_out = 0
        """Keys above `most_keys`."""
        self._parameters = parameters
        self._claims: dict[str, Claim] = {}
        self._repeats = Repeats()
        self._asks = False
        #: Whether the newest record, and the newest one that repeats, was not read back.
        self._is_owed = self._is_repeat_owed = False
        #: Keys that will have no quota once they are released.
        self._ending: set[str] = set()
        #: How often what another member wants of a key has changed.
        self._changes: Counter[str] = Counter()
        self._sent_ns = self._restated_ns = self._repeated_ns = self._facts_sent_ns = NEVER

    def set_quota(self, name: str, quota: int, *, is_default: bool = False) -> None:
        """See `Caps.set_quota`. ValueError for a name that no record can contain."""
        if not is_key(name):
            raise ValueError(f"a key has at most 400 bytes of JSON, not {name[:100]!r}")
        self._ending.discard(name)
        if not quota and self._parameters.repeats and name in self._claims:  # otherwise it would be repeated for ever
            self._ending.add(name)
            return
        self.caps.set_quota(name, quota, is_default=is_default)
        if not quota:
            self._claims.pop(name, None)

    def begin(self, now_ns: int, *, is_covered: bool) -> None:
        """See `Caps.begin`. The next `plan` returns a record."""
        self.caps.begin(now_ns, is_covered=is_covered)
        self._repeats.clear()
        self._sent_ns = self._restated_ns = self._repeated_ns = NEVER

    def apply(self, data: bytes, now_ns: int) -> str:
        """The next record of the log, any bytes. See `Caps.apply`. Returns why it is refused, if it should not be in
        the log: "void", "missed" or "".
        """
        record = parse(data)
        if record is None:
            self.caps.counts["void"] += 1
            return "void"
        if record.fleet != self.caps.fleet:
            self.caps.counts["foreign"] += 1
            return ""
        self.roster.notice(record, now_ns)
        self._follow_size()
        self._note_wants(record)
        if record.member == self.caps.name:
            self._is_owed = False
            self._is_repeat_owed &= record.repeats is None
        expanded = self._repeats.expanded(record, now_ns)
        if expanded is None:
            self._asks = True
            self.caps.counts["missed"] += 1
            self.caps.begin(now_ns, is_covered=False)
            return "missed"
        self.caps.apply(expanded, now_ns)
        return ""

    def allowed(self, name: str, now_ns: int) -> tuple[int, int]:
        """See `Caps.allowed`."""
        return self.caps.allowed(name, now_ns)

    def plan(self, now_ns: int, demand: Mapping[str, Demand]) -> bytes | None:
        """The next record to produce, or None; a key without a demand is unused. Uses are lowered before it returns.

        Call it every 20 to 100 ms, and when a key becomes limited. A member advertises all of its caps again once in
        `restate_ns`. A record without a key is a sign of life; a member that waits to join sends one each second. Facts
        that were not read back yet are in one record each second; all facts are advertised again once in 15 to 30 s.
        """
        if now_ns - self._sent_ns < GAP_NS:
            return None
        is_joined = self.caps.is_joined(now_ns)
        is_due = now_ns - self._restated_ns >= (self._pace_ns() if is_joined else NS_PER_SECOND)
        if is_due:
            self._restated_ns = now_ns
            self._forget(now_ns, is_joined=is_joined)
        repeats, wishes = None, dict[str, tuple[int, int]]()
        if is_joined:
            repeats = self._repeats_due(now_ns)
            wishes = self._wishes(demand, RESTATED_AT_ONCE * is_due, now_ns, repeats)
        facts = self._facts_due(now_ns, is_sent=bool(wishes or is_due or repeats))
        if not (wishes or is_due or repeats) and facts is None:
            return None
        return self._state(wishes, now_ns, facts, None if wishes else repeats)

    def leave(self, now_ns: int) -> list[bytes]:
        """The last records: this member claims and wants nothing any more, and leaves."""
        names = islice((name for name, claim in self._claims.items() if claim.cap or claim.want), MAX_STATEMENTS)
        leaving = {LEAVING: 1}
        records = [self._state(dict.fromkeys(names, (0, 0)), now_ns, leaving)]
        return records if self._facts_sent_ns == now_ns else [*records, self._state({}, now_ns, leaving)]

    @property
    def seen(self) -> dict[str, int]:
        """The members that were seen recently, and when."""
        return self.roster.seen

    @property
    def leaving(self) -> dict[str, int]:
        """Those that have left, and when. Their caps are counted a while longer."""
        return self.roster.leaving

    @property
    def max_members(self) -> int:
        """As configured."""
        return self._parameters.max_members

    @property
    def most_keys(self) -> int:
        """How many keys of a member may want more than their floor, so that all members can keep what all claim."""
        return min(MAX_KEYS, MAX_KEYS_OF_ALL // max(1, self.roster.most))

    def live_facts(self, now_ns: int) -> dict[str, Facts]:
        """The facts of this member and of each one that was seen recently, by member."""
        return self.roster.live_facts(now_ns) | {self.caps.name: self.facts.all}

    def lowest(self, name: str, now_ns: int) -> int | None:
        """The lowest integer that a live member advertises as this fact; None if no member does."""
        found = (facts.get(name) for facts in self.live_facts(now_ns).values())
        return min((value for value in found if isinstance(value, int)), default=None)

    def advertised_quotas(self, name: str) -> dict[int, list[str]]:
        """Which members advertise which quota of a key."""
        quotas: dict[int, list[str]] = {}
        for member, entry in self.caps.keys[name].stated.items():
            quotas.setdefault(entry.quota, []).append(member)
        return quotas

    def wants_version(self, name: str) -> tuple[int, int]:
        """Another value if what the others want of a key may have changed."""
        return self._changes.get(name, 0), len(self.caps.keys[name].stated)

    def _forget(self, now_ns: int, *, is_joined: bool) -> None:
        """What is over."""
        self.roster.forget(now_ns, may_shrink=is_joined)
        self._follow_size()
        self._asks &= not is_joined
        self._repeats.forget(now_ns - self._parameters.history_ns)
        if len(self._changes) > 2 * len(self.caps.keys):
            self._changes.clear()

    def _note_wants(self, record: Record) -> None:
        """Before it is applied."""
        keys, me = self.caps.keys, self.caps.name
        for name, _, _, want in record.statements if record.member != me else ():
            entry = keys[name].stated.get(record.member) if name in keys else None
            if entry is None or entry.want != want:
                self._changes[name] += 1

    def _follow_size(self) -> None:
        """If there are more members than `max_members`, they share what that many would.

        A floor and the fallback are parts of a quota that each member uses without asking. If all members have seen
        each other, each takes at most 1/N of the reserve, or of the quota if it is cut off, so N of them stay within
        it, however many more than `max_members` they are. While a member is cut off, its N can only rise, and it falls
        `COUNTED_NS` after there were fewer: so those that are cut off later, and have seen fewer since, still count
        those that were cut off before. What `caps` proves does not depend on this number: it is about uses, which are
        parts of what is left without the floors. A member that has seen nobody yet uses 1/`max_members`.
        """
        members = max(self._parameters.max_members, self.roster.most)
        if members != self.caps.parameters.max_members:
            self.caps.parameters = replace(self._parameters, max_members=members)
            self.caps.changed.update(name for name, key in self.caps.keys.items() if key.quota)

    def _facts_due(self, now_ns: int, *, is_sent: bool) -> Facts | None:
        """The facts for the next record. `is_sent`: it is sent in any case."""
        facts, age_ns = {**self.facts.all}, now_ns - self._facts_sent_ns
        facts |= {REPEATS: 1} if self._parameters.repeats else {}
        facts |= {ASKS: 1} if self._asks else {}
        is_new = facts != self.roster.facts.get(self.caps.name, {})
        ttl_ns = self._parameters.ttl_ns
        is_due = age_ns >= FACTS_GAP_NS if is_new else facts and age_ns >= (ttl_ns if is_sent else 2 * ttl_ns)
        return facts if is_due else None

    def _state(
        self,
        wishes: dict[str, tuple[int, int]],
        now_ns: int,
        facts: Facts | None = None,
        repeats: tuple[int, int] | None = None,
    ) -> bytes:
        for name, (cap, want) in wishes.items():
            claim = self._claims[name] = self._claims.pop(name)  # those advertised longest ago come first
            claim.quota, claim.cap, claim.want, claim.stated_ns = self.caps.keys[name].quota, cap, want, now_ns
        self._sent_ns, self._is_owed = now_ns, True
        if repeats is not None:
            self._repeated_ns = self._restated_ns = now_ns
            self._is_repeat_owed = True
        record = self.caps.state(wishes, now_ns)
        data = encode(record._replace(facts=facts, repeats=repeats))
        if facts is not None and len(data) > MAX_FREE_BYTES:  # the next record has them
            return encode(record)
        if facts is not None:
            self._facts_sent_ns = now_ns
        return data

    def _pace_ns(self) -> int:
        """Between two records that are sent only because it is time."""
        if self._is_owed and self._parameters.repeats:
            return RETRY_NS
        return self._parameters.restate_ns * RESTATED_AT_ONCE // max(RESTATED_AT_ONCE, len(self._claims))

    def _repeats_due(self, now_ns: int) -> tuple[int, int] | None:
        """What a record that repeats all statements contains, if it is time for one: all must be in the log as they
        were sent last, and none on its way.
        """
        pace_ns = RETRY_NS if self._is_repeat_owed else self._parameters.restate_ns
        if not self._parameters.repeats or now_ns - self._repeated_ns < pace_ns or not self.roster.can_all_repeat:
            return None
        held, repeats = self._repeats.held(self.caps.name)
        return repeats if held and self._are_in_the_log(held) else None

    def _are_in_the_log(self, held: Mapping[str, Statement]) -> bool:
        """Whether these are the newest statements that were sent."""
        keys = self.caps.keys
        for name in held.keys() & keys.keys() - self._claims.keys():
            if keys[name].quota:  # its release was lost
                self._claims[name] = Claim(held[name].cap)
        claims = {name: each for name, each in self._claims.items() if each.cap or each.want or keys[name].unread}
        return held.keys() == claims.keys() and all(
            statement[1:] == (keys[name].quota, claims[name].cap, claims[name].want) and not keys[name].unread
            for name, statement in held.items()
        )

    def _is_old(self, claim: Claim, key: Key, now_ns: int, *, is_repeated: bool) -> bool:
        """Whether to advertise a claim again that has not changed."""
        parameters, age_ns = self._parameters, now_ns - claim.stated_ns
        least_ns = parameters.restate_ns // 2
        is_renewed = is_repeated or key.lease_ns - now_ns > parameters.lease_ns - least_ns
        if parameters.repeats and is_renewed and not self.roster.is_asked:
            least_ns = parameters.explicit_ns
        return bool(claim.cap or claim.want) and age_ns >= least_ns

    def _wishes(
        self, demand: Mapping[str, Demand], restated: int, now_ns: int, repeats: object = None
    ) -> dict[str, tuple[int, int]]:
        """Cap and want of the keys to advertise now; at most `restated` of them only because their time has come."""
        outlook = Outlook(self.caps.name, WHOLE // max(1, len(self.seen)), now_ns, self.caps.parameters)
        wishes: dict[str, tuple[int, int]] = {}
        for name, want in self._wants(demand, outlook, is_of_all=restated > 0).items():
            key, claim = self.caps.keys[name], self._claims[name]
            cap = claim.next_cap(key, want, self.wants_version(name), outlook)
            if cap is None and claim.quota:
                is_old = restated > 0 and self._is_old(claim, key, now_ns, is_repeated=repeats is not None)
                if is_old or claim.quota != key.quota:  # the lower one would apply until others drop it
                    cap = claim.cap
                    restated -= is_old
            if cap is not None:
                wishes[name] = cap, want
            elif claim.is_over(key, want):
                self._end(name, claim, now_ns)
        return dict(islice(wishes.items(), MAX_STATEMENTS))

    def _join(self, demand: Mapping[str, Demand]) -> None:
        """Keys that are limited take part."""
        keys = self.caps.keys
        for name, each in demand.items():
            if each.is_limited and name in keys and keys[name].quota and name not in self._ending:
                self._claims.setdefault(name, Claim())

    def _end(self, name: str, claim: Claim, now_ns: int) -> None:
        """A claim may have ended."""
        if name in self._ending:
            del self._claims[name]
            self.set_quota(name, 0)
        elif now_ns >= claim.wants_until_ns:
            del self._claims[name]

    def _wants(self, demand: Mapping[str, Demand], outlook: Outlook, *, is_of_all: bool) -> dict[str, int]:
        """What each key that takes part wants above its floor. A key takes part as soon as it is limited, until its use
        has fitted its floor for two `ttl_ns`. Without `is_of_all`, keys of which nothing has changed may be left out.
        """
        self._join(demand)
        keys, claims = self.caps.keys, self._claims
        pace_ns = min(MOST_CHECK_NS, CHECK_NS * len(claims))
        changed = []
        for name, claim in claims.items():
            key, each = keys[name], demand.get(name, UNUSED)
            state = each, self._changes.get(name, 0), len(key.stated), key.total, key.use, len(key.unread), key.quota
            if claim.is_new(state, pace_ns, outlook.now_ns):
                claim.wanted = claim.next_want(key, each, outlook)
                changed.append(name)
        wants = {name: claim.wanted for name, claim in claims.items()} | dict.fromkeys(self._ending, 0)
        self.left_out = max(0, sum(want > 0 for want in wants.values()) - self.most_keys)
        if self.left_out:
            # One that holds a cap gives way to one that wants twice as much.
            largest = nlargest(self.most_keys, wants, key=lambda name: wants[name] * (2 if claims[name].cap else 1))
            return dict.fromkeys(wants, 0) | {name: wants[name] for name in largest}
        return wants if is_of_all else {name: wants[name] for name in changed}
