"""The queue of a limit: self-clocked fair queueing over bytes (Golestani 1994).

    finish = max(virtual time, finish of the session's frame before it in the queue) + bytes of the frame
    serve the smallest finish, the earliest arrival among equals; virtual time = finish of the frame served last

Why not deficit round robin: a session queues one frame at a time, so it leaves the queue between two frames. DRR drops
the deficit of a flow that leaves (Shreedhar and Varghese 1996), which makes it plain round robin over frames: a session
of 1 MB frames gets a thousand times the bytes of one with 1 KB frames. Keeping the deficits needs state for every
session that ever waited. Here a session that left has no state: its last finish is at most the virtual time.

Why not start-time fair queueing: its virtual time does not move while new sessions are served (each starts at the same
virtual time), so clients that reconnect for every frame would starve one that was served before. Here every frame
served moves the virtual time.

Guarantee: two sessions that always have a frame queued (the next one as soon as one is served) differ, over any
interval, by at most one largest frame of each. While a frame waits, every other session is served at most that frame's
bytes and one frame of its own, so no frame starves.

All operations are O(log n), amortised; the state is the waiting frames.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_COMPACT_FROM: Final = 64

T = TypeVar("T", bound=Hashable)


class _Flow(Generic[T]):
    """A waiting session: the sizes of its frames, oldest first; the finish of the oldest."""

    __slots__ = ("alive", "finish", "sizes", "waiter")

    def __init__(self, waiter: T) -> None:
        self.waiter = waiter
        self.sizes: deque[int] = deque()
        self.finish = 0
        self.alive = True


class FairQueue(Generic[T]):
    """Sessions waiting for one limit. A waiter is anything hashable; equal waiters are one session.

    waiting   queued frames; a plain attribute, since the hot path reads it
    queued    their bytes
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

    def push(self, waiter: T, size: int, *, is_first: bool = False) -> None:
        """Queue a frame of `size` bytes; frames of one session keep their order. ValueError for a negative size.

        `is_first`: it was removed and not served, so it precedes all that were queued since.
        """
        if size < 0:
            raise ValueError(f"size must not be negative, not {size}")
        flow = self._flows.get(waiter)
        if flow is None:
            flow = self._flows[waiter] = _Flow(waiter)
        flow.sizes.append(size)
        self.waiting += 1
        self.queued += size
        if len(flow.sizes) == 1:
            # At least one byte: empty frames would not move the virtual time, and could starve others.
            self._line_up(flow, 0 if is_first else size or 1)

    def pop(self) -> T:
        """Remove the next frame and return its waiter. IndexError if the queue is empty."""
        flow = self._first()
        heappop(self._heap)
        size = flow.sizes.popleft()
        self.waiting -= 1
        self.queued -= size
        self._virtual_time = flow.finish
        if flow.sizes:
            self._line_up(flow, flow.sizes[0] or 1)
        else:
            del self._flows[flow.waiter]
        return flow.waiter

    def take_all(self) -> list[T]:
        """Remove all frames, and return their waiters in the order of `pop`. O(n log n) with one sort where each waiter
        has one frame: several times faster than `pop` for each.
        """
        found: list[T] = []
        if self.waiting == len(self._flows):
            found = [flow.waiter for _, _, flow in sorted(self._heap) if flow.alive]
            self._virtual_time = max((flow.finish for flow in self._flows.values()), default=self._virtual_time)
            self._flows.clear()
            self._heap.clear()
            self.waiting = self.queued = 0
        while self.waiting:
            found.append(self.pop())
        return found

    def discard(self, waiter: T) -> None:
        """Remove all frames of this waiter, if it has any."""
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
        raise IndexError("the queue is empty")

    def _line_up(self, flow: _Flow[T], size: int) -> None:
        """Compute the finish of the oldest frame, when it arrives or when the one before it was served: the finish of
        that one is the virtual time then.
        """
        flow.finish = self._virtual_time + size
        self._arrivals += 1
        heappush(self._heap, (flow.finish, self._arrivals, flow))

    def _compact(self) -> None:
        """Remove the entries of discarded flows if they are the greater part; `_first` skips them otherwise."""
        heap = self._heap
        if len(heap) > _COMPACT_FROM and len(heap) > 2 * len(self._flows):
            heap[:] = [entry for entry in heap if entry[2].alive]
            heapify(heap)
