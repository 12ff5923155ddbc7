"""Releases held frames in their turn, with one timer for each limit with waiters; ends delays of responses."""

from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from proxy.enforcement.data_frame import DataFrame, FrameEvent, FrameOwner, Life
from proxy.enforcement.holds import Delay, Holds
from proxy.enforcement.identity import NS_PER_MS
from quotas.admission.limit import Limit

NS_PER_SECOND: Final = 1_000_000_000
#: Longest time for which held frames are released at once; then the loop serves others for at least a millisecond.
LONGEST_PASS_NS: Final = 5_000_000
#: Most frames that are decided again, and queues that are emptied, in that time.
MOST_AT_ONCE: Final = 100
#: Reads until the next decision of a connection: the rest of the released frame, the next header, what is decided on.
READS_TO_NEXT_FRAME: Final = 3


class Wakeups:
    """Shared by all sessions of one event loop."""

    def __init__(self, loop: AbstractEventLoop, holds: Holds, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._holds = holds
        self._clock = clock
        self._timers: dict[Limit, TimerHandle] = {}
        #: Of delays, and of frames with a longest wait.
        self._ends: dict[DataFrame | Delay, TimerHandle] = {}
        #: Frames that are decided again at once.
        self._asking_again: deque[DataFrame] = deque()
        #: Limits with queues that are to be decided again after those.
        self._changed_limits: dict[Limit, None] = {}
        self._next_pass: Handle | None = None

    def add(self, frame: DataFrame) -> None:
        """The frame is held from now on."""
        self._holds.add(frame)
        if frame.until_ns:
            self.delay(frame, partial(self._pass_late, frame))
        self.rearm()

    def forget(self, frame: DataFrame) -> None:
        """The frame will not pass."""
        self._forget_end(frame)
        self._holds.remove(frame)
        frame.owner = None  # a queue may refer to the frame for longer: see `FairQueue.discard`
        self.rearm()

    def rearm(self) -> None:
        """Set the timers of the limits with changed due times."""
        changed = self._holds.changed
        while changed:
            limit, _ = changed.popitem()
            timer = self._timers.pop(limit, None)
            if timer is not None:
                timer.cancel()
            if limit.waiters.waiting:
                self._timers[limit] = self._after(limit.debt_ns(self._clock()), self._pass, limit)

    def lapse(self, now_ns: int) -> None:
        """Release reservations for what has not arrived: see `Holds.lapse`."""
        self._holds.lapse(now_ns)
        self.rearm()

    def limits_changed(self) -> None:
        """Limits or the measures have changed: decide all held frames again, those of a limit in order."""
        self._ask_again(self._holds.limits)

    # ---- delays, and the longest waits of frames

    def delay(self, waiting: DataFrame | Delay, end: Callable[[], None]) -> None:
        """Call `end` when its `until_ns` has come: that of a delay, or of the longest wait of a frame."""
        self._ends[waiting] = self._after(waiting.until_ns - self._clock(), self._on_end, waiting, end)

    def forget_delay(self, delay: Delay) -> None:
        """It has ended: its response passes from now on."""
        delay.until_ns = 0
        self._forget_end(delay)

    def _forget_end(self, waiting: DataFrame | Delay) -> None:
        timer = self._ends.pop(waiting, None)
        if timer is not None:
            timer.cancel()

    def _on_end(self, waiting: DataFrame | Delay, end: Callable[[], None]) -> None:
        if waiting.until_ns > self._clock():
            self.delay(waiting, end)
        else:
            self._forget_end(waiting)
            end()

    def _pass_late(self, frame: DataFrame) -> None:
        """The longest wait is over: release the frame out of turn."""
        self._holds.remove(frame)
        self._release(frame)
        self.rearm()

    # ---- inside

    def _after(self, wait_ns: int, callback: Callable[..., None], *arguments: object) -> TimerHandle:
        # The loop's timers count in milliseconds. A late timer costs nothing: the bucket fills meanwhile.
        wait_ms = max(1, -(-wait_ns // NS_PER_MS))
        return self._loop.call_later(wait_ms / 1000, callback, *arguments)

    def _pass(self, limit: Limit) -> None:
        """The debt should be paid: release waiters, one frame each, until there is debt again or the time is over."""
        self._timers.pop(limit, None)
        now_ns = self._clock()
        ends_ns = now_ns + LONGEST_PASS_NS
        while self._serve_round(limit, now_ns):
            now_ns = self._clock()
            if now_ns >= ends_ns:
                self._dissolve(limit, now_ns)
                break
        self._holds.changed[limit] = None
        self.rearm()

    def _serve_round(self, limit: Limit, now_ns: int) -> bool:
        """Release the waiter whose turn it is. Returns whether there was one."""
        has_room = limit.has_room_for_all(now_ns)  # before its frame is charged
        frame = self._holds.next(limit, now_ns)
        if frame is None:
            return False
        owner = self._release(frame)
        if owner is not None and not has_room:
            # It reads its next frame now, so that it is back in the queue before the next waiter is released. The queue
            # is fair only among its members: a session of small frames that came back in the loop's next round would
            # pass one for each large frame of another.
            for _ in range(READS_TO_NEXT_FRAME):
                owner.read_on()
        # Where the limit has room for all, the connection reads on in its own turn, and no more comes back than what it
        # has read already. So the queue ends: otherwise clients that never stop sending would queue for each other
        # without end, a frame at a time, however little of the limit that uses. Until then the queue stays: a
        # connection can have read hundreds of frames before its limit was in debt, and would use all of the room.
        return True

    def _dissolve(self, limit: Limit, now_ns: int) -> None:
        """End a queue that is too long for one pass, if the limit has room for all. The waiters that were released
        would come back to its end before the next pass, so by passes alone it would never end.
        """
        if limit.waiters.waiting and not limit.debt_ns(now_ns) and limit.has_room_for_all(now_ns):
            self._ask_again((limit,))

    def _ask_again(self, limits: Iterable[Limit]) -> None:
        """Empty the queues of these limits, and decide their frames again."""
        self._changed_limits.update(dict.fromkeys(limits))
        if self._next_pass is None:
            self._ask_some_again()

    def _ask_some_again(self) -> None:
        """For the time of one pass, at most `MOST_AT_ONCE` frames and limits; the rest in the loop's next round."""
        # The next queue is emptied when all frames of the one before have been decided again.
        frames, limits = self._asking_again, self._changed_limits
        ends_ns = self._clock() + LONGEST_PASS_NS
        for _ in range(MOST_AT_ONCE):
            if frames:
                self._release(frames.popleft())
            elif limits:
                limit = next(iter(limits))
                del limits[limit]
                frames.extend(self._holds.take_all(limit))
            else:
                break
            if self._clock() >= ends_ns:
                break
        self._next_pass = self._loop.call_soon(self._ask_some_again) if frames or limits else None
        self.rearm()

    def _release(self, frame: DataFrame) -> FrameOwner | None:
        """Decide the frame again, if it is still held."""
        self._forget_end(frame)
        owner = frame.owner
        if owner is None or frame.state is not Life.HELD:
            return None
        frame.on(FrameEvent.RELEASE)
        owner.release(frame)
        return owner
