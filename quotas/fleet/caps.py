"""How much each member may use: the part of the fleet's protocol that nothing may break. Policy is elsewhere.

Each member states for each key (a quota that is shared) its *cap*: the part of the whole that it will use at most. All
read the caps of all, in the one order of a log, and each decides on its own what it may *use*. Caps and uses are parts
of `WHOLE`, not rates: what changes a quota changes none of them.

    S1  A statement is valid if the number of its record is above that of the last valid one of that member and key.
        Else it is void, for its author too.
    S2  use <= the own cap read back, and <= every own cap sent and not read back. To state a lower cap, lower the use
        first, then send.
    S3  At each position of the log, from that of an own statement on: raise the use to what S2 allows, or to WHOLE less
        the caps of all others that count, whichever is less. So a claim may stand, and is filled as others cut theirs.
    S4  rate = use * (quota - floors) + floor. The quota is the lowest of the own one and those in the statements that
        count: rates follow a quota that is lowered at once, and one that is raised when all have stated it.
    S5  A use has a lease: until `lease_ns` after the last own record read back that states the key was SENT, by the own
        clock. When it is over, the use is 0, and a record that is read back later raises it from 0. So read the clock
        after the fetch has returned, and look at the lease before applying what may renew it.
    S6  A statement no longer counts from the own record r on if it was received `overdue_ns` or more before r was SENT,
        by the own clock.
    S7  A member that begins to read may have missed statements from before its first position. It uses nothing until it
        has read back an own record that was sent `overdue_ns` or more after that position existed; or, if it has read
        all of the last `history_ns` of the log, by the broker's clock, any own record sent since.

Claim. For each key, at each instant, the uses of all members add up to at most WHOLE: at any delay, loss, doubling and
reordering of records on their way to the log, any pause or end of a member, any number of records in flight, any
quotas. So at each instant the rates add up to at most the highest quota that is in force at a member with a use, and
the floors.

Proof. Of each member with a use above 0, let p be the position up to which it had read when it last raised its use. Let
a be the member with the last p; if several have the same, any of them. Since then a's use has only fallen, so by S3

    use(a) <= WHOLE - the caps that a counted at p(a)

It remains to show of each other member j with a use that (1) a counted j at p(a), and (2) use(j) <= the cap it counted.

(1) Assume that a did not count j at p(a). Then there is an own record r of a, not after p(a), at which a dropped j
(S6), or which allowed a to use anything although it had never read a statement of j (S7); and from r to p(a) is no
valid statement of j. Let t be the time when r was sent. All that j stated before r in the log was received by a, or was
before a's first position, at least `overdue_ns` before t, by a's clock: at least `ttl_ns` of true time. It was sent
earlier still, and a lease is at most `ttl_ns` of true time from sending: it was over at t. What is after r in the log
did not exist at t. So j had no lease at t: it raised its use later, by a lease from a statement that is after r and not
after p(j). As p(j) is not after p(a), that is a valid statement of j from r to p(a): a contradiction.

(2) Let e be the statement that a counted. If it is not after p(j), j had read it back when it last raised its use, and
it was j's last valid one: use(j) <= cap by S2. If it is after p(j), either j had sent it by then, and not read it back,
or it sent it later: use(j) <= cap by S2 in both cases, and the use has not been raised since. Validity (S1) is the same
for a and j: all that a may have forgotten has lower numbers than the statement after r that j's lease comes from, by
(1).

Of the log the proof needs its one order. It does not need that members come to the same results, that a record arrives,
or that anyone but j knows what j uses: to read a record back is its acknowledgement. A broker's clock matters in S7
alone: by how much it may be wrong, `history_ns` - `ttl_ns`.

Not covered: a log that loses what was read (unclean election), a machine that is suspended without its clock noticing,
or cloned (each until its leases are over), and who states caps in another's name (see `Caps.apply`).

Caps and uses are parts of WHOLE, not rates, so that a quota may change while records are under way: with rates, one
that claims by the old quota and one by the new could have three halves of the new one when both have read it.

Times are integer nanoseconds of a clock that continues while the machine sleeps. Quotas and rates are integers, in
thousandths of a unit per second, rounded down: a part of 5 requests/s for 100 members is still above 0.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.record import MAX_NAME_LENGTH, MAX_QUOTA, Record, Statement, is_name

NEVER: Final = -(1 << 62)
"""Before all times."""
MAX_ENTRIES: Final = 1 << 17
"""Statements that are kept, of all members and keys: 25 MB."""
MAX_SENT: Final = 1 << 10
"""Own records that are known by their number: those of 50 s at the highest pace."""
_SWEPT_AT_ONCE: Final = 20


class Entry(NamedTuple):
    """The last valid statement of one member about one key, the number of its record, and when it was received."""

    seq: int
    quota: int
    cap: int
    want: int
    received_ns: int


_NO_ENTRY: Final = Entry(0, 0, 0, 0, NEVER)


class Key:
    """What is known of one quota, and what this member may use of it.

    quota          the own one; 0: it has none, and knows the key from others
    floors_ppm     the part of it that is set aside for floors
    stated         the statements that count, by member; the own one too
    total, least   of `stated`: the sum of caps, the lowest quota
    oldest_ns      no statement in `stated` was received earlier
    use, lease_ns  parts of WHOLE that may be used before `lease_ns`
    unread         (number, cap) of own statements sent and not read back, the caps rising: a lower one makes those
                   before it superfluous
    version        another one after each change of `stated`
    """

    def __init__(self) -> None:
        self.quota = self.floors_ppm = self.version = 0
        self.clear()
        self.hold_nothing()

    def clear(self) -> None:
        """Nothing is known of others."""
        self.stated: dict[str, Entry] = {}
        self.total, self.least, self.oldest_ns = 0, MAX_QUOTA, NEVER
        self.version += 1

    def split(self, max_members: int) -> tuple[int, int]:
        """S4: the rate that is shared by uses, and the floor of each member."""
        quota = min(self.quota, self.least)
        floors = quota * self.floors_ppm // WHOLE
        return quota - floors, floors // max_members or 1

    def hold_nothing(self) -> None:
        """Nothing may be used."""
        self.use, self.lease_ns = 0, NEVER
        self.unread: list[tuple[int, int]] = []


class Caps:
    """The keys of one member.

    name       the member's; a random one
    keys       those with a quota, and those that others stated
    changed    keys with a quota for which `allowed` may have changed; who reads it empties it
    counts     void statements, leases that were over before the use was, clashes, overflows

    `nonce` returns a random number of 63 bits, from a source that a clone of this machine does not share. `host`: the
    first part of the member's name, for people.
    """

    def __init__(self, fleet: str, parameters: Parameters, nonce: Callable[[], int], host: str = "") -> None:
        if not is_name(fleet):
            raise ValueError(f"the name of a fleet has 1 to 64 printable ASCII characters, not {fleet!r}")
        self.fleet = fleet
        self.parameters = parameters
        self.keys: dict[str, Key] = {}
        self.changed: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._nonce = nonce
        self._host = host if is_name(host) else ""
        self._lease_ns = parameters.lease_ns
        self._overdue_ns = parameters.overdue_ns
        self._seq = self._entries = 0
        self._horizon_ns = self._known_from_ns = NEVER
        self._to_sweep: list[str] = []
        self._rename()
        self.begin(NEVER, is_covered=False)

    def begin(self, now_ns: int, *, is_covered: bool) -> None:
        """Reading begins, at the start or again: nothing is held, nothing is known (S7).

        Call it when the first position to be read is known, before the first fetch, with the clock read after that.
        is_covered: that position is `history_ns` or more before the end of the log, by the broker's times, and there is
        an older record than the first one to be read.
        """
        self._known_from_ns = NEVER if is_covered else now_ns
        self._entries = 0
        self.keys = {name: key for name, key in self.keys.items() if key.quota}
        for key in self.keys.values():
            key.clear()
        self._hold_nothing()

    def apply(self, record: Record, now_ns: int) -> None:
        """Apply the next record of the log. The clock was read after the fetch that brought it had returned.

        A record in this member's name that it did not write (a clone, or a forgery: a cap lower than its own lets
        others use too much) ends that name: the member holds nothing, takes a new name, and counts the old one's caps.
        """
        if self._entries + len(record.statements) > MAX_ENTRIES:  # what cannot be kept was missed
            self.counts["overflows"] += 1
            self.begin(now_ns, is_covered=False)
            return
        was_joined = self.is_joined(now_ns)
        sent_ns = self._sent_ns(record)
        if sent_ns is not None and sent_ns > self._horizon_ns:
            self._horizon_ns = sent_ns
            self._sweep(now_ns)
        for statement in record.statements:
            self._take(record, statement, sent_ns, now_ns)
        if not was_joined and self.is_joined(now_ns):
            self.changed.update(name for name, key in self.keys.items() if key.quota)  # the fallback has ended

    def state(self, wishes: Mapping[str, tuple[int, int]], now_ns: int) -> Record:
        """The next record: cap and want of these keys. Uses above these caps are lowered before it returns (S2)."""
        self._seq += 1
        nonce = self._nonce()
        self._sent[self._seq] = now_ns, nonce
        if len(self._sent) > MAX_SENT:
            del self._sent[next(iter(self._sent))]
        statements = []
        for name, (cap, want) in wishes.items():
            key = self.keys[name]
            if cap < key.use:
                key.use = cap
                self.changed.add(name)
            while key.unread and key.unread[-1][1] >= cap:
                key.unread.pop()
            key.unread.append((self._seq, cap))
            statements.append(Statement(name, key.quota, cap, want))
        return Record(self.fleet, self.name, self._seq, nonce, tuple(statements))

    def set_quota(self, name: str, quota: int, *, is_default: bool = False) -> None:
        """The member's own quota for a key, from now on; 0: none. A name that stands for a `<default>`: is_default."""
        key = self.keys.get(name)
        if key is None:
            key = self.keys[name] = Key()
        key.quota = quota
        key.floors_ppm = self.parameters.default_floors_ppm if is_default else self.parameters.floors_ppm
        key.version += 1
        if not quota:
            key.hold_nothing()
        self.changed.add(name)

    def allowed(self, name: str, now_ns: int) -> tuple[int, int]:
        """(rate, until_ns): what this member may use of a key with a quota, to be asked again at `until_ns`. O(1)."""
        key = self.keys[name]
        self._lapse(key, now_ns)
        members = self.parameters.max_members
        shared, floor = key.split(members)
        if key.use:
            return key.use * shared // WHOLE + floor, key.lease_ns
        if self.is_joined(now_ns):
            return floor, self._horizon_ns + self._lease_ns
        fallback = min(key.quota, key.least) // members if self.parameters.shares_fallback else 0
        return max(floor, fallback), -NEVER

    def is_joined(self, now_ns: int) -> bool:
        """Whether what others hold is known (S7), and an own record was read back lately."""
        return self._is_known() and now_ns < self._horizon_ns + self._lease_ns

    # ---- inside

    def _sent_ns(self, record: Record) -> int | None:
        """When an own record was sent; NEVER: before `begin`, or long ago. None: it is another member's."""
        if record.member != self.name:
            return None
        sent_ns, nonce = self._sent.get(record.seq, (NEVER, record.nonce))
        if record.seq <= self._seq and record.nonce == nonce:
            return sent_ns
        self.counts["clashes"] += 1
        self._rename()
        return None

    def _take(self, record: Record, statement: Statement, sent_ns: int | None, now_ns: int) -> None:
        """Apply one statement; `sent_ns` as `_sent_ns` returns it."""
        name, quota, cap, want = statement
        key = self.keys.get(name)
        if key is None:
            key = self.keys[name] = Key()
        before = key.use, key.lease_ns, key.least
        self._lapse(key, now_ns)
        last = key.stated.get(record.member, _NO_ENTRY)
        if not self._is_valid(record.seq, last):
            self.counts["void"] += 1
            return
        self._entries += last is _NO_ENTRY
        key.stated[record.member] = Entry(record.seq, quota, cap, want, now_ns)
        key.total += cap - last.cap
        key.version += 1
        if sent_ns is not None:
            key.unread = [each for each in key.unread if each[0] > record.seq]
            key.lease_ns = max(key.lease_ns, sent_ns + self._lease_ns)  # S5
        if last.quota == key.least < quota or key.oldest_ns + self._overdue_ns <= self._horizon_ns:
            self._recount(key, now_ns)
        key.least = min(key.least, quota)
        self._fill(key, now_ns)
        if key.quota and before != (key.use, key.lease_ns, key.least):
            self.changed.add(name)

    def _is_valid(self, seq: int, last: Entry) -> bool:
        """S1."""
        return seq > last.seq

    def _most(self, key: Key, own: Entry) -> int:
        """S2: the least of the own caps; `unread` rises."""
        return min(own.cap, key.unread[0][1]) if key.unread else own.cap

    def _fill(self, key: Key, now_ns: int) -> None:
        """S3."""
        own = key.stated.get(self.name)
        if own is not None and now_ns < key.lease_ns and self._is_known():
            key.use = max(key.use, min(self._most(key, own), WHOLE - (key.total - own.cap)))

    def _lapse(self, key: Key, now_ns: int) -> None:
        """S5: the end of a lease."""
        if key.use and now_ns >= key.lease_ns:
            key.use = 0
            self.counts["lapses"] += 1

    def _recount(self, key: Key, now_ns: int) -> None:
        """Drop what is overdue, and compute what depends on all advertised records. O(members)."""
        entries = key.stated
        key.stated = {member: entry for member, entry in entries.items() if not self._is_overdue(entry)}
        self._entries -= len(entries) - len(key.stated)
        key.version += 1
        key.total = sum(entry.cap for entry in key.stated.values())
        key.least = min((entry.quota for entry in key.stated.values()), default=MAX_QUOTA)
        key.oldest_ns = min((entry.received_ns for entry in key.stated.values()), default=now_ns)

    def _is_overdue(self, entry: Entry) -> bool:
        """S6."""
        return entry.received_ns + self._overdue_ns <= self._horizon_ns

    def _is_known(self) -> bool:
        """S7."""
        return self._known_from_ns + self._overdue_ns <= self._horizon_ns

    def _sweep(self, now_ns: int) -> None:
        """Forget what is overdue in a few keys, and the keys that nobody uses."""
        for name in self._to_sweep[-_SWEPT_AT_ONCE:]:
            key = self.keys.get(name)
            if key is not None and key.oldest_ns + self._overdue_ns <= self._horizon_ns:
                self._recount(key, now_ns)
                if not (key.quota or key.stated or key.unread):
                    del self.keys[name]
        del self._to_sweep[-_SWEPT_AT_ONCE:]
        self._to_sweep = self._to_sweep or list(self.keys)

    def _rename(self) -> None:
        self.name = f"{self._host[: MAX_NAME_LENGTH - 17]}/{self._nonce():016x}"
        self._hold_nothing()

    def _hold_nothing(self) -> None:
        self._horizon_ns = NEVER
        self._sent: dict[int, tuple[int, int]] = {}
        for name, key in self.keys.items():
            key.hold_nothing()
            if key.quota:
                self.changed.add(name)
