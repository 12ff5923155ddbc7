"""The account of held bytes, whatever happens in whatever order, and that memory can always drain."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from proxy.streams.memory import (
    ALIGNMENT,
    HEAD_READ_SIZE,
    OWN_SIZE,
    READ_SIZE,
    SHORT,
    Holding,
    MemoryPool,
    aligned,
)  # fmt: skip

LIMIT = 400_000
which = st.integers(0, 7)


def bound(size: int) -> int:
    """What may be used after `size` bytes were allocated."""
    return LIMIT + LIMIT // 8 if size <= SHORT else LIMIT


sizes = st.integers(0, 120_000)


class Accounts(RuleBasedStateMachine):
    """Directions that keep, have pending, allocate and go, in any order."""

    @initialize()
    def begin(self) -> None:
        self.pool = MemoryPool(LIMIT)
        self.holdings = [Holding() for _ in range(8)]
        self.waiting: list[Holding] = []

    def queue(self, size: int) -> list[Holding]:
        """Those that wait like one that wants `size` bytes."""
        return [each for each in self.waiting if (each.waits <= SHORT) == (size <= SHORT)]

    def fits(self, size: int) -> bool:
        """Whether there is room for this allocation."""
        return self.pool.used + size <= bound(size)

    @rule(at=which, kept=sizes, pending=sizes)
    def holds(self, at: int, kept: int, pending: int) -> None:
        holding = self.holdings[at]
        self.pool.update(holding, kept, pending, holding.allocated)

    @rule(at=which, size=st.integers(1, LIMIT // 4))
    def allocates(self, at: int, size: int) -> None:
        holding = self.holdings[at]
        if holding.allocated or holding.waits:
            return
        before = self.pool.used
        in_reserve = holding.total + size <= OWN_SIZE
        queue, fits = self.queue(size), self.fits(size)
        if self.pool.allocate(holding, size):
            assert in_reserve or not queue, "none overtakes"
            assert in_reserve or fits
            assert not in_reserve or self.pool.used == before
            assert holding.allocated == size
        else:
            assert not in_reserve
            assert queue or not fits
            self.waiting.append(holding)
            assert holding.waits == size

    @rule(at=which)
    def releases(self, at: int) -> None:
        holding = self.holdings[at]
        self.pool.update(holding, holding.kept, holding.pending, 0)

    @rule(at=which)
    def goes(self, at: int) -> None:
        holding = self.holdings[at]
        self.pool.forget(holding)
        if holding in self.waiting:
            self.waiting.remove(holding)
        assert (holding.total, holding.counted, holding.waits) == (0, 0, 0)

    @rule()
    def grants(self) -> None:
        wanted = {id(each): each.waits for each in self.waiting}
        queues = [self.queue(SHORT), self.queue(SHORT + 1)]
        granted = self.pool.grant()
        assert granted == [each for queue in queues for each in queue if each in granted]
        for holding in granted:
            assert holding.allocated == wanted[id(holding)]
            assert not holding.waits
            self.waiting.remove(holding)
        for queue in queues:
            left = [each for each in queue if each not in granted]
            assert left == queue[len(queue) - len(left) :], "in order"
            assert not left or not self.fits(left[0].waits)

    @invariant()
    def accounts_are_exact(self) -> None:
        pool = self.pool
        assert pool.buffered_bytes == sum(each.total for each in self.holdings)
        assert pool.kept_bytes == sum(each.kept for each in self.holdings)
        assert pool.used == sum(max(0, each.total - OWN_SIZE) for each in self.holdings)
        assert [each for each in self.holdings if each.waits] == sorted(self.waiting, key=self.holdings.index)
        assert (pool.read_size == 0) == (pool.used >= LIMIT)
        assert pool.read_size == READ_SIZE or pool.is_tight

    def teardown(self) -> None:
        for holding in getattr(self, "holdings", []):
            self.pool.forget(holding)
        if hasattr(self, "pool"):
            assert self.pool.used == self.pool.buffered_bytes == self.pool.kept_bytes == 0
            assert (self.pool.read_size, self.pool.grant()) == (READ_SIZE, [])


TestAccounts = Accounts.TestCase


def test_short_allocations_do_not_wait_for_long_ones() -> None:
    """Four large responses are stuck, and one more waits for them: Metadata passes still."""
    pool = MemoryPool(64 * READ_SIZE)
    for _ in range(4):
        assert pool.allocate(Holding(), pool.largest_response)
    pool.update(Holding(), 0, 4 * READ_SIZE, 0)
    assert not pool.allocate(Holding(), 100_000)
    short = Holding()
    assert pool.allocate(short, SHORT)
    pool.grow(short, 10 * SHORT)
    assert short.allocated == 10 * SHORT
    pool.grow(short, 20)
    assert short.allocated == 10 * SHORT
    pool.update(Holding(), 0, 4 * READ_SIZE, 0)
    assert not pool.allocate(Holding(), SHORT), "an eighth of the pool is the most"


@given(st.integers(0, LIMIT), st.integers(1, READ_SIZE))
def test_each_direction_has_a_reserve_outside_of_the_pool(own: int, want: int) -> None:
    """While the pool is used up, a direction that holds nothing reads short requests still."""
    pool = MemoryPool(LIMIT)
    pool.update(Holding(), 0, LIMIT + OWN_SIZE, 0)
    assert pool.read_size == 0
    holding = Holding()
    assert pool.allowance(holding, want, 0, HEAD_READ_SIZE) == min(want, OWN_SIZE)
    pool.update(holding, min(own, OWN_SIZE), 0, 0)
    assert pool.allowance(holding, want, 5_000, HEAD_READ_SIZE) == min(want, OWN_SIZE - min(own, OWN_SIZE))
    assert pool.used == LIMIT, "what stays within the allocate is not counted"


def test_what_is_kept_uses_half_of_the_pool() -> None:
    """Beyond that, a direction reads to the end of its frame and the next one's head, though there is room."""
    pool = MemoryPool(4 * READ_SIZE)
    pool.update(Holding(), 2 * READ_SIZE, 0, 0)
    assert pool.is_tight
    assert pool.allowance(Holding(), READ_SIZE, 0, HEAD_READ_SIZE) == HEAD_READ_SIZE
    assert pool.allowance(Holding(), READ_SIZE, 3_000, HEAD_READ_SIZE) == 3_000 + HEAD_READ_SIZE
    assert pool.read_size > 100_000, "there is room for pending bytes"


@pytest.mark.parametrize("used", [0, 100_000, 199_999, 200_001, 300_000, 399_999, 400_000, 500_000])
def test_reads_shrink_as_the_pool_fills(used: int) -> None:
    pool = MemoryPool(LIMIT)
    pool.update(Holding(), 0, used + OWN_SIZE, 0)
    expected = READ_SIZE if used <= LIMIT // 2 else max(8_192, READ_SIZE * (LIMIT - used) * 2 // LIMIT)
    assert pool.read_size == (0 if used >= LIMIT else expected)


@pytest.mark.parametrize("size", [100, 4_096, 65_536, READ_SIZE, 2 * READ_SIZE])
def test_sockets_are_read_into_aligned_memory(size: int) -> None:
    buffers = [aligned(size) for _ in range(3)]
    for each in buffers:
        assert len(each) == size
        assert ctypes.addressof(ctypes.c_char.from_buffer(each)) % ALIGNMENT == 0
