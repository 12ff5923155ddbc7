"""The queue of a limit: self-clocked fair queueing over bytes (Golestani 1994).

    finish = virtual time + bytes of the frame
    serve the smallest finish, the earliest arrival among equals; virtual time = finish of the frame served last

A session queues one frame at a time. Its frame before was served, so that one's finish is at most the virtual time: a
session has no state here.

Why not deficit round robin: a session leaves the queue between two frames. DRR drops the deficit of a flow that leaves
(Shreedhar and Varghese 1996), which makes it plain round robin over frames: a session of 1 MB frames gets a thousand
times the bytes of one with 1 KB frames. Keeping the deficits needs state for every session that ever waited.

Why not start-time fair queueing: its virtual time does not move while new sessions are served (each starts at the same
virtual time), so clients that reconnect for every frame would starve one that was served before. Here every frame
served moves the virtual time.

Guarantee: two sessions that always have a frame queued (the next one as soon as one is served) differ, over any
interval, by at most one largest frame of each. While a frame waits, every other session is served at most that frame's
bytes and one frame of its own, so no frame starves.

All operations are O(log n), amortised; the state is the waiting frames.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_COMPACT_FROM: Final = 64

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Frames waiting for one limit. A frame is anything hashable, and is queued once at a time.

    waiting   queued frames; a plain attribute, since the hot path reads it
    queued    their bytes
    """

    __slots__ = ("_arrivals", "_frames", "_heap", "_virtual_time", "queued", "waiting")

    waiting: int
    queued: int

    def __init__(self) -> None:
        self.waiting = 0
        self.queued = 0
        self._virtual_time = 0
        self._arrivals = 0
        #: The arrival and the size of each frame.
        self._frames: dict[T, tuple[int, int]] = {}
        #: Finish, arrival, frame; also of frames that were discarded.
        self._heap: list[tuple[int, int, T]] = []

    def push(self, frame: T, size: int, *, is_first: bool = False) -> None:
        """Queue a frame of `size` bytes. ValueError for a negative size, and for a frame that is queued.

        `is_first`: it was removed and not served, so it precedes all that were queued since.
        """
        if size < 0 or frame in self._frames:
            raise ValueError(f"size must not be negative, and a frame is queued once: {frame}, {size}")
        self._arrivals += 1
        self._frames[frame] = self._arrivals, size
        self.waiting += 1
        self.queued += size
        # At least one byte: empty frames would not move the virtual time, and could starve others.
        finish = self._virtual_time + (0 if is_first else size or 1)
        heappush(self._heap, (finish, self._arrivals, frame))

    def pop(self) -> T:
        """Remove the next frame and return it. IndexError if the queue is empty."""
        while self._heap:
            finish, arrival, frame = heappop(self._heap)
            if self._is_queued(frame, arrival):
                self._virtual_time = max(self._virtual_time, finish)
                self._remove(frame)
                return frame
        raise IndexError("the queue is empty")

    def size_of(self, frame: T) -> int:
        """The bytes of this frame; 0 if it is not queued."""
        return self._frames.get(frame, (0, 0))[1]

    def take_all(self) -> list[T]:
        """Remove all frames, and return them in the order of `pop`: with one sort, several times faster."""
        found = [entry for entry in sorted(self._heap) if self._is_queued(entry[2], entry[1])]
        if found:
            self._virtual_time = max(self._virtual_time, found[-1][0])
        self._frames.clear()
        self._heap.clear()
        self.waiting = self.queued = 0
        return [frame for _, _, frame in found]

    def discard(self, frame: T) -> None:
        """Remove this frame, if it is queued."""
        if frame in self._frames:
            self._remove(frame)
            heap = self._heap
            if len(heap) > _COMPACT_FROM and len(heap) > 2 * self.waiting:
                heap[:] = [entry for entry in heap if self._is_queued(entry[2], entry[1])]
                heapify(heap)

    # ---- inside

    def _is_queued(self, frame: T, arrival: int) -> bool:
        """Whether an entry of the heap counts: not of a frame that was discarded."""
        found = self._frames.get(frame)
        return found is not None and found[0] == arrival

    def _remove(self, frame: T) -> None:
        self.waiting -= 1
        self.queued -= self._frames.pop(frame)[1]
        if not self.waiting:
            self._heap.clear()  # of frames that were discarded: nothing is kept of a connection that is gone
