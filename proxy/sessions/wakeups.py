"""Releases what limits hold, in turn, with one timer for each limit with waiters; ends delays of responses."""

from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import NS_PER_MS
from proxy.streams.held_request import HeldRequest, HoldOwner
from quotas.admission.limit import Limit

NS_PER_SECOND: Final = 1_000_000_000
#: Longest time for which held requests are released at once; then the loop serves others for at least a millisecond.
LONGEST_PASS_NS: Final = 5_000_000
#: Most requests that are decided again, and queues that are emptied, in that time.
MOST_AT_ONCE: Final = 100
#: Reads until the next decision of a connection: the rest of the released frame, the next header, what is decided on.
READS_TO_NEXT_FRAME: Final = 3


class Wakeups:
    """Shared by all sessions of one event loop."""

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._clock = clock
        #: Of each limit with waiters: a timer, and the time for which it is set, when the limit should be out of debt.
        self._timers: dict[Limit, TimerHandle] = {}
        self._due_ns: dict[Limit, int] = {}
        #: The connections of held requests.
        self._owners: dict[HeldRequest, HoldOwner] = {}
        self._delays: dict[Delay, TimerHandle] = {}
        #: Requests that are decided again at once.
        self._asking_again: deque[HeldRequest] = deque()
        #: Limits with queues that are to be decided again after those.
        self._changed_limits: dict[Limit, None] = {}
        self._next_pass: Handle | None = None

    def add(self, request: HeldRequest, owner: HoldOwner) -> None:
        """The request is held from now on: it is in the queue of its limit."""
        self._owners[request] = owner
        limit = request.limit
        if limit is not None and limit not in self._timers:
            self._arm(limit)

    def forget(self, request: HeldRequest) -> None:
        """The request will not pass: it leaves its queue."""
        limit = request.limit
        if self._owners.pop(request, None) is not None and limit is not None:
            limit.waiters.discard(request)
            if not limit.waiters.waiting:
                self._disarm(limit)

    def limits_changed(self) -> None:
        """Limits or the measures have changed: decide all held requests again, those of a limit in order."""
        self._ask_again(self._timers)

    def rate_changed(self, limit: Limit) -> None:
        """The rate of this limit has changed: its waiters are due at another time. A timer that is too early now is set
        anew when it fires, so that a rate that changes four times a second costs half as much.
        """
        if limit in self._timers:
            now_ns = self._clock()
            wait_ns = limit.debt_ns(now_ns)
            if now_ns + wait_ns < self._due_ns[limit]:
                self._set_timer(limit, wait_ns, now_ns)

    def limits_with_waiters(self) -> Iterable[Limit]:
        """Those for which something waits; not to be kept."""
        return self._timers

    # ---- delays

    def delay(self, delay: Delay, end: Callable[[], None]) -> None:
        """Call `end` when the delay is over."""
        self._delays[delay] = self._after(delay.until_ns - self._clock(), self._end_delay, delay, end)

    def forget_delay(self, delay: Delay) -> None:
        """It has ended: its response passes from now on."""
        delay.until_ns = 0
        timer = self._delays.pop(delay, None)
        if timer is not None:
            timer.cancel()

    def _end_delay(self, delay: Delay, end: Callable[[], None]) -> None:
        if delay.until_ns > self._clock():
            self.delay(delay, end)
        else:
            self.forget_delay(delay)
            end()

    # ---- inside

    def _arm(self, limit: Limit) -> None:
        now_ns = self._clock()
        self._set_timer(limit, limit.debt_ns(now_ns), now_ns)

    def _set_timer(self, limit: Limit, wait_ns: int, now_ns: int) -> None:
        self._disarm(limit)
        self._due_ns[limit] = now_ns + wait_ns
        self._timers[limit] = self._after(wait_ns, self._pass, limit)

    def _disarm(self, limit: Limit) -> None:
        timer = self._timers.pop(limit, None)
        if timer is not None:
            timer.cancel()
            del self._due_ns[limit]

    def _after(self, wait_ns: int, callback: Callable[..., None], *arguments: object) -> TimerHandle:
        # The loop's timers count in milliseconds. A late timer costs nothing: the bucket fills meanwhile.
        wait_ms = max(1, -(-wait_ns // NS_PER_MS))
        return self._loop.call_later(wait_ms / 1000, callback, *arguments)

    def _pass(self, limit: Limit) -> None:
        """The debt should be paid: release waiters, one frame each, until there is debt again or the time is over."""
        now_ns = self._clock()
        ends_ns = now_ns + LONGEST_PASS_NS
        while self._serve_round(limit, now_ns):
            now_ns = self._clock()
            if now_ns >= ends_ns:
                self._dissolve(limit, now_ns)
                break
        # Not before: requests that come back meanwhile need no timer of their own.
        if limit.waiters.waiting:
            self._arm(limit)
        else:
            self._disarm(limit)

    def _serve_round(self, limit: Limit, now_ns: int) -> bool:
        """Release the waiter whose turn it is. Returns whether there was one."""
        if not limit.waiters.waiting or limit.debt_ns(now_ns):
            return False
        has_room = limit.has_room_for_all(now_ns)  # before its frame is charged
        # It reads its next frame now, so that it is back in the queue before the next waiter is released. The queue is
        # fair only among its members: a session of small frames that came back in the loop's next round would pass one
        # for each large frame of another.
        #
        # Where the limit has room for all, the connection reads on in its own turn, and no more comes back than what it
        # has read already. So the queue ends: otherwise clients that never stop sending would queue for each other
        # without end, a frame at a time, however little of the limit that uses. Until then the queue stays: a
        # connection can have read hundreds of frames before its limit was in debt, and would use all of the room.
        self._release(limit.waiters.pop(), 0 if has_room else READS_TO_NEXT_FRAME)
        return True

    def _dissolve(self, limit: Limit, now_ns: int) -> None:
        """End a queue that is too long for one pass, if the limit has room for all. The waiters that were released
        would come back to its end before the next pass, so by passes alone it would never end.
        """
        if limit.waiters.waiting and not limit.debt_ns(now_ns) and limit.has_room_for_all(now_ns):
            self._ask_again((limit,))

    def _ask_again(self, limits: Iterable[Limit]) -> None:
        """Empty the queues of these limits, and decide their requests again."""
        self._changed_limits.update(dict.fromkeys(limits))
        if self._next_pass is None:
            self._ask_some_again()

    def _ask_some_again(self) -> None:
        """For the time of one pass, at most `MOST_AT_ONCE` requests and limits; the rest in the loop's next round."""
        # The next queue is emptied when all requests of the one before have been decided again.
        requests, limits = self._asking_again, self._changed_limits
        ends_ns = self._clock() + LONGEST_PASS_NS
        for _ in range(MOST_AT_ONCE):
            if requests:
                self._release(requests.popleft(), 0)
            elif limits:
                limit = next(iter(limits))
                del limits[limit]
                requests.extend(limit.waiters.take_all())
                self._disarm(limit)  # as of the time before the change
            else:
                break
            if self._clock() >= ends_ns:
                break
        self._next_pass = self._loop.call_soon(self._ask_some_again) if requests or limits else None

    def _release(self, request: HeldRequest, reads: int) -> None:
        """Decide the request again, if it is still held."""
        owner = self._owners.pop(request, None)
        if owner is not None and request.is_held:
            request.on_release(self._clock())
            owner.release(request, reads)
