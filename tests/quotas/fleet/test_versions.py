"""Which members of fleets follow a topic of quotas, and which of them have applied a version."""

from hypothesis import given
from hypothesis import strategies as st

from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from quotas.fleet.record import Record, encode
from quotas.fleet.roster import LEAVING, OwnFacts
from quotas.fleet.versions import Followers, advertise


def record(member: str, fleet: str = "prod", offset: int | None = None, topic: str = "quotas") -> bytes:
    facts = OwnFacts()
    if offset is not None:
        advertise(facts, topic, offset)
    return encode(Record(fleet, member, 1, 1, (), facts.all if offset is not None else None))


def test_a_member_is_missing_until_it_has_advertised_the_version() -> None:
    followers = Followers("quotas")
    followers.apply(record("a", offset=7), 1_000)
    followers.apply(record("b", offset=6), 1_000)
    followers.apply(record("old"), 1_000)
    followers.apply(record("elsewhere", "other"), 1_000)
    followers.apply(record("of another topic", "third", 1, "others"), 1_000)
    assert followers.versions(7) == (1, ["b", "old"], [])
    followers.apply(record("b"), 1_500)
    followers.apply(record("b", offset=8), 2_000)
    assert followers.versions(7) == (2, ["old"], []), "one that does not follow the topic is named"
    followers.apply(record("a"), 16_900)
    followers.apply(record("b"), 16_900)
    assert followers.versions(7) == (2, [], ["old"]), "it may be stopped, or cut off"


def test_members_that_have_left_do_not_count_and_those_that_came_back_are_not_silent() -> None:
    followers = Followers("quotas")
    for member in ("pod-1/a", "pod-2/b", "pod-3/c"):
        followers.apply(record(member, offset=7), 1_000)
    followers.apply(encode(Record("prod", "pod-1/a", 2, 1, (), {LEAVING: 1})), 2_000)
    assert followers.versions(8) == (0, ["pod-2/b", "pod-3/c"], [])
    followers.apply(record("pod-3/d", offset=8), 30_000)
    assert followers.versions(8) == (1, [], ["pod-2/b"])


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers())))
def test_any_bytes_may_be_in_the_topic_of_fleets(records: list[tuple[bytes, int]]) -> None:
    followers = Followers("quotas")
    for data, time_ms in records:
        followers.apply(data, time_ms)
    assert followers.versions(0) == (0, [], [])


def test_a_long_name_of_a_topic_fits() -> None:
    member, name = Member("prod", Parameters(), lambda: 1), "x" * 249
    advertise(member.facts, name, 3)
    followers = Followers(name)
    followers.apply(encode(Record("prod", "a", 1, 1, (), member.facts.all)), 1)
    assert followers.versions(3) == (1, [], [])
