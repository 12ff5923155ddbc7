"""The shared read buffer, and the account of bytes that connections keep in memory.

All sockets are read into the same 512 KiB. The bytes of a read are parsed and sent on before the next read begins, so
payload is copied only if the other side's socket does not take it, or if a connection keeps it for later. These copies
count against ``--max-buffered-bytes``. The following rules ensure that memory can always drain:

- Each direction of a connection has `OWN_SIZE` bytes outside of the pool, so that short requests and responses pass
  while the pool is used up.
- The bytes that were read and not forwarded (`kept`) use at most half of the pool, for all directions together. Above
  that, a direction reads only to the end of its current frame and the next header.
- A response that must be collected allocates its announced length before its first byte is collected. Allocations are
  granted in order, except those that fit into the direction's own `OWN_SIZE`, which need no memory of the pool. A
  response larger than a quarter of the pool is refused.
- Allocations of at most `SHORT` bytes have a queue of their own, and an additional eighth of the pool, so that large
  responses that are stuck do not delay Metadata.
"""

import ctypes
from collections import deque
from typing import Final

from protocol.errors import ProtocolError

#: The most that one read takes. The cost of 1 MiB frames stops falling here: with 64, 128, 256, 512 and 1024 KiB it is
#: 1.20, 0.75, 0.62, 0.55 and 0.59 times HAProxy's (`python -m bench --only against_haproxy --scenario "1 MiB"`).
READ_SIZE: Final = 524_288
SMALLEST_READ_SIZE: Final = 8_192
#: The most that one read takes until a connection has sent its first request, which is short.
FIRST_READ_SIZE: Final = READ_SIZE // 2
#: Close to its limit, a connection reads to the end of the current frame and this many bytes of the next.
HEAD_READ_SIZE: Final = 128
#: The buffer begins at a multiple of this. Memory that `malloc` maps begins 16 bytes later, and the kernel then takes
#: 41 µs instead of 15 to copy 80 KiB into it (AMD EPYC), so that 16 KiB requests cost 60 % more.
ALIGNMENT: Final = 64
MAX_VIEWS: Final = 1_024
#: How many bytes each direction may keep outside of the pool.
OWN_SIZE: Final = 1_024
#: The largest allocation that does not wait for larger ones.
SHORT: Final = 65_536


class ResponseTooLarge(ProtocolError):
    """A response that must be collected before it can be sent is larger than a quarter of the pool."""

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

    CPython drops the first bytes of a bytearray by moving its beginning instead of its contents. In other
    implementations, the buffer may not be aligned.
    """
    data = bytearray(size + ALIGNMENT)
    beyond = ctypes.addressof(ctypes.c_char.from_buffer(data)) % ALIGNMENT
    del data[: ALIGNMENT - beyond]
    del data[size:]
    return data


class Holding:
    """What one direction of one connection keeps in memory, in bytes. `counted` of them count against the pool."""

    __slots__ = ("allocated", "counted", "kept", "pending", "waits")

    def __init__(self) -> None:
        self.kept = 0
        self.pending = 0
        self.allocated = 0
        self.counted = 0
        #: How many bytes it is waiting for: see `MemoryPool.allocate`.
        self.waits = 0

    @property
    def total(self) -> int:
        return self.kept + self.pending + self.allocated


class _Views(dict[int, memoryview]):
    """Views of the first bytes of the buffer, by their number, because most reads have one of a few sizes."""

    def __init__(self, whole: memoryview) -> None:
        super().__init__()
        self._whole: Final = whole

    def __missing__(self, size: int) -> memoryview:
        if len(self) >= MAX_VIEWS:
            self.clear()
        view = self[size] = self._whole[:size]
        return view


class MemoryPool:
    """Shared by all connections of one event loop.

    ``read_size``: how much one read may take now, 0 if the pool is used up. ``is_tight``: reads must ask `allowance`.
    """

    def __init__(self, limit: int) -> None:
        self.data = aligned(READ_SIZE)
        self.view = memoryview(self.data)
        self.views = _Views(self.view)
        self.limit = limit
        #: All bytes that are kept, including those outside of the pool.
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

    def update(self, holding: Holding, kept: int, pending: int, allocated: int) -> None:
        """Record what the direction keeps now."""
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

        want        how many bytes it would read
        remaining   the rest of its current frame
        head_size   the header of the next frame
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
        """Allocate `size` bytes to collect a response. False: there is no room, and it has been queued."""
        waiting = self._queue_of(size)
        if holding.total + size <= OWN_SIZE or (not waiting and self._has_room(size)):
            self.update(holding, holding.kept, holding.pending, holding.allocated + size)
            return True
        holding.waits = size
        waiting.append(holding)
        return False

    def grow(self, holding: Holding, size: int) -> None:
        """Record that a collected response takes `size` bytes, which may be more than it allocated."""
        if size > holding.allocated:
            self.update(holding, holding.kept, holding.pending, size)

    def grant(self) -> list[Holding]:
        """Allocate for queued directions, in order, as long as there is free memory. Returns these directions."""
        granted = []
        for waiting in (self._waiting_short, self._waiting):
            while waiting and self._has_room(waiting[0].waits):
                holding = waiting.popleft()
                size, holding.waits = holding.waits, 0
                self.update(holding, holding.kept, holding.pending, holding.allocated + size)
                granted.append(holding)
        return granted

    def release(self, holding: Holding) -> None:
        """Return what was allocated."""
        self.update(holding, holding.kept, holding.pending, 0)

    def _queue_of(self, size: int) -> deque[Holding]:
        return self._waiting_short if size <= SHORT else self._waiting

    def _has_room(self, size: int) -> bool:
        return self.used + size <= self.limit + (self.limit // 8 if size <= SHORT else 0)

    def forget(self, holding: Holding) -> None:
        """Return all memory of a direction that is closed."""
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
