"""Groups that yield: what connections report, the limit that moves, and one decision for a fleet."""

import logging

import pytest

from proxy.adaptive.yielding_groups import YieldingGroups
from proxy.background.host import Host
from proxy.observability.response_times import BrokerTimes
from quotas.adaptive.yielding import Window
from quotas.admission.limit import Limit
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from quotas.time_units import NS_PER_MS, NS_PER_SECOND
from tests.proxy.conversation import lines_of, without_burst
from tests.proxy.fleet.members import QUOTA, Members, Proxy, a_fleet
from tests.proxy.frames import produce, produced
from tests.proxy.streams.pair import Pair, World, pass_holds

TARGET_NS = 50 * NS_PER_MS


def entry(rest: str = "", bounds: str = "10kB..1MB") -> QuotaEntry:
    return parse_spec(
        f"resource-group=backfill,client-id=etl,producer_byte_rate={bounds},yield_to=client-id:online,target=50ms{rest}"
    )


def times(broker: int = 0, took_ns: int = 2 * TARGET_NS, count: int = 30) -> list[tuple[str, int]]:
    return [(f"broker:{broker}", took_ns)] * count


# ---- what connections report
def exchange(world: World, pair: Pair, number: int, milliseconds: int) -> None:
    pair.client_sends(produce(number, client_id="online"))
    world.clock.pass_seconds(milliseconds / 1000)
    pair.broker_sends(produced(number))


def protected(world: World) -> Pair:
    """A connection of a protected client that has sent a request, and was looked at since: that is done each second."""
    pair = Pair(world)
    pair.exchange(produce(99, client_id="online"), produced(99))
    pair.connection.observer.count(world.clock())
    return pair


def taken(world: World, since_ns: int = 0) -> Window:
    [found] = world.shared.brokers.values()
    return found.signals["backfill"].take(since_ns, TARGET_NS)


def test_each_request_of_a_protected_client_is_timed_and_of_others_one_a_second() -> None:
    world = World([entry()])
    pair, other = protected(world), Pair(world)
    other.connection.observer.count(world.clock())
    for number in range(10):
        exchange(world, pair, number, 60)
        other.exchange(produce(number), produced(number))
    assert taken(world) == Window(10, 10, 10 * 10 * NS_PER_MS, near=10)
    [found] = world.shared.brokers.values()
    assert (found.produce.count, set(found.signals)) == (11, {"backfill"})


def test_time_in_the_proxy_does_not_count_and_neither_does_a_throttle_time_of_the_broker() -> None:
    world = World([entry(), without_burst("client-id=online,producer_byte_rate=100")])
    pair = protected(world)
    pair.client_sends(produce(2, client_id="online"))  # held for the debt of the first one
    assert pair.held is not None
    pass_holds(world)
    pair.broker_sends(produced(2))
    assert taken(world) == Window(1)
    world.clock.pass_seconds(9)
    pair.client_sends(produce(3, client_id="online"))
    world.clock.pass_seconds(1)
    pair.broker_sends(produced(3, throttle_ms=500))
    assert taken(world) == Window()


def test_a_request_that_waits_is_reported_and_one_that_was_sent_before_the_last_cut_does_not_count() -> None:
    world = World([entry()])
    pair = protected(world)
    pair.client_sends(produce(1, client_id="online"))
    world.clock.pass_seconds(4)
    pair.connection.observer.count(world.clock())
    assert taken(world, world.clock()) == Window(waits_ns=4 * NS_PER_SECOND)
    pair.broker_sends(produced(1))
    assert taken(world) == Window()


def test_a_member_of_the_group_is_not_protected_from_it() -> None:
    world = World([parse_spec("resource-group=b,client-id=*,producer_byte_rate=1..2,yield_to=client-id:x,target=5ms")])
    assert world.registry.yielding_to("", "x") == ()
    assert World([entry()]).registry.yielding_to("", "online") == (("backfill", TARGET_NS),)


# ---- the limit of one process
class Alone:
    """The groups of one proxy, and what protected clients see of its brokers."""

    def __init__(self, *entries: QuotaEntry) -> None:
        self.world = World(entries)
        self.brokers = self.world.shared.brokers
        self.groups = YieldingGroups(self.world.registry, self.brokers, Host(clock=self.world.clock), None)
        self.tick()

    @property
    def limit(self) -> Limit:
        [limit] = self.world.registry.resolve("", "etl").produce.limits
        return limit

    def tick(self, seconds: int = 1, responses: list[tuple[str, int]] | None = None, used: float = 1.0) -> None:
        for _ in range(seconds):
            sent_ns = self.world.clock() + 1
            self.world.clock.pass_seconds(1)
            self.limit.algorithm.record(int(used * self.limit.rate), sent_ns)
            for broker, took_ns in responses or ():
                self.brokers.times_of(broker).signal("backfill", TARGET_NS).answered(sent_ns, took_ns)
            self.groups.tick(self.world.clock())


def test_the_limit_starts_at_its_lower_bound_and_is_raised_while_it_is_used() -> None:
    alone = Alone(entry())
    first = alone.limit.rate
    assert 10_000 <= first <= 10_100, "it has seen no protected client yet"
    alone.tick(2, times(took_ns=1))
    assert alone.limit.rate == pytest.approx(first * 1.15**2)
    alone.tick(5, times(took_ns=1), used=0)
    assert alone.limit.rate < 10_000 * 1.15**5, "use is measured over three seconds"
    alone.tick(30)
    assert alone.limit.rate < 10_000 * 1.15**5 * 1.01**30
    assert alone.limit.algorithm.burst_ns == 100 * NS_PER_MS


