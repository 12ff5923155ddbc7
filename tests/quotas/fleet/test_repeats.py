"""Records that repeat what their author advertised before: what members make of them, and when they send one.

Fleets whose members repeat while records are lost, late and doubled: the simulated world.
"""

from itertools import count

import pytest

from quotas.fleet.caps import MAX_ENTRIES
from quotas.fleet.member import Member
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.policy import Demand
from quotas.fleet.record import Record, Statement, encode, parse
from quotas.fleet.repeats import Repeats, _Stated
from quotas.time_units import NS_PER_SECOND

pytestmark = pytest.mark.claim("fleet", "the parts in use never add up to more than the limit")

QUOTA = 100_000_000_000
NAMES = [f"client-id=app-{number},producer_byte_rate" for number in range(50)]
LARGE = Parameters(max_members=1_000)
WAITS = Demand(0, True)


def record(seq: int, *statements: tuple[str, int, int], repeats: tuple[int, int] | None = None) -> Record:
    """Keys, caps and wants of member `a`."""
    return Record(
        "etl", "a", seq, 0, tuple(Statement(key, 7, cap, want) for key, cap, want in statements), None, repeats
    )


class Reader:
    """What one makes of the records of `a`."""

    def __init__(self) -> None:
        self.repeats = Repeats()

    def reads(self, *records: Record) -> None:
        for each in records:
            assert self.repeats.expanded(each, 0) == each

    def caps(self, repeating: Record) -> dict[str, int] | None:
        found = self.repeats.expanded(repeating, 0)
        return None if found is None else {each.key: each.cap for each in found.statements}

    @property
    def sums(self) -> tuple[int, int]:
        return self.repeats.held("a")[1]


def test_each_statement_that_holds_something_is_repeated_as_it_was_last_advertised() -> None:
    reader = Reader()
    reader.reads(record(1, ("x", 5, 5), ("y", 6, 0), ("z", 0, 8)), record(3, ("x", 4, 4)), record(4, ("y", 0, 0)))
    reader.reads(record(2, ("x", 9, 9), ("y", 9, 9)))  # late, so void
    assert reader.caps(record(5, repeats=reader.sums)) == {"x": 4, "z": 0}


def test_one_that_has_missed_something_finds_out_and_reads_all_of_it_again() -> None:
    both, late = Reader(), Reader()
    first, second = record(1, ("x", 5, 5)), record(2, ("y", 6, 6))
    both.reads(first, second)
    late.reads(second)
    assert both.caps(record(3, repeats=both.sums)) == {"x": 5, "y": 6}
    assert late.caps(record(3, repeats=both.sums)) is None
    again = record(4, ("x", 5, 5), ("y", 6, 6))
    late.reads(again)
    assert late.caps(record(5, repeats=late.sums)) == {"x": 5, "y": 6}


def test_a_late_one_and_a_copy_repeat_nothing() -> None:
    reader = Reader()
    reader.reads(record(1, ("x", 5, 5)))
    repeating = record(2, repeats=reader.sums)
    assert reader.caps(repeating) == {"x": 5}
    assert reader.caps(repeating) == {}
    reader.reads(record(4, ("x", 8, 8)))
    assert reader.caps(record(3, repeats=(1, 1))) == {}


