"""Every state that a few members can reach on a log in the worst environment: does the real `Caps` keep its bound?

A state has a snapshot of each member's `Caps`, how far each has read, the records under way, and which clocks are slow.
Each step of a member is one of the class: a member is made from its snapshot, reads a record or states caps, and its
snapshot is taken again. Few snapshots differ, so each (snapshot, event) is computed once.

The environment, in every order: a record under way is appended, is appended and stays for another copy, or is lost; a
member reads its next record; all clocks tick, or all but one, once in a `ttl`; a member crashes, joins, or begins to
read again, each having read all of the log, or from its end.

Times in a snapshot are ages in ticks. No gap between two successive ones is longer than the longest period that the
class compares with, since a longer one makes no difference. So the clocks run for ever in a finite number of states.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from quotas.fleet.caps import NEVER, Caps, Entry, Key
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.record import Record, Statement

ABSENT: Final = -1
"""In place of a snapshot: a member that has not joined yet."""
CRASHED: Final = -2
NOW: Final = 0
Age: TypeAlias = int | None
"""Ticks before now; None: never."""
ANCIENT: Final = 1 << 60
"""An age that is above all others, but not never."""
Sent: TypeAlias = tuple[int, int, tuple[int, ...]]
"""A record: author, number, and the cap of each key, or NOTHING."""
NOTHING: Final = -1


class Bounds(NamedTuple):
    """What makes the number of states finite.

    members, keys     how many
    units             WHOLE has so many; each cap is a number of them
    ttl, margin       ticks; the margin covers the tick that a clock may miss in a ttl
    unread            records of the log that a member has yet to read, at most
    under_way         records on their way to the log, at most
    records           that all members send together, at most
    in_flight         of them not yet read back, at most
    joiners           members that are not there at the start
    copies            records that are appended and stay under way, to be appended once more
    crashes, rejoins  how many
    beats             members also send records that state nothing
    """

    members: int = 2
    keys: int = 1
    units: int = 1
    ttl: int = 1
    margin: int = 1
    unread: int = 2
    under_way: int = 1
    records: int = 2
    in_flight: int = 2
    joiners: int = 0
    copies: int = 0
    crashes: int = 0
    rejoins: int = 0
    beats: bool = False


class KeySnapshot(NamedTuple):
    """`leased`: the age of the sending that the lease comes from. `stated`: member, number, cap, age of the receipt.

    Members are counted from this one on, so that it makes no difference which one it is.
    """

    use: int
    leased: Age
    unread: tuple[tuple[int, int], ...]
    stated: tuple[tuple[int, int, int, int], ...]


class Snapshot(NamedTuple):
    """One member. `sent`: number and age of own records that may still have an effect when they are read back."""

    seq: int
    sent: tuple[tuple[int, int], ...]
    horizon: Age
    known_from: Age
    keys: tuple[KeySnapshot, ...]


class State(NamedTuple):
    """`members`: number of the snapshot, records of `log` that it has read.
    `base`: the last valid statements before `log`. `slow`: ticks until a clock may miss the next one. The
    rest: what is left of the bounds of the same names.
    """

    members: tuple[tuple[int, int], ...]
    log: tuple[Sent, ...]
    base: tuple[Sent, ...]
    under_way: tuple[Sent, ...]
    slow: int
    records: int
    copies: int
    crashes: int
    rejoins: int


@dataclass
class Result:
    """How far the search came: `worst` is the largest sum of uses, in parts of WHOLE."""

    states: int = 0
    steps: int = 0
    worst: int = 0
    is_complete: bool = False
    path: list[State] = field(default_factory=list)


class Members:
    """Snapshots by number, and the steps between them, made by `make`."""

    def __init__(self, make: type[Caps], bounds: Bounds) -> None:
        self.make, self.bounds = make, bounds
        self.parameters = Parameters(
            ttl_ns=bounds.ttl, margin_ns=bounds.margin, clock_error_ppm=0, floors_ppm=0, shares_fallback=False
        )
        self.names = [f"m{member}" for member in range(bounds.members)]
        self.keys = [f"k{key}" for key in range(bounds.keys)]
        self._numbers: dict[Snapshot, int] = {}
        self._snapshots: list[Snapshot] = []
        self._steps: dict[tuple[object, ...], int] = {}
        self._uses: dict[int, tuple[int, ...]] = {}

    def new(self, *, is_covered: bool, base: tuple[Sent, ...] = ()) -> int:
        """One that joins, and has read `base` if it has read all of the log."""
        return self._begun(self.made(), is_covered, base)

    def begin(self, number: int, *, is_covered: bool, base: tuple[Sent, ...] = ()) -> int:
        return self._begun(self._restore(number), is_covered, base)

    def read(self, number: int, sent: Sent) -> int:
        event = (number, sent)
        if event not in self._steps:
            caps = self._restore(number)
            caps.apply(self.record(sent), NOW)
            self._steps[event] = self._number(caps)
        return self._steps[event]

    def state(self, number: int, caps_of_keys: tuple[int, ...]) -> int:
        """After it has made a record; the record is numbered `seq` of the result."""
        event = (number, caps_of_keys)
        if event not in self._steps:
            caps = self._restore(number)
            wishes = {key: (cap, cap) for key, cap in zip(self.keys, caps_of_keys, strict=True) if cap != NOTHING}
            caps.state(wishes, NOW)
            self._steps[event] = self._number(caps)
        return self._steps[event]

    def tick(self, number: int) -> int:
        event = (number,)
        if event not in self._steps:
            self._steps[event] = self._intern(self._compressed(self._snapshots[number], 1))
        return self._steps[event]

    def uses(self, number: int) -> tuple[int, ...]:
        """What it may use of each key now, by the rate that it is given."""
        if number not in self._uses:
            caps = self._restore(number)
            self._uses[number] = tuple(caps.allowed(key, NOW)[0] - 1 for key in self.keys)
        return self._uses[number]

    def seq(self, number: int) -> int:
        return self._snapshots[number].seq

    def in_flight(self, number: int) -> int:
        """Own records that may be under way, at least."""
        snapshot = self._snapshots[number]
        return sum(1 for _, age in snapshot.sent if snapshot.horizon is None or age < snapshot.horizon)

    # ---- between snapshots and members

    def _begun(self, caps: Caps, is_covered: bool, base: tuple[Sent, ...]) -> int:
        caps.begin(NOW, is_covered=is_covered)
        for sent in base:
            caps.apply(self.record(sent), NOW)
        return self._number(caps)

    def made(self) -> Caps:
        caps = self.make("f", self.parameters, lambda: 0)
        caps.name = self.names[0]
        for key in self.keys:
            caps.set_quota(key, WHOLE)
        return caps

    def record(self, sent: Sent) -> Record:
        author, seq, caps = sent
        statements = [Statement(key, WHOLE, c, c) for key, c in zip(self.keys, caps, strict=True) if c != NOTHING]
        return Record("f", self.names[author], seq, 0, tuple(statements))

    def _restore(self, number: int) -> Caps:
        snapshot = self._snapshots[number]
        caps = self.made()
        caps._seq = snapshot.seq
        caps._sent = {seq: (-age, 0) for seq, age in snapshot.sent}
        caps._horizon_ns, caps._known_from_ns = _time(snapshot.horizon), _time(snapshot.known_from)
        for name, of_key in zip(self.keys, snapshot.keys, strict=True):
            key = caps.keys[name]
            key.use, key.unread = of_key.use, list(of_key.unread)
            key.lease_ns = NEVER if of_key.leased is None else self.parameters.lease_ns - of_key.leased
            key.stated = {
                self.names[author]: Entry(seq, WHOLE, cap, cap, -age) for author, seq, cap, age in of_key.stated
            }
            key.total = sum(entry.cap for entry in key.stated.values())
            key.least = WHOLE if key.stated else key.least
            key.oldest_ns = min((entry.received_ns for entry in key.stated.values()), default=NOW)
            caps._entries += len(key.stated)
        caps._to_sweep = list(self.keys)
        return caps

    def _number(self, caps: Caps) -> int:
        horizon, known_from = _age(caps._horizon_ns), _age(caps._known_from_ns)
        keys = [self._key_snapshot(caps.keys[key]) for key in self.keys]
        sent = [(seq, -sent_ns) for seq, (sent_ns, _) in caps._sent.items()]
        return self._intern(self._compressed(Snapshot(caps._seq, tuple(sent), horizon, known_from, tuple(keys)), 0))

    def _key_snapshot(self, key: Key) -> KeySnapshot:
        stated = [
            (self.names.index(name), entry.seq, entry.cap, -entry.received_ns) for name, entry in key.stated.items()
        ]
        leased = None if key.lease_ns == NEVER else self.parameters.lease_ns - key.lease_ns
        return KeySnapshot(key.use, leased, tuple(key.unread), tuple(sorted(stated)))

    def _compressed(self, old: Snapshot, ticks: int) -> Snapshot:
        """After `ticks`, without what makes no difference."""
        lease, overdue = self.parameters.lease_ns, self.parameters.overdue_ns
        received = {entry[-1] for key in old.keys for entry in key.stated}
        horizon, known_from = old.horizon, old.known_from
        if horizon is not None and known_from is not None and known_from >= horizon + overdue:
            known_from = None  # it stays known
        sent = [
            (seq, age)
            for seq, age in old.sent
            if age + ticks < lease
            or horizon is None
            or (age < horizon and (known_from is not None or any(age + overdue <= each for each in received)))
        ]
        if horizon is not None:  # what is overdue because of it
            horizon = min((age - overdue for age in received if age >= horizon + overdue), default=ANCIENT)
        keys = [
            key if key.use or key.leased is None or key.leased + ticks < lease else key._replace(leased=None)
            for key in old.keys
        ]
        ages = {horizon, known_from, *received, *(age for _, age in sent), *(key.leased for key in keys)}
        new: dict[Age, int] = {ANCIENT: ANCIENT}
        last, last_new = NOW - ticks, NOW
        for age in sorted(age for age in ages if age is not None and age != ANCIENT):
            last_new += min(age - last, overdue)
            last, new[age] = age, last_new
        return Snapshot(
            old.seq,
            tuple((seq, new[age]) for seq, age in sent),
            new.get(horizon),
            new.get(known_from),
            tuple(
                key._replace(
                    leased=new.get(key.leased), stated=tuple((*entry[:-1], new[entry[-1]]) for entry in key.stated)
                )
                for key in keys
            ),
        )

    def _intern(self, snapshot: Snapshot) -> int:
        number = self._numbers.setdefault(snapshot, len(self._snapshots))
        if number == len(self._snapshots):
            self._snapshots.append(snapshot)
        return number


def _time(age: Age) -> int:
    return NEVER if age is None else -age


def _age(time: int) -> Age:
    return None if time == NEVER else -time


class Search:
    """All states that can be reached. Those that differ only in which member is the first one are the same."""

    def __init__(self, make: type[Caps], bounds: Bounds) -> None:
        self.bounds = bounds
        self.members = Members(make, bounds)
        units = [WHOLE * unit // bounds.units for unit in range(bounds.units + 1)]
        if bounds.keys > 1:
            units.append(NOTHING)
        nothing = (NOTHING,) * bounds.keys
        self.choices = [each for each in product(units, repeat=bounds.keys) if each != nothing or bounds.beats]
        if bounds.beats and bounds.keys == 1:
            self.choices.append(nothing)
        self.keeps_base = bounds.joiners > 0 or bounds.rejoins > 0

    def run(self, most: int) -> Result:
        """Until all are found, or `most`, or the bound is broken: then with the path to that state."""
        bounds = self.bounds
        here = bounds.members - bounds.joiners
        members = [(self.members.new(is_covered=True) if m < here else ABSENT, 0) for m in range(bounds.members)]
        start = self._canonical(
            State(tuple(members), (), (), (), 0, bounds.records, bounds.copies, bounds.crashes, bounds.rejoins)
        )
        came_from: dict[State, State | None] = {start: None}
        todo, result = deque([start]), Result()
        while todo and len(came_from) < most:
            state = todo.popleft()
            for each in self._after(state):
                after = self._canonical(each)
                result.steps += 1
                if after in came_from:
                    continue
                came_from[after] = state
                todo.append(after)
                used = self._used(after)
                result.worst = max(result.worst, used)
                if used > WHOLE:
                    result.path = _path(came_from, after)
                    todo.clear()
                    break
        result.states, result.is_complete = len(came_from), not todo and not result.path
        return result

    def _used(self, state: State) -> int:
        """The largest sum of uses of one key."""
        uses = [self.members.uses(number) for number, _ in state.members if number >= 0]
        return max((sum(of_key) for of_key in zip(*uses, strict=True)), default=0)

    def _after(self, state: State) -> Iterator[State]:
        for member, (number, read) in enumerate(state.members):
            if number == ABSENT:
                yield from self._begins(state, member, self.members.new)
            elif number != CRASHED:
                yield from self._steps(state, member, number, read)
        yield from self._appends(state)
        yield from self._ticks(state)

    def _begins(self, state: State, member: int, begin: Callable[..., int]) -> Iterator[State]:
        """It has read all of the log, or knows that it has not."""
        base = tuple(self._seen_from(member, sent) for sent in state.base)
        yield self._moved(state, member, begin(is_covered=True, base=base), 0)
        yield self._moved(state, member, begin(is_covered=False), len(state.log))

    def _steps(self, state: State, member: int, number: int, read: int) -> Iterator[State]:
        bounds, members = self.bounds, self.members
        if read < len(state.log):
            after = members.read(number, self._seen_from(member, state.log[read]))
            yield self._moved(state, member, after, read + 1)
        if state.crashes:
            yield self._moved(state._replace(crashes=state.crashes - 1), member, CRASHED, 0)
        if state.rejoins:
            again = state._replace(rejoins=state.rejoins - 1)
            yield from self._begins(again, member, partial(members.begin, number))
        if state.records and len(state.under_way) < bounds.under_way and members.in_flight(number) < bounds.in_flight:
            for caps in self.choices:
                after = members.state(number, caps)
                under_way = tuple(sorted((*state.under_way, (member, members.seq(after), caps))))
                sent = state._replace(under_way=under_way, records=state.records - 1)
                yield self._moved(sent, member, after, read)

    def _appends(self, state: State) -> Iterator[State]:
        for place, sent in enumerate(state.under_way):
            rest = state.under_way[:place] + state.under_way[place + 1 :]
            yield state._replace(under_way=rest)
            if len(state.log) < self.bounds.unread:
                log = (*state.log, sent)
                yield self._forgotten(state._replace(log=log, under_way=rest))
                if state.copies:
                    yield self._forgotten(state._replace(log=log, copies=state.copies - 1))

    def _ticks(self, state: State) -> Iterator[State]:
        ticked = [(self.members.tick(n) if n >= 0 else n, read) for n, read in state.members]
        yield state._replace(members=tuple(ticked), slow=max(0, state.slow - 1))
        if state.slow == 0:
            for member, (number, read) in enumerate(state.members):
                if number >= 0:
                    all_but_one = (*ticked[:member], (number, read), *ticked[member + 1 :])
                    yield state._replace(members=all_but_one, slow=self.bounds.ttl)

    def _moved(self, state: State, member: int, number: int, read: int) -> State:
        members = (*state.members[:member], (number, read), *state.members[member + 1 :])
        return self._forgotten(state._replace(members=members))

    def _forgotten(self, state: State) -> State:
        """Without the part of the log that all have read: it goes to the base, for who joins."""
        read_by_all = min((read for number, read in state.members if number >= 0), default=len(state.log))
        if not read_by_all:
            return state
        members = tuple((number, read - read_by_all if number >= 0 else 0) for number, read in state.members)
        base = self._base(state.base + state.log[:read_by_all]) if self.keeps_base else ()
        return state._replace(members=members, log=state.log[read_by_all:], base=base)

    def _base(self, read: tuple[Sent, ...]) -> tuple[Sent, ...]:
        """The last valid records, by author and key."""
        last: dict[tuple[int, int], Sent] = {}
        for sent in read:
            for key, cap in enumerate(sent[2]):
                before = last.get((sent[0], key))
                if cap != NOTHING and (before is None or before[1] < sent[1]):
                    last[sent[0], key] = sent
        return tuple(sorted(set(last.values())))

    def _seen_from(self, member: int, sent: Sent) -> Sent:
        return ((sent[0] - member) % self.bounds.members, *sent[1:])

    def _canonical(self, state: State) -> State:
        """The least of those that differ only in which member is the first one."""
        least = state
        for first in range(1, self.bounds.members):
            if state.members[first] > state.members[0]:
                continue
            members = state.members[first:] + state.members[:first]
            log, base, under_way = [
                tuple(self._seen_from(first, sent) for sent in part)
                for part in (state.log, state.base, state.under_way)
            ]
            turned = State(members, log, tuple(sorted(base)), tuple(sorted(under_way)), *state[4:])
            least = min(least, turned)
        return least


def _path(came_from: dict[State, State | None], last: State) -> list[State]:
    path: list[State] = []
    state: State | None = last
    while state is not None:
        path.insert(0, state)
        state = came_from[state]
    return path