def test_it_is_cut_with_a_line_in_the_log_and_shown_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    alone = Alone(entry())
    alone.tick(100, times(took_ns=1))
    before = alone.limit.rate
    with caplog.at_level(logging.INFO, "proxy.adaptive"):
        alone.tick(4, times(broker=2))
    assert alone.limit.rate == pytest.approx(before * 0.75**2)
    [(event, fields)] = lines_of(caplog.records)
    assert event == "yields"
    assert fields["entity"] == "resource-group:backfill"
    [moving] = alone.groups.moving()
    assert (moving.cuts, moving.slow_seconds) == (2, 4)
    assert moving.why == (
        "100% of the Produce responses to client-id:online took longer than 50 ms at broker broker:2, 100 ms on average"
    )
    alone.tick(61, times(took_ns=1))
    assert next(alone.groups.moving()).why == ""


def test_if_it_stops_the_limit_falls_to_its_lower_bound() -> None:
    alone = Alone(entry())
    alone.tick(20, times(took_ns=1))
    assert alone.limit.rate > 20_000
    alone.world.clock.pass_seconds(5)
    alone.limit.algorithm.headroom(alone.world.clock())
    assert alone.limit.rate == 10_000


def test_observing_sets_nothing_and_shows_what_it_would_set(caplog: pytest.LogCaptureFixture) -> None:
    alone = Alone(entry(",observe=true"))
    with caplog.at_level(logging.INFO, "proxy.adaptive"):
        alone.tick(10, times(took_ns=1))
        alone.tick(3, times())
    assert alone.limit.rate == 1_000_000
    [moving] = alone.groups.moving()
    assert moving.is_observed
    assert 10_000 < moving.rate < 100_000
    assert [event for event, _ in lines_of(caplog.records)] == ["would_yield"]


def test_a_reload_keeps_the_rate_within_the_new_bounds_and_can_end_it() -> None:
    alone = Alone(entry())
    alone.tick(40, times(took_ns=1))
    before, limit = alone.limit.rate, alone.limit
    alone.world.registry.replace([entry(bounds="10kB..30kB")], alone.world.clock())
    assert alone.limit is limit
    assert alone.limit.rate == before, "until the next second"
    alone.tick()
    assert alone.limit.rate == 30_000
    alone.world.registry.replace(
        [parse_spec("resource-group=backfill,client-id=etl,producer_byte_rate=5kB")], alone.world.clock()
    )
    alone.tick()
    assert alone.limit.rate == 5_000
    assert not alone.limit.moves
    assert list(alone.groups.moving()) == []


# ---- a fleet
class Sidecar:
    """A member of a fleet, whose groups yield to what its own clients see."""

    def __init__(self, world: Members) -> None:
        self.world = world
        self.proxy: Proxy = world.join(entry())
        self.brokers = BrokerTimes(world.clock)
        self.groups = YieldingGroups(self.proxy.registry, self.brokers, Host(clock=world.clock), self.proxy.fleet)
        self.responses: list[tuple[str, int]] = []

    @property
    def fact(self) -> object:
        facts = self.proxy.member.facts.all
        return next((value for name, value in facts.items() if name.startswith("yield.")), None)

    def see(self, sent_ns: int) -> None:
        for broker, took_ns in self.responses:
            self.brokers.times_of(broker).signal("backfill", TARGET_NS).answered(sent_ns, took_ns)
        self.groups.tick(self.world.clock())


def run(sidecars: list[Sidecar], seconds: int) -> None:
    for _ in range(seconds):
        sent_ns = sidecars[0].world.clock() + 1
        sidecars[0].world.pass_seconds(1)
        for each in sidecars:
            each.see(sent_ns)


def test_what_one_member_sees_applies_to_all_and_their_shares_never_exceed_it(caplog: pytest.LogCaptureFixture) -> None:
    with a_fleet() as world, caplog.at_level(logging.WARNING):
        online, one, two = [Sidecar(world) for _ in range(3)]
        sidecars = [online, one, two]
        online.responses = times(took_ns=1)
        one.proxy.wants = two.proxy.wants = True
        run(sidecars, 25)
        assert one.proxy.rate + two.proxy.rate <= 10_000 * 1.15**25
        run(sidecars, 30)
        raised = one.proxy.rate + two.proxy.rate
        assert raised > 500_000
        assert one.proxy.rate == pytest.approx(two.proxy.rate, rel=0.1)
        online.responses = times()
        run(sidecars, 6)
        assert one.proxy.rate + two.proxy.rate < 0.5 * raised
        assert one.fact is None or int(str(one.fact)) < 0, "it sees no protected client"
        assert isinstance(online.fact, int)
        assert online.fact > 0
        cut = one.proxy.rate + two.proxy.rate
        online.responses = []
        run(sidecars, 30)  # the protected clients have gone: it rises slowly
        assert one.proxy.rate + two.proxy.rate < 1.6 * cut
        assert world.most <= QUOTA
        assert not [event for event, _ in lines_of(caplog.records) if event == "fleet_quotas_differ"]
