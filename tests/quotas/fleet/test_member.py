"""When a member sends what: signs of life, restatements, the keys that take part."""

import json
from collections.abc import Mapping
from itertools import count

import pytest

from quotas.fleet.caps import MAX_ENTRIES
from quotas.fleet.member import Member
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.policy import Demand
from quotas.fleet.record import MAX_KEY_BYTES, MAX_STATEMENTS, Record, Statement, encode, parse
from quotas.fleet.roster import MAX_OWN_FACTS, MAX_SEEN
from quotas.time_units import NS_PER_MS, NS_PER_SECOND

KEY = "client-id=etl,producer_byte_rate"
QUOTA = 100_000_000_000
WAITS = Demand(0, True)
TTL_SECONDS = 15
TICK_NS = 50 * NS_PER_MS


class Alone:
    """A member that reads back at once what it sends, unless `is_cut_off`."""

    def __init__(self, *names: str, is_covered: bool = True, is_default: bool = False) -> None:
        nonces = count(1)
        self.member = Member("etl", Parameters(), lambda: next(nonces))
        self.now_ns = 1_000 * NS_PER_SECOND
        self.is_cut_off = False
        for name in names or (KEY,):
            self.member.set_quota(name, QUOTA, is_default=is_default)
        self.member.begin(self.now_ns, is_covered=is_covered)

    def run(self, seconds: float, demand: Mapping[str, Demand] | None = None) -> list[tuple[float, Record]]:
        """The records that it sends meanwhile, each with the second."""
        started_ns = self.now_ns
        sent = []
        while self.now_ns < started_ns + seconds * NS_PER_SECOND:
            data = self.member.plan(self.now_ns, demand or {})
            if data is not None:
                record = parse(data)
                assert record is not None
                sent.append(((self.now_ns - started_ns) / NS_PER_SECOND, record))
                if not self.is_cut_off:
                    self.member.apply(data, self.now_ns)
            self.now_ns += TICK_NS
        return sent

    def rate(self, name: str = KEY) -> int:
        return self.member.allowed(name, self.now_ns)[0]


def caps_and_wants(records: list[tuple[float, Record]]) -> list[tuple[int, int]]:
    return [(each.cap, each.want) for _, record in records for each in record.statements]


def test_one_without_demand_gives_signs_of_life() -> None:
    records = Alone().run(20)
    assert [seconds for seconds, _ in records] == [0, 5, 10, 15]
    assert caps_and_wants(records) == []


def test_one_that_waits_to_join_sends_a_record_each_second_and_states_nothing() -> None:
    alone = Alone(is_covered=False)
    records = alone.run(15.6, {KEY: WAITS})
    assert [round(seconds) for seconds, _ in records] == list(range(16))
    assert caps_and_wants(records) == []
    assert alone.rate() == QUOTA // 100  # the fallback: its part
    alone.run(2, {KEY: WAITS})
    assert alone.rate() > QUOTA * 9 // 10


