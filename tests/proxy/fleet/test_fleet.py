"""The shell of a member in virtual time: whatever happens to the log, all together use at most the quota."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest

from deploy.local.lent import lent_in, most_lent
from proxy import retries
from proxy.fleet.log import LogFailed, LogRefused
from proxy.retries import Retries
from quotas.entity import DEFAULT, Entity
from quotas.entry import QuotaEntry
from quotas.fleet.parameters import WHOLE
from quotas.fleet.record import parse
from quotas.limit_kinds import PRODUCER_BYTE_RATE, REQUEST_RATE
from tests.proxy.conversation import lines_of
from tests.proxy.fleet.world import KEY, QUOTA, Proxy, a_world, entry, settle

JOIN_SECONDS = 20
"""On a topic without history: 15.6 s."""
GONE_SECONDS = 22
"""Until what a member held that says nothing more is used by others."""
FLOORS = 0.02


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "MOST_SECONDS", 0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "proxy.fleet"):
        yield caplog


def fields_of(log: pytest.LogCaptureFixture, name: str) -> list[dict[str, object]]:
    return [fields for event, fields in lines_of(log.records) if event == name]


def wanting(*proxies: Proxy) -> None:
    for proxy in proxies:
        proxy.wants = True


async def test_two_that_want_more_have_half_each_and_one_alone_all_of_it() -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one)
        await world.until(lambda: one.rate > 0.9 * QUOTA, 2)
        wanting(two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 2)
        one.wants = False
        await world.until(lambda: two.rate > 0.9 * QUOTA, 5)
        assert one.rate == QUOTA * FLOORS / 10, "its floor stays"


async def test_one_at_rest_wakes_up_once_a_second_and_at_once_when_a_request_waits() -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(two)
        await world.pass_seconds(5)
        looked, read = one.limits.looked, one.log.reads
        await world.pass_seconds(10)
        assert one.limits.looked - looked <= 11
        assert one.log.reads - read <= 15, "once a second, and until it has read its own record"
        assert one.metrics.is_joined
        assert len(one.member.heard) == 2
        wanting(one)
        assert await world.until(lambda: one.rate > 0.45 * QUOTA, 1) <= 0.3
        one.wants = False
        await world.pass_seconds(5)
        looked = one.limits.looked
        await world.pass_seconds(10)
        assert one.limits.looked - looked <= 11, "again"


async def test_a_limit_nobody_has_read_of_has_its_floor_until_it_is_asked_for() -> None:
    async with a_world() as world:
        [proxy] = [await world.join()]
        assert proxy.rate == QUOTA * FLOORS / 10
        wanting(proxy)
        await world.until(lambda: proxy.rate > 0.9 * QUOTA, 1)
        assert proxy.limit.algorithm.burst_ns == pytest.approx(100_000_000, rel=0.01), (
            "the depth of all buckets together"
        )


async def test_no_record_leaves_before_the_rates_that_it_lowers_have_fallen() -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        lowered = 0

        def check(record: bytes, proxy: Proxy) -> None:
            nonlocal lowered
            for statement in (parse(record) or pytest.fail("void")).statements:
                most = statement.cap / WHOLE * QUOTA * (1 - FLOORS) + QUOTA * FLOORS / 10
                assert proxy.limit.rate <= most + 1
                lowered += proxy.limit.rate > QUOTA / 4 and statement.cap < WHOLE

        one.log.on_append = lambda record: check(record, one)
        two.log.on_append = lambda record: check(record, two)
        wanting(one)
        await world.until(lambda: one.rate > 0.9 * QUOTA, 2)
        wanting(two)
        await world.until(lambda: two.rate > 0.45 * QUOTA, 2)
        assert lowered


@pytest.mark.parametrize(("shares", "rest"), [(True, 0.1), (False, FLOORS / 10)])
async def test_without_the_topic_rates_stay_for_their_lease_and_never_stop(
    shares: bool, rest: float, log: pytest.LogCaptureFixture
) -> None:
    async with a_world() as world:
        proxy = await world.join(shares_fallback=shares)
        wanting(proxy)
        await world.until(lambda: proxy.rate > 0.9 * QUOTA, 2)
        proxy.log.error = LogFailed("unreachable", "no broker")
        world.topic.wake()
        await world.pass_seconds(9)
        assert proxy.rate > 0.9 * QUOTA, "restated each 5 s, so 9 s at least are left"
        assert await world.until(lambda: proxy.rate < 0.9 * QUOTA, 6) > 0
        await world.pass_seconds(0.2)
        assert proxy.rate == pytest.approx(rest * QUOTA)
        assert proxy.metrics.errors["unreachable"] >= 1
        assert not proxy.metrics.is_joined
        [away] = fields_of(log, "fleet_away")
        assert ("1/10 of each limit" in str(away["effect"])) is shares
        assert len(fields_of(log, "fleet_failed")) == 1, "once a minute"
        proxy.log.error = None
        await world.until(lambda: proxy.rate > 0.9 * QUOTA, JOIN_SECONDS)


async def test_those_cut_off_are_above_the_quota_by_their_parts_of_the_most_members() -> None:
    async with a_world() as world:
        proxies = [await world.join() for _ in range(5)]
        wanting(*proxies)
        await world.pass_seconds(3)
        cut_off = proxies[:2]
        world.excess = len(cut_off) / 10
        for proxy in cut_off:
            proxy.log.error = LogFailed("unreachable", "no broker")
        world.topic.wake()
        await world.pass_seconds(40)
        assert [proxy.rate for proxy in cut_off] == [0.1 * QUOTA] * 2
        assert sum(proxy.rate for proxy in proxies[2:]) == pytest.approx((1 - FLOORS * 0.7) * QUOTA, rel=0.01)
        assert world.most > QUOTA, "the bound is reached"


async def test_what_one_that_is_killed_held_is_used_by_others_after_a_while() -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
        one.is_stopped = True
        one.log.error = LogFailed("unreachable", "killed")
        assert await world.until(lambda: two.rate > 0.9 * QUOTA, GONE_SECONDS) > 10


async def test_one_that_ends_gives_back_at_once() -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
        one.wants = False
        await one.fleet.close()
        assert one.log.is_closed
        one.is_stopped = True
        await world.until(lambda: two.rate > 0.9 * QUOTA, 1)


async def test_one_that_slept_has_its_floor_when_it_wakes() -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
        one.is_stopped = True
        held, one.log.error = one.limit.rate, LogFailed("unreachable", "it sleeps")
        await world.pass_seconds(40)
        assert two.rate > 0.9 * QUOTA
        assert one.limit.rate == held, "nothing has run here"
        assert one.rate == QUOTA * FLOORS / 10, "by the bucket itself"
        one.is_stopped, one.log.error = False, None
        world.excess = 0.1
        await world.pass_seconds(20)
        assert one.rate == pytest.approx(two.rate, rel=0.05)


async def test_a_topic_made_anew_is_read_from_its_start_after_all_leases_of_the_old_one(
    log: pytest.LogCaptureFixture,
) -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
        world.topic.recreate()
        await world.pass_seconds(0.5)
        assert max(one.rate, two.rate) <= 0.1 * QUOTA
        assert one.metrics.errors["out_of_range"] == 1
        assert fields_of(log, "fleet_topic_changed")
        assert await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, JOIN_SECONDS) > 14


async def test_a_record_appended_before_what_was_read_shows_another_log() -> None:
    async with a_world() as world:
        one = await world.join()
        wanting(one)
        await world.until(lambda: one.rate > 0.9 * QUOTA, 3)
        one.log.is_blind = True
        del world.topic.records[1:]  # its end is lost between two fetches
        one.fleet._send(b"{}", world.clock())
        await settle()
        assert one.rate == 0.1 * QUOTA, "at once"
        for _ in range(one.log.position):
            world.topic.append(b"{}")
        await world.pass_seconds(0.1)
        assert one.metrics.errors["behind"] == 1


async def test_a_log_that_gives_nothing_back_is_opened_again() -> None:
    async with a_world() as world:
        one = await world.join()
        one.log.is_silent = True
        opened = one.log.opened
        for _ in range(25):
            await world.pass_seconds(1)
            world.topic.append(b"{}")  # of others
        assert one.log.opened > opened
        assert one.metrics.errors["silent"] >= 1


async def test_a_topic_of_another_kind_is_reported_and_asked_again(log: pytest.LogCaptureFixture) -> None:
    async with a_world() as world:
        one = await world.join()
        one.log.error = LogRefused("topic_differs", "it has 6 partitions")
        world.topic.wake()
        await world.pass_seconds(20)
        assert one.metrics.errors["topic_differs"] > 1
        [refused] = fields_of(log, "fleet_topic_refused")
        assert refused["message"] == "it has 6 partitions"
        assert one.rate == 0.1 * QUOTA
        one.log.error = None
        await world.until(lambda: one.metrics.is_joined, JOIN_SECONDS)


async def test_a_topic_that_is_refused_is_asked_for_ever_more_rarely_and_reported_once(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_world() as world:
        one = await world.join()
        failures: list[int] = []

        def pause(retries: Retries) -> float:
            failures.append(retries._failures)
            return 0

        monkeypatch.setattr(Retries, "pause_seconds", pause)
        one.log.error = LogFailed("authorization", "no right to read it")
        world.topic.wake()
        await world.pass_seconds(5)
        assert failures[:5] == [1, 2, 3, 4, 5], "pauses grow with these"
        assert len(fields_of(log, "fleet_failed")) == 1
        one.log.error = LogFailed("unreachable", "no broker")
        await world.pass_seconds(5)
        assert [fields["reason"] for fields in fields_of(log, "fleet_failed")] == ["authorization", "unreachable"]
        one.log.error = None
        await world.until(lambda: not one.fleet._retries.is_failing, JOIN_SECONDS)
        one.log.error = LogFailed("authorization", "no right to read it")
        world.topic.wake()
        failures.clear()
        await world.pass_seconds(5)
        assert failures[:2] == [1, 2], "it worked meanwhile"
        assert len(fields_of(log, "fleet_failed")) == 3


async def test_reading_leaves_half_of_the_loop_to_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world() as world:
        one = await world.join()
        pauses: list[float] = []
        sleep, take = asyncio.sleep, one.fleet.take

        async def note(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        def slow(records: Sequence[bytes]) -> None:
            world.clock.pass_seconds(0.07)  # as 570 kB of empty lists took
            take(records)

        monkeypatch.setattr(one.fleet, "take", slow)
        world.topic.append(b"[]")
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", note)
            one.fleet.tick()
            for _ in range(20):
                await sleep(0)
        assert 0.07 in [round(each, 3) for each in pauses]


async def test_a_defect_ends_neither_the_fleet_nor_the_proxy(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_world() as world:
        one = await world.join()
        with monkeypatch.context() as patch:
            patch.setattr(one.fleet, "take", lambda _records: 1 / 0)
            for _ in range(2):  # it waits for the first one already
                world.topic.append(b"{}")
                await world.pass_seconds(1)  # it is at rest
        assert one.metrics.errors["defect"] >= 1
        assert fields_of(log, "fleet_failed")
        wanting(one)
        await world.until(lambda: one.rate > 0.9 * QUOTA, JOIN_SECONDS)


async def test_a_library_that_cancels_who_calls_it_does_not_end_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world() as world:
        one = await world.join()

        async def close() -> None:
            raise asyncio.CancelledError

        with monkeypatch.context() as patch:
            patch.setattr(one.log, "close", close)
            one.log.error = LogFailed("unreachable", "no broker")
            world.topic.wake()
            await settle()
        assert one.metrics.errors["defect"] >= 1
        one.log.error = None
        wanting(one)
        await world.until(lambda: one.rate > 0.9 * QUOTA, JOIN_SECONDS)


async def test_a_record_in_its_name_that_it_did_not_write_ends_that_name(log: pytest.LogCaptureFixture) -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
        name = one.member.caps.name
        assert name.startswith("pod-0/")
        forged = {"v": 1, "f": "team", "m": name, "s": 1 << 40, "n": 1, "e": [[KEY, 1000 * QUOTA, 0, 0]]}
        world.excess = 0.5  # until it has read it, who forged it has lent its part to others
        world.topic.append(json.dumps(forged).encode())
        await world.pass_seconds(0.1)
        world.excess = 0
        assert one.member.caps.name != name
        [clash] = fields_of(log, "fleet_name_clash")
        assert (clash["member"], clash["now"]) == (name, one.member.caps.name)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 2 * JOIN_SECONDS)


async def test_the_lowest_stated_quota_counts_and_the_log_names_who_states_it(log: pytest.LogCaptureFixture) -> None:
    async with a_world() as world:
        one, two = await world.join(), await world.join(entry(QUOTA // 2))
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.22 * QUOTA, 3)
        await world.pass_seconds(0.1)
        assert one.rate + two.rate <= QUOTA // 2
        [differs] = fields_of(log, "fleet_quotas_differ")
        assert (differs["here"], differs["applies"]) == (QUOTA, QUOTA // 2)
        assert str(differs["stated_by"]).startswith("pod-1/")
        two.registry.replace([entry()], world.clock())
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)


@pytest.mark.parametrize(
    ("quota", "members", "is_small"), [(QUOTA, 4, True), (QUOTA, 2, False), (QUOTA // 5, 4, False)]
)
async def test_a_share_that_is_too_small_for_a_producer_is_reported(
    quota: int, members: int, is_small: bool, log: pytest.LogCaptureFixture
) -> None:
    """Once for all names of an entry. A limit that is too small as a whole is reported at the start."""
    everyone = QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: quota})
    async with a_world() as world:
        proxies = [await world.join(everyone) for _ in range(members)]
        world.excess = 1  # of two limits
        for proxy in proxies:
            proxy.wanted = [proxy.registry.resolve("alice", name).produce.limits[0] for name in ("etl", "web")]
        await world.pass_seconds(20)
        lines = fields_of(log, "quota_below_floor")
        assert len(lines) == is_small * members, "one of each proxy"
        for line in lines:
            assert "4 members use it" in str(line["effect"])
            assert "Java 349525" in str(line["effect"])


async def test_a_quota_that_is_lowered_while_it_is_in_use_applies_at_once() -> None:
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
        one.registry.replace([entry(QUOTA // 10)], world.clock())
        assert one.rate <= QUOTA // 10
        await world.pass_seconds(0.2)
        assert one.rate + two.rate <= QUOTA // 10


async def test_nothing_in_the_topic_raises_a_rate_above_the_configured_quota() -> None:
    async with a_world() as world:
        one = await world.join(entry(QUOTA // 100))
        wanting(one)
        for number, (quota, cap) in enumerate([(1 << 62, WHOLE), (1 << 62, 0), (1, 0), (-1, -WHOLE), (10**30, 5)], 1):
            lie = {"v": 1, "f": "team", "m": "liar", "s": number, "n": 1, "e": [[KEY, quota, cap, cap]]}
            for record in (json.dumps(lie).encode(), b"\xff", b"[]", b'{"v":1}', b""):
                world.topic.append(record)
            await world.pass_seconds(1)
            assert 0 < one.rate <= QUOTA // 100
        assert one.member.caps.counts["void"] > 5


async def test_a_joiner_reads_the_last_45_seconds_and_needs_no_wait() -> None:
    async with a_world() as world:
        one = await world.join()
        wanting(one)
        await world.pass_seconds(50)
        world.excess = 0.1  # the fallback of one, until it has joined
        two = await world.join(settles=False)
        wanting(two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 1)


async def test_each_change_of_what_may_be_used_is_in_the_log(log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.DEBUG, "proxy.fleet")
    async with a_world() as world:
        one, two = [await world.join() for _ in range(2)]
        wanting(one, two)
        await world.until(lambda: min(one.rate, two.rate) > 0.45 * QUOTA, 3)
        two.log.error = LogFailed("unreachable", "no broker")
        world.topic.wake()
        world.excess = 0.1
        await world.pass_seconds(40)
        lines = [json.dumps({"event": "fleet_lent"} | fields) for fields in fields_of(log, "fleet_lent")]
        lent = lent_in(lines)
        assert [lent[each.member.caps.name][-1].rate for each in (one, two)] == [one.rate, two.rate]
        assert most_lent(lent.values())[0] == pytest.approx(world.most, abs=1)


async def test_rates_hold_their_sum_whatever_is_lost() -> None:
    """Five proxies that come, go, sleep, lose the topic and change their minds; `World` checks the sum at each step."""
    async with a_world() as world:
        proxies = [await world.join() for _ in range(5)]
        world.excess = 0.5  # the bound of the fallback, if all are away
        for turn in range(60):
            proxy = proxies[turn % 5]
            proxy.wants = turn % 3 != 0
            proxy.log.is_silent = turn % 7 == 0
            proxy.log.error = LogFailed("unreachable", "no broker") if turn % 11 == 0 else None
            proxy.is_stopped = turn % 13 == 0
            world.topic.wake()
            await world.pass_seconds(1 + turn % 4)
            away = sum(not each.member.caps.is_joined(world.clock()) for each in proxies)
            assert sum(each.rate for each in proxies) <= QUOTA * (1 + away / 10)


async def test_with_many_limits_those_in_use_are_served_as_soon() -> None:
    """Limits without use are sampled in turn, those in use each time."""
    everyone = QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: 100_000})
    async with a_world() as world:
        proxy = await world.join(everyone)
        for number in range(3_000):
            proxy.registry.resolve("alice", f"client-{number}")
        limit = proxy.registry.resolve("alice", "client-2999").produce.limits[0]
        assert limit.rate == 100_000 * 0.2 / 10
        proxy.wanted.append(limit)
        await world.until(lambda: limit.rate > 0.75 * 100_000, 2)  # all but the floors, a fifth for a <default>
        assert len(proxy.limits) == 3_001
        world.topic.recreate()
        await world.pass_seconds(0.1)
        assert limit.rate == 100_000 / 10, "before the thousands that hold nothing"


async def test_a_rate_below_a_thousandth_is_not_rounded_up() -> None:
    smallest = Fraction(1, 1_000_000)
    async with a_world() as world:
        slow = QuotaEntry(Entity(client_id="slow"), {REQUEST_RATE: smallest})
        proxy = await world.join(entry(), slow)
        [limit] = proxy.registry.resolve("alice", "slow").requests.limits
        proxy.wanted.append(limit)
        await world.pass_seconds(2)
        assert limit.algorithm.rate == smallest


async def test_names_that_fit_into_no_record_are_shared_too() -> None:
    async with a_world() as world:
        everyone = QuotaEntry(Entity(client_id=DEFAULT), {PRODUCER_BYTE_RATE: 100_000})
        one, two = [await world.join(everyone) for _ in range(2)]
        for name in ("x" * 30_000, "\ud800"):
            limits = [proxy.registry.resolve("alice", name).produce.limits[0] for proxy in (one, two)]
            for proxy, limit in zip((one, two), limits, strict=True):
                proxy.wanted = [limit]
            await world.pass_seconds(2)
            assert min(each.rate for each in limits) > 0.4 * 80_000
            assert sum(each.rate for each in limits) <= 100_000
