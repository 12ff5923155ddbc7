"""The shell of a member in virtual time: whatever happens to the log, all together use at most the quota."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest

from deploy.local.granted import grants_in, most_granted
from proxy.background import retries
from proxy.background.retries import Retries
from proxy.internal_clients.failures import LogFailed, LogRefused
from quotas.entity import DEFAULT, Entity
from quotas.entry import QuotaEntry
from quotas.fleet import caps as caps_module
from quotas.fleet import member as member_module
from quotas.fleet.digest import LimitNames
from quotas.fleet.parameters import WHOLE
from quotas.fleet.record import Record, Statement, encode, parse
from quotas.limit_kinds import PRODUCER_BYTE_RATE, REQUEST_RATE
from quotas.limit_options import LimitOptions, Yields
from simulation.kernel import MS
from tests.proxy.conversation import lines_of
from tests.proxy.fleet.members import KEY, QUOTA, Members, Proxy, a_fleet, entry

pytestmark = [
    pytest.mark.claim("fleet", "a topic that cannot be used is tried ever more rarely, with one line for each reason"),
    pytest.mark.claim("fleet", "a member whose share is too small for a producer warns"),
    pytest.mark.claim("fleet", "a proxy at rest wakes up once a second, and at once when a request waits"),
]

JOIN_SECONDS = 20
"""On a topic without history: 15.6 s."""
FLOORS = 0.02


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "MOST_SECONDS", 0.05)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "proxy.fleet"):
        yield caplog


def fields_of(log: pytest.LogCaptureFixture, name: str) -> list[dict[str, object]]:
    return [fields for event, fields in lines_of(log.records) if event == name]


def calls_of(patch: pytest.MonkeyPatch, thing: object, name: str) -> list[Any]:
    """The first argument of each call of this method from now on."""
    found: list[Any] = []
    method = getattr(thing, name)

    def call(*arguments: Any) -> Any:
        found.append(arguments[0] if arguments else None)
        return method(*arguments)

    patch.setattr(thing, name, call)
    return found


def wanting(*proxies: Proxy) -> None:
    for proxy in proxies:
        proxy.wants = True


def two_with_half(world: Members) -> tuple[Proxy, Proxy]:
    """Both want more."""
    one, two = world.join(), world.join()
    wanting(one, two)
    world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
    return one, two


def test_two_that_want_more_have_half_each_and_one_alone_all_of_it() -> None:
    with a_fleet() as world:
        one, two = [world.join() for _ in range(2)]
        wanting(one)
        world.until(lambda: one.rate > 0.9 * QUOTA, 2)
        wanting(two)
        world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 2)
        one.wants = False
        world.until(lambda: two.rate > 0.9 * QUOTA, 5)
        assert one.rate == QUOTA * FLOORS / 10, "its floor stays"


def test_one_at_rest_wakes_up_once_a_second_and_at_once_when_a_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_fleet() as world:
        one, two = [world.join() for _ in range(2)]
        wanting(two)
        world.pass_seconds(5)
        looks, reads = calls_of(monkeypatch, one.limits, "demand"), calls_of(monkeypatch, one.fleet, "take")
        world.pass_seconds(10)
        assert 9 <= len(looks) <= 11
        assert len(list(filter(None, reads))) <= 15, "once a second, and until it has read its own record"
        assert one.metrics.is_joined
        assert len(one.member.seen) == 2
        wanting(one)
        assert world.until(lambda: one.rate > 0.45 * QUOTA, 1) <= 0.3
        one.wants = False
        world.pass_seconds(5)
        looks.clear()
        world.pass_seconds(10)
        assert len(looks) <= 11, "again"


def test_a_limit_nobody_has_read_of_has_its_floor_until_it_is_asked_for() -> None:
    with a_fleet() as world:
        [proxy] = [world.join()]
        assert proxy.rate == QUOTA * FLOORS / 10
        wanting(proxy)
        world.until(lambda: proxy.rate > 0.9 * QUOTA, 1)
        assert proxy.limit.algorithm.burst_ns == pytest.approx(100_000_000, rel=0.01), (
            "the depth of all buckets together"
        )


def test_no_record_leaves_before_the_rates_that_it_lowers_have_fallen() -> None:
    with a_fleet() as world:
        one, two = [world.join() for _ in range(2)]
        lowered = 0

        def check(data: bytes) -> None:
            nonlocal lowered
            record = parse(data) or pytest.fail("void")
            proxy = one if record.member == one.member.caps.name else two
            for statement in record.statements:
                most = statement.cap / WHOLE * QUOTA * (1 - FLOORS) + QUOTA * FLOORS / 10
                assert proxy.limit.rate <= most + 1
                lowered += proxy.limit.rate > QUOTA / 4 and statement.cap < WHOLE

        world.topic.on_append = check
        wanting(one)
        world.until(lambda: one.rate > 0.9 * QUOTA, 2)
        wanting(two)
        world.until(lambda: two.rate > 0.45 * QUOTA, 2)
        assert lowered


@pytest.mark.parametrize(("shares", "rest"), [(True, 0.1), (False, FLOORS / 10)])
def test_without_the_topic_rates_stay_for_their_lease_and_never_stop(
    shares: bool, rest: float, log: pytest.LogCaptureFixture
) -> None:
    with a_fleet() as world:
        proxy = world.join(shares_fallback=shares)
        wanting(proxy)
        world.until(lambda: proxy.rate > 0.9 * QUOTA, 2)
        proxy.log.error = LogFailed("unreachable", "no broker")
        world.pass_seconds(9)
        assert proxy.rate > 0.9 * QUOTA, "restated each 5 s, so 9 s at least are left"
        assert world.until(lambda: proxy.rate < 0.9 * QUOTA, 6) > 0
        world.pass_seconds(0.2)
        assert proxy.rate == pytest.approx(rest * QUOTA)
        assert proxy.metrics.errors["unreachable"] >= 1
        assert not proxy.metrics.is_joined
        [away] = fields_of(log, "fleet_away")
        assert ("1/10 of each limit" in str(away["effect"])) is shares
        assert len(fields_of(log, "fleet_failed")) == 1, "once a minute"
        proxy.log.error = None
        world.until(lambda: proxy.rate > 0.9 * QUOTA, JOIN_SECONDS)


def test_one_that_ends_gives_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_fleet() as world:
        one, two = two_with_half(world)
        one.wants = False
        closed = calls_of(monkeypatch, one.log, "close")
        assert world.run(5, one.loop.create_task(one.fleet.close()).done)
        assert closed
        one.is_stopped = True
        world.until(lambda: two.rate > 0.9 * QUOTA, 1)
        assert set(two.member.seen) == {two.member.caps.name}
        assert set(two.member.leaving) == {one.member.caps.name}
        world.pass_seconds(25)
        assert not two.member.leaving


def test_a_topic_made_anew_is_read_from_its_start_after_all_leases_of_the_old_one(
    log: pytest.LogCaptureFixture,
) -> None:
    with a_fleet() as world:
        one, two = two_with_half(world)
        world.topic.recreate()
        world.pass_seconds(0.5)
        assert max(one.rate, two.rate) <= 0.1 * QUOTA
        assert one.metrics.errors["out_of_range"] == 1
        assert fields_of(log, "fleet_topic_changed")
        assert world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, JOIN_SECONDS) > 14


def test_a_record_appended_before_what_was_read_shows_another_log() -> None:
    with a_fleet() as world:
        one = world.join()
        wanting(one)
        world.until(lambda: one.rate > 0.9 * QUOTA, 3)
        one.log.is_blind = True
        del world.topic.records[1:]  # its end is lost between two fetches
        one.loop.call_soon(one.fleet._send, b"{}", world.clock())
        world.run(0.01)
        assert one.rate == 0.1 * QUOTA, "at once"
        for _ in range(one.log.position):
            world.topic.append(b"{}")
        world.pass_seconds(0.1)
        assert one.metrics.errors["behind"] == 1


def test_a_log_that_gives_nothing_back_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_fleet() as world:
        one = world.join()
        one.log.is_mute = True
        opened = calls_of(monkeypatch, one.log, "open")
        for _ in range(25):
            world.pass_seconds(1)
            world.topic.append(b"{}")  # of others
        assert opened
        assert one.metrics.errors["silent"] >= 1


def test_a_topic_of_another_kind_is_reported_and_asked_again(log: pytest.LogCaptureFixture) -> None:
    with a_fleet() as world:
        one = world.join()
        one.log.error = LogRefused("topic_differs", "it has 6 partitions")
        world.pass_seconds(20)
        assert one.metrics.errors["topic_differs"] > 1
        [refused] = fields_of(log, "fleet_topic_refused")
        assert refused["message"] == "it has 6 partitions"
        assert one.rate == 0.1 * QUOTA
        one.log.error = None
        world.until(lambda: one.metrics.is_joined, JOIN_SECONDS)


def test_a_topic_that_is_refused_is_asked_for_ever_more_rarely_and_reported_once(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_fleet() as world:
        one = world.join()
        failures: list[int] = []

        def pause(retries: Retries) -> float:
            failures.append(retries._failures)
            return 0.05

        monkeypatch.setattr(Retries, "pause_seconds", pause)
        one.log.error = LogFailed("authorization", "no right to read it")
        world.pass_seconds(5)
        assert failures[:5] == [1, 2, 3, 4, 5], "pauses grow with these"
        assert len(fields_of(log, "fleet_failed")) == 1
        one.log.error = LogFailed("unreachable", "no broker")
        world.pass_seconds(5)
        assert [fields["reason"] for fields in fields_of(log, "fleet_failed")] == ["authorization", "unreachable"]
        one.log.error = None
        world.until(lambda: not one.fleet._retries.is_failing, JOIN_SECONDS)
        one.log.error = LogFailed("authorization", "no right to read it")
        failures.clear()
        world.pass_seconds(5)
        assert failures[:2] == [1, 2], "it worked meanwhile"
        assert len(fields_of(log, "fleet_failed")) == 3


def test_reading_leaves_half_of_the_loop_to_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_fleet() as world:
        one = world.join()
        pauses: list[float] = []
        sleep, take = asyncio.sleep, one.fleet.take

        async def note(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(seconds)

        def slow(records: Sequence[bytes]) -> None:
            world.clock.offset_ns += 70 * MS  # as 570 kB of empty lists took
            take(records)

        monkeypatch.setattr(one.fleet, "take", slow)
        monkeypatch.setattr(asyncio, "sleep", note)
        world.topic.append(b"[]")
        world.pass_seconds(1.5)  # it is at rest
        assert 0.07 in [round(each, 3) for each in pauses]


def test_a_defect_ends_neither_the_fleet_nor_the_proxy(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_fleet() as world:
        one = world.join()
        with monkeypatch.context() as patch:
            patch.setattr(one.fleet, "take", lambda _records: 1 / 0)
            for _ in range(2):  # it waits for the first one already
                world.topic.append(b"{}")
                world.pass_seconds(1)  # it is at rest
        assert one.metrics.errors["defect"] >= 1
        assert fields_of(log, "fleet_failed")
        wanting(one)
        world.until(lambda: one.rate > 0.9 * QUOTA, JOIN_SECONDS)


def test_a_library_that_cancels_who_calls_it_does_not_end_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_fleet() as world:
        one = world.join()

        async def close() -> None:
            raise asyncio.CancelledError

        with monkeypatch.context() as patch:
            patch.setattr(one.log, "close", close)
            one.log.error = LogFailed("unreachable", "no broker")
            world.pass_seconds(1.5)  # it is at rest
        assert one.metrics.errors["defect"] >= 1
        one.log.error = None
        wanting(one)
        world.until(lambda: one.rate > 0.9 * QUOTA, JOIN_SECONDS)


def test_a_record_in_its_name_that_it_did_not_write_ends_that_name(log: pytest.LogCaptureFixture) -> None:
    with a_fleet() as world:
        one, two = two_with_half(world)
        name = one.member.caps.name
        assert name.startswith("pod-0/")
        forged = {"v": 1, "f": "team", "m": name, "s": 1 << 40, "n": 1, "e": [[KEY, 1000 * QUOTA, 0, 0]]}
        world.topic.append(json.dumps(forged).encode())
        world.pass_seconds(0.1)
        assert one.member.caps.name != name
        [clash] = fields_of(log, "fleet_name_clash")
        assert (clash["member"], clash["now"]) == (name, one.member.caps.name)
        world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 2 * JOIN_SECONDS)
        forged["m"] = one.member.caps.name
        world.topic.append(json.dumps(forged).encode())
        world.pass_seconds(1)
        assert one.member.caps.name != forged["m"]
        assert fields_of(log, "fleet_name_clash") == [clash], "once, however often someone does this"


def test_a_limit_whose_rate_moves_on_purpose_differs_without_a_line(log: pytest.LogCaptureFixture) -> None:
    with a_fleet() as world:
        one, two = world.join(), world.join(entry(QUOTA // 2))
        one.limit.options = LimitOptions(yields=Yields(least=1, target_ns=1))
        wanting(one, two)
        world.pass_seconds(10)
        assert one.rate + two.rate <= QUOTA // 2
        assert not fields_of(log, "fleet_quotas_differ")


def test_a_raise_is_no_news_and_one_wrong_file_is(log: pytest.LogCaptureFixture) -> None:
    """Even of a limit that another member has just released, or that a member had that has left."""
    with a_fleet() as world:
        one, two, three = [world.join() for _ in range(3)]
        wanting(one, two, three)
        world.pass_seconds(3)
        two.wants = False
        one.loop.create_task(three.fleet.close())
        three.wants, three.is_stopped = False, False
        world.pass_seconds(1)
        for proxy in (one, two):
            world.pass_seconds(0.5)
            proxy.registry.replace([entry(2 * QUOTA)], world.clock())
        three.is_stopped = True
        world.pass_seconds(30)
        assert one.rate > 1.9 * QUOTA
        assert not fields_of(log, "fleet_quotas_differ")
        two.registry.replace([entry(4_000)], world.clock())
        wanting(two)
        world.pass_seconds(4)
        assert not fields_of(log, "fleet_quotas_differ")
        world.pass_seconds(30)
        [line] = fields_of(log, "fleet_quotas_differ")
        assert (line["limit"], line["entity"]) == ("producer_byte_rate", "client-id:etl")
        assert (line["here"], line["applies"], line["advertised_by"]) == (2 * QUOTA, 4_000, two.member.caps.name)
        for rate in (2 * QUOTA, 4_000):
            two.registry.replace([entry(rate)], world.clock())
            world.pass_seconds(10)
        assert len(fields_of(log, "fleet_quotas_differ")) == 2, "again"


def test_quotas_that_change_all_the_time_do_not_flood_the_log(log: pytest.LogCaptureFixture) -> None:
    with a_fleet() as world:
        one = world.join()
        wanting(one)
        for number in range(1, 31):
            record = Record("team", "liar", number, 0, (Statement(KEY, 1_000 * number, 0, 0),))
            world.topic.append(encode(record))
            world.pass_seconds(7)
        assert 20 < len(fields_of(log, "fleet_quotas_differ")) <= 20 + 30 * 7 / 30


def test_a_member_that_lacks_a_limit_is_named_by_the_others(log: pytest.LogCaptureFixture) -> None:
    with a_fleet() as world:
        one, two, three = [world.join() for _ in range(3)]
        names = ["client-id:etl producer_byte_rate", "total request_rate", "topic:orders bytes_in_rate"]
        for proxy, limits in ((one, names), (two, names), (three, names[1:])):
            proxy.fleet.differences.compare(LimitNames(limits))
        world.pass_seconds(4)
        assert not fields_of(log, "fleet_limits_differ"), "a change of all files takes a moment"
        world.pass_seconds(20)
        lines = fields_of(log, "fleet_limits_differ")
        assert [(line["members"], line.get("lacks")) for line in lines if "lacks" in line] == [
            (three.member.caps.name, names[0])
        ] * 2
        [own] = [line for line in lines if "lacks" not in line]
        assert set(str(own["members"]).split(", ")) == {one.member.caps.name, two.member.caps.name}
        assert [len(proxy.fleet.differences.lacking) for proxy in (one, two, three)] == [1, 1, 0]
        three.fleet.differences.compare(LimitNames(names))
        world.pass_seconds(4)
        assert not one.fleet.differences.lacking
        world.topic.append(encode(Record("team", "liar", 1, 0, (), {"limits": "3:hello"})))
        world.pass_seconds(10)
        assert len(fields_of(log, "fleet_limits_differ")) == len(lines)


def test_more_members_than_configured_are_reported_and_stay_within_the_quota(log: pytest.LogCaptureFixture) -> None:
    """Also when all are cut off, one after the other, and when some are cut off much later."""
    with a_fleet() as world:
        proxies = [world.join(max_members=4) for _ in range(7)]
        wanting(*proxies)
        world.pass_seconds(10)
        assert world.most <= QUOTA
        lines = fields_of(log, "fleet_too_large")
        assert [(line["members"], line["max_members"]) for line in lines[-1:]] == [(7, 4)]
        assert len(lines) <= 7
        for cut_off in (proxies[:3], proxies[3:]):
            for proxy in cut_off:
                proxy.log.error = LogFailed("unreachable", "no broker")
            world.pass_seconds(60)
        assert sum(proxy.rate for proxy in proxies) <= QUOTA
        assert min(proxy.rate for proxy in proxies) >= QUOTA // 7


def test_many_limits_of_many_members_fit(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "MAX_KEYS_OF_ALL", 60)
    monkeypatch.setattr(caps_module, "MAX_ENTRIES", 80)
    entries = [entry(), *(entry(client_id=f"c-{number}") for number in range(29))]
    with a_fleet() as world:
        proxies = [world.join(*entries) for _ in range(3)]
        for proxy in proxies:
            for number in range(29):
                proxy.wanted += proxy.registry.resolve("alice", f"c-{number}").produce.limits
        world.pass_seconds(30)
        assert all(proxy.metrics.is_joined for proxy in proxies)
        overflows = sum(proxy.member.caps.counts["overflows"] for proxy in proxies)
        world.pass_seconds(10)
        assert sum(proxy.member.caps.counts["overflows"] for proxy in proxies) == overflows
        assert len(fields_of(log, "fleet_limits_left_out")) == 3
        assert not fields_of(log, "fleet_overflow")


def test_one_that_starts_over_shows_why(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps_module, "MAX_ENTRIES", 50)
    with a_fleet() as world:
        one = world.join()
        for number in range(1, 40):
            statements = tuple(Statement(f"k{each}", 1, 0, 0) for each in range(60))
            world.topic.append(encode(Record("team", "liar", number, 0, statements)))
            world.pass_seconds(0.5)
        assert "more than 131072 shares are advertised" in one.fleet.why_away
        assert len(fields_of(log, "fleet_overflow")) == 1
        world.pass_seconds(20)
        assert one.fleet.why_away == ""


def test_a_fact_that_changes_is_with_the_others_within_two_seconds_even_at_rest() -> None:
    with a_fleet() as world:
        one, two = [world.join() for _ in range(2)]
        world.pass_seconds(10.3)
        one.member.facts["version"] = 7
        world.until(lambda: two.member.lowest("version", world.clock()), 1.5)
        one.is_stopped, one.log.error = True, LogFailed("unreachable", "killed")
        assert world.until(lambda: two.member.lowest("version", world.clock()) is None, 16) > 14


@pytest.mark.parametrize(
    ("quota", "members", "is_small"), [(QUOTA, 4, True), (QUOTA, 2, False), (QUOTA // 5, 4, False)]
)
def test_a_share_that_is_too_small_for_a_producer_is_reported(
    quota: int, members: int, is_small: bool, log: pytest.LogCaptureFixture
) -> None:
    """Once for all names of an entry. A limit that is too small as a whole is reported at the start."""
    everyone = QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: quota})
    with a_fleet() as world:
        proxies = [world.join(everyone) for _ in range(members)]
        for proxy in proxies:
            proxy.wanted = [proxy.registry.resolve("alice", name).produce.limits[0] for name in ("etl", "web")]
        world.pass_seconds(20)
        lines = fields_of(log, "quota_below_floor")
        assert len(lines) == is_small * members, "one of each proxy"
        for line in lines:
            assert str(line["effect"]).startswith(("3 members use it", "4 members use it")), "whoever is too many"
            assert "Java 349525" in str(line["effect"])


@pytest.mark.claim("fleet", "a record that should not be in the topic is reported once, with what it does")
def test_what_should_not_be_in_the_topic_is_reported_once(log: pytest.LogCaptureFixture) -> None:
    with a_fleet() as world:
        world.join()
        lie = {"v": 1, "f": "team", "m": "liar", "s": 1, "n": 1, "r": [3, 7], "e": []}
        foreign = {"v": 1, "f": "others", "m": "m", "s": 1, "n": 1, "e": []}
        for record in (b"\xff{secret", b"[]", json.dumps(lie).encode(), json.dumps(foreign).encode()):
            for _ in range(3):
                world.topic.append(record)
                world.pass_seconds(1)
        lines = [(each["reason"], each["record"]) for each in fields_of(log, "fleet_record_refused")]
        assert lines == [("void", "\ufffd{secret"), ("missed", json.dumps(lie))]


def test_a_joiner_reads_the_last_45_seconds_and_needs_no_wait() -> None:
    with a_fleet() as world:
        one = world.join()
        wanting(one)
        world.pass_seconds(50)
        two = world.join(settles=False)
        wanting(two)
        world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 1)


def test_each_change_of_what_may_be_used_is_in_the_log(log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.DEBUG, "proxy.fleet")
    with a_fleet() as world:
        one, two = two_with_half(world)
        two.log.error = LogFailed("unreachable", "no broker")
        world.pass_seconds(40)
        lines = [json.dumps({"event": "fleet_lent"} | fields) for fields in fields_of(log, "fleet_lent")]
        grants = grants_in(lines)
        assert [grants[each.member.caps.name][-1].rate for each in (one, two)] == [one.rate, two.rate]
        assert most_granted(grants.values())[0] == pytest.approx(world.most, abs=1)


def test_with_many_limits_those_in_use_are_served_as_soon() -> None:
    """Limits without use are sampled in turn, those in use each time."""
    everyone = QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: 100_000})
    with a_fleet() as world:
        proxy = world.join(everyone)
        for number in range(3_000):
            proxy.registry.resolve("alice", f"client-{number}")
        limit = proxy.registry.resolve("alice", "client-2999").produce.limits[0]
        assert limit.rate == 100_000 * 0.2 / 10
        proxy.wanted.append(limit)
        world.until(lambda: limit.rate > 0.75 * 100_000, 2)  # all but the floors, a fifth for a <default>
        assert len(proxy.limits) == 3_001
        world.topic.recreate()
        world.pass_seconds(0.1)
        assert limit.rate == 100_000 / 10, "before the thousands that hold nothing"


def test_a_rate_below_a_thousandth_is_not_rounded_up() -> None:
    smallest = Fraction(1, 1_000_000)
    with a_fleet() as world:
        slow = QuotaEntry(Entity(client_id="slow"), {REQUEST_RATE: smallest})
        proxy = world.join(entry(), slow)
        [limit] = proxy.registry.resolve("alice", "slow").requests.limits
        proxy.wanted.append(limit)
        world.pass_seconds(2)
        assert limit.algorithm.rate == smallest


def test_names_that_fit_into_no_record_are_shared_too() -> None:
    with a_fleet() as world:
        everyone = QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: 100_000})
        one, two = [world.join(everyone) for _ in range(2)]
        for name in ("x" * 30_000, "\ud800"):
            limits = [proxy.registry.resolve("alice", name).produce.limits[0] for proxy in (one, two)]
            for proxy, limit in zip((one, two), limits, strict=True):
                proxy.wanted = [limit]
            world.pass_seconds(2)
            assert min(each.rate for each in limits) > 0.4 * 80_000
            assert sum(each.rate for each in limits) <= 100_000