def test_what_is_kept_is_bounded() -> None:
    reader = Reader()
    for seq in range(1, 5_000):
        reader.reads(record(seq, (f"k{seq}", 0, 0)))
    assert len(reader.repeats._of["a"].latest) < 1_100
    for number in range(MAX_ENTRIES // 1_000 + 2):
        statements = tuple(Statement(f"k{each}", 7, 1, 1) for each in range(1_000))
        reader.repeats.expanded(Record("etl", f"m{number}", 1, 0, statements), 0)
    assert sum(len(stated.latest) for stated in reader.repeats._of.values()) <= MAX_ENTRIES
    reader.repeats.forget(0)
    assert reader.repeats._size == len(reader.repeats._of) == 0


class Pair:
    """Members at one log that is read at once, from their start or from `first` on."""

    def __init__(self) -> None:
        self.nonces = count(1)
        self.now_ns = 1_000 * NS_PER_SECOND
        self.log: list[bytes] = []
        self.members: list[Member] = []
        self.demand = dict.fromkeys(NAMES, Demand(QUOTA // 100, False))

    def join(self, *, first: int, is_covered: bool, parameters: Parameters = LARGE) -> Member:
        member = Member("etl", parameters, lambda: next(self.nonces))
        for name in NAMES:
            member.set_quota(name, QUOTA)
        member.begin(self.now_ns, is_covered=is_covered)
        for data in self.log[first:]:
            member.apply(data, self.now_ns)
        self.members.append(member)
        return member

    def run(self, seconds: float, demand: dict[str, Demand] | None = None) -> list[Record]:
        """The records that were sent meanwhile."""
        began = len(self.log)
        for _ in range(round(seconds * 10)):
            self.now_ns += NS_PER_SECOND // 10
            for member in self.members:
                data = member.plan(self.now_ns, demand or self.demand)
                if data is not None:
                    self.log.append(data)
                    for each in self.members:
                        each.apply(data, self.now_ns)
            for name in NAMES[:1]:
                assert sum(each.caps.keys[name].use for each in self.members) <= WHOLE
        found = [parse(each) for each in self.log[began:]]
        return [each for each in found if each is not None]


def settled() -> tuple[Pair, Member]:
    pair = Pair()
    one = pair.join(first=0, is_covered=True)
    pair.run(1, dict.fromkeys(NAMES, WAITS))
    pair.run(5)
    return pair, one


def test_at_rest_a_member_repeats_and_keeps_what_it_has() -> None:
    pair, one = settled()
    records = pair.run(60)
    assert all(len(encode(each)) < 200 for each in records)
    assert 6 <= len(records) <= 8
    assert one.caps.counts["lapses"] == 0
    assert all(one.allowed(name, pair.now_ns)[0] > QUOTA // 100 for name in NAMES)
    stated = [each.key for record in pair.run(120) for each in record.statements]
    assert sorted(set(stated)) == sorted(NAMES), "a joiner reads the last 135 s"
    assert len(stated) <= 2 * len(NAMES)


def test_only_what_changes_is_advertised() -> None:
    pair, _ = settled()
    pair.demand[NAMES[3]] = Demand(QUOTA // 20, False)
    assert {each.key for record in pair.run(10) for each in record.statements} == {NAMES[3]}


def test_a_repeat_that_is_lost_is_sent_again_before_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, one = settled()
    apply, lost = Member.apply, iter(range(3))

    def lose(member: Member, data: bytes, now_ns: int) -> None:
        if b'"r":' not in data or next(lost, None) is None:
            apply(member, data, now_ns)

    monkeypatch.setattr(Member, "apply", lose)
    pair.run(15)
    assert next(lost, None) is None
    assert one.caps.counts["lapses"] == 0


def test_beside_one_that_cannot_read_them_nothing_is_repeated() -> None:
    pair, one = settled()
    one.apply(encode(Record("etl", "old", 1, 0, ())), pair.now_ns)
    assert not [each for each in pair.run(14) if each.repeats]
    assert [each for each in pair.run(20) if each.repeats], "it has gone"


def test_in_a_small_fleet_nothing_is_repeated() -> None:
    pair = Pair()
    pair.join(first=0, is_covered=True, parameters=Parameters(max_members=200))
    pair.run(1, dict.fromkeys(NAMES, WAITS))
    assert not [each for each in pair.run(20) if each.repeats]


def test_a_joiner_that_has_not_read_what_is_repeated_uses_nothing_until_it_has() -> None:
    """One holds all of a limit; the record that said so is older than all that the other one reads."""
    pair, one = settled()
    pair.run(10, dict.fromkeys(NAMES, Demand(QUOTA, True)))
    pair.run(20, dict.fromkeys(NAMES, Demand(QUOTA, False)))
    assert one.caps.keys[NAMES[0]].use > WHOLE * 9 // 10
    last = max(place for place, data in enumerate(pair.log) if b'"r":' not in data)
    two = pair.join(first=last + 1, is_covered=True)
    pair.run(10, dict.fromkeys(NAMES, WAITS))
    assert two.caps.counts["missed"] >= 1
    pair.run(30, dict.fromkeys(NAMES, WAITS))
    assert all(each.caps.is_joined(pair.now_ns) for each in pair.members)
    assert two.caps.keys[NAMES[0]].use > WHOLE * 4 // 10


def test_a_limit_that_is_removed_is_released_and_then_repeated_no_more() -> None:
    pair, one = settled()
    pair.run(10)
    one.set_quota(NAMES[0], 0)
    assert any(each == Statement(NAMES[0], QUOTA, 0, 0) for record in pair.run(3) for each in record.statements)
    assert not one.caps.keys[NAMES[0]].quota
    del pair.demand[NAMES[0]]
    assert [each.repeats and each.repeats[0] for each in pair.run(18)] == [49, 49]
    one.set_quota(NAMES[0], QUOTA)
    assert one.caps.keys[NAMES[0]].quota == QUOTA


def test_checksums_do_not_depend_on_order() -> None:
    ways = [_Stated(), _Stated()]
    statements = [Statement(name, 7, 1, 1) for name in ("x", "y", "\ud800")]
    for stated, order in zip(ways, (statements, statements[::-1]), strict=True):
        for each in order:
            stated.put(1, each)
    assert ways[0].total == ways[1].total
