"""Budgets and reservations of fetches, whatever the order of events."""

from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.streams.fetch_ledger import (
    EMPTY_RESPONSE,
    LARGEST_BATCH,
    PERIOD_NS,
    Fetching,
    ledger_of,
)
from quotas.admission.client_limits import ClientLimits
from quotas.parsing.parse import parse_spec
from quotas.registry.registry import Registry
from tests.proxy import frames
from tests.proxy.conversation import Clock, without_burst
from tests.proxy.streams.pair import Pair, World

RATE = 1_000_000
QUOTA = parse_spec("client-id=etl,consumer_byte_rate=1MB")


class Ledger(RuleBasedStateMachine):
    """Connections of one client open fetches, get responses and go, in any order, while time passes."""

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.limits = Registry([QUOTA]).resolve("ANONYMOUS", "etl")
        self.fetching = [Fetching() for _ in range(5)]
        #: The budget of each open fetch.
        self.open: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.answered_ns: dict[int, int] = {}

    @rule(at=st.integers(0, 4), asked=st.none() | st.integers(1, 50_000_000))
    def opens(self, at: int, asked: int | None) -> None:
        if at in self.open:
            assert self.fetching[at].is_open
            return
        self.is_held(at)
        budget = self.fetching[at].budget(self.limits.fetch, self.clock())
        expected = self.fetching[at].expected(asked, budget)
        assert 1 <= budget <= RATE
        assert expected == 0 or expected >= min(budget, asked or budget)
        assert expected <= max(budget, LARGEST_BATCH, 3_000_000)
        self.fetching[at].opened()
        self.waiting.discard(at)
        self.open[at] = budget

    @rule(at=st.integers(0, 4))
    def is_held(self, at: int) -> None:
        if at not in self.open:
            self.fetching[at].begin(self.limits)
            self.waiting.add(at)
            self.answered_ns.pop(at, None)

    @precondition(lambda self: bool(getattr(self, "open", None)))
    @rule(data=st.data(), size=st.integers(0, 3_000_000))
    def answers(self, data: st.DataObject, size: int) -> None:
        at = data.draw(st.sampled_from(sorted(self.open)))
        self.fetching[at].answered(self.limits, size, self.open.pop(at), self.clock())
        assert not self.fetching[at].is_open
        self.answered_ns[at] = self.clock()

    @rule(at=st.integers(0, 4))
    def goes(self, at: int) -> None:
        self.fetching[at].leave()
        self.fetching[at].leave()  # twice changes nothing
        self.fetching[at] = Fetching()
        self.open.pop(at, None)
        self.waiting.discard(at)
        self.answered_ns.pop(at, None)

    @rule(ms=st.integers(1, 300) | st.integers(900, 2_500))
    def time_passes(self, ms: int) -> None:
        self.clock.pass_seconds(ms / 1000)

    @invariant()
    def counts_are_those_of_connections(self) -> None:
        period = self.clock() // PERIOD_NS
        lately = sum(period - each_ns // PERIOD_NS <= 1 for each_ns in self.answered_ns.values())
        assert ledger_of(self.limits).ready(self.clock()) == len(self.waiting) + lately


TestLedger = Ledger.TestCase


def test_each_client_has_a_ledger_and_a_connection_is_in_one() -> None:
    first, second = (Registry([QUOTA]).resolve("ANONYMOUS", "etl") for _ in range(2))
    assert ledger_of(first) is ledger_of(first)
    fetching = Fetching()
    fetching.begin(first)
    fetching.begin(second)
    assert (ledger_of(first).ready(0), ledger_of(second).ready(0)) == (0, 1)
    unlimited = ClientLimits(("u", "a"))
    fetching.begin(unlimited)
    assert (ledger_of(second).ready(0), ledger_of(unlimited).ready(0)) == (0, 0), "nothing is shared"


@pytest.mark.parametrize(
    ("responses", "expected", "units"),
    [
        ([], LARGEST_BATCH, 10_000),
        ([(70_000, 0)], 70_000, 10_000),
        ([(2_000_000, 0)], LARGEST_BATCH, 10_000),
        ([(70_000, 0), (90_000, 0)], 70_000, 10_000),
        ([(70_000, 0), (90_000, 50_000)], 90_000, 90_000),
        ([(70_000, 0), (90_000, 50_000), (20_000, 20_000)], 20_000, 10_000),
        ([(70_000, 0), (EMPTY_RESPONSE, 0)], 0, 10_000),
        ([(70_000, 0), (EMPTY_RESPONSE, 0), (60_000, 0)], 60_000, 10_000),
    ],
)
def test_a_fetch_reserves_a_batch(responses: list[tuple[int, int]], expected: int, units: int) -> None:
    """Of the connection's own broker: the smallest response, or the latest one above its budget; nothing after an
    empty one. In the queue it counts an equal share, or the batch that was above its budget.
    """
    limits, fetching = Registry([QUOTA]).resolve("ANONYMOUS", "etl"), Fetching()
    for size, budget in responses:
        fetching.begin(limits)
        fetching.opened()
        fetching.answered(limits, size, budget, 0)
    fetching.begin(limits)
    assert fetching.expected(1, 5_000) == expected
    assert fetching.expected(None, 2_000_000) == (2_000_000 if expected else 0)
    assert fetching.units(limits.fetch, 0) == units


def test_connections_that_fetch_share_what_is_left() -> None:
    limits = Registry([parse_spec("client-id=etl,consumer_byte_rate=40MB")]).resolve("ANONYMOUS", "etl")
    now_ns = Clock()()
    first, *others = (Fetching() for _ in range(4))
    for other in others:
        other.begin(limits)
        other.opened()
        other.answered(limits, 0, 1, now_ns)
    first.begin(limits)
    assert first.budget(limits.fetch, now_ns) == 10_000_000
    first.begin(limits)  # again, after a hold
    assert first.budget(limits.fetch, now_ns + PERIOD_NS) == 10_000_000
    others[0].begin(limits)
    assert first.budget(limits.fetch, now_ns + 2 * PERIOD_NS) == 20_000_000, "two of them wait to fetch"


def test_a_notice_counts_held_fetches_of_unknown_size_as_small() -> None:
    """They reserve the largest batch one at a time; but their responses are most likely smaller."""
    world = World([without_burst("client-id=etl,consumer_byte_rate=500000")])
    first, *others = (Pair(world) for _ in range(6))
    for pair in (first, *others):
        pair.client_sends(frames.fetch(1))
    assert all(pair.held is not None for pair in others)
    first.broker_sends(frames.fetched(1, size=75_000 - 13))
    assert 75_000 / 500 <= throttle_ms_of(first) <= 75_000 / 500 + 5 * 10, "its own debt, and 10 ms for each at most"


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


def throttle_ms_of(pair: Pair) -> int:
    """In the latest Fetch response that the client received."""
    return int.from_bytes(pair.received()[-1][9:13])


@pytest.mark.parametrize("max_bytes", [0, -1, 1])
@pytest.mark.parametrize("limit", ["consumer_byte_rate=1MB", "request_rate=1"])
@pytest.mark.parametrize("request_of", [frames.fetch, frames.share_fetch, partial(frames.share_fetch, version=2)])
def test_a_fetch_for_no_bytes_is_held_as_any_other(request_of: Any, limit: str, max_bytes: int) -> None:
    """Brokers return its first batch whole."""
    world = World([without_burst(f"client-id=etl,{limit}")])
    first, second = Pair(world), Pair(world)
    first.client_sends(request_of(1, max_bytes=max_bytes))
    assert first.sent() == [request_of(1, max_bytes=max_bytes)], "brokers refuse other values of a ShareFetch"
    second.client_sends(request_of(2, max_bytes=max_bytes))
    assert second.held is not None


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
    assert second.sent() == [frames.fetch(3)]
    second.broker_sends(frames.fetched(3))
    for pair, numbers in ((first, (4, 5)), (second, (6, 7))):
        for number in numbers:
            pair.client_sends(frames.fetch(number))
            assert pair.sent()[-1] == frames.fetch(number), "with the budget of the client"
            pair.broker_sends(frames.fetched(number, size=400_000))
            assert pair.received()[-1] == frames.fetched(number, size=400_000)
