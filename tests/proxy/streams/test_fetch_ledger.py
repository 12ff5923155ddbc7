"""Reservations of open fetches: what they charge, and that it all comes back, whatever the order of events."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.streams.fetch_ledger import (
    EMPTY_RESPONSE,
    LARGEST_BATCH,
    PERIOD_NS,
    Fetching,
    FetchLedger,
    Reservation,
    ledger_of,
)
from proxy.streams.steps import HOLD
from quotas.admission.client_limits import ClientLimits
from quotas.parsing.parse import parse_spec
from quotas.registry.registry import Registry
from tests.proxy import frames
from tests.proxy.conversation import Clock, without_burst
from tests.proxy.frames import fetch_max_bytes
from tests.proxy.streams.pair import Pair, World, pass_one_hold

RATE = 1_000_000
QUOTA = parse_spec("client-id=etl,consumer_byte_rate=1MB")


class Ledger(RuleBasedStateMachine):
    """Connections of one client open fetches, get responses and go, in any order, while time passes."""

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.limits = Registry([without_burst("client-id=etl,consumer_byte_rate=1MB")]).resolve("ANONYMOUS", "etl")
        self.fetching = [Fetching() for _ in range(5)]
        self.open: dict[int, Reservation] = {}
        self.waiting: set[int] = set()
        self.answered_ns: dict[int, int] = {}
        self.settled = 0
        self.began_ns = self.clock()

    @property
    def bucket(self) -> Any:
        return self.limits.fetch.limits[0].algorithm

    @rule(at=st.integers(0, 4), asked=st.one_of(st.none(), st.integers(1, 50_000_000)))
    def opens(self, at: int, asked: int | None) -> None:
        self.clock.now_ns += 1  # at the very time of a refund a bucket gives less back
        if at in self.open:
            return
        now_ns = self.clock()
        reservation = self.fetching[at].begin(self.limits, now_ns)
        ledger = reservation.ledger
        amount = reservation.plan(asked)
        assert reservation.budget >= 1
        if asked is not None or ledger.latest is not None:
            assert amount >= min(reservation.budget, asked or ledger.latest or 0)
        if asked is not None:
            assert amount <= max(asked, ledger.batch)
        self.limits.fetch.charge(amount, now_ns)
        reservation.amount = amount
        reservation.open()
        self.open[at] = reservation
        self.waiting.discard(at)
        self.answered_ns.pop(at, None)

    @rule(at=st.integers(0, 4))
    def is_held(self, at: int) -> None:
        if at not in self.open:
            self.fetching[at].begin(self.limits, self.clock()).plan(1_000)
            self.waiting.add(at)
            self.answered_ns.pop(at, None)

    @precondition(lambda self: bool(getattr(self, "open", None)))
    @rule(data=st.data(), size=st.integers(0, 3_000_000))
    def answers(self, data: st.DataObject, size: int) -> None:
        at = data.draw(st.sampled_from(sorted(self.open)))
        self.open.pop(at).settle(self.limits.fetch, size, self.clock())
        self.settled += size
        self.answered_ns[at] = self.clock()

    @rule(at=st.integers(0, 4))
    def goes(self, at: int) -> None:
        reservation = self.open.pop(at, None)
        if reservation is not None:
            reservation.cancel(self.clock())
        self.fetching[at].leave()
        self.fetching[at].leave()  # twice changes nothing
        self.waiting.discard(at)
        self.answered_ns.pop(at, None)

    @rule(ms=st.integers(1, 300) | st.integers(900, 2_500))
    def time_passes(self, ms: int) -> None:
        self.clock.pass_seconds(ms / 1000)

    @invariant()
    def counts_are_those_of_connections(self) -> None:
        ledger = ledger_of(self.limits)
        assert ledger.open == len(self.open)
        period = self.clock() // PERIOD_NS
        lately = sum(period - each_ns // PERIOD_NS <= 1 for each_ns in self.answered_ns.values())
        assert ledger.ready(self.clock()) == len(self.waiting) + lately

    @invariant()
    def debt_is_what_came_and_what_is_reserved(self) -> None:
        """A bucket without burst: its debt is at least all that was charged less what could be earned meanwhile."""
        now_ns = self.clock()
        earned = (now_ns - self.began_ns) * RATE // 1_000_000_000
        owed = self.settled + sum(each.amount for each in self.open.values())
        debt = self.bucket.debt_ns(now_ns) * RATE / 1e9
        assert debt >= owed - earned - 1
        assert debt <= owed + 1, "nothing is owed that neither came nor is reserved"


TestLedger = Ledger.TestCase


def test_a_client_without_limits_has_a_ledger_of_its_own() -> None:
    first, second = ClientLimits(("u", "a")), ClientLimits(("u", "b"))
    assert ledger_of(first) is ledger_of(first)
    assert ledger_of(first) is not ledger_of(second)
    fetching = Fetching()
    fetching.begin(first, 0)
    reservation = fetching.begin(second, 0)
    assert (ledger_of(first).ready(0), ledger_of(second).ready(0)) == (0, 0)
    assert reservation.plan(100) <= LARGEST_BATCH


@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(1, 2_000_000)), max_size=20))
def test_the_batch_is_the_smallest_that_came_lately(responses: list[tuple[int, int]]) -> None:
    ledger = FetchLedger()
    for size, budget in responses:
        before = ledger.batch
        ledger.learn(size, budget)
        if size <= EMPTY_RESPONSE:
            assert ledger.batch == before // 4
        elif size >= budget:
            assert ledger.batch == size
        else:
            assert ledger.batch <= min(before, size)


def test_limits_that_were_replaced_get_their_reservation_back() -> None:
    registry = Registry([without_burst("client-id=etl,consumer_byte_rate=1MB")])
    old = registry.resolve("ANONYMOUS", "etl")
    now_ns = Clock()()
    reservation = Fetching().begin(old, now_ns)
    reservation.amount = reservation.plan(None)
    old_limits = old.fetch
    old_limits.charge(reservation.amount, now_ns)
    reservation.open()
    registry.replace([without_burst("user=ANONYMOUS,consumer_byte_rate=1MB")], now_ns)
    new = registry.resolve("ANONYMOUS", "etl")
    reservation.settle(new.fetch, 5_000, now_ns)
    assert old_limits.limits[0].debt_ns(now_ns) == 0
    assert new.fetch.limits[0].debt_ns(now_ns) == 5_000_000


# ---- over connections


@pytest.mark.parametrize("burst_seconds", [1, Fraction(1, 10)])
def test_idle_connections_keep_nothing_from_an_active_one(burst_seconds: int | Fraction) -> None:
    """Spark's cached consumers share a client id. 40 of them have fetched once, and one fetches on."""
    world = World([replace(parse_spec("client-id=etl,consumer_byte_rate=5MB"), burst_seconds=burst_seconds)])
    for _ in range(40):
        idle = Pair(world)
        idle.client_sends(frames.fetch(1))
        idle.broker_sends(frames.fetched(1))
    pair = Pair(world)
    world.clock.pass_seconds(2)
    brought, began_ns = 0, world.clock()
    for number in range(100):  # each 0.1 s, as small as the budget, and 1 MB at most
        pair.client_sends(frames.fetch(number))
        if pair.held is not None:
            pass_one_hold(world)
        size = min(1_000_000, fetch_max_bytes(pair.sent()[-1]))
        pair.to_broker.clear()
        world.clock.pass_seconds(0.1)
        pair.broker_sends(frames.fetched(number, size=size))
        brought += size
    assert brought >= 0.95 * 5_000_000 * (world.clock() - began_ns) / 1e9


