"""The shared read buffer, and the account of bytes that connections keep in memory.

All sockets are read into the same 512 KiB: a read is parsed and sent on before the next one begins, so no payload is
copied, except what the other side's socket did not take and what a connection keeps for later. These copies count
against ``--max-buffered-bytes``. Rules by which memory can always drain:

- Each direction of a connection has `OWN_SIZE` bytes outside of the pool, so short requests and responses pass while
  the pool is used up.
- The bytes that were read and not forwarded (`kept`), of all directions, use at most half of the pool; above that a
  direction reads only to the end of its current frame and the next header.
- A response that must be collected allocates its announced length before the first byte is collected; requests for
  memory are granted in order, except those that fit into the direction's own `OWN_SIZE`, which need none of the pool.
  One above a quarter of the pool is refused.
- Allocations of at most `SHORT` bytes have a queue of their own and an eighth more of memory: large responses that are
  stuck do not delay Metadata.
"""

import ctypes
from collections import deque
from typing import Final

from protocol.errors import ProtocolError

#: One read takes at most this much. The cost of 1 MiB frames stops falling here: with 64, 128, 256, 512 and 1024 KiB it
#: is 1.20, 0.75, 0.62, 0.55 and 0.59 of HAProxy's (`python -m bench --only against_haproxy --scenario "1 MiB"`).
READ_SIZE: Final = 524_288
SMALLEST_READ_SIZE: Final = 8_192
#: The same until a connection has sent its first request, which is short.
FIRST_READ_SIZE: Final = READ_SIZE // 2
#: Close to its limit a connection reads to the end of the current frame and this many bytes of the next.
HEAD_READ_SIZE: Final = 128
#: The kernel copies 80 KiB into a buffer that begins 16 bytes beyond a multiple of this, as what `malloc` maps does, in
#: 41 µs in place of 15 (AMD EPYC): a proxy of 16 KiB requests costs 60 % more then.
ALIGNMENT: Final = 64
MAX_VIEWS: Final = 1_024
#: Bytes that each direction may keep outside of the pool.
OWN_SIZE: Final = 1_024
#: Largest allocation that does not wait for longer ones.
SHORT: Final = 65_536


class ResponseTooLarge(ProtocolError):
    """A response that has to be collected before it can be sent is larger than a quarter of the pool."""

    reason = "response_too_large"

    def __init__(self, api_name: str, length: int, limit: int) -> None:
        super().__init__(
            f"{api_name} response of {length} bytes: {limit} is the most that is collected to rewrite broker addresses;"
            " ask for less at once, or raise --max-buffered-bytes",
            -1,
        )
        self.length = length
        self.limit = limit


def aligned(size: int) -> bytearray:
    """A buffer that begins at a multiple of `ALIGNMENT` in memory.

    CPython drops the first bytes of a bytearray by moving its beginning, not the rest. Elsewhere it is just a buffer.
    """
    data = bytearray(size + ALIGNMENT)
    beyond = ctypes.addressof(ctypes.c_char.from_buffer(data)) % ALIGNMENT
    del data[: ALIGNMENT - beyond]
    del data[size:]
    return data


class Holding:
    """What one direction of one connection keeps in memory, in bytes; `counted` of these count against the pool."""

    __slots__ = ("allocated", "counted", "kept", "pending", "waits")

    def __init__(self) -> None:
        self.kept = 0
        self.pending = 0
        self.allocated = 0
        self.counted = 0
        #: Bytes it is queued for; see `MemoryPool.allocate`.
        self.waits = 0

    @property
    def total(self) -> int:
        return self.kept + self.pending + self.allocated


