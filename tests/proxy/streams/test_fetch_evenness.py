"""Consumers that want more than their limit, on a virtual clock: how even their rate is, how far they overdraw."""

from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quotas.parsing.parse import parse_spec
from tests.proxy.frames import fetch, fetch_max_bytes, fetched
from tests.proxy.streams.pair import Pair, World, release

SECOND = 1_000_000_000
#: The largest batch that a broker accepts by default (`message.max.bytes`).
LARGEST_BATCH = 1_048_588
#: Bytes of a response made by `fetched` besides its records.
HEAD = len(fetched(1, size=0))


class Consumer:
    """One client with a connection to each of some brokers, which have as many batches as it wants."""

    def __init__(
        self, rate: int, batches: list[int], latency_ns: int, burst_seconds: float = 0.1, first: int = 0
    ) -> None:
        """`batches`: the size of a batch at each broker; `first`: of the first response, if it is another."""
        spec = f"client-id=etl,consumer_byte_rate={rate},burst_seconds={burst_seconds}"
        self.world = World([parse_spec(spec)])
        self.first = first
        #: Since when each connection waits for a response, and how long one has waited at most: for a fetch to be
        #: forwarded, and, after the first one, for the end of its response.
        self.asked_ns = [0] * len(batches)
        self.longest_held_ns = self.longest_ns = 0
        self.began_ns = self.world.clock()
        self.batches = batches
        self.latency_ns = latency_ns
        self.pairs = [Pair(self.world) for _ in batches]
        self.numbers = [0] * len(batches)
        #: Connections of which the fetch has not been forwarded.
        self.asking: set[int] = set()
        #: When a response arrives, and at which connection.
        self.due: list[tuple[int, int]] = []
        #: What is to arrive yet of the response to each connection.
        self.left = [0] * len(batches)
        #: When bytes arrived, and how many.
        self.arrived: list[tuple[int, int]] = []

    def run(self, seconds: int) -> None:
        for at in range(len(self.pairs)):
            self.ask(at)
        self.see()
        ends_ns = self.began_ns + seconds * SECOND
        while self.world.clock() < ends_ns:
            self.step()

    def ask(self, at: int) -> None:
        self.numbers[at] += 1
        self.asked_ns[at] = self.world.clock()
        self.asking.add(at)
        self.pairs[at].client_sends(fetch(self.numbers[at]))

    def step(self) -> None:
        """The next event: a response comes from a broker, or what is held passes."""
        world = self.world
        held = {limit: world.clock() + limit.debt_ns(world.clock()) for limit in world.queues}
        if held and (not self.due or min(held.values()) <= self.due[0][0]):
            limit = min(held, key=held.__getitem__)
            world.clock.now_ns = max(world.clock(), held[limit])
            release(world, limit)
        else:
            world.clock.now_ns, at = heappop(self.due)
            batch = self.batches[at]
            budget = fetch_max_bytes(self.pairs[at].sent()[-1])
            self.pairs[at].to_broker.clear()
            size = self.first or max(batch, budget // batch * batch)
            self.first = 0
            self.left[at] = size + HEAD
            self.pairs[at].broker_sends(fetched(self.numbers[at], size=size))
        self.see()

    def see(self) -> None:
        """Find what was forwarded since the last event, and ask again where a response has ended."""
        now_ns = self.world.clock()
        for at, pair in enumerate(self.pairs):
            if pair.to_client:
                self.arrived.append((now_ns - self.began_ns, len(pair.to_client)))
                self.left[at] -= len(pair.to_client)
                pair.to_client.clear()
                if not self.left[at]:
                    if self.numbers[at] > 1:
                        self.longest_ns = max(self.longest_ns, now_ns - self.asked_ns[at])
                    self.ask(at)
            if at in self.asking and not pair.is_held:
                self.asking.remove(at)
                self.longest_held_ns = max(self.longest_held_ns, now_ns - self.asked_ns[at])
                heappush(self.due, (now_ns + self.latency_ns, at))

    def bins(self) -> list[int]:
        """Bytes in each second."""
        bins = [0] * (self.arrived[-1][0] // SECOND + 1)
        for at_ns, size in self.arrived:
            bins[at_ns // SECOND] += size
        return bins


@pytest.mark.parametrize("connections", [1, 3, 8])
@pytest.mark.parametrize(("rate", "batch"), [(5_000_000, 16_000), (500_000, 16_000), (2_000_000, 100_000)])
def test_each_second_has_the_limit(connections: int, rate: int, batch: int) -> None:
    """Within 1 % or one response for each connection, as a producer's; the mean within 0.5 % or one response."""
    consumer = Consumer(rate, [batch] * connections, 3_000_000)
    consumer.run(8)
    late = [size for at_ns, size in consumer.arrived if at_ns >= SECOND]
    bins = consumer.bins()[1:-1]
    assert all(abs(size - rate) <= max(rate / 100, connections * max(late)) for size in bins), bins
    assert abs(sum(bins) / len(bins) - rate) <= max(rate / 200, max(late) / len(bins)), bins


@settings(max_examples=50)
@given(
    st.integers(200_000, 5_000_000),
    st.one_of(
        st.lists(st.integers(5_000, LARGEST_BATCH), min_size=1, max_size=6),
        st.builds(lambda size, count: [size] * count, st.integers(5_000, LARGEST_BATCH), st.integers(1, 6)),
    ),
    st.integers(1_000_000, 200_000_000),
)
def test_open_fetches_together_overdraw_by_one_response(rate: int, batches: list[int], latency_ns: int) -> None:
    """In any time T no more than the burst, rate * T and one response arrives, whatever the brokers' batches are."""
    consumer = Consumer(rate, batches, latency_ns)
    consumer.run(2)
    # Fetches at the limit may bring what it earns in 10 ms, in whole batches; a first one what is left.
    largest = max(max(batch, rate // 10) + HEAD for batch in batches)
    assert over(consumer.arrived, rate) <= rate // 10 + largest + 1


def over(arrived: list[tuple[int, int]], rate: int) -> int:
    """The most bytes of any time T, less rate * T."""
    level = lowest = most = last_ns = 0  # in bytes a second, times nanoseconds
    for at_ns, size in arrived:
        level -= rate * (at_ns - last_ns)
        last_ns = at_ns
        lowest = min(lowest, level)
        level += size * SECOND
        most = max(most, level - lowest)
    return most // SECOND


@pytest.mark.parametrize("connections", [8, 16, 32])
@pytest.mark.parametrize("batch", [16_000, 100_000])
def test_no_connection_waits_for_a_response_of_burst_size_again(connections: int, batch: int) -> None:
    """The first connection receives 5 MB at 5 MB/s, and the next ones their shares of that: then none waits longer than
    that second, and two fair rounds; neither for its fetch to be forwarded, nor for the end of the response.
    """
    rate = 5_000_000
    consumer = Consumer(rate, [batch] * connections, 3_000_000, burst_seconds=1, first=rate)
    consumer.run(40)
    round_ns = connections * max(batch, rate // 100) * SECOND // rate
    assert max(consumer.longest_held_ns, consumer.longest_ns) <= SECOND + 2 * round_ns
    assert min(consumer.numbers) > 10