def test_connections_that_fetch_share_what_is_left() -> None:
    limits = Registry([parse_spec("client-id=etl,consumer_byte_rate=40MB")]).resolve("ANONYMOUS", "etl")
    now_ns = Clock()()
    first, *others = (Fetching() for _ in range(4))
    for other in others:
        answered = other.begin(limits, now_ns)
        answered.open()
        answered.settle(limits.fetch, 0, now_ns)
    assert first.begin(limits, now_ns).plan(50_000_000) == 10_000_000
    assert first.begin(limits, now_ns + PERIOD_NS).plan(50_000_000) == 10_000_000, "again, after a hold"
    others[0].begin(limits, now_ns + PERIOD_NS)
    assert first.begin(limits, now_ns + 2 * PERIOD_NS).plan(50_000_000) == 20_000_000, "two of them wait to fetch"


def test_new_connections_do_not_get_a_batch_each() -> None:
    """100 connections of one client under 1 MB/s: what may come of all their first fetches is a burst and a batch."""
    world = World([QUOTA])
    pairs = [Pair(world) for _ in range(100)]
    for pair in pairs:
        pair.client_sends(frames.fetch(1))
    open_ = [pair for pair in pairs if pair.to_broker]
    assert sum(max(fetch_max_bytes(bytes(pair.to_broker)), LARGEST_BATCH) for pair in open_) <= RATE + LARGEST_BATCH
    assert all(pair.requests.stopped == HOLD for pair in pairs if not pair.to_broker)
    brought = 0
    while world.clock() < Clock()() + 20 * 1_000_000_000:
        for pair in pairs:
            if pair.connection.in_flight:
                number = int.from_bytes(pair.sent()[-1][8:12], "big")
                size = max(900_000, fetch_max_bytes(pair.sent()[-1]))
                pair.broker_sends(frames.fetched(number, size=size))
                brought += size
                pair.client_sends(frames.fetch(number + 1))
        limit = next(iter(world.holds.limits))
        world.clock.now_ns += world.holds.due_ns(limit, world.clock()) or 0
        hold = world.holds.next(limit, world.clock())
        assert hold is not None
        waiting = hold.waiter
        assert isinstance(waiting, Pair)
        waiting.release(hold)
    seconds = (world.clock() - Clock()()) / 1e9
    assert brought <= RATE * seconds + RATE + 2 * LARGEST_BATCH


