"""What some clients announce and do not send, ask for and do not take, keeps no other one from its limit; and what they
have begun lets no more pass than the limit.
"""

from collections.abc import Callable

import pytest

from quotas.parsing.parse import parse_spec
from quotas.registry import client_table, limit_store
from tests.proxy.frames import fetch, fetched, produce
from tests.proxy.streams.pair import Pair, World, run_until

SECOND = 1_000_000_000
RATE = 200_000
TOTAL = f"total,producer_byte_rate={RATE},consumer_byte_rate={RATE}"
STEP_NS = 20_000_000


class Passed:
    """What has passed, and when."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began_ns = self.last_ns = world.clock()
        self.total = 0
        self._level = self._lowest = 0
        #: The most bytes that have passed in any time T, less `RATE` * T.
        self.above = 0
        self.longest_gap_ns = 0

    def add(self, size: int) -> None:
        now_ns = self.world.clock()
        self._level -= RATE * (now_ns - self.last_ns) // SECOND
        self._lowest = min(self._lowest, self._level)
        self.longest_gap_ns = max(self.longest_gap_ns, now_ns - self.last_ns)
        self.last_ns = now_ns
        self._level += size
        self.total += size
        self.above = max(self.above, self._level - self._lowest)

    @property
    def earned(self) -> int:
        """What the limit has earned meanwhile."""
        return RATE * (self.world.clock() - self.began_ns) // SECOND


def take(data: bytearray, passed: Passed) -> None:
    """Count what a peer has received."""
    if data:
        passed.add(len(data))
        data.clear()


class Producer:
    """It always has a next request."""

    def __init__(self, world: World) -> None:
        self.pair = Pair(world)
        self.passed = Passed(world)
        self.number = 0

    def go_on(self) -> None:
        while len(self.pair.client.received) < 20_000:
            self.number += 1
            self.pair.client_sends(produce(self.number, 1_000, acks=0, client_id="innocent"))
        take(self.pair.to_broker, self.passed)


class Consumer:
    """It always asks for more, and its broker has it at once."""

    def __init__(self, world: World) -> None:
        self.pair = Pair(world)
        self.passed = Passed(world)
        self.number = self.answered = self.received = 0
        self.of_response = 0

    def go_on(self) -> None:
        pair = self.pair
        for _ in range(20):
            if self.number == self.answered == self.received:
                self.number += 1
                pair.client_sends(fetch(self.number, client_id="innocent"))
            if self.answered < self.number and pair.to_broker:
                pair.to_broker.clear()
                self.answered = self.number
                answer = fetched(self.number, size=2_000)
                self.of_response = len(answer)
                pair.broker_sends(answer)
            self.of_response -= len(pair.to_client)
            take(pair.to_client, self.passed)
            if self.answered == self.number and not self.of_response:
                self.received = self.number


class Stalling:
    """60 clients that begin something, and nothing more; every two seconds they come again."""

    def __init__(self, world: World, begin: Callable[[Pair], None], go_on: Callable[[Pair], None]) -> None:
        self.world = world
        self.begin = begin
        self.go_on = go_on
        self.pairs: list[Pair] = []
        self.comes_ns = self.goes_on_ns = world.clock()
        #: What they have sent.
        self.size = 0

    def act(self) -> None:
        now_ns = self.world.clock()
        if now_ns >= self.comes_ns:
            for pair in self.pairs:
                pair.hang_up()
            self.pairs = [Pair(self.world) for _ in range(60)]
            for pair in self.pairs:
                self.begin(pair)
            self.comes_ns = now_ns + 2 * SECOND
        if now_ns >= self.goes_on_ns:
            for pair in self.pairs:
                self.go_on(pair)
            self.goes_on_ns = now_ns + 1_100_000_000


def nothing(_: Pair) -> None:
    """They stall."""


def check_innocent(world: World, stalling: Stalling, innocent: Producer | Consumer, largest_ms: int = 300) -> None:
    """It has nearly all of the limit, all the time."""
    ends_ns = world.clock() + 20 * SECOND
    while world.clock() < ends_ns:
        stalling.act()
        innocent.go_on()
        run_until(world, world.clock() + STEP_NS)
    assert innocent.passed.total >= 0.85 * innocent.passed.earned
    assert innocent.passed.longest_gap_ns <= largest_ms * 1_000_000


def test_sixty_requests_that_are_announced_and_not_sent() -> None:
    """Of 50 MB each, 200 bytes. They keep no credit."""
    world = World([parse_spec(TOTAL)])
    sent = produce(1, 50_000_000)[:200]
    check_innocent(world, Stalling(world, lambda pair: pair.client_sends(sent), nothing), Producer(world))


def drips(pair: Pair) -> None:
    """One byte more of a response of 1 MB."""
    at = len(pair.to_client) + len(pair.responses.backlog.kept) + len(pair.broker.received)
    pair.broker_sends(DRIPPING[at : at + 1] or b"")


DRIPPING = fetched(1, size=1_000_000)


@pytest.mark.parametrize("go_on", [nothing, drips])
def test_sixty_consumers_of_which_the_answers_are_late(go_on: Callable[[Pair], None]) -> None:
    world = World([parse_spec(TOTAL)])
    check_innocent(world, Stalling(world, lambda pair: pair.client_sends(fetch(1)), go_on), Consumer(world))


@pytest.mark.pure
def test_stalled_requests_of_which_the_limit_is_pushed_out_by_other_client_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they go on, all together."""
    monkeypatch.setattr(limit_store, "MAX_OF_DEFAULTS", 100)
    monkeypatch.setattr(client_table, "MAX_RECENT", 50)
    world = World([parse_spec(f"client-id=<default>,producer_byte_rate={RATE}")])
    stalled = [Pair(world) for _ in range(10)]
    sent = produce(1, 2_000_000, client_id="stalled")
    for pair in stalled:
        pair.client_sends(sent[:1_000])
    run_until(world, world.clock() + 30 * SECOND)
    invents = Pair(world)
    for number in range(500):
        invents.client_sends(produce(number, 10, acks=0, client_id=f"invented-{number}"))
        world.clock.now_ns += 10_000_000
    world.registry.expire(world.clock())
    passed = Passed(world)
    for pair in stalled:
        pair.to_broker.clear()
        pair.client_sends(sent[1_000:])
    ends_ns = world.clock() + 10 * SECOND
    while world.clock() < ends_ns:
        for pair in stalled:
            take(pair.to_broker, passed)
        run_until(world, world.clock() + STEP_NS)
    assert passed.above <= RATE + len(sent) + RATE // 10
    assert passed.total >= passed.earned
