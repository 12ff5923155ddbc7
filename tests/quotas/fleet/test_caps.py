"""What a member may use, at which rate, until when; and what it forgets."""

from itertools import count

import pytest

from quotas.fleet import caps as caps_module
from quotas.fleet.caps import NEVER, Caps
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.record import MAX_QUOTA, Record, Statement
from tests.quotas.cost import calls_during
from tests.quotas.fleet.table import HALF, KEY, ROUND, SECOND, Table, forged

MB = 1_000_000_000
"""A megabyte per second, in thousandths."""
FOR_EVER = -NEVER


def alone(parameters: Parameters, quota: int = 100 * MB, *, is_default: bool = False) -> Caps:
    """A member that has read a log that was empty."""
    nonces = count(1)
    caps = Caps("etl", parameters, lambda: next(nonces))
    caps.set_quota(KEY, quota, is_default=is_default)
    caps.begin(0, is_covered=True)
    return caps


def read_back(caps: Caps, cap: int | None, now_ns: int) -> Record:
    """The member states a cap, or nothing, and reads it back at once."""
    record = caps.state({} if cap is None else {KEY: (cap, cap)}, now_ns)
    caps.apply(record, now_ns)
    return record


# ---- rates


def test_before_it_is_read_back_a_member_has_its_part_of_the_quota() -> None:
    caps = alone(Parameters(max_members=40))
    assert caps.allowed(KEY, 0) == (100 * MB // 40, FOR_EVER)
    read_back(caps, None, SECOND)
    assert caps.allowed(KEY, SECOND) == (100 * MB // 50 // 40, SECOND + Parameters().lease_ns)


def test_or_its_floor() -> None:
    caps = alone(Parameters(max_members=40, shares_fallback=False))
    assert caps.allowed(KEY, 0) == (100 * MB // 50 // 40, FOR_EVER)


def test_with_a_cap_it_has_that_part_of_what_is_shared_and_its_floor() -> None:
    caps = alone(Parameters(max_members=40))
    read_back(caps, WHOLE // 4, SECOND)
    assert caps.allowed(KEY, SECOND) == (98 * MB // 4 + 2 * MB // 40, SECOND + Parameters().lease_ns)


def test_after_the_lease_it_has_its_part_again() -> None:
    caps = alone(Parameters(max_members=40))
    read_back(caps, WHOLE, 0)
    _, until_ns = caps.allowed(KEY, 0)
    assert until_ns == 14_850_000_000
    assert caps.allowed(KEY, until_ns - 1)[0] > 98 * MB
    assert caps.allowed(KEY, until_ns) == (100 * MB // 40, FOR_EVER)
    assert caps.counts["lapses"] == 1


def test_names_of_a_default_have_larger_floors() -> None:
    caps = alone(Parameters(max_members=40), is_default=True)
    read_back(caps, HALF, 0)
    assert caps.allowed(KEY, 0)[0] == 80 * MB // 2 + 20 * MB // 40


def test_the_smallest_rate_is_above_zero() -> None:
    caps = alone(Parameters(max_members=100), quota=1)
    assert caps.allowed(KEY, 0)[0] == 1


@pytest.mark.parametrize("quota", [5_000, 8_000_000_123, MAX_QUOTA])
def test_all_rates_together_are_at_most_the_quota(quota: int) -> None:
    """With `max_members` of them, down to a rounding of one thousandth for each."""
    members = [alone(Parameters(max_members=7), quota) for _ in range(7)]
    for caps in members:
        read_back(caps, WHOLE // 7, 0)
    assert quota * 99 // 100 - 14 <= sum(caps.allowed(KEY, 0)[0] for caps in members) <= quota


# ---- quotas that differ


def test_the_lowest_stated_quota_counts() -> None:
    table = Table(parameters=Parameters(max_members=4))
    table.states(0, HALF)
    table.all_read()
    before = table.use(0)
    table.append(forged("other", 1, 0, quota=WHOLE // 10))
    table.all_read()
    assert table.use(0) == pytest.approx(before / 10, rel=0.001)
    table.append(forged("other", 2, 0, quota=WHOLE))
    table.all_read()
    assert table.use(0) == before


def test_a_quota_above_the_own_one_changes_nothing() -> None:
    table = Table()
    table.states(0, HALF)
    table.append(forged("other", 1, 0, quota=MAX_QUOTA))
    table.all_read()
    assert table.use(0) == HALF


def test_a_quota_of_one_that_has_gone_counts_no_more() -> None:
    table = Table()
    table.append(forged("other", 1, 0, quota=WHOLE // 10))
    table.states(0, HALF)
    table.all_read()
    assert table.use(0) == HALF // 10
    table.wait(6)
    table.states(0, HALF)
    table.all_read()
    table.wait(6)
    table.states(0, HALF)
    table.all_read()
    assert table.use(0) == HALF


def test_a_quota_that_is_halved_while_claims_are_under_way() -> None:
    """When all have read it, they share the half: one claims by the new quota, before another one that has the old."""
    table = Table()
    claim = table.sends(0, HALF)
    table.seats[0].caps.set_quota(KEY, HALF)
    lower = table.sends(0, HALF)
    table.append(claim)
    table.all_read()
    table.states(1, HALF)
    table.append(lower)
    assert table.uses() == [HALF // 2, 0]
    table.all_read()
    assert table.uses() == [HALF // 2, HALF // 2]


def test_the_lowest_quota_is_known_without_a_look_at_all_members() -> None:
    """The calls for a statement do not grow with the members that state the same quota."""

    def calls(members: int) -> int:
        caps = alone(ROUND)
        for member in range(members):
            caps.apply(forged(f"m{member}", 1, 1), 0)
        read_back(caps, HALF, 0)
        record = forged("m0", 2, 2)
        return calls_during(lambda: caps.apply(record, 1))

    assert calls(100) == calls(3)


# ---- periods, to the nanosecond


def test_a_lease_ends_on_time() -> None:
    table = Table()
    table.states(0, WHOLE)
    table.wait(4)
    table.all_read()
    table.wait(6 - 1e-9)
    assert table.use(0) == WHOLE
    table.wait(1e-9)
    assert table.use(0) == 0


@pytest.mark.parametrize(("seconds", "use"), [(12 - 1e-9, 0), (12, WHOLE)])
def test_a_silent_member_is_dropped_on_time(seconds: float, use: int) -> None:
    """12 s are counted from when its statement was received until the own record was sent."""
    table = Table()
    table.states(0, WHOLE)
    table.wait(2)
    table.reads(1)
    table.wait(seconds)
    record = table.sends(1, WHOLE)
    table.append(record)
    table.wait(3)
    table.reads(1)
    assert table.use(1) == use


@pytest.mark.parametrize(("seconds", "use"), [(12 - 1e-9, 0), (12, WHOLE)])
def test_one_that_may_have_missed_something_waits(seconds: float, use: int) -> None:
    table = Table()
    table.begins(0, is_covered=False)
    assert not table.seats[0].caps.is_joined(table.now_ns)
    table.wait(seconds)
    table.states(0, WHOLE)
    table.all_read()
    assert table.use(0) == use
    assert table.seats[0].caps.is_joined(table.now_ns) == bool(use)


def test_a_beat_is_a_position_too() -> None:
    """A record that states nothing makes others overdue; the claim that stands is filled at the next statement."""
    table = Table()
    table.states(0, WHOLE)
    table.all_read()
    table.wait(5)
    table.states(1, HALF)
    table.all_read()
    table.wait(7)
    table.states(1, None)
    table.states(1, HALF)
    table.reads(1)
    assert table.uses() == [0, HALF]


# ---- what the caller learns


def test_changed_has_the_keys_with_other_rates() -> None:
    table = Table()
    changed = table.seats[0].caps.changed
    assert changed == {KEY}  # its quota was set
    changed.clear()
    table.sends(0, HALF)
    assert changed == set()
    table.states(0, HALF)
    table.reads(0)
    assert changed == {KEY}  # its use was raised
    changed.clear()
    table.states(1, 0)
    table.reads(0)
    assert changed == set()  # nothing of it for this member
    table.append(forged("other", 1, 0, quota=HALF))
    table.reads(0)
    assert changed == {KEY}  # a lower quota
    changed.clear()
    table.sends(0, 0)
    assert changed == {KEY}  # its use was lowered before the record is sent
    changed.clear()
    table.begins(0, is_covered=True)
    assert changed == {KEY}


def test_changed_has_all_keys_when_the_fallback_is_over() -> None:
    caps = alone(Parameters())
    caps.set_quota("other", MB)
    caps.apply(caps.state({}, 0), 0)
    assert caps.changed == {KEY, "other"}
    caps.changed.clear()
    caps.apply(caps.state({}, SECOND), SECOND)
    assert caps.changed == set()


def test_a_key_that_others_state_is_no_own_one() -> None:
    caps = alone(ROUND)
    caps.changed.clear()
    caps.apply(Record("etl", "other", 1, 0, (Statement("unknown", 5, 1, 1),)), 0)
    assert caps.changed == set()
    assert caps.keys["unknown"].total == 1


def test_what_others_hold_of_a_key_is_known_when_its_quota_comes() -> None:
    caps = alone(ROUND)
    caps.set_quota(KEY, 0)
    caps.apply(forged("other", 1, HALF), 0)
    caps.set_quota(KEY, WHOLE)
    read_back(caps, WHOLE, 1)
    assert caps.keys[KEY].use == HALF


def test_a_quota_that_is_removed_holds_nothing() -> None:
    caps = alone(ROUND)
    read_back(caps, HALF, 0)
    caps.set_quota(KEY, 0)
    assert caps.keys[KEY].use == 0


def test_names_of_fleets_are_short_and_plain() -> None:
    with pytest.raises(ValueError, match="1 to 64 printable ASCII"):
        Caps("", Parameters(), lambda: 1)


# ---- clashes


@pytest.mark.parametrize(("own", "left"), [(1, 0), (2, HALF)])
def test_a_record_in_the_own_name_that_it_did_not_write(own: int, left: int) -> None:
    """A clone that goes on with the next number, or with the same, which is void."""
    table = Table()
    caps = table.seats[0].caps
    for _ in range(own):
        table.states(0, HALF)
    table.all_read()
    name = caps.name
    table.append(forged(name, 2, WHOLE, nonce=77))
    table.all_read()
    assert caps.counts["clashes"] == 1
    assert caps.name != name
    assert table.use(0) == 0
    table.states(0, WHOLE)
    table.all_read()
    assert table.use(0) == left  # the cap of the old name counts as another member's
    table.wait(12)
    table.states(0, WHOLE)
    table.all_read()
    assert table.use(0) == WHOLE


def test_own_records_that_arrive_again_are_no_clash() -> None:
    table = Table()
    table.states(0, HALF)
    table.states(0, WHOLE)
    table.append(*table.log)
    table.all_read()
    table.begins(0, is_covered=True)
    table.all_read()
    assert table.seats[0].caps.counts == {"void": 2 + 2}


# ---- bounds


def test_unread_statements_do_not_pile_up() -> None:
    caps = alone(ROUND)
    for number in range(10_000):
        caps.state({KEY: (number % 10, 0)}, number)
    assert len(caps.keys[KEY].unread) <= 10
    assert len(caps._sent) == caps_module.MAX_SENT


def test_the_least_unread_cap_counts() -> None:
    caps = alone(ROUND)
    records = [caps.state({KEY: (cap, cap)}, 0) for cap in (900, 300, 700, 500)]
    uses = []
    for record in records:
        caps.apply(record, 0)
        uses.append(caps.keys[KEY].use)
    assert uses == [300, 300, 500, 500]


def test_members_and_keys_that_have_gone_are_forgotten() -> None:
    caps = alone(ROUND)
    for number in range(100):
        caps.apply(Record("etl", "other", number + 1, 0, (Statement(f"key {number}", 5, 1, 1),)), 0)
    assert len(caps.keys) == 101
    for number in range(8):
        caps.apply(caps.state({}, 12 * SECOND + number), 12 * SECOND + number)
    assert list(caps.keys) == [KEY]
    assert caps._entries == 0


@pytest.mark.pure
def test_what_cannot_be_kept_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps_module, "MAX_ENTRIES", 10)
    table = Table()
    table.states(0, HALF)
    table.all_read()
    table.append(*(forged(f"m{number}", 1, 0) for number in range(10)))
    table.all_read()
    caps = table.seats[0].caps
    assert caps.counts["overflows"] == 1
    assert table.use(0) == 0
    assert len(caps.keys[KEY].stated) < 10
    table.wait(11)
    table.states(0, HALF)
    table.all_read()
    assert table.use(0) == 0
    table.wait(1)
    table.states(0, HALF)
    table.all_read()
    assert table.use(0) == HALF


def test_beginning_again_forgets_the_keys_of_others() -> None:
    caps = alone(ROUND)
    caps.apply(Record("etl", "other", 1, 0, (Statement("unknown", 5, 1, 1),)), 0)
    caps.begin(1, is_covered=True)
    assert list(caps.keys) == [KEY]