def test_the_first_notice_counts_no_held_fetch_of_unknown_size() -> None:
    """They are admitted one at a time, each as the largest batch; but their responses are most likely smaller."""
    world = World([without_burst("client-id=etl,consumer_byte_rate=500000")])
    first, *others = (Pair(world) for _ in range(6))
    for pair in (first, *others):
        pair.client_sends(frames.fetch(1))
    assert all(pair.held is not None for pair in others)
    first.broker_sends(frames.fetched(1, size=75_000 - 13))
    assert throttle_ms_of(first) == 75_000 / 500, "its own debt"
    limit = next(iter(world.holds.limits))
    assert limit.waiters.queued == 5 * LARGEST_BATCH, "the order of turns is that of the reservations"
    pass_one_hold(world)
    first.client_sends(frames.fetch(2))
    (second,) = (pair for pair in others if pair.held is None)
    second.broker_sends(frames.fetched(1, size=75_000 - 13))
    assert throttle_ms_of(second) == 2 * 75_000 / 500, "its own debt, and the held fetch of known size"


@pytest.mark.parametrize("also", ["", "consumer_byte_rate=50MB,"])
def test_a_notice_for_a_request_rate_counts_each_held_fetch_as_one_request(also: str) -> None:
    """Not as the bytes that it reserves, nor as none because no response has had a size."""
    world = World([without_burst(f"client-id=etl,{also}request_rate=2")])
    pairs = [Pair(world) for _ in range(4)]
    for pair in pairs:
        pair.client_sends(frames.fetch(1))
    first, *others = pairs
    assert first.held is None
    assert all(pair.held is not None for pair in others)
    first.broker_sends(frames.fetched(1, size=100))
    assert throttle_ms_of(first) == 4 * 1000 / 2, "its own request and three that are held"


def test_a_consumer_that_waits_is_never_held_for_a_request_rate() -> None:
    pair = Pair(World([without_burst("client-id=etl,request_rate=2")]))
    for number in range(1, 5):
        pair.client_sends(frames.fetch(number))
        assert pair.held is None
        pair.broker_sends(frames.fetched(number, size=100))
        assert throttle_ms_of(pair) == 500
        pair.world.clock.pass_seconds(0.5)


def throttle_ms_of(pair: Pair) -> int:
    """In the latest Fetch response that the client received."""
    return int.from_bytes(pair.received()[-1][9:13])


def test_share_fetches_are_lowered_and_held_as_fetches_are() -> None:
    world = World([QUOTA])
    pairs = [Pair(world) for _ in range(20)]
    for pair in pairs:
        pair.client_sends(frames.share_fetch(1))
    assert sum(bool(pair.to_broker) for pair in pairs) <= 2
    sent = frames.share_fetch(1)
    changed = [at for at in range(len(sent)) if pairs[0].to_broker[at] != sent[at]]
    assert changed, "it asks for less"
    assert len(pairs[0].to_broker) == len(sent)


@pytest.mark.parametrize("max_bytes", [0, -1, 1])
@pytest.mark.parametrize("limit", ["consumer_byte_rate=1MB", "request_rate=1"])
@pytest.mark.parametrize("request_of", [frames.fetch, frames.share_fetch, partial(frames.share_fetch, version=2)])
def test_a_fetch_for_no_bytes_is_held_as_any_other(request_of: Any, limit: str, max_bytes: int) -> None:
    """Brokers return its first batch whole."""
    pair = Pair(World([without_burst(f"client-id=etl,{limit}")]))
    pair.client_sends(request_of(1, max_bytes=max_bytes))
    assert pair.sent() == [request_of(1, max_bytes=max_bytes)], "brokers refuse other values of a ShareFetch"
    pair.client_sends(request_of(2, max_bytes=max_bytes))
    assert pair.held is not None


def test_a_renewal_of_locks_is_never_held() -> None:
    pair = Pair(World([without_burst("client-id=etl,consumer_byte_rate=1MB,request_rate=1")]))
    pair.client_sends(frames.share_fetch(1, 2))
    renewals = [frames.share_fetch(number, 2, max_bytes=0, renews=True) for number in range(2, 5)]
    pair.client_sends(*renewals)
    assert pair.sent()[1:] == renewals
    pair.client_sends(frames.share_fetch(5, 2, renews=True))
    assert pair.held is not None, "it asks for records"


