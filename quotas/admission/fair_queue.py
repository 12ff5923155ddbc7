"""Who goes next when several sessions wait for one limit: self-clocked fair queueing over bytes (Golestani 1994).

    finish = max(virtual time, finish of the session's frame before it in the queue) + bytes of the frame
    serve the smallest finish, the earliest arrival among equals; virtual time = finish of the frame served last

Why not the deficit round robin that comes to mind first: a session shows one frame at a time and leaves the queue
between two frames. DRR drops the deficit of a flow that leaves (Shreedhar and Varghese 1996: nobody may hoard credit);
with every flow leaving after every frame that is plain round robin over frames, and a session of 1 MB frames gets a
thousand times the bytes of one with 1 KB frames. Keeping the deficits instead means state for every session that ever
waited. Here the state of a session that left is nothing: its last finish is never beyond the virtual time.

Why not start-time fair queueing: its virtual time stands still while sessions that are new are served (each starts, and
so is served, at the same virtual time), so clients that reconnect for every frame would keep out one that was served
before, for ever. Here every frame served moves the virtual time.

What holds: two sessions that both always have a frame waiting (shown as soon as the one before is served) differ, over
any interval, by at most one largest frame of each. While a frame waits, every other session is served at most that
frame's bytes and one frame of its own, however many frames it sends, so nobody waits for ever.

Everything is O(log n), amortised; the state is what waits now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_COMPACT_FROM: Final = 64

T = TypeVar("T", bound=Hashable)


class _Flow(Generic[T]):
    """A session that waits: the sizes of its frames, oldest first, and the finish of the oldest."""

    __slots__ = ("alive", "finish", "sizes", "waiter")

    def __init__(self, waiter: T) -> None:
        self.waiter = waiter
        self.sizes: deque[int] = deque()
        self.finish = 0
        self.alive = True


class FairQueue(Generic[T]):
    """Sessions waiting for one limit. A waiter is anything hashable; equal waiters are one session.

    One item is one frame: `push(waiter, size)` once per frame. `waiting` counts frames, `queued` their bytes; both are
    plain attributes because the hot path looks at `waiting`.
    """

    __slots__ = ("_arrivals", "_flows", "_heap", "_virtual_time", "queued", "waiting")

    waiting: int
    queued: int

    def __init__(self) -> None:
        self.waiting = 0
        self.queued = 0
        self._virtual_time = 0
        self._arrivals = 0
        self._flows: dict[T, _Flow[T]] = {}
        self._heap: list[tuple[int, int, _Flow[T]]] = []

    def __len__(self) -> int:
        return self.waiting

    def __iter__(self) -> Iterator[T]:
        """Every session that waits, once, in no particular order."""
        return iter(self._flows)

    def push(self, waiter: T, size: int) -> None:
        """A frame of `size` bytes waits; frames of one session keep their order. ValueError for a size below zero."""
        if size < 0:
            raise ValueError(f"a frame has no size below zero: {size}")
        flow = self._flows.get(waiter)
        if flow is None:
            flow = self._flows[waiter] = _Flow(waiter)
        flow.sizes.append(size)
        self.waiting += 1
        self.queued += size
        if len(flow.sizes) == 1:
            self._line_up(flow)

    def pop(self) -> T:
        """Serve the frame whose turn it is; returns whose it was. IndexError when nobody waits."""
        flow = self._first()
        heappop(self._heap)
        size = flow.sizes.popleft()
        self.waiting -= 1
        self.queued -= size
        self._virtual_time = flow.finish
        if flow.sizes:
            self._line_up(flow)
        else:
            del self._flows[flow.waiter]
        return flow.waiter

    def discard(self, waiter: T) -> None:
        """Its frames leave the queue unserved: it died, or waits elsewhere now. Silent when it does not wait."""
        flow = self._flows.pop(waiter, None)
        if flow is None:
            return
        flow.alive = False
        self.waiting -= len(flow.sizes)
        self.queued -= sum(flow.sizes)
        self._compact()

    # ---- inside

    def _first(self) -> _Flow[T]:
        heap = self._heap
        while heap:
            flow = heap[0][2]
            if flow.alive:
                return flow
            heappop(heap)
        raise IndexError("nobody waits")

    def _line_up(self, flow: _Flow[T]) -> None:
        """When it arrives, and when its frame before has been served: the finish of that *is* the virtual time then."""
        # One byte at least: frames of no size would not move the virtual time, and could keep others out.
        flow.finish = self._virtual_time + (flow.sizes[0] or 1)
        self._arrivals += 1
        heappush(self._heap, (flow.finish, self._arrivals, flow))

    def _compact(self) -> None:
        """Entries of the dead are skipped when they surface; here they go when they are the greater part."""
        heap = self._heap
        if len(heap) > _COMPACT_FROM and len(heap) > 2 * len(self._flows):
            heap[:] = [entry for entry in heap if entry[2].alive]
            heapify(heap)