class MemoryPool:
    """Shared by all connections of one event loop.

    ``read_size`` is what one read may take now, 0 when the pool is used up. ``is_tight``: reads must ask `allowance`.
    """

    def __init__(self, limit: int) -> None:
        self.data = aligned(READ_SIZE)
        self.view = memoryview(self.data)
        self.views: dict[int, memoryview] = {}
        self.limit = limit
        #: All bytes that are kept, with what is outside of the pool.
        self.buffered_bytes = 0
        #: Bytes that count against the limit.
        self.used = 0
        self.kept_bytes = 0
        self.read_size = READ_SIZE
        self.is_tight = False
        self._waiting: deque[Holding] = deque()
        self._waiting_short: deque[Holding] = deque()

    @property
    def keeps_much(self) -> bool:
        """Whether nearly half of the pool is used by bytes that were read and not forwarded."""
        return self.kept_bytes * 2 > self.limit - 2 * READ_SIZE

    @property
    def is_full(self) -> bool:
        """Whether less than a quarter of the pool is free."""
        return self.used > self.limit * 3 // 4

    @property
    def largest_response(self) -> int:
        """The longest response that may be collected, in bytes."""
        return self.limit // 4

    def first(self, size: int) -> memoryview:
        """The first bytes of the buffer, which are in `views` from now on: most reads have one of few sizes."""
        if len(self.views) >= MAX_VIEWS:
            self.views.clear()
        return self.views.setdefault(size, self.view[:size])

    def update(self, holding: Holding, kept: int, pending: int, allocated: int) -> None:
        """Record what the direction keeps from now on."""
        self.kept_bytes += kept - holding.kept
        total = kept + pending + allocated
        self.buffered_bytes += total - holding.kept - holding.pending - holding.allocated
        holding.kept, holding.pending, holding.allocated = kept, pending, allocated
        counted = total - OWN_SIZE if total > OWN_SIZE else 0
        self.used += counted - holding.counted
        holding.counted = counted
        self._adjust()

    def allowance(self, holding: Holding, want: int, remaining: int, head_size: int) -> int:
        """How many bytes a direction may read now; 0 or less: none.

        want, remaining, head_size   bytes it would read; the rest of its current frame; the header of the next one
        """
        if holding.allocated:  # its memory is allocated already
            return want
        half_left = self.limit // 2 - self.kept_bytes
        if want > half_left:
            want = max(min(want, remaining + head_size), half_left)
        if want > self.read_size:
            want = max(self.read_size, min(want, OWN_SIZE - holding.total))
        return want

    def allocate(self, holding: Holding, size: int) -> bool:
        """Allocate `size` bytes for a response that is to be collected. False: it has been queued for them."""
        waiting = self._queue_of(size)
        if holding.total + size <= OWN_SIZE or (not waiting and self._has_room(size)):
            self.update(holding, holding.kept, holding.pending, holding.allocated + size)
            return True
        holding.waits = size
        waiting.append(holding)
        return False

    def grow(self, holding: Holding, size: int) -> None:
        """A response that is collected takes `size` bytes, which may be more than it allocated."""
        if size > holding.allocated:
            self.update(holding, holding.kept, holding.pending, size)

    def grant(self) -> list[Holding]:
        """Allocate for the queued directions, in order, as far as memory is free; returns these."""
        granted = []
        for waiting in (self._waiting_short, self._waiting):
            while waiting and self._has_room(waiting[0].waits):
                holding = waiting.popleft()
                size, holding.waits = holding.waits, 0
                self.update(holding, holding.kept, holding.pending, holding.allocated + size)
                granted.append(holding)
        return granted

    def release(self, holding: Holding) -> None:
        """Give back what was allocated."""
        self.update(holding, holding.kept, holding.pending, 0)

    def _queue_of(self, size: int) -> deque[Holding]:
        return self._waiting_short if size <= SHORT else self._waiting

    def _has_room(self, size: int) -> bool:
        return self.used + size <= self.limit + (self.limit // 8 if size <= SHORT else 0)

    def forget(self, holding: Holding) -> None:
        """The direction is closed: give back all its memory."""
        if holding.waits:
            self._queue_of(holding.waits).remove(holding)
            holding.waits = 0
        self.update(holding, 0, 0, 0)

    def _adjust(self) -> None:
        free = self.limit - self.used
        if free >= self.limit // 2:
            self.read_size = READ_SIZE
        elif free <= 0:
            self.read_size = 0
        else:
            self.read_size = max(SMALLEST_READ_SIZE, READ_SIZE * free * 2 // self.limit)
        self.is_tight = self.read_size < READ_SIZE or self.keeps_much