def test_a_share_fetch_is_held_for_ten_seconds_at_most() -> None:
    """What a share consumer has acquired is locked for 30 s, and it acknowledges with its next fetch."""
    world = World([without_burst("client-id=etl,consumer_byte_rate=1000")])
    first, second = Pair(world), Pair(world)
    first.client_sends(frames.share_fetch(1))
    first.broker_sends(frames.share_fetched(1, record_bytes=100_000))
    second.client_sends(frames.share_fetch(1))
    hold = second.held
    assert hold is not None
    assert hold.until_ns == world.clock() + 10_000_000_000
    world.clock.pass_seconds(10)
    world.holds.remove(hold)
    second.release(hold)
    assert second.to_broker


@pytest.mark.parametrize("algorithm", ["token-bucket", "sampled-window", "ewma"])
def test_empty_responses_do_not_earn_anything(algorithm: str) -> None:
    """Long polls that bring nothing, then one that brings much: no more passes than the rate allows."""
    world = World([parse_spec("client-id=etl,consumer_byte_rate=1MB")], algorithm=algorithm)
    pairs = [Pair(world) for _ in range(4)]
    brought = 0
    for number in range(60):
        for pair in pairs:
            if pair.held is not None:
                continue
            if pair.connection.in_flight:
                size = 100 if number % 3 else fetch_max_bytes(pair.sent()[-1])
                pair.broker_sends(frames.fetched(int.from_bytes(pair.sent()[-1][8:12], "big"), size=size))
                brought += size
            pair.client_sends(frames.fetch(number + 1))
        world.clock.pass_seconds(0.5)
        for limit in list(world.holds.limits):
            while (hold := world.holds.next(limit, world.clock())) is not None:
                waiting = hold.waiter
                assert isinstance(waiting, Pair)
                waiting.release(hold)
    slack = 1 if algorithm == "token-bucket" else 12
    assert brought <= RATE * (30 + slack) + 4 * LARGEST_BATCH


def test_a_connection_that_is_gone_gives_its_reservation_back() -> None:
    world = World([QUOTA])
    first, second = Pair(world), Pair(world)
    first.client_sends(frames.fetch(1))
    second.client_sends(frames.fetch(1))
    assert second.requests.stopped == HOLD
    world.holds.changed.clear()
    first.hang_up()
    limit = next(iter(world.holds.limits))
    assert limit in world.holds.changed, "the timer is set anew"
    assert world.holds.due_ns(limit, world.clock()) == 0
    assert ledger_of(second.connection.identity.limits).open == 0


def test_a_fetch_without_max_bytes_leaves_the_others_their_share() -> None:
    """Fetch 0 to 2. Four connections of one client: the one without a bound reserves what the latest response had."""
    limits = Registry([parse_spec("client-id=etl,consumer_byte_rate=40MB")]).resolve("ANONYMOUS", "etl")
    now_ns = Clock()()
    *others, old = (Fetching().begin(limits, now_ns) for _ in range(4))
    for other in others:
        other.open()
    assert old.plan(None) == 10_000_000, "a share of all connections at first, though the others have open fetches"
    old.ledger.learn(3_000_000, 50_000_000)
    assert old.plan(None) == 3_000_000
    assert old.plan(50_000_000) == 40_000_000, "its response is bounded: the others get the rest when it arrives"


# ---- limits that are lifted


def test_a_lifted_limit_is_in_no_later_response() -> None:
    """Fetches and a Produce were in flight when the limit was removed: no client waits for a limit that is gone."""
    world = World([without_burst("client-id=etl,consumer_byte_rate=1000,producer_byte_rate=1000")])
    first, second = Pair(world), Pair(world)
    first.client_sends(frames.produce(1, 3_000), frames.fetch(2))
    second.client_sends(frames.fetch(3))
    assert second.held is not None
    world.registry.replace([], world.clock())
    first.broker_sends(frames.produced(1), frames.fetched(2, size=400_000))
    assert first.received() == [frames.produced(1), frames.fetched(2, size=400_000)]
    (hold,) = world.holds.take_all(second.held.limit)
    second.release(hold)
    second.broker_sends(frames.fetched(3))
    for pair, numbers in ((first, (4, 5)), (second, (6, 7))):
        for number in numbers:
            pair.client_sends(frames.fetch(number))
            assert pair.sent()[-1] == frames.fetch(number), "with the budget of the client"
            pair.broker_sends(frames.fetched(number, size=400_000))
            assert pair.received()[-1] == frames.fetched(number, size=400_000)