def test_a_limited_key_takes_all_when_it_is_alone() -> None:
    alone = Alone()
    alone.run(0.5, {KEY: WAITS})
    assert alone.rate() == pytest.approx(QUOTA * 98 // 100 + QUOTA * 2 // 100 // 100, rel=0.001)


def test_between_two_records_are_50_ms() -> None:
    alone = Alone()
    assert alone.member.plan(alone.now_ns, {KEY: WAITS}) is not None
    assert alone.member.plan(alone.now_ns + TICK_NS - 1, {KEY: WAITS}) is None
    alone.now_ns += TICK_NS
    assert len(alone.run(2, {KEY: WAITS})) < 10


def test_what_is_unused_goes_back() -> None:
    alone = Alone()
    alone.run(1, {KEY: WAITS})
    peak = QUOTA // 10
    alone.run(1, {KEY: Demand(peak, False)})
    assert peak < alone.rate() < peak * 12 // 10
    records = alone.run(1)
    assert caps_and_wants(records)[-1] == (0, 0)
    assert alone.rate() == QUOTA * 2 // 100 // 100


def test_a_key_that_was_never_limited_stays_out_of_the_log() -> None:
    assert caps_and_wants(Alone(is_default=True).run(20, {KEY: Demand(QUOTA // 100, False)})) == []


def test_a_key_leaves_when_its_use_has_fitted_the_floor_for_two_ttl() -> None:
    alone = Alone(is_default=True)
    alone.run(1, {KEY: WAITS})
    floor = QUOTA * 20 // 100 // 100
    fits = {KEY: Demand(floor, False)}
    kept = alone.run(2 * TTL_SECONDS - 1, fits)
    assert caps_and_wants(kept)[-1][1] > 0  # a little more than the floor, which it may need again
    left = alone.run(2, fits)
    assert caps_and_wants(left)[-1] == (0, 0)
    assert caps_and_wants(alone.run(20, fits)) == []
    assert not alone.member._claims


def test_what_is_held_is_restated() -> None:
    alone = Alone()
    alone.run(3, {KEY: WAITS})
    records = alone.run(30, {KEY: WAITS})
    assert [each.key for _, record in records for each in record.statements] == [KEY] * 6
    assert alone.rate() > QUOTA * 9 // 10


@pytest.mark.parametrize("keys", [50, 300])
def test_many_keys_are_restated_in_even_parts(keys: int) -> None:
    names = [f"client-id=app-{number},producer_byte_rate" for number in range(keys)]
    alone = Alone(*names)
    demand = dict.fromkeys(names, WAITS)
    alone.run(10, demand)
    records = alone.run(30, demand)
    assert max(len(record.statements) for _, record in records) <= 50
    statements = [(seconds, each.key) for seconds, record in records for each in record.statements]
    assert 6 * keys * 0.9 < len(statements) < 6 * keys * 1.5  # once in 5 s
    seen: dict[str, float] = {}
    for seconds, key in statements:
        assert seconds - seen.get(key, seconds) <= 7.6
        seen[key] = seconds
    assert all(alone.rate(name) > QUOTA * 9 // 10 for name in names)


def test_above_1000_keys_those_that_want_most_take_part() -> None:
    names = [f"client-id=app-{number},producer_byte_rate" for number in range(1_100)]
    alone = Alone(*names)
    alone.run(1, dict.fromkeys(names, WAITS))
    assert alone.member.left_out == 100
    larger = QUOTA // 100
    demand = {name: Demand(larger if number >= 1_000 else QUOTA // 1_000, False) for number, name in enumerate(names)}
    alone.run(3, demand)
    assert alone.member.left_out == 100
    assert all(alone.rate(name) > larger for name in names[1_000:])
    assert sum(alone.rate(name) > QUOTA * 2 // 100 // 100 for name in names) == 1_000


def test_of_many_members_each_takes_part_with_fewer_keys() -> None:
    names = [f"client-id=app-{number},producer_byte_rate" for number in range(1_000)]
    alone = Alone(*names)
    for number in range(139):
        alone.member.apply(encode(Record("etl", f"m{number}", 1, 0, ())), alone.now_ns)
    alone.run(2, dict.fromkeys(names, WAITS))
    held = sum(alone.rate(name) > QUOTA * 2 // 100 // 100 for name in names)
    assert held == 1_000 - alone.member.left_out
    assert 140 * 1_000 > MAX_ENTRIES > 140 * held > MAX_ENTRIES * 7 // 10


def test_more_members_than_configured_have_smaller_floors_and_fallbacks_for_ten_minutes() -> None:
    alone = Alone()
    seqs = count(1)

    def others(members: int) -> None:
        for number in range(members):
            alone.member.apply(encode(Record("etl", f"m{number}", next(seqs), 0, ())), alone.now_ns)

    floor = QUOTA * 2 // 100 // 100
    others(99)
    alone.run(1)
    assert alone.rate() == floor
    alone.member.caps.changed.clear()
    others(149)
    assert (alone.rate(), alone.member.caps.changed) == (floor * 2 // 3, {KEY})
    assert alone.member.max_members == 100
    alone.run(590)
    assert alone.rate() == floor * 2 // 3
    alone.is_cut_off = True
    alone.run(40)
    assert alone.rate() == QUOTA // 150, "its part of the quota, since it cannot know whether there are fewer"
    alone.is_cut_off = False
    alone.run(20)
    assert alone.rate() == floor


def test_one_record_has_at_most_1000_statements() -> None:
    names = [f"client-id=app-{number},producer_byte_rate" for number in range(1_100)]
    alone = Alone(*names)
    alone.run(1, dict.fromkeys(names[:1_000], WAITS))
    records = alone.run(1, dict.fromkeys(names[100:], Demand(QUOTA, True)))
    assert max(len(record.statements) for _, record in records) <= MAX_STATEMENTS


def test_a_changed_quota_is_stated_at_once() -> None:
    alone = Alone()
    alone.run(1, {KEY: WAITS})
    alone.member.set_quota(KEY, QUOTA // 2)
    assert alone.rate() <= QUOTA // 2
    ((_, record),) = alone.run(0.1, {KEY: WAITS})
    assert [each.quota for each in record.statements] == [QUOTA // 2]


def test_a_removed_quota_is_stated_no_more() -> None:
    alone = Alone()
    alone.run(1, {KEY: WAITS})
    alone.member.set_quota(KEY, 0)
    assert caps_and_wants(alone.run(20, {KEY: Demand(QUOTA, False)})) == []


def test_a_limited_key_without_a_quota_is_left_alone() -> None:
    alone = Alone()
    assert caps_and_wants(alone.run(1, {"unknown": WAITS})) == []


def test_one_that_is_cut_off_falls_back_and_comes_back() -> None:
    alone = Alone()
    alone.run(1, {KEY: WAITS})
    alone.is_cut_off = True
    alone.run(13, {KEY: WAITS})
    assert alone.rate() > QUOTA * 9 // 10
    alone.run(2, {KEY: WAITS})
    assert alone.rate() == QUOTA // 100
    alone.is_cut_off = False
    alone.run(4, {KEY: WAITS})
    assert alone.rate() > QUOTA * 9 // 10


def test_one_that_begins_again_claims_what_it_had() -> None:
    alone = Alone()
    alone.run(1, {KEY: WAITS})
    alone.member.begin(alone.now_ns, is_covered=True)
    assert alone.rate() == QUOTA // 100
    alone.run(0.3, {KEY: WAITS})
    assert alone.rate() > QUOTA * 9 // 10


def test_one_that_leaves_lowers_its_use_first() -> None:
    alone = Alone()
    alone.run(1, {KEY: WAITS})
    [data] = alone.member.leave(alone.now_ns)
    record = parse(data)
    assert record is not None
    assert record.facts == {"leaving": 1}
    assert record.statements == (Statement(KEY, QUOTA, 0, 0),)
    assert alone.rate() == QUOTA * 2 // 100 // 100
    assert alone.member.caps.changed == {KEY}


def test_one_that_leaves_with_many_keys_says_so_in_a_record_of_its_own() -> None:
    names = [f"client-id=app-{number},producer_byte_rate" for number in range(1_000)]
    alone = Alone(*names)
    alone.run(1, dict.fromkeys(names, WAITS))
    first, second = [parse(each) for each in alone.member.leave(alone.now_ns)]
    assert first is not None
    assert second is not None
    assert (len(first.statements), first.facts) == (1_000, None)
    assert (second.statements, second.facts) == ((), {"leaving": 1})


def test_one_that_has_left_is_leaving_whatever_arrives_later() -> None:
    alone = Alone()
    alone.run(1)
    for seq, facts in ((2, None), (3, {"leaving": 1}), (1, {"a": 1})):
        alone.member.apply(encode(Record("etl", "a", seq, 0, (), facts)), alone.now_ns)
    assert set(alone.member.leaving) == {"a"}
    assert set(alone.member.seen) == set(alone.member.live_facts(alone.now_ns)) == {alone.member.caps.name}


def test_a_changed_quota_is_stated_while_others_count_the_old_one() -> None:
    alone = Alone()
    alone.run(1, {KEY: WAITS})
    alone.run(10)
    alone.member.set_quota(KEY, 2 * QUOTA)
    ((_, record),) = alone.run(0.5)
    assert record.statements == (Statement(KEY, 2 * QUOTA, 0, 0),)
    assert caps_and_wants(alone.run(20)) == []


def test_members_are_known_for_as_long_as_they_live() -> None:
    alone = Alone()
    for name in ("a", "b"):
        alone.member.apply(encode(Record("etl", name, 1, 0, ())), alone.now_ns)
    alone.run(10)
    assert set(alone.member.seen) == {"a", "b", alone.member.caps.name}
    alone.run(11)
    assert set(alone.member.seen) == {alone.member.caps.name}


def facts_sent(records: list[tuple[float, Record]]) -> list[tuple[float, object]]:
    return [(seconds, record.facts) for seconds, record in records if record.facts is not None]


def test_facts_are_advertised_at_once_if_they_changed_and_again_before_a_joiner_would_miss_them() -> None:
    alone = Alone()
    assert facts_sent(alone.run(20)) == []
    changes: list[object] = []
    alone.member.facts.on_change = lambda: changes.append(alone.member.facts.all)
    alone.member.facts["version"] = 7
    alone.member.facts["version"] = 7
    assert facts_sent(alone.run(20)) == [(0, {"version": 7}), (15, {"version": 7})]
    alone.member.facts["version"] = 8
    alone.run(0.1)
    del alone.member.facts["version"]
    del alone.member.facts["version"]
    assert [facts for _, facts in facts_sent(alone.run(20))] == [{}]
    assert changes == [{"version": 7}, {"version": 8}, {}]


def test_facts_that_keep_changing_or_are_not_read_back_are_sent_once_a_second() -> None:
    alone = Alone()
    alone.is_cut_off = True
    sent = []
    for number in range(100):
        alone.member.facts["free"] = number // 40
        sent += facts_sent(alone.run(0.05))
    assert len(sent) == 5
    alone.is_cut_off = False
    assert [facts for _, facts in facts_sent(alone.run(5))] == [{"free": 2}]


@pytest.mark.parametrize(
    ("name", "value"),
    [("", 1), ("x" * 33, 1), ("ü", 1), ("a", 1 << 63), ("a", "x" * 129), ("a", "\n"), ("a", True), ("a", 1.5)],
)
def test_a_fact_that_fits_into_no_record_is_refused(name: str, value: int | str) -> None:
    with pytest.raises(ValueError, match="not a fact"):
        Alone().member.facts[name] = value


def test_more_facts_than_fit_are_refused() -> None:
    facts = Alone().member.facts
    for number in range(MAX_OWN_FACTS):
        facts[str(number)] = number
    facts["0"] = 1
    with pytest.raises(ValueError, match="one too many"):
        facts["more"] = 1


def test_a_large_record_has_no_facts_because_older_versions_would_ignore_its_caps() -> None:
    names = [f"client-id=app-{number},producer_byte_rate" for number in range(1_000)]
    alone = Alone(*names)
    alone.run(1)
    alone.member.facts["version"] = 7
    first, second, *_ = [record for _, record in alone.run(1, dict.fromkeys(names, WAITS))]
    assert (len(first.statements), first.facts) == (1_000, None)
    assert second.facts == {"version": 7}


def test_facts_of_live_members_and_the_lowest_of_one() -> None:
    alone = Alone()
    me, now_ns = alone.member.caps.name, alone.now_ns
    assert alone.member.lowest("factor", now_ns) is None
    alone.member.facts["factor"] = 90
    for name, facts in (("a", {"factor": 50}), ("b", {"factor": "high"}), ("c", None)):
        alone.member.apply(encode(Record("etl", name, 1, 0, (), facts)), now_ns)
    alone.member.apply(encode(Record("etl", "a", 2, 0, ())), now_ns)  # without facts: the last ones apply
    found = {"a": {"factor": 50}, "b": {"factor": "high"}, "c": {}, me: {"factor": 90}}
    assert alone.member.live_facts(now_ns) == found
    assert alone.member.lowest("factor", now_ns) == 50
    assert alone.member.lowest("factor", now_ns + 16 * NS_PER_SECOND) == 90
    alone.run(21)
    assert alone.member.live_facts(alone.now_ns) == {me: {"factor": 90}}
    assert not set(alone.member.roster.facts) - {me}, "those that have gone are forgotten"


def test_members_that_someone_invents_do_not_fill_the_memory() -> None:
    alone = Alone()
    for number in range(MAX_SEEN + 10):
        alone.member.apply(encode(Record("etl", f"m{number}", 1, 0, (), {"a": 1})), alone.now_ns)
    assert len(alone.member.seen) == len(alone.member.roster.facts) == MAX_SEEN


def test_void_records_and_those_of_other_fleets_are_counted() -> None:
    alone = Alone()
    alone.member.apply(b"{", 0)
    alone.member.apply(encode(Record("other", "m", 1, 0, (Statement(KEY, 1, WHOLE, 0),))), 0)
    assert alone.member.caps.counts == {"void": 1, "foreign": 1}
    assert alone.member.caps.keys[KEY].total == 0
    assert not alone.member.seen


def test_who_states_which_quota() -> None:
    alone = Alone()
    for name, quota in (("a", 5), ("b", 7), ("c", 5)):
        alone.member.apply(encode(Record("etl", name, 1, 0, (Statement(KEY, quota, 0, 0),))), 0)
    assert alone.member.advertised_quotas(KEY) == {5: ["a", "c"], 7: ["b"]}


@pytest.mark.parametrize("name", ["k" * MAX_KEY_BYTES, "\udcff"])
def test_a_name_that_no_record_can_contain_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at most 400 bytes"):
        Alone(name)


def test_any_bytes_are_applied() -> None:
    alone = Alone()
    for data in (b"", b"\xff\xfe", b"[" * 10_000, json.dumps({"v": 1}).encode()):
        alone.member.apply(data, alone.now_ns)
    assert alone.member.caps.counts["void"] == 4
